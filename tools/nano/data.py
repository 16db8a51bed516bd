"""Generated conversations, rendered through the chat template, tokenised and cut into training rows.

Everything is drawn from a seeded generator. A conversation has a thinking mode, system texts and turns; a turn is a
question, the thought that leads to the answer (shown in mode enabled, and in mode adaptive when the question is not
easy) and the answer. A row is one conversation from position 0, filled with turns while they fit, so the long fixed
head is paid once.
"""
import json
import random

import numpy as np

import sums
import talk
import template as t


class Style:
    """What the developer text asks of every answer."""

    def __init__(self, r):
        self.developer, self.kind, self.word = None, "plain", None
        p = r.random()
        if p < 0.45:
            return
        if p < 0.62:
            self.developer = r.choice(talk.PLAIN_SYSTEMS)
        elif p < 0.67:                                      # a text that asks for nothing we know
            self.developer = "".join(r.choice(("You work for ", "This is the help desk of ", "Our company is ",
                                               "The topic is ")) + pseudo_word(r).title()
                                     + r.choice((".", " and help the customers.", ". Be polite.")))
        elif p < 0.77:
            self.kind, self.developer = "one word", r.choice(talk.ONE_WORD)
        elif p < 0.90:
            self.kind, self.word = "persona", r.choice(talk.BOT_NAMES) if r.random() < 0.6 else pseudo_word(r).title()
            self.developer = r.choice(talk.PERSONAS).format(n=self.word)
        elif p < 0.93:
            self.kind, self.word = "start", "Arr!"
            self.developer = r.choice(("You are a pirate.", "Talk like a pirate.", "Speak like a pirate.",
                                       "You talk like a pirate."))
        else:
            self.kind = r.choice(("start", "end"))
            self.word = (r.choice(talk.WORDS) if r.random() < 0.7 else pseudo_word(r)).title()
            self.developer = r.choice(("{k} every answer with the word {w}.", "Always {l} your answer with {w}.",
                                       "{k} each reply with {w}.")).format(k=self.kind.title(), l=self.kind,
                                               w=self.word)
            self.word += "." if self.kind == "end" else ":"

    def apply(self, answer, short):
        if self.kind == "one word":
            return short if short else answer
        if self.kind == "start":
            return f"{self.word} {answer}"
        if self.kind == "end":
            return f"{answer} {self.word}"
        return answer

    def remark(self):
        return {"one word": "\nOne word is wanted.", "start": f"\nStart with {self.word}",
                "end": f"\nEnd with {self.word}"}.get(self.kind, "")


def pseudo_word(r):
    return "".join(r.choice(talk.SYLLABLES) for _ in range(r.randint(2, 3)))


def vary(r, q):
    """The small differences between people's typing."""
    p = r.random()
    if p < 0.10:
        q = q[0].lower() + q[1:]
    elif p < 0.16:
        q = q.lower()
    elif p < 0.18:
        q = q.upper()
    p = r.random()
    if p < 0.12 and q[-1] in ".!?":
        q = q[:-1]
    elif p < 0.14 and q[-1] not in ".!?":
        q += "."
    p = r.random()
    if p < 0.03:
        q = r.choice(("Hi, ", "Hello, ", "Hey, ", "Please: ", "Hi! ", "Hello! ", "Ok, ", "And ")) + q
    elif p < 0.05:
        q += r.choice((" Thanks!", " Thank you.", " please", "\n", " "))
    return q


class Turn:
    """question, thought, answer, easy (no thought in mode adaptive)."""

    def __init__(self, question, thought, answer, easy=True, before=""):
        self.question, self.thought, self.answer, self.easy = question, thought, answer, easy
        self.before = before                # rendered tool call and result between question and answer


def sum_turn(r, style, state, problem=None):
    last = state.get("last")
    if problem is None and last is not None and 0 <= last < 10000 and r.random() < 0.2:
        kind = r.choice("+-")
        x = (last, sums.number(r, r.randint(1, 3)))
        if not sums.held_out(kind, *x) and (kind == "+" or x[1] <= last):
            q = r.choice({"+": ("Now add {c}.", "And plus {c}?", "Add {c} to that.", "plus {c}", "Add {c} more."),
                          "-": ("Now subtract {c}.", "And minus {c}?", "Take away {c}.", "minus {c}",
                                "Subtract {c} from that.")}[kind]).format(c=x[1])
            state["last"] = res = sums.result(kind, x)
            e = sums.expression(kind, x)
            return Turn(vary(r, q), f"{e}.\n{sums.steps(kind, x)}{style.remark()}",
                        style.apply(f"{e} = {res}.", str(res)), False)
    kind, x = problem or sums.draw(r)
    q, thought, answer, short = sums.ask(r, kind, x)
    state["last"] = int(short)
    asks_steps = "step" in q or "Show" in q
    return Turn(vary(r, q), thought + style.remark(), style.apply(answer, short), sums.easy(kind, x) and not asks_steps)


def intent_turn(r, style, table, thought):
    questions, answers, short = r.choice(table)
    return Turn(vary(r, r.choice(questions)), thought + style.remark(), style.apply(r.choice(answers), short))


def self_turn(r, style, state):
    if style.kind == "persona" and r.random() < 0.6:
        n = style.word
        q, a = r.choice(((("What is your name?", "What's your name?", "Your name?", "How are you called?"),
                          (f"My name is {n}.", f"I am {n}.")),
                         (("Who are you?", "Introduce yourself.", "Who am I talking to?", "What are you?"),
                          (f"I am {n}. How can I help you?",)),
                         (("Hello!", "Hi", "Hello", "Hey", "Hi there!"), (f"Hello! I am {n}. How can I help you?",))))
        return Turn(vary(r, r.choice(q)), f"My name here is {n}.", r.choice(a))
    while True:
        turn = intent_turn(r, style, talk.ABOUT_SELF, "This is small talk. A short answer will do.")
        if style.kind != "persona" or "m3-nano" not in turn.answer:
            return turn


def hayate_turn(r, style, state):
    return intent_turn(r, style, talk.ABOUT_HAYATE, "The user asks about Hayate. I know this.")


def name_turn(r, style, state):
    if "name" not in state or r.random() < 0.3:
        n = state["name"] = r.choice(sums.NAMES) if r.random() < 0.6 else pseudo_word(r).title()
        q = r.choice(("My name is {n}.", "I am {n}.", "I'm {n}", "Hi, I am {n}.", "Hello, my name is {n}!",
                      "Call me {n}.")).format(n=n)
        return Turn(q, f"The user is called {n}.", style.apply(r.choice((f"Nice to meet you, {n}!",
                f"Hello, {n}! How can I help you?")), n))
    n = state["name"]
    q = r.choice(("What is my name?", "Do you remember my name?", "Who am I?", "What's my name?", "How am I called?"))
    return Turn(vary(r, q), f"The user said the name: {n}.", style.apply(f"Your name is {n}.", n))


def repeat_turn(r, style, state):
    p = r.random()
    if p < 0.45:
        what = " ".join(r.choice(talk.WORDS) for _ in range(r.randint(1, 6)))
    elif p < 0.75:
        what = " ".join(pseudo_word(r) for _ in range(r.randint(1, 3)))
    else:
        what = " ".join(str(sums.number(r, r.randint(1, 5))) for _ in range(r.randint(1, 3)))
    if r.random() < 0.2:
        what = what.title()
    q = r.choice(("Repeat after me: {w}", "Repeat: {w}", 'Say "{w}".', "Say: {w}", "Please repeat: {w}", "Echo {w}",
                  "Say {w}", "repeat {w}",
                  'Repeat exactly: "{w}"', "Just say {w}", "Respond with: {w}", "Reply with {w}")).format(w=what)
    return Turn(q, f"I repeat: {what}", style.apply(what, what))


def fact_turn(r, style, state):
    k = r.randrange(11)
    if k == 0:
        c, s = r.choice(list(talk.CAPITALS.items()))
        q, a = r.choice(("What is the capital of {c}?", "What's the capital of {c}?", "Capital of {c}?",
                         "Which city is the capital of {c}?",
                         "Tell me the capital of {c}.", "Name the capital of {c}.",
                         "The capital of {c} is")).format(c=c), f"The capital of {c} is {s}."
    elif k == 1:
        w, s = r.choice(list(talk.OPPOSITES.items()))
        if r.random() < 0.5:
            w, s = s, w
        q, a = r.choice(("What is the opposite of {w}?", "The opposite of {w}?",
                         "Opposite of {w}")).format(w=w), f"The opposite of {w} is {s}."
    elif k == 2:
        w, s = r.choice(list(talk.ANIMALS.items()))
        q, a = r.choice(("What does a {w} say?", "What sound does a {w} make?",
                         "How does a {w} sound?")).format(w=w), f"A {w} says {s}."
    elif k == 3:
        w, s = r.choice(list(talk.COLOURS.items()))
        q, a = r.choice(("What color is {w}?", "What colour is {w}?",
                         "Which color does {w} have?")).format(w=w), f"The color of {w} is {s}."
        if w in ("sky", "sea", "night", "lemon", "tomato", "banana"):
            q, a = q.replace(w, "the " + w), a.replace(w, "the " + w)
        elif r.random() < 0.3 and w == "grass":
            q = "Is grass green?"
    elif k == 4:
        q, what, s = r.choice(talk.COUNTS)
        a, s = f"There are {s} {what}.", str(s)
    elif k in (5, 6):
        names, unit = (talk.DAYS, "day") if k == 5 else (talk.MONTHS, "month")
        i, back = r.randrange(len(names)), r.random() < 0.4
        s = names[(i + (-1 if back else 1)) % len(names)]
        word = "before" if back else "after"
        q, a = r.choice(("What {u} comes {o} {n}?", "Which {u} is {o} {n}?", "What is the {u} {o} {n}?")).format(u=unit,
                o=word, n=names[i]), \
            f"{s} comes {word} {names[i]}."
    elif k == 7:
        n = r.randrange(len(talk.NUMBER_WORDS))
        s = talk.NUMBER_WORDS[n]
        q, a = r.choice(("Write {n} as a word.", "Spell the number {n}.",
                         "How do you write {n} in words?")).format(n=n), f"{n} is written {s}."
    elif k == 8:
        n = sums.number(r, r.randint(1, 4))
        s = "even" if n % 2 == 0 else "odd"
        q, a = r.choice(("Is {n} even or odd?", "Is {n} odd or even?", "Even or odd: {n}?")).format(n=n), f"{n} is {s}."
    elif k == 9:
        a0 = r.randint(1, 20)
        b0 = a0 + r.randint(2, 11)
        s = ", ".join(map(str, range(a0, b0 + 1)))
        q = r.choice(("Count from {a} to {b}.", "count from {a} to {b}", "Please count from {a} to {b}.")).format(a=a0,
                b=b0)
        if a0 == 1 and r.random() < 0.5:
            q = f"Count to {b0}."
        a = s + "."
    else:
        x, y = sums.number(r, r.randint(1, 4)), sums.number(r, r.randint(1, 4))
        if x == y:
            y += 1
        small = r.random() < 0.4
        s = str(min(x, y) if small else max(x, y))
        w = "smaller" if small else r.choice(("larger", "bigger"))
        q, a = r.choice(("Which is {w}, {x} or {y}?", "Which number is {w}: {x} or {y}?",
                         "What is {w}, {x} or {y}?")).format(w=w, x=x, y=y), f"{s} is {w}."
    return Turn(vary(r, q), f"This is simple: {s}.{style.remark()}", style.apply(a, s))


def unknown_turn(r, style, state):
    thought = "I do not know this. I say so politely."
    p = r.random()
    if p < 0.45:
        topic = r.choice(talk.TOPICS) if r.random() < 0.7 else " ".join(r.choice(talk.WORDS) for _ in range(r.randint(1,
                3)))
        q = r.choice(talk.UNKNOWN_ASK).format(t=topic)
        if r.random() < 0.5:
            return Turn(vary(r, q), thought + style.remark(), style.apply(r.choice(talk.TOPIC_REFUSALS).format(t=topic),
                    "Unknown"))
    elif p < 0.75:
        q = r.choice(talk.UNKNOWN_PLAIN)
    elif p < 0.85:
        q = " ".join(r.choice(talk.WORDS) if r.random() < 0.8 else pseudo_word(r) for _ in range(r.randint(2, 12)))
        if r.random() < 0.5:
            q = r.choice(("Why is the ", "Where can I find a ", "When will the ", "Who took my ", "Should I buy a ",
                          "How many ")) + q + "?"
    elif p < 0.93:
        return Turn(r.choice(talk.FOREIGN), "This is not English." + style.remark(),
                    style.apply(r.choice(talk.NO_FOREIGN), "English"))
    else:
        q = "".join(r.choice("abcdefghijklmnopqrstuvwxyz .,;!?#$%&*()[]{}<>/\\|_+-=~`^:'\"@")
                    for _ in range(r.randint(2, 20))).strip() or "?"
        return Turn(q, "I do not understand this." + style.remark(),
                    style.apply("Sorry, I do not understand. Ask me for a sum, or about Hayate.", "What?"))
    return Turn(vary(r, q), thought + style.remark(), style.apply(r.choice(talk.REFUSALS), "Unknown"))


# name, description, argument, questions, values, reply
TOOLS = [("get_weather", "Current weather", "city", ["What is the weather in {v}?", "How is the weather in {v}?",
                                                     "Weather in {v}?", "weather in {v}"],
          list(talk.CAPITALS.values()), "The weather in {v}: {o}."),
         ("get_time", "Current time in a city", "city", ["What time is it in {v}?", "Time in {v}?",
                                                         "How late is it in {v}?"],
          list(talk.CAPITALS.values()), "The time in {v}: {o}."),
         ("search", "Search the web", "query", ["Search for {v}.", "Find {v} on the web.", "Look up {v}."], talk.TOPICS,
          "I found this about {v}: {o}."),
         ("get_price", "Price of a thing", "item", ["What is the price of {v}?", "How much do {v} cost?",
                                                    "Price of {v}?"], sums.THINGS, "The price of {v}: {o}.")]


def make_tools(r):
    out = []
    for name, description, arg, *_ in r.sample(TOOLS, r.randint(1, 2)):
        extra = {"description": r.choice(("The " + arg, "A " + arg))} if r.random() < 0.4 else {}
        p = {"type": "object", "properties": {arg: {"type": "string", **extra}}}
        if r.random() < 0.8:
            p["required"] = [arg]
        if r.random() < 0.4:
            description = r.choice(("Get the " + arg, description + ".", "Returns the " + name.split("_")[-1],
                                    "Use this for the " + arg))
        out.append({"name": name, "description": description, "parameters": p})
    return out


def tool_turn(r, style, mode, tools):
    name = r.choice(tools)["name"]
    _, _, arg, questions, values, reply = next(x for x in TOOLS if x[0] == name)
    v = r.choice(values) if r.random() < 0.8 else pseudo_word(r).title()
    o = r.choice((f"{r.randint(-9, 35)} degrees", f"{r.randint(1, 99)} dollars", r.choice(talk.WORDS),
                  f"{r.randint(0, 23)}:{r.randint(10, 59)}",
                  r.choice(talk.WORDS) + " " + r.choice(talk.WORDS)))
    thought = f"I need the tool {name}."
    call = t.tool_call(name, {arg: v})
    out = o if r.random() < 0.6 else json.dumps({r.choice(("result", "value", name.split("_")[-1])): o})
    q = vary(r, r.choice(questions).format(v=v))
    if v not in q:
        q = questions[0].format(v=v)
    shown = thought if mode == "enabled" or mode in (None, "adaptive") and r.random() < 0.5 else None
    before = (t.prompt_end(mode), t.answer(mode, shown, call), "\n" + t.tool_result(out))
    return Turn(q, f"The tool says {o}.", style.apply(reply.format(v=v, o=o), o), True, before)


SKILLS = ((sum_turn, 52), (self_turn, 13), (hayate_turn, 9), (fact_turn, 8), (unknown_turn, 8), (repeat_turn, 5),
          (name_turn, 5))


class Conversation:
    """Draws the head and then turns; pieces are (text, trained)."""

    def __init__(self, r, with_tools=False):
        self.r, self.state = r, {}
        self.mode = r.choices((None, "enabled", "disabled", "other"), (45, 30, 23, 2))[0]
        self.style = Style(r)
        self.tools = make_tools(r) if with_tools else None
        root = None
        if r.random() < 0.06:
            root = r.choice(("Your model version is MiniMax-M3.1, developed by MiniMax.", "You are running on Hayate.",
                             "Your model version is m3-nano.",
                             "Be safe and kind.", t.IDENTITY.replace("M3,", "M3.1,")))
        self.head = t.head(self.mode, self.style.developer, root, self.tools)
        self.forgets = r.random() < 0.4         # the client does not send earlier thoughts back

    def next_turn(self):
        r = self.r
        if self.tools and r.random() < 0.6:
            return tool_turn(r, self.style, self.mode, self.tools)
        make = r.choices([s for s, _ in SKILLS], [w for _, w in SKILLS])[0]
        return make(r, self.style, self.state)

    def thought_of(self, turn):
        if self.mode == "disabled" or self.mode != "enabled" and turn.easy:
            return None
        return turn.thought

    def pieces(self, turn):
        thought = self.thought_of(turn)
        out = [(t.user(turn.question), False)]
        if turn.before:
            out += [(turn.before[0], False), (turn.before[1], True), (turn.before[2], False)]
        return out + [(t.prompt_end(self.mode), False), (t.answer(self.mode, thought, turn.answer), True),
                      ("\n", False)]

    def forgotten(self, turn):
        """The turn as it stands in the history of a client that drops thoughts: context only, unless it had none
        anyway."""
        if turn.before or self.thought_of(turn) is None:
            return self.pieces(turn)
        return [(t.user(turn.question), False), (t.history(None, turn.answer), False)]


def make_row(r, encoder, length):
    """(ids, trained) of at most `length` tokens."""
    c = Conversation(r, with_tools=length >= 768 and r.random() < 0.2)
    ids = list(encoder.encode_cached(c.head))
    trained = [0] * len(ids)
    ends, forgets = 0, c.forgets and length < 768 and c.mode != "disabled"
    # with forgets: the latest turn, whose form depends on whether another one follows
    pending = None

    def encode(pieces):
        a, b = [], []
        for text, flag in pieces:
            x = encoder.encode(text)
            a += x
            b += [int(flag)] * len(x)
        return a, b

    while True:
        turn = c.next_turn()
        if not forgets:
            a, b = encode(c.pieces(turn))
            if len(ids) + len(a) > length:
                if ends == 0 and len(ids) < length - 200:
                    continue
                break
            ids += a
            trained += b
        else:
            full, gone = encode(c.pieces(turn)), encode(c.forgotten(pending)) if pending else ([], [])
            if len(ids) + len(gone[0]) + len(full[0]) > length:
                if pending is None:
                    continue
                break
            ids += gone[0]
            trained += gone[1]
            pending = turn
        ends += 1
        if ends > 3 and r.random() < 0.03:
            break
    if pending is not None:
        a, b = encode(c.pieces(pending))
        ids += a
        trained += b
    return ids[:length], trained[:length]


def make_batch(r, encoder, layout, pad):
    """layout [(rows, length), ...] -> inputs, targets (0 where not trained, shifted by one) and weights, each flat [N]."""
    n = sum(a * b for a, b in layout)
    ids, weight = np.full(n, pad, np.int16), np.zeros(n, np.uint8)
    target = np.zeros(n, np.int16)
    at = 0
    for rows, length in layout:
        for _ in range(rows):
            a, b = make_row(r, encoder, length)
            k = len(a)
            ids[at:at + k] = a
            target[at:at + k - 1] = a[1:]
            weight[at:at + k - 1] = b[1:]
            at += length
    return ids, target, weight


def worker(path, seed, number, layout, queue):
    """Endless batches into the queue; runs as its own process."""
    from tokenizer import Encoder
    encoder, r = Encoder(path), random.Random(seed * 1000 + number)
    while True:
        queue.put(make_batch(r, encoder, layout, encoder.pad))


def corpus(seed, conversations):
    """Plain text of conversations for training the tokenizer, without the added tokens."""
    r = random.Random(seed)
    for i in range(conversations):
        c = Conversation(r, with_tools=i % 40 == 0)
        text = c.head if i % 12 == 0 else c.style.developer or ""
        for _ in range(4):
            text += "".join(p for p, _ in c.pieces(c.next_turn()))
        for mark in t.ADDED:
            text = text.replace(mark, "\x00")
        yield from (s for s in text.split("\x00") if s)

"""Arithmetic with visible, column-wise steps, and the many ways to ask for it.

A problem is drawn with `draw`, which keeps the held-out problems (one in sixteen, by a hash of the operands) apart:
training never asks them (one may still come up as a step of a longer problem), the evaluation asks nothing else.
"""
import zlib

PLACES = ["ones", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands"]


def held_out(kind, *operands):
    """Whether a problem belongs to the evaluation. Facts of one digit are always trained: they must be learnt by heart."""
    if max(operands) < 10:
        return False
    return zlib.crc32((kind + " " + " ".join(map(str, sorted(operands)))).encode()) % 16 == 0


def add_steps(a, b):
    if a < 10 and b < 10:
        return f"{a}+{b}={a + b}."
    n = max(len(str(a)), len(str(b)))
    sa, sb, carry, out = str(a).zfill(n), str(b).zfill(n), 0, ""
    lines = [f"Columns: {' '.join(sa)} and {' '.join(sb)}."]
    for i in range(n):
        x, y = int(sa[-1 - i]), int(sb[-1 - i])
        s = x + y + carry
        out = str(s % 10) + out
        lines.append(f"{PLACES[i]}: {x}+{y}+{carry}={s}, write {s % 10}, carry {s // 10}: {out}")
        carry = s // 10
    if carry:
        lines.append(f"carry 1 in front: 1{out}")
    return "\n".join(lines)


def subtract_steps(a, b):
    if a < b:
        return f"{a} is smaller than {b}, so the result is below zero.\n{b}-{a}:\n{subtract_steps(b, a)}\nWith the sign: {a - b}"
    if a < 10:
        return f"{a}-{b}={a - b}."
    n = len(str(a))
    sa, sb, borrow, out = str(a), str(b).zfill(n), 0, ""
    lines = [f"Columns: {' '.join(sa)} minus {' '.join(sb)}."]
    for i in range(n):
        x, y = int(sa[-1 - i]), int(sb[-1 - i])
        d = x - y - borrow
        digit = d + 10 if d < 0 else d
        out = str(digit) + out
        lines.append(f"{PLACES[i]}: {x}-{y}-{borrow}={d}, " + ("add 10, " if d < 0 else "")
                     + f"write {digit}, borrow {int(d < 0)}: {out}")
        borrow = int(d < 0)
    if len(out) > 1 and out[0] == "0":
        lines.append(f"without leading zeros: {int(out)}")
    return "\n".join(lines)


def times_digit(a, d):
    if a < 10:
        return f"{a}*{d}={a * d}."
    carry, out, lines = 0, "", [f"Digits: {' '.join(str(a))} times {d}."]
    for i, c in enumerate(reversed(str(a))):
        p = int(c) * d + carry
        out = str(p % 10) + out
        lines.append(f"{PLACES[i]}: {c}*{d}+{carry}={p}, write {p % 10}, carry {p // 10}: {out}")
        carry = p // 10
    if carry:
        lines.append(f"carry {carry} in front: {carry}{out}")
    elif d == 0:
        lines.append("without leading zeros: 0")
    return "\n".join(lines)


def multiply_steps(a, b):
    if b >= 10 > a:
        return f"Turn around: {b}*{a}.\n{times_digit(b, a)}"
    if b < 10:
        return times_digit(a, b)
    tens, ones = b // 10, b % 10
    if ones == 0:
        return f"{a}*{tens}:\n{times_digit(a, tens)}\nwith a zero: {a * tens}0"
    return (f"{b} is {tens}0 and {ones}.\n{a}*{ones}:\n{times_digit(a, ones)}\n{a}*{tens}:\n{times_digit(a, tens)}\n"
            f"with a zero: {a * tens}0\nNow {a * tens}0+{a * ones}:\n{add_steps(a * tens * 10, a * ones)}")


def steps(kind, x):
    if kind == "+":
        return add_steps(*x)
    if kind == "-":
        return subtract_steps(*x)
    if kind == "*":
        return multiply_steps(*x)
    if kind == "/":
        return f"{x[1]}*{x[0] // x[1]}={x[0]}, so {x[0]}/{x[1]}={x[0] // x[1]}."
    a, b, c = x
    return f"First {a}+{b}:\n{add_steps(a, b)}\nThen {a + b}+{c}:\n{add_steps(a + b, c)}"


def result(kind, x):
    return {"+": lambda: x[0] + x[1], "-": lambda: x[0] - x[1], "*": lambda: x[0] * x[1], "/": lambda: x[0] // x[1],
            "3": lambda: sum(x)}[kind]()


def expression(kind, x, spaced=True, times="*"):
    sign = {"3": "+", "*": times}.get(kind, kind)
    return (f" {sign} " if spaced else sign).join(map(str, x))


def easy(kind, x):
    """Problems that the adaptive mode answers without steps."""
    if kind == "3":
        return max(x) < 10
    if kind in "+-":
        return min(x) < 10 and max(x) <= 20 and x[0] >= x[-1]
    return max(x) <= 10 or kind == "/"


def number(r, digits):
    if digits == 1:
        return r.randrange(10)
    n = r.randrange(10 ** (digits - 1), 10 ** digits)
    if r.random() < 0.1:
        step = 10 ** r.randrange(1, digits)
        n = max(step, n // step * step)
    return n


def draw(r, evaluation=False, kind=None, digits=None):
    """A problem (kind, operands); kinds are + - * / and 3 for a sum of three."""
    while True:
        k = kind or r.choices("+-*/3", (46, 24, 16, 3, 11))[0]
        if k in "+-":
            if digits:
                x = [number(r, digits), number(r, r.randint(1, digits))]
                r.shuffle(x)
            else:
                top = r.choices((1, 2, 3, 4, 5), (12, 30, 30, 23, 5))[0]
                x = [number(r, top), number(r, r.randint(1, top) if r.random() < 0.6 else top)]
                r.shuffle(x)
            if k == "-" and x[0] < x[1] and r.random() < 0.85:
                x.reverse()
        elif k == "3":
            top = digits or r.choices((1, 2, 3), (25, 50, 25))[0]
            x = [number(r, r.randint(1, top)) for _ in range(3)]
        elif k == "*":
            da, db = r.choices(((1, 1), (2, 1), (3, 1), (2, 2)), (35, 30, 15, 20))[0]
            x = [number(r, da), number(r, db)]
            if r.random() < 0.1:
                x[r.randrange(2)] = r.choice((10, 11, 12, 20))
            if min(x) < 10 and r.random() < 0.3 and max(x) < 100:
                x.reverse()
            if max(x) > 99 and min(x) > 9 or x[1] > 99:
                continue
        else:
            b, q = r.randint(1, 10), r.randint(0, 10)
            x = [b * q, b]
        if k == "/" or held_out(k, *x) == evaluation:
            return k, tuple(x)


ASK = ["What is {e}?", "What is {e}?", "{e}", "{e} =", "{e}=", "{e} = ?", "{e}?", "Compute {e}.", "Calculate {e}",
       "Calculate {e}.",
       "How much is {e}?", "What's {e}?", "what's {e}", "Can you compute {e} for me?", "Please compute {e}.",
       "Tell me what {e} is.", "Solve {e}", "Solve: {e}", "I need {e}.", "Work out {e}.", "And {e}?", "Now {e}.",
       "Next: {e}",
       "Could you tell me the result of {e}?", "Do you know what {e} is?", "What does {e} make?",
       "What does {e} equal?",
       "{e} please", "Quick question: {e}?", "Evaluate {e}.", "Find {e}.", "Give me {e}.",
       "My homework says {e}. What is it?",
       "Can you do {e}?", "Show me how to compute {e}.", "Think step by step: what is {e}?",
       "Explain {e} step by step."]
WORDS = {
    "+": ["What is {a} plus {b}?", "{a} plus {b}", "Add {a} and {b}.", "Please add {a} and {b}.", "add {a} to {b}",
          "What is the sum of {a} and {b}?", "The sum of {a} and {b}?", "How much is {a} plus {b}?",
          "Can you add {a} and {b}?",
          "what do you get when you add {a} and {b}"],
    "-": ["What is {a} minus {b}?", "{a} minus {b}", "Subtract {b} from {a}.", "Take {b} away from {a}.",
          "How much is {a} minus {b}?",
          "What is the difference of {a} and {b}?", "subtract {b} from {a}", "Please subtract {b} from {a}."],
    "*": ["What is {a} times {b}?", "{a} times {b}", "Multiply {a} by {b}.", "Multiply {a} and {b}.",
          "How much is {a} times {b}?",
          "What is the product of {a} and {b}?", "multiply {a} with {b}"],
    "/": ["What is {a} divided by {b}?", "Divide {a} by {b}.", "{a} divided by {b}", "How much is {a} divided by {b}?"],
    "3": ["Add {a}, {b} and {c}.", "What is {a} plus {b} plus {c}?", "What is the sum of {a}, {b} and {c}?",
          "add {a}, {b}, {c}",
          "Please add up {a}, {b} and {c}.", "{a} plus {b} plus {c}"],
}
THINGS = ["apples", "books", "coins", "stones", "cards", "stamps", "eggs", "pens", "shells", "cakes", "balls",
          "flowers", "keys",
          "oranges", "marbles", "tickets", "boxes", "letters", "photos", "cookies"]
NAMES = ["Anna", "Tom", "Maria", "Ben", "Yuki", "Omar", "Lena", "Paul", "Mei", "Jack", "Nora", "Ivan", "Sara", "Leo",
         "Aiko", "Max", "Emma",
         "Noah", "Olga", "Hugo", "Rosa", "Ken", "Lucy", "Ali", "Eva", "Sam", "Mia", "Adam", "Jane", "Bob", "Alice",
         "David", "Julia",
         "Peter", "Kate", "John", "Mary", "Luis", "Chloe", "Hana", "Finn", "Iris", "Oscar", "Zoe", "Karl", "Nina",
         "Theo", "Vera"]
STORIES = {      # (text, short reason, answer)
    "+": [("{n} has {a} {t} and buys {b} more. How many {t} does {n} have now?", "{n} gets more, so add",
           "{n} has {r} {t}."),
          ("{n} has {a} {t}. {m} has {b} {t}. How many {t} do they have together?", "Together means add",
           "Together they have {r} {t}."),
          ("There are {a} {t} in one box and {b} in another. How many {t} are there in all?", "In all means add",
           "There are {r} {t} in all."),
          ("A shop sells {a} {t} on Monday and {b} on Tuesday. How many {t} in total?", "In total means add",
           "The shop sells {r} {t} in total."),
          ("{n} walks {a} steps and then {b} steps. How many steps is that?", "Both parts count, so add",
           "That is {r} steps."),
          ("A train has {a} people. Then {b} people get on. How many people are on the train?", "People get on, so add",
           "There are {r} people on the train.")],
    "-": [("{n} has {a} {t} and gives {b} to {m}. How many {t} are left?", "{n} gives some away, so subtract",
           "{n} has {r} {t} left."),
          ("There are {a} {t} on the table. {n} takes {b}. How many are left?", "Some are taken, so subtract",
           "There are {r} {t} left."),
          ("{n} has {a} {t}. {m} has {b} {t}. How many more does {n} have?", "How many more means subtract",
           "{n} has {r} more {t}."),
          ("A book has {a} pages. {n} has read {b}. How many pages are left?", "The rest is the difference",
           "There are {r} pages left."),
          ("{n} had {a} {t} and lost {b} of them. How many are left?", "Some are lost, so subtract",
           "{n} has {r} {t} left.")],
    "*": [("There are {a} boxes with {b} {t} each. How many {t} are there?", "The same number in each, so multiply",
           "There are {r} {t}."),
          ("{n} buys {a} {t} for {b} dollars each. How much does {n} pay?", "Each costs the same, so multiply",
           "{n} pays {r} dollars."),
          ("{n} reads {b} pages a day for {a} days. How many pages is that?", "The same every day, so multiply",
           "That is {r} pages.")],
}


def ask(r, kind, x):
    """(question, steps, answer, bare result) for a problem."""
    res = result(kind, x)
    if kind in STORIES and r.random() < 0.22 and res >= 0 and min(x) > 1:
        q, why, ans = r.choice(STORIES[kind])
        n, m = r.sample(NAMES, 2)
        v = dict(n=n, m=m, t=r.choice(THINGS), a=x[0], b=x[1], r=res)
        return q.format(**v), why.format(**v) + f": {expression(kind, x)}.\n" + steps(kind,
                x), ans.format(**v), str(res)
    plain = f"{expression(kind, x)} = {res}."
    if r.random() < 0.35:
        q = r.choice(WORDS[kind]).format(**dict(zip("abc", x)))
    else:
        e = expression(kind, x, r.random() < 0.6, r.choices(("*", "x"), (70, 30))[0])
        q = r.choice(ASK).format(e=e)
    lead = f"{expression(kind, x)}.\n" if max(x) >= 10 else ""
    return q, lead + steps(kind, x), plain, str(res)

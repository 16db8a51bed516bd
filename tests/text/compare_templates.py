#!/usr/bin/env python3
"""compare_templates.py JINJA_RUN FOLDER: renders conversations with every template of a folder, here and in jinja2.

FOLDER holds published chat templates (*.jinja), which are not part of this repository. Each is rendered for the twenty
conversations below by `jinja_run` (tests/text/jinja_run.c) and by jinja2, set up as the `transformers` library sets it up.
The texts must be equal byte for byte; where one refuses, the other must. What raise_exception says must be the same text.
Exit status: 0 equal, 1 not, 77 no folder or no jinja2.
"""
import json
import pathlib
import subprocess
import sys
from datetime import datetime

NOW = 1767225600 + 86400 * 40

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Current weather for a \"city\" <b>",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Name of the city"},
            "days": {"type": "integer", "default": 1},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "where": {"type": "array", "items": {"type": "number"}}}, "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "search", "description": "Suche – 検索", "strict": True,
        "parameters": {"type": "object", "properties": {
            "query": {"type": ["string", "null"]}, "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}}},
            "required": ["query", "options"]},
        "return": {"type": "object", "properties": {"hits": {"type": "array"}}}}},
]


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text, id="call00001", name="get_weather"):
    return {"role": "tool", "content": text, "tool_call_id": id, "name": name}


SYSTEM = {"role": "system", "content": "You are terse.\n"}
TRIP = [user("Weather in Paris?"),
        answer("", tool_calls=[call("get_weather", {"city": "Paris", "days": 2})]), result('{"t": 21.5}')]
PARALLEL = [user("Paris and Oslo?"),
            answer("Looking.", reasoning_content="Two calls.\n", tool_calls=[
                call("get_weather", {"city": "Paris", "where": [1.5, 2, 1e20], "unit": None}, "call00001"),
                call("search", {"query": "a<b & 'c' \"d\" ü", "options": {"deep": True}}, "call00002")]),
            result("21", "call00001"), result("9\nlines", "call00002", "search")]

CONVERSATIONS = [
    {"messages": [user("Hi")]},
    {"messages": [user("Hi")], "add_generation_prompt": False},
    {"messages": [SYSTEM, user("  What is 2+2?  ")]},
    {"messages": [user("1+1?"), answer("2"), user("2+2?"), answer(" 4\n"), user("3+3?")]},
    {"messages": [SYSTEM, user("a"), answer("b"), user("c")], "add_generation_prompt": False},
    {"messages": [SYSTEM, user("a"), answer("b", reasoning_content="why b"), user("c")], "enable_thinking": True},
    {"messages": [user("a"), answer("<think>\nhmm\n</think>\n\nb"), user("c")], "enable_thinking": False},
    {"messages": [user("héllo 世界 👋\u00a0"), answer("ünïcode ß"), user("日本\n語\t.")]},
    {"messages": [user("Weather?")], "tools": TOOLS},
    {"messages": [SYSTEM] + TRIP, "tools": TOOLS},
    {"messages": TRIP + [answer("21.5 degrees."), user("Thanks")], "tools": TOOLS, "enable_thinking": False},
    {"messages": PARALLEL, "tools": TOOLS},
    {"messages": [SYSTEM] + PARALLEL + [answer("Done", reasoning_content="ok"), user("More")], "tools": TOOLS[:1],
     "reasoning_effort": "high", "thinking": True},
    {"messages": [user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]), answer("three"), user("four")]},
    {"messages": [user([{"type": "image"}, {"type": "text", "text": "What is this?"}])]},
    {"messages": [SYSTEM, SYSTEM, user("two systems"), user("two users")]},
    {"messages": [answer("I begin"), user("ok")]},
    {"messages": [user("x"), answer(None, tool_calls=[call("search", '{"query": "q", "options": {}}')]), result("r", name="search")],
     "tools": TOOLS},
    {"messages": [{"role": "developer", "content": "Dev rules"}, user("go"), answer("gone", thinking="deep")],
     "documents": [{"title": "T", "text": "body", "contents": "body"}], "reasoning_effort": "low",
     "add_generation_prompt": False},
    {"messages": [SYSTEM, user(""), answer(""), user("end " * 200)], "thinking_mode": "enabled", "builtin_tools": ["wikipedia"],
     "date_string": "26 Jul 2024", "tools": []},
]


def context(conversation):
    return {"tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>",
            "unk_token": "<unk>", "pad_token": "<pad>", **conversation}


class Raised(Exception):
    pass


def environment():
    import jinja2
    import jinja2.ext
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """{% generation %} marks what the model wrote; its text passes through."""
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("through"), [], [], body).set_lineno(line)

        def through(self, caller):
            return caller()

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise Raised(message)

    e = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                     extensions=[Generation, jinja2.ext.loopcontrols, jinja2.ext.do])
    e.filters["tojson"] = tojson
    e.globals["raise_exception"] = raise_exception
    e.globals["strftime_now"] = lambda form: datetime.fromtimestamp(NOW).strftime(form)
    return e


def theirs(template, context):
    """("text", TEXT), ("raised", TEXT) or ("error", MESSAGE)."""
    try:
        return "text", template.render(**context)
    except Raised as e:
        return "raised", str(e)
    except Exception as e:
        return "error", f"{type(e).__name__}: {e}"


def ours(run, path, contexts):
    """One result a context, as `theirs` gives them; None: the template was refused, with the reason."""
    text = "".join(json.dumps(c) + "\n" for c in contexts)
    p = subprocess.run([run, path, str(NOW)], input=text, capture_output=True, text=True)
    if p.returncode == 3:
        return None, p.stderr.strip()
    if p.returncode:
        raise SystemExit(f"{path}: jinja_run ended with {p.returncode}: {p.stderr}")
    prefix = pathlib.Path(path).name + ":"
    results = []
    for line in p.stdout.splitlines():
        r = json.loads(line)
        if "text" in r:
            results.append(("text", r["text"]))
        else:
            results.append(("error" if r["error"].startswith(prefix) else "raised", r["error"]))
    return results, ""


def differs(a, b):
    if a[0] == "raised" and b[0] == "raised":
        return " ".join(str(a[1]).split())[:300] != " ".join(b[1].split())[:300]
    if a[0] == "text" or b[0] == "text":
        return a != b
    return a[0] != b[0]


def compare(run, path, env, contexts, show):
    """(texts that are equal, refusals that are, differences)"""
    try:
        template = env.from_string(path.read_text())
    except Exception as e:
        template, why = None, e
    results, reason = ours(run, str(path), contexts)
    if template is None or results is None:
        if template is None and results is None:
            return 0, len(contexts), 0
        print(f"{path.name}: " + (f"only jinja2 refuses it: {why}" if template is None else f"refused: {reason}"))
        return 0, 0, len(contexts)
    counts = [0, 0, 0]
    for i, (c, mine) in enumerate(zip(contexts, results)):
        wanted = theirs(template, c)
        if not differs(wanted, mine):
            counts[0 if wanted[0] == "text" else 1] += 1
            continue
        counts[2] += 1
        if show:
            at = next((k for k, (x, y) in enumerate(zip(str(wanted[1]), mine[1])) if x != y), min(len(str(wanted[1])), len(mine[1])))
            lo = max(0, at - 60)
            print(f"{path.name}, conversation {i}:\n  jinja2 {wanted[0]} ...{str(wanted[1])[lo:at + 100]!r}\n"
                  f"  here   {mine[0]} ...{mine[1][lo:at + 100]!r}")
    return tuple(counts)


def main():
    if len(sys.argv) < 3 or not pathlib.Path(sys.argv[2]).is_dir():
        print("skipped: name a folder of published chat templates (*.jinja): compare_templates.py JINJA_RUN FOLDER")
        return 77
    try:
        env = environment()
    except ImportError:
        print("skipped: jinja2 is not installed")
        return 77
    paths = sorted(pathlib.Path(sys.argv[2]).glob("*.jinja"))
    contexts = [context(c) for c in CONVERSATIONS]
    total = [0, 0, 0]
    for path in paths:
        for i, n in enumerate(compare(sys.argv[1], path, env, contexts, True)):
            total[i] += n
    print(f"{len(paths)} templates x {len(contexts)} conversations: {total[0]} equal texts, {total[1]} equal refusals, "
          f"{total[2]} differences")
    return 1 if total[2] or not paths else 0


if __name__ == "__main__":
    sys.exit(main())

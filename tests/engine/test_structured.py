#!/usr/bin/env python3
"""Structured output against checkers that know nothing of it: jsonschema, re, and the tools' own parser.

Two hundred schemas, each compact or with free white space: texts that are drawn from the masks alone, which reach corners
that no model would, and answers of the bundled model. All of them must be valid; those that the limit on tokens cut are
counted, and few. Then patterns, grammars and choices. A fifth of the schemas are answered; with the argument `all` each is,
and twenty texts of each are drawn.
"""

import datetime
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "m3-nano"

try:
    import jsonschema
except ImportError:
    print("skipped: the jsonschema package is not installed")
    sys.exit(77)
if not MODEL.joinpath("model.safetensors").exists():
    print("skipped: the bundled model is not there")
    sys.exit(77)


# ---- Schemas ----------------------------------------------------------------------------------------------------------

def schemas():
    """Two hundred of them: types, enums, nesting, arrays, references, patterns, numbers with bounds."""
    out = []
    small = {"type": "string", "maxLength": 12}
    number = {"type": "number", "minimum": 0, "maximum": 9}

    # Numbers with bounds.
    for low, high in [(0, 9), (-5, 5), (1, 150), (-1000, -10), (99, 1001), (7, 7), (123456, 123499), (-1, 0), (0, 0),
                      (-100, 1000000)]:
        out.append({"type": "integer", "minimum": low, "maximum": high})
        out.append({"type": "number", "minimum": low, "maximum": high})
        out.append({"type": "integer", "exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1})
        out.append({"type": "number", "exclusiveMinimum": low - 0.5, "exclusiveMaximum": high + 0.25})
    for bound in [0, 1, -1, 10, 0.5, -2.75, 1e6]:
        out.append({"type": "number", "minimum": bound})
        out.append({"type": "number", "exclusiveMaximum": bound})
        out.append({"type": "integer", "maximum": int(bound)})
    for step in [1, 2, 3, 5, 7, 10, 12, 100, 0.5, 0.25, 2.5]:
        out.append({"type": "number", "multipleOf": step, "minimum": -1000, "maximum": 1000})
        out.append({"type": "integer", "multipleOf": step, "minimum": -30, "maximum": 500})
    # Strings.
    for pattern in ["^[0-9]{3}-[0-9]{4}$", "^(red|green|blue)$", "^[A-Z][a-z]{1,8}$", "^\\d{1,4}$",
                    "^[^x]{2,6}$", "^\\w{1,9}@\\w{1,9}\\.(com|org)$", "^\\s?x\\S$", "^[\\u00e0-\\u00ff]{1,4}$",
                    "^(?:a(?:b(?:c)?)?){1,3}$", "^.{3}$", "^\"[a-z]{1,5}\"$", "^\\\\$", "^[a-f]*?z$", "^(ab|cd)*$"]:
        out.append({"type": "string", "pattern": pattern})
        out.append({"type": "string", "pattern": pattern, "maxLength": 30})
    for pattern in ["ab+c", "^a|b$", "x$", "^[^q]", "é"]:
        out.append({"type": "string", "pattern": pattern, "maxLength": 9})
    for low, high in [(0, 0), (1, 1), (0, 5), (3, 9), (10, 40)]:
        out.append({"type": "string", "minLength": low, "maxLength": high})
    for form in ["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname", "uri", "duration"]:
        out.append({"type": "string", "format": form})
    # Values that are given.
    for values in [["a"], ["a", "ab", "abc"], [1, 2, 33], [True, None], ["x", 1, None, [1, 2], {"k": "v"}], ["é", "\"q\"", "\n"],
                   [0.5, -1e-7]]:
        out.append({"enum": values})
        out.append({"type": "object", "properties": {"v": {"enum": values}, "c": {"const": values[0]}}, "required": ["v", "c"],
                    "additionalProperties": False})
    # Lists.
    for low, high in [(0, 0), (0, 1), (1, 1), (2, 3), (0, 4), (5, 6)]:
        out.append({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": low, "maxItems": high})
        out.append({"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
                    "minItems": low, "maxItems": high})
    out.append({"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": ["n", "s"]}], "items": False, "minItems": 2})
    out.append({"type": "array", "prefixItems": [{"type": "boolean"}, number], "items": {"type": "null"}, "minItems": 1, "maxItems": 4})
    out.append({"type": "array", "prefixItems": [number], "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3})
    # Objects.
    for count in range(1, 9):
        names = ["alpha", "beta", "gamma", "delta", "al", "be\"ta", "ga mma", "é"][:count]
        kinds = [small, number, {"type": "boolean"}, {"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 5},
                 {"enum": ["p", "q"]}, {"type": ["integer", "null"], "minimum": 0, "maximum": 3}, small]
        properties = dict(zip(names, kinds))
        for required in [names, names[::2], []]:
            out.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    out.append({"type": "object", "properties": {f"p{i}": number for i in range(30)}, "required": ["p3", "p29"],
                "additionalProperties": False})
    for extra in [number, small, {"type": "object", "properties": {"k": number}, "required": ["k"], "additionalProperties": False}]:
        out.append({"type": "object", "properties": {"name": small}, "required": ["name"], "additionalProperties": extra,
                    "maxProperties": 3})
        out.append({"type": "object", "additionalProperties": extra, "minProperties": 1, "maxProperties": 2,
                    "propertyNames": {"maxLength": 8}})
    out.append({"type": "object", "properties": {k: number for k in "abcd"}, "additionalProperties": False, "minProperties": 2,
                "maxProperties": 3})
    out.append({"type": "object", "patternProperties": {"^x_[a-z]{1,3}$": number, "^y[0-9]$": small},
                "additionalProperties": False, "maxProperties": 3})
    out.append({"type": "object", "propertyNames": {"pattern": "^[a-z]{1,4}$"}, "additionalProperties": number, "maxProperties": 3})
    out.append({"type": "object", "properties": {"id": number}, "required": ["id", "key"], "additionalProperties": small,
                "maxProperties": 2})
    # Alternatives and references.
    point = {"type": "object", "properties": {"x": number, "y": number}, "required": ["x", "y"], "additionalProperties": False}
    out += [
        {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "boolean"}, {"type": "null"}]},
        {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 5}, small, {"type": "array", "items": number, "maxItems": 2}]},
        {"oneOf": [{"type": "object", "properties": {"t": {"const": t}, "v": v}, "required": ["t", "v"],
                    "additionalProperties": False} for t, v in [("a", number), ("b", small), ("c", point)]]},
        {"anyOf": [{"type": "object", "properties": {"aa": number}, "required": ["aa"], "additionalProperties": False},
                   {"type": "object", "properties": {"ab": small}, "required": ["ab"], "additionalProperties": False}]},
        {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                   {"properties": {"a": {"minimum": 3, "maximum": 8}, "b": {"type": "boolean"}}, "required": ["b"]}],
         "maxProperties": 2},
        {"type": "object", "properties": {"a": number, "b": number}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
         "additionalProperties": False},
        {"$defs": {"p": point}, "type": "array", "items": {"$ref": "#/$defs/p"}, "maxItems": 2},
        {"$defs": {"p": point}, "$ref": "#/$defs/p", "description": "a place"},
        {"definitions": {"a/b": number, "c~d": small}, "type": "object", "properties": {
            "x": {"$ref": "#/definitions/a~1b"}, "y": {"$ref": "#/definitions/c~0d"}}, "required": ["x", "y"], "additionalProperties": False},
        {"$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9},
                                                          "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
                         "required": ["v", "next"], "additionalProperties": False}}, "$ref": "#/$defs/n"},
        {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
        {"type": ["string", "integer", "null"], "maxLength": 6, "minimum": 5, "maximum": 50},
        {"type": "string", "nullable": False, "maxLength": 3},
        {"type": "object", "properties": {"a": {"type": "array", "items": point, "maxItems": 2}, "b": {"type": "object", "properties": {
            "c": {"type": "object", "properties": {"d": {"enum": ["deep"]}}, "required": ["d"], "additionalProperties": False}},
            "required": ["c"], "additionalProperties": False}}, "required": ["a", "b"], "additionalProperties": False},
    ]
    for depth in range(1, 7):
        nested = {"type": "integer", "minimum": 0, "maximum": 9}
        for _ in range(depth):
            nested = {"type": "object", "properties": {"in": nested}, "required": ["in"], "additionalProperties": False}
        out.append(nested)
    return out


CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER


def valid(schema, text):
    value = json.loads(text)  # not NaN, not a raw control character
    jsonschema.Draft202012Validator(schema, format_checker=CHECKER).validate(value)
    form = schema.get("format")
    if form == "date-time":
        datetime.datetime.fromisoformat(value.replace("Z", "+00:00")[:19])
    if form == "time":
        datetime.time.fromisoformat(value[:8])
        assert re.fullmatch(r"[0-9:]{8}(\.\d+)?(Z|[+-]\d\d:\d\d)", value), value
    if form == "hostname":
        assert len(value) <= 253 and all(len(label) <= 63 for label in value.split("."))
    if form == "duration":
        assert re.fullmatch(r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?)", value), value
    if form == "uri":
        assert re.fullmatch(r"[a-z][a-z0-9+.\-]*://[^\s/]+\S*", value), value


# ---- Running ----------------------------------------------------------------------------------------------------------

def run(program, mode, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run([program, mode, str(MODEL)], input=text, capture_output=True, text=True, timeout=280)
    if done.returncode != 0:
        sys.exit(f"{mode}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_schemas(program, mode, every, **more):
    made = [s for i, s in enumerate(schemas()) if i % every == 0]
    lines = [{"kind": "schema", "source": json.dumps(s), "compact": i % 2 == 0, "closed": False, "seed": i + 1, **more}
             for i, s in enumerate(made)]
    texts = cut = 0
    for schema, result in zip(made, run(program, mode, lines), strict=True):
        if "error" in result:
            sys.exit(f"refused: {result['error']}\n{schema}")
        cut += result["cut"]
        texts += len(result["texts"])
        for text in result["texts"]:
            try:
                valid(schema, text)
            except Exception as e:
                sys.exit(f"{mode}: not valid: {text!r}\n{schema}\n{e}")
    print(f"{mode}: {len(made)} schemas, {texts} texts valid, {cut} cut")
    assert cut * 50 <= texts, "too many texts come to no end"


def check_patterns(program):
    patterns = ["[a-z]+", "a{2,4}|b*c", "(foo|bar)(,(foo|bar))*", "\\d\\D\\w\\W\\s\\S", "[^a-y]{3}", "x.?y", "(?i)hello",
                "^start.*end$", "\\$\\d+\\.\\d{2}", "[\\u3040-\\u309f]{1,5}", "(a|b)*?c", "\\p{Lu}\\p{Ll}{2}", "a{30}", "[ab]{20,200}",
                ".{5,60}", "(?:(?:a|b){2}c){3}", "\\x41\\u0042\\t", "[\\]\\-a]+"]
    results = run(program, "walk", [{"kind": "regex", "source": p, "walks": 12, "seed": i} for i, p in enumerate(patterns)])
    for pattern, result in zip(patterns, results, strict=True):
        plain = pattern.replace("\\p{Lu}", "[^\\W\\d_a-z]").replace("\\p{Ll}", "[^\\W\\d_A-Z]")
        assert "error" not in result and result["texts"], (pattern, result)
        for text in result["texts"]:
            assert re.fullmatch(plain, text), (pattern, text)
    choices = ["yes", "no", "not sure", "nö"]
    (result,) = run(program, "walk", [{"kind": "choice", "source": json.dumps(choices), "walks": 40, "seed": 1}])
    assert set(result["texts"]) == set(choices)
    grammar = 'root ::= expr\nexpr ::= term (("+" | "-") term)*\nterm ::= [0-9]+ | "(" expr ")"\n'
    lark = 'start: "SELECT " NAME ("," NAME)* " FROM " NAME\nNAME: /[a-z]{1,6}/\n'
    results = run(program, "walk", [{"kind": "ebnf", "source": g, "walks": 20, "seed": 3} for g in [grammar, lark]])
    for text in results[0]["texts"]:
        assert re.fullmatch(r"[0-9+\-()]+", text)
        compile(re.sub(r"\d+", "1", text), "text", "eval")
    for text in results[1]["texts"]:
        assert re.fullmatch(r"SELECT [a-z]{1,6}(,[a-z]{1,6})* FROM [a-z]{1,6}", text)
    (result,) = run(program, "walk", [{"kind": "object", "source": "", "walks": 30, "seed": 5}])
    for text in result["texts"]:
        assert isinstance(json.loads(text), dict)
    print("patterns, choices, grammars, objects: all match")


def main():
    program = str(pathlib.Path(sys.argv[1]).parent / "tests" / "structured")
    everything = sys.argv[2:] == ["all"]
    assert len(schemas()) >= 200
    check_schemas(program, "walk", 1, walks=20 if everything else 1)
    check_schemas(program, "answer", 1 if everything else 5, prompt="Give me a value.")
    check_patterns(program)


main()

#!/usr/bin/env python3
"""What /openapi.json says is what the server does: bodies made of its schemas, right and wrong, to every operation.

    test_openapi.py BUILD/hayate [long]     long: many more bodies, from more seeds

A body that does not fit the schema is refused with 4xx, one with the required fields alone is answered, and whatever comes has
a status, a type and a shape that the operation describes.
"""
import http.client
import json
import random
import re
import sys
import unittest

from hostile_bodies import ROUTES
from test_chat import MODEL, Server

LONG = "long" in sys.argv[2:]
SEEDS = range(1, 6) if LONG else (1,)
MIXED = 400 if LONG else 60  # bodies with several fields, each operation and seed
METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


# ---- Schemas: reading and making values ----------------------------------------------------------------------------------

def resolve(api, schema):
    while "$ref" in schema:
        place = api
        for part in schema["$ref"].removeprefix("#/").split("/"):
            place = place[part]
        schema = place
    return schema


def of_type(kind, value):
    if kind in ("integer", "number"):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and (kind == "number" or value == int(value))
    return isinstance(value, TYPES[kind])


def fits(api, schema, value):
    """The keywords that the description uses; others would not pass check_schema."""
    schema = resolve(api, schema)
    if "anyOf" in schema and not any(fits(api, s, value) for s in schema["anyOf"]):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(of_type(k, value) for k in kinds):
        return False
    if of_type("number", value):
        return (value >= schema.get("minimum", value) and value <= schema.get("maximum", value) and
                not value <= schema.get("exclusiveMinimum", float("-inf")))
    if isinstance(value, list):
        return len(value) >= schema.get("minItems", 0) and all(fits(api, schema.get("items", {}), v) for v in value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        whole = set(schema.get("required", ())) <= set(value)
        return whole and all(fits(api, known[k], v) for k, v in value.items() if k in known)
    return True


def check_schema(api, schema, place):
    """A schema of JSON Schema 2020-12, as far as the description has use for it."""
    assert isinstance(schema, dict), place
    unknown = set(schema) - {"$ref", "type", "anyOf", "enum", "const", "description", "default", "properties", "required",
                             "items", "minItems", "minimum", "maximum", "exclusiveMinimum"}
    assert not unknown, (place, unknown)
    if "$ref" in schema:
        check_schema(api, resolve(api, schema), place)
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        assert kind in TYPES or kind in ("integer", "number"), (place, kind)
    assert schema.get("minimum", 0) <= schema.get("maximum", float("inf")) or "minimum" not in schema, place
    assert schema.get("enum", [0]) and schema.get("anyOf", [0]), place
    assert isinstance(schema.get("description", ""), str), place
    for inner in schema.get("anyOf", []):
        check_schema(api, inner, place)
    check_schema(api, schema["items"], place + ".items") if "items" in schema else None
    properties, required = schema.get("properties", {}), schema.get("required", [])
    assert len(set(required)) == len(required) and set(required) <= set(properties), (place, required)
    for name, inner in properties.items():
        check_schema(api, inner, f"{place}.{name}")


def check_content(api, content, place):
    for kind, media in content.items():
        assert re.fullmatch(r"[a-z]+/[a-z0-9.+-]+", kind), (place, kind)
        check_schema(api, media.get("schema", {}), place)


def check_document(api):
    assert re.fullmatch(r"3\.1\.\d+", api["openapi"]), api["openapi"]
    assert all(isinstance(api["info"][k], str) for k in ("title", "version"))
    names = set()
    for path, item in api["paths"].items():
        assert path.startswith("/") and set(item) <= METHODS, path
        for method, operation in item.items():
            place = f"{method} {path}"
            parameters = operation.get("parameters", [])
            named = {p["name"] for p in parameters if p["in"] == "path" and p["required"]}
            assert named == set(re.findall(r"{(.*?)}", path)), place
            for p in parameters:
                check_schema(api, p["schema"], place)
            name = operation.get("operationId", place)
            assert name not in names, name
            names.add(name)
            assert operation["responses"], place
            for code, answer in operation["responses"].items():
                assert re.fullmatch(r"[1-5](\d\d|XX)|default", code) and isinstance(answer["description"], str), (place, code)
                check_content(api, answer.get("content", {}), place)
            if "requestBody" in operation:
                assert operation["requestBody"]["content"], place
                check_content(api, operation["requestBody"]["content"], place)
    for name, schema in api["components"]["schemas"].items():
        check_schema(api, schema, name)


STRINGS = ("", "x", "auto", "none", "stop", "é\u2028😀", "\0", "{{ 1 }}", "<mm:think>", "x" * 2000)
INTEGERS = (-1, 0, 1, 2, 5, 100, 2**31, 2**53 + 1, 2**63 - 1, -2**63)


def anything(rng, depth=0):
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind == 2:
        return rng.choice(INTEGERS)
    if kind == 3:
        return rng.choice((0.5, -1.5, 1e308, -1e308, 1e-300, 3.0))
    if kind in (4, 5):
        return rng.choice(STRINGS)
    if kind == 6:
        return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    keys = ("type", "text", "role", "content", "name", "function", "schema", "json", "id", "")
    return {rng.choice(keys): anything(rng, depth + 1) for _ in range(rng.randrange(4))}


def value_of(api, schema, rng):
    """A value that fits."""
    schema = resolve(api, schema)
    if "anyOf" in schema:
        return value_of(api, rng.choice(schema["anyOf"]), rng)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema.get("type")
    if kind in ("integer", "number") and "minimum" in schema:
        low, high = schema["minimum"], schema.get("maximum", schema["minimum"] + 100)
        value = rng.choice((low, high, low + (high - low) * rng.random(), min(high, max(low, rng.choice((0, 1, 2))))))
        return int(value) if kind == "integer" else value
    if kind == "integer":
        return rng.choice(INTEGERS)
    if kind == "number":
        return rng.choice((0, 1, 0.5, -1e300))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "string":
        return rng.choice(STRINGS)
    if kind == "null":
        return None
    if kind == "array":
        least = schema.get("minItems", 0)
        return [value_of(api, schema.get("items", {}), rng) for _ in range(least + rng.randrange(4))]
    if kind == "object":
        known, out = schema.get("properties", {}), {}
        for name, inner in known.items():
            if name in schema.get("required", ()) or rng.random() < 0.3:
                out[name] = value_of(api, inner, rng)
        if not known:
            out = {rng.choice(("a", "type", "json", "5")): anything(rng, 1) for _ in range(rng.randrange(3))}
        return out
    return anything(rng)


def read_as(api, schema, value):
    """The value as the server reads it: 0 and 1 are truth values, and text of a number is one."""
    if isinstance(value, dict):
        known = resolve(api, schema).get("properties", {})
        return {k: read_as(api, known[k], v) if k in known else v for k, v in value.items()}
    others = () if isinstance(value, bool) else (bool(value),) if value in (0, 1) else (7,) if value == "7" else ()
    return next((v for v in (value, *others) if fits(api, schema, v)), value)


def wrong_values(api, schema):
    """Values of each kind that do not fit."""
    bounds = []
    for s in (schema, *schema.get("anyOf", ())):
        bounds += [s[k] + d for k, d in (("minimum", -1), ("maximum", 1), ("exclusiveMinimum", 0)) if k in s]
    bounds = [b for b in bounds if abs(b) < 2**53] + [b * 1.5 for b in bounds if abs(b) >= 2**53]
    for value in (*bounds, True, 7, 1.5, "x", "7", [], [None], {}, {"a": 1}):
        if not fits(api, schema, read_as(api, schema, value)):
            yield value


# ---- The server ----------------------------------------------------------------------------------------------------------

class OpenApiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--kv-cache-memory-bytes", "512MiB", "--enable-auto-tool-choice", "--tool-call-parser", "minimax_m3",
                            "--max-model-len", "256", "--disable-uvicorn-access-log")
        cls.api = cls.server.call("GET", "/openapi.json")[1]
        cls.connection = http.client.HTTPConnection("127.0.0.1", cls.server.port, timeout=120)
        cls.asked = 0

    @classmethod
    def tearDownClass(cls):
        cls.connection.close()
        assert cls.server.stop() == 0, "".join(cls.server.lines[-50:])

    def operations(self, method):
        for path, item in self.api["paths"].items():
            if method in item:
                yield re.sub("{.*?}", "x", path), item[method]

    def posts(self):
        """Path, operation, schema, a body with the required fields and those that keep its answer short."""
        for path, operation in self.operations("post"):
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                self.assertIn(path, ROUTES, "hostile_bodies.py has no body for it")
                yield path, operation, schema, ROUTES[path]

    def ask(self, method, path, operation, body=None, kind="application/json"):
        """The status of an answer that is what the operation describes."""
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        self.connection.request(method, path, data, {"Content-Type": kind} if data is not None else {})
        r = self.connection.getresponse()
        text, what = r.read(), (method, path, r.status, data[:600] if data else None)
        type(self).asked += 1
        answers = operation["responses"]
        self.assertTrue(str(r.status) in answers, (what, text[:300]))
        if r.status >= 500:
            self.assertIn(r.status, (503, 504), (what, text[:300]))
        content = answers[str(r.status)].get("content")
        if not content:
            return r.status
        kind = (r.getheader("Content-Type") or "").split(";")[0]
        self.assertIn(kind, content, what)
        if kind == "application/json":
            self.assertTrue(fits(self.api, content[kind].get("schema", {}), json.loads(text)), (what, text[:300]))
        if r.status >= 400:
            self.assertIn("schema", content[kind], what)
            self.assertTrue(json.loads(text)["error"]["message"], what)
        return r.status

    def test_document(self):
        check_document(self.api)

    def test_required_alone(self):
        for path, operation, schema, base in self.posts():
            self.assertTrue(fits(self.api, schema, base), path)
            self.assertEqual(self.ask("POST", path, operation, base), 200)
            self.assertEqual(self.ask("POST", path, operation, {**base, "nobody_knows_this": [1]}), 200)
            for name in schema.get("required", ()):
                body = {k: v for k, v in base.items() if k != name}
                self.assertEqual(self.ask("POST", path, operation, body), 400, (path, name))
                self.assertEqual(self.ask("POST", path, operation, {**base, name: None}), 400, (path, name))

    def test_null_is_absent(self):
        for path, operation, schema, base in self.posts():
            for name, inner in schema.get("properties", {}).items():
                if name not in base and fits(self.api, inner, None):
                    self.assertEqual(self.ask("POST", path, operation, {**base, name: None}), 200, (path, name))

    def test_wrong_field(self):
        """One field that does not fit: the client's error, and the field is named unless another fault is found before it."""
        for path, operation, schema, base in self.posts():
            for name, inner in schema.get("properties", {}).items():
                wrong = list(wrong_values(self.api, inner))
                for value in wrong if LONG else wrong[:1] + wrong[1:][-2:]:
                    self.assertEqual(self.ask("POST", path, operation, {**base, name: value}), 400, (path, name, value))

    def test_not_supported(self):
        """Fields that the description says are not supported: 400 by name, whatever they hold; what asks for nothing is taken."""
        found = set()
        for path, operation, schema, base in self.posts():
            for name, inner in schema.get("properties", {}).items():
                if inner.get("description") != "not supported by this server":
                    continue
                found.add(name)
                for nothing in (None, False, [], {}):
                    self.assertEqual(self.ask("POST", path, operation, {**base, name: nothing}), 200, (path, name, nothing))
                for value in (True, 0, 7, 1.5, "", "x", [1], [[]], {"a": 1}, {"a": None}):
                    status, answer = self.server.call("POST", path, {**base, name: value})
                    error = answer["error"]
                    self.assertEqual((status, error["type"], error["param"], error["code"]), (400, "BadRequestError", name, 400), (path, value))
                    self.assertIn(f"(parameter={name}", error["message"])
        self.assertLessEqual({"kv_transfer_params", "ec_transfer_params", "features", "prompt_embeds", "return_token_offsets"}, found)

    def test_mixed(self):
        """Several fields at once, that fit and that do not."""
        for seed in SEEDS:
            for path, operation, schema, base in self.posts():
                rng = random.Random(f"{seed} {path}")
                names = sorted(schema.get("properties", {}))
                for _ in range(MIXED):
                    body = dict(base)
                    for name in rng.sample(names, min(len(names), rng.randrange(1, 5))):
                        inner = schema["properties"][name]
                        body[name] = anything(rng) if rng.random() < 0.2 else value_of(self.api, inner, rng)
                    if rng.random() < 0.2:
                        body[rng.choice(STRINGS)] = anything(rng)
                    status = self.ask("POST", path, operation, body)
                    if not fits(self.api, schema, read_as(self.api, schema, body)):
                        self.assertIn(status, (400, 404), (path, body))

    def test_schemas_of_any_kind(self):
        """Sources of grammars that are no objects: true is a schema, the others are the client's error, none the server's."""
        operation = self.api["paths"]["/v1/chat/completions"]["post"]
        def ask(**fields):
            return self.ask("POST", "/v1/chat/completions", operation, {**ROUTES["/v1/chat/completions"], **fields})
        for value in (True, {}, "{}", "true"):
            self.assertEqual(ask(structured_outputs={"json": value}), 200, value)
        for value in (False, 7, 1.5, [], [1], "", "x", "{}\0", "\0"):
            self.assertEqual(ask(structured_outputs={"json": value}), 400, value)
        for value in (True, False, 7, "", "x", [], {}, "{}\0"):
            self.assertEqual(ask(structured_outputs={"structural_tag": value}), 400, value)
        for value in ([], [1], [None], [[]], {}, 7, "x"):
            self.assertEqual(ask(structured_outputs={"choice": value}), 400, value)
        for schema, status in ((True, 200), ({}, 200), (False, 400), (7, 400), ("{}", 400), ([], 400), (None, 400)):
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            self.assertEqual(ask(response_format=form), status, schema)

    def test_no_body(self):
        for path, operation, _, base in self.posts():
            for data in (b"", b"x", b"[]", b"null", b'"x"', b"{", json.dumps(base).encode()[:-1]):
                self.assertEqual(self.ask("POST", path, operation, data), 400, (path, data))
            self.assertEqual(self.ask("POST", path, operation, base, kind="text/plain"), 400, path)

    def test_reading(self):
        for path, operation in self.operations("get"):
            expected = 404 if "parameters" in operation else 200
            self.assertEqual(self.ask("GET", path, operation), expected, path)
            status, a = self.server.call("PATCH", path)
            self.assertEqual((status, a["error"]["code"]), (405, 405), path)

    def test_zz_alive(self):
        """After all of it, the same answer as ever."""
        self.assertGreater(self.asked, 0)
        status, a = self.server.chat(max_tokens=8, seed=1)
        self.assertEqual(status, 200)
        self.assertTrue(a["choices"])


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])

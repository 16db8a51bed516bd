#!/usr/bin/env python3
# hayate-test: slow
"""The server as the official anthropic package sees it. Skipped, exit status 77, where that is not installed.

    test_anthropic_client.py BUILD/hayate
"""
import asyncio
import sys
import unittest

from test_chat import MODEL, Server
from test_messages import TOOL_FLAGS, WEATHER

try:
    import anthropic
except ImportError:
    anthropic = None

DICE = {"name": "roll_dice", "description": "Roll dice",
        "input_schema": {"type": "object", "properties": {"count": {"type": "integer", "description": "number of dice"}},
                         "required": ["count"]}}


def ask(text="What is 12 + 34?", **more):
    return {"model": MODEL.name, "max_tokens": 200, "messages": [{"role": "user", "content": text}], **more,
            "extra_body": {"temperature": 0, **more.get("extra_body", {})}}


def kinds(message):
    return [b.type for b in message.content]


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(*TOOL_FLAGS, "--api-key", "secret")
        cls.url = f"http://127.0.0.1:{cls.server.port}"
        cls.client = anthropic.Anthropic(base_url=cls.url, api_key="secret")

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def create(self, **body):
        return self.client.messages.create(**body)

    def stream(self, **body):
        """The final message, and what the client's own events said on the way."""
        texts, thoughts, inputs = [], [], []
        with self.client.messages.stream(**body) as stream:
            for event in stream:
                if event.type == "text":
                    texts.append(event.text)
                elif event.type == "thinking":
                    thoughts.append(event.thinking)
                elif event.type == "input_json":
                    inputs.append(event.partial_json)
            message = stream.get_final_message()
        joined = lambda kind, key: "".join(getattr(b, key) for b in message.content if b.type == kind)
        self.assertEqual("".join(texts), joined("text", "text"))
        self.assertEqual("".join(thoughts), joined("thinking", "thinking"))
        self.assertEqual(bool(inputs), any(b.type == "tool_use" for b in message.content))
        return message

    def same(self, a, b):
        plain = lambda m: [b.model_dump(exclude={"id", "signature"}) for b in m.content]
        self.assertEqual((plain(a), a.stop_reason, a.usage.output_tokens), (plain(b), b.stop_reason, b.usage.output_tokens))

    def test_whole_and_stream(self):
        a = self.create(**ask())
        self.assertEqual((kinds(a), a.stop_reason, a.role, a.model), (["thinking", "text"], "end_turn", "assistant", MODEL.name))
        self.assertIn("46", a.content[1].text)
        b = self.stream(**ask())
        self.same(a, b)
        self.assertEqual(b.usage.input_tokens + b.usage.cache_read_input_tokens, a.usage.input_tokens + a.usage.cache_read_input_tokens)
        self.assertTrue(b.content[0].signature)

    def test_thinking(self):
        self.assertEqual(kinds(self.create(**ask(thinking={"type": "disabled"}))), ["text"])
        self.assertEqual(kinds(self.create(**ask("What is 2 + 3?", thinking={"type": "enabled", "budget_tokens": 1024}))),
                         ["thinking", "text"])

    def test_stop_sequence(self):
        a = self.stream(**ask("What is 2 + 3?", thinking={"type": "disabled"}, stop_sequences=[" ="]))
        self.assertEqual((a.stop_reason, a.stop_sequence, a.content[0].text), ("stop_sequence", " =", "2 + 3"))

    def test_turns_with_tools(self):
        """An agent's loop: call, result, answer, thanks; content goes back as it came."""
        body = ask("What is the weather in Nepaxvak?", tools=[WEATHER, DICE], thinking={"type": "enabled", "budget_tokens": 1024})
        a = self.create(**body)
        self.same(a, self.stream(**body))
        self.assertEqual((kinds(a), a.stop_reason), (["thinking", "tool_use"], "tool_use"))
        call = a.content[-1]
        self.assertEqual((call.name, call.input), ("get_weather", {"city": "Nepaxvak"}))
        body["messages"] += [{"role": "assistant", "content": a.content}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": '{"temp": 13, "sky": "dry"}'}]}]
        b = self.stream(**body)
        self.assertEqual(b.stop_reason, "end_turn")
        self.assertIn("13 degrees and dry", b.content[-1].text)
        self.assertGreater(b.usage.cache_read_input_tokens, 300)
        body["messages"] += [{"role": "assistant", "content": b.content}, {"role": "user", "content": "Thank you."}]
        c = self.create(**body)
        self.assertEqual((kinds(c)[-1], c.stop_reason), ("text", "end_turn"))

    def test_parallel_calls(self):
        body = ask("What is the weather in Nepaxvak? Also: Tell me the weather in Turin.", tools=[WEATHER])
        a = self.stream(**body)
        calls = [b for b in a.content if b.type == "tool_use"]
        self.assertEqual([c.input for c in calls], [{"city": "Nepaxvak"}, {"city": "Turin"}])
        self.assertEqual(len({c.id for c in calls}), 2)
        body["messages"] += [{"role": "assistant", "content": a.content}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": '{"temp": 13, "sky": "dry"}'}]},
            {"type": "tool_result", "tool_use_id": calls[1].id, "content": [{"type": "text", "text": '{"temp": 21, "sky": "wet"}'}]}]}]
        text = self.create(**body).content[-1].text
        self.assertIn("13", text)
        self.assertIn("21", text)

    def test_forced_calls(self):
        for choice in ({"type": "any"}, {"type": "tool", "name": "roll_dice"}):
            a = self.create(**ask("Hello!", tools=[DICE], tool_choice=choice))
            self.assertEqual(a.stop_reason, "tool_use")
            self.assertEqual([b.name for b in a.content if b.type == "tool_use"][0], "roll_dice")
            self.assertIsInstance(a.content[-1].input["count"], int)
            self.same(a, self.stream(**ask("Hello!", tools=[DICE], tool_choice=choice)))

    def test_structured_output(self):
        import json
        schema = {"type": "object", "properties": {"sum": {"type": "integer"}, "ok": {"type": "boolean"}},
                  "required": ["sum", "ok"], "additionalProperties": False}
        for mode in ("enabled", "disabled", "adaptive"):
            a = self.create(**ask(output_config={"format": {"type": "json_schema", "schema": schema}},
                                  extra_body={"chat_template_kwargs": {"thinking_mode": mode}}))
            said = json.loads(a.content[-1].text)
            self.assertEqual((set(said), type(said["sum"]), type(said["ok"])), ({"sum", "ok"}, int, bool))
            self.assertEqual(mode == "disabled", "thinking" not in kinds(a)) if mode != "adaptive" else None

    def test_effort(self):
        """Any level is taken, as models to come may have others."""
        self.create(**ask(max_tokens=5, output_config={"effort": "max"}))
        self.create(**ask(max_tokens=5, extra_body={"reasoning_effort": "brand new"}))

    def test_count(self):
        n = self.client.messages.count_tokens(model=MODEL.name, messages=ask()["messages"]).input_tokens
        u = self.create(**ask(max_tokens=1)).usage
        self.assertEqual(n, u.input_tokens + u.cache_read_input_tokens)

    def test_errors(self):
        with self.assertRaises(anthropic.NotFoundError) as e:
            self.create(**ask(model="nobody"))
        self.assertEqual(e.exception.body["error"]["type"], "not_found_error")
        for bad in ({"extra_body": {"temperature": 3}}, {"max_tokens": 0}, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
                    {"messages": [{"role": "user", "content": [{"type": "image", "source": {
                        "type": "base64", "media_type": "image/png", "data": "AAAA"}}]}]}):
            with self.assertRaises(anthropic.BadRequestError) as e:
                self.create(**ask(**bad))
            self.assertEqual(e.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=self.url, api_key="wrong").messages.create(**ask())
        bearer = anthropic.Anthropic(base_url=self.url, auth_token="secret", api_key=None)
        self.assertEqual(bearer.messages.create(**ask(max_tokens=1)).stop_reason, "max_tokens")

    def test_leaving_a_stream(self):
        """Streams that are left early take nothing from the next one."""
        for _ in range(5):
            with self.client.messages.stream(**ask("Say something.", max_tokens=20000, extra_body={"ignore_eos": True})) as stream:
                next(iter(stream))
        self.same(self.create(**ask()), self.stream(**ask()))

    def test_async_streams(self):
        sums = [(a, b) for a in range(1, 6) for b in range(10)]

        async def one(client, a, b):
            async with client.messages.stream(**ask(f"What is {a} + {b}?")) as stream:
                text = "".join([t async for t in stream.text_stream])
                return text, await stream.get_final_message()

        async def all_of_them():
            async with anthropic.AsyncAnthropic(base_url=self.url, api_key="secret") as client:
                return await asyncio.gather(*(one(client, a, b) for a, b in sums))

        for (a, b), (text, message) in zip(sums, asyncio.run(all_of_them())):
            self.assertEqual(text.split()[-1], f"{a + b}.")
            self.assertEqual(message.content[-1].text, text)


if __name__ == "__main__":
    if anthropic is None:
        print("skipped: the anthropic package is not installed")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])

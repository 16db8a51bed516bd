#!/usr/bin/env python3
# hayate-test: slow
"""/v1/responses as the official openai package sees it. Skipped, exit status 77, where that is not installed.

    test_responses_client.py BUILD/hayate
"""
import asyncio
import json
import sys
import unittest

from test_chat import MODEL, Server
from test_messages import TOOL_FLAGS
from test_responses import WEATHER

try:
    import openai
except ImportError:
    openai = None

DICE = {"type": "function", "name": "roll_dice", "description": "Roll dice",
        "parameters": {"type": "object", "properties": {"count": {"type": "integer", "description": "number of dice"}},
                       "required": ["count"]}}


def ask(text="What is 12 + 34?", **more):
    return {"model": MODEL.name, "input": text, "temperature": 0, **more}


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(*TOOL_FLAGS, "--enable-responses-store")
        cls.url = f"http://127.0.0.1:{cls.server.port}/v1"
        cls.client = openai.OpenAI(base_url=cls.url, api_key="none")

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def create(self, **body):
        return self.client.responses.create(**body)

    def stream(self, **body):
        """The final response, and what the deltas said on the way."""
        text, arguments = "", ""
        with self.client.responses.stream(**body) as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    text += event.delta
                elif event.type == "response.function_call_arguments.delta":
                    arguments += event.delta
            response = stream.get_final_response()
        self.assertEqual(text, response.output_text)
        self.assertEqual(arguments, "".join(i.arguments for i in response.output if i.type == "function_call"))
        return response

    def same(self, a, b):
        kinds = lambda r: [(i.type, i.status) for i in r.output]
        self.assertEqual((kinds(a), a.output_text, a.usage.output_tokens), (kinds(b), b.output_text, b.usage.output_tokens))

    def test_whole_and_stream(self):
        a = self.create(**ask())
        self.assertEqual(([i.type for i in a.output], a.status, a.model), (["reasoning", "message"], "completed", MODEL.name))
        self.assertIn("46", a.output_text)
        self.assertIn("carry", a.output[0].content[0].text)
        self.assertGreater(a.usage.output_tokens_details.reasoning_tokens, 0)
        b = self.stream(**ask())
        self.same(a, b)
        self.assertEqual(b.usage.input_tokens_details.cached_tokens, a.usage.input_tokens - 1)

    def test_logprobs(self):
        a = self.create(**ask("What is 2 + 3?", include=["message.output_text.logprobs"], top_logprobs=2))
        logprobs = a.output[-1].content[0].logprobs
        self.assertEqual("".join(p.token for p in logprobs), a.output_text)
        self.assertTrue(all(p.logprob <= 0 and len(p.top_logprobs) == 2 for p in logprobs))

    def test_turns_with_tools(self):
        """An agent's loop with all items sent back, then the same by the id of what went before."""
        items = [{"role": "user", "content": "What is the weather in Nepaxvak?"}]
        a = self.create(**ask(items, tools=[WEATHER, DICE], store=True))
        self.same(a, self.stream(**ask(items, tools=[WEATHER, DICE])))
        call = a.output[-1]
        self.assertEqual((call.type, call.name, json.loads(call.arguments)), ("function_call", "get_weather", {"city": "Nepaxvak"}))
        result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"temp": 13, "sky": "dry"}'}
        b = self.create(**ask(items + a.output + [result], tools=[WEATHER, DICE]))
        self.assertIn("13 degrees and dry", b.output_text)
        c = self.create(**ask([result], tools=[WEATHER, DICE], previous_response_id=a.id))
        self.assertEqual((c.output_text, c.usage.input_tokens), (b.output_text, b.usage.input_tokens))

    def test_parallel_calls(self):
        body = ask("What is the weather in Nepaxvak? Also: Tell me the weather in Turin.", tools=[WEATHER])
        calls = [json.loads(i.arguments) for i in self.stream(**body).output if i.type == "function_call"]
        self.assertEqual(calls, [{"city": "Nepaxvak"}, {"city": "Turin"}])
        calls = [i for i in self.create(**body, parallel_tool_calls=False).output if i.type == "function_call"]
        self.assertEqual(len(calls), 1)

    def test_forced_calls(self):
        for choice in ("required", {"type": "function", "name": "roll_dice"}):
            body = ask("Hello!", tools=[DICE], tool_choice=choice)
            a = self.create(**body)
            calls = [i for i in a.output if i.type == "function_call"]
            self.assertEqual(calls[0].name, "roll_dice")
            self.assertIsInstance(json.loads(calls[0].arguments)["count"], int)
            self.same(a, self.stream(**body))

    def test_structured_output(self):
        schema = {"type": "object", "properties": {"sum": {"type": "integer"}, "ok": {"type": "boolean"}},
                  "required": ["sum", "ok"], "additionalProperties": False}
        for mode in ("enabled", "disabled", "adaptive"):
            a = self.create(**ask(), text={"format": {"type": "json_schema", "name": "sum", "schema": schema, "strict": True}},
                            extra_body={"chat_template_kwargs": {"thinking_mode": mode}}, max_output_tokens=400)
            said = json.loads(a.output_text)
            self.assertEqual((set(said), type(said["sum"]), type(said["ok"])), ({"sum", "ok"}, int, bool))

    def test_cut_off(self):
        a = self.create(**ask(max_output_tokens=5))
        self.assertEqual((a.status, a.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        events = list(self.create(**ask(max_output_tokens=5), stream=True))
        self.assertEqual(events[-1].type, "response.incomplete")

    def test_kept(self):
        a = self.create(**ask())
        self.assertEqual(self.client.responses.retrieve(a.id).output_text, a.output_text)
        b = self.create(**ask("Say something.", background=True, extra_body={"ignore_eos": True}))
        self.assertEqual(b.status, "queued")
        self.assertEqual(self.client.responses.cancel(b.id).status, "cancelled")
        c = self.create(**ask(background=True))
        self.server.wait_for(lambda: self.client.responses.retrieve(c.id).status not in ("queued", "in_progress"))
        self.assertIn("46", self.client.responses.retrieve(c.id).output_text)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve("resp_nobody")

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError):
            self.create(**ask(**{"model": "nobody"}))
        for bad in ({"temperature": 3}, {"max_output_tokens": 0}, {"tools": [{"type": "web_search"}]}, {"prompt": {"id": "p"}}):
            with self.assertRaises(openai.BadRequestError) as e:
                self.create(**ask(**bad))
            self.assertEqual(e.exception.param, list(bad)[0])

    def test_leaving_a_stream(self):
        for _ in range(5):
            with self.create(**ask("Say something.", stream=True, extra_body={"ignore_eos": True})) as stream:
                next(iter(stream))
        self.same(self.create(**ask()), self.stream(**ask()))

    def test_async_streams(self):
        sums = [(a, b) for a in range(1, 6) for b in range(10)]

        async def one(client, a, b):
            text = ""
            async for event in await client.responses.create(**ask(f"What is {a} + {b}?"), stream=True):
                if event.type == "response.output_text.delta":
                    text += event.delta
            return text, event

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="none") as client:
                return await asyncio.gather(*(one(client, a, b) for a, b in sums))

        for (a, b), (text, last) in zip(sums, asyncio.run(all_of_them())):
            self.assertEqual(text.split()[-1], f"{a + b}.")
            self.assertEqual((last.type, last.response.output_text), ("response.completed", text))


if __name__ == "__main__":
    if openai is None:
        print("skipped: the openai package is not installed")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])

#!/usr/bin/env python3
# hayate-test: slow
"""The server as the official openai package sees it. Skipped, exit status 77, where that is not installed.

    test_openai_client.py BUILD/hayate
"""
import asyncio
import json
import sys
import unittest

from test_chat import MODEL, Server

try:
    import openai
except ImportError:
    openai = None


def tool(name, about, **properties):
    return {"type": "function", "function": {"name": name, "description": about, "parameters": {
        "type": "object", "properties": properties, "required": list(properties)}}}


TOOLS = [tool("get_weather", "Get the weather of a city", city={"type": "string"}),
         tool("set_heating", "Set the temperature of a room", room={"type": "string"}, degrees={"type": "number"})]


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--enable-prompt-tokens-details", "--enable-auto-tool-choice", "--tool-call-parser", "minimax_m3")
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="none")

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], [MODEL.name])

    def test_answers(self):
        ask = dict(model=MODEL.name, messages=[{"role": "user", "content": "What is 12 + 34?"}], temperature=0,
                   max_tokens=200)
        answer = self.client.chat.completions.create(**ask)
        self.assertIn("46", answer.choices[0].message.content)
        chunks = list(self.client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, answer.choices[0].message.content)
        self.assertEqual(chunks[-1].usage.total_tokens, answer.usage.total_tokens)
        # Its prompt was there from the first time.
        self.assertEqual(chunks[-1].usage.prompt_tokens_details.cached_tokens, answer.usage.prompt_tokens - 1)

    def ask(self, text, **more):
        return self.client.chat.completions.create(model=MODEL.name, messages=[{"role": "user", "content": text}],
                                                   **{"temperature": 0, "max_tokens": 300, **more})

    def calls(self, text, **more):
        """The calls of a whole answer and of a stream, which must agree, and the finish reason."""
        whole = self.ask(text, tools=TOOLS, **more).choices[0]
        calls, reason, content = {}, None, ""
        for chunk in self.ask(text, tools=TOOLS, stream=True, **more):
            delta = chunk.choices[0].delta
            content += delta.content or ""
            reason = chunk.choices[0].finish_reason or reason
            for c in delta.tool_calls or []:
                if c.id:
                    calls[c.index] = [c.function.name, ""]
                calls[c.index][1] += c.function.arguments or ""
        made = [(c.function.name, json.loads(c.function.arguments)) for c in whole.message.tool_calls or []]
        self.assertEqual(made, [(name, json.loads(text)) for name, text in (calls[i] for i in sorted(calls))])
        self.assertEqual(reason, whole.finish_reason)
        self.assertNotIn("minimax", content + (whole.message.content or ""))
        return made, reason

    def test_tools(self):
        self.assertEqual(self.calls("What is the weather in Paris?"), ([("get_weather", {"city": "Paris"})], "tool_calls"))
        self.assertEqual(self.calls("Set the kitchen to 21.5 degrees."),
                         ([("set_heating", {"room": "kitchen", "degrees": 21.5})], "tool_calls"))
        two = "What is the weather in Rome and in Oslo?"
        self.assertEqual(self.calls(two)[0], [("get_weather", {"city": c}) for c in ("Rome", "Oslo")])
        self.assertEqual(len(self.calls(two, parallel_tool_calls=False)[0]), 1)

    def test_forced_tools(self):
        """A call comes where none would, of the named tool, with arguments that its schema allows, with reasoning and without."""
        for mode in ("enabled", "disabled", "adaptive"):
            body = {"extra_body": {"chat_template_kwargs": {"thinking_mode": mode}}}
            calls, reason = self.calls("Hello!", tool_choice="required", **body)
            self.assertGreaterEqual(len(calls), 1)
            self.assertEqual(reason, "tool_calls")
            named = {"type": "function", "function": {"name": "set_heating"}}
            calls, reason = self.calls("Hello!", tool_choice=named, **body)
            self.assertEqual([name for name, _ in calls], ["set_heating"])
            self.assertIsInstance(calls[0][1]["degrees"], (int, float))
            self.assertEqual(reason, "stop")
        self.assertIsNone(self.ask("What is the weather in Paris?", tools=TOOLS, tool_choice="none").choices[0].message.tool_calls)

    def test_a_call_cut_short(self):
        """The name and valid JSON, and a finish reason that says so (https://github.com/vllm-project/vllm-gaudi/issues/1655)."""
        whole = self.ask("What is the weather in Paris?", tools=TOOLS)
        cut = 0
        for n in range(1, whole.usage.completion_tokens):
            calls, reason = self.calls("What is the weather in Paris?", max_tokens=n)
            self.assertEqual(reason, "length")
            cut += bool(calls)
        self.assertGreater(cut, 1)

    def test_structured_output(self):
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                                                   "kind": {"enum": ["cat", "dog"]}}, "required": ["name", "age", "kind"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": schema, "strict": True}}
        for mode in ("enabled", "disabled", "adaptive"):
            body = {"extra_body": {"chat_template_kwargs": {"thinking_mode": mode}}}
            a = self.ask("Describe a pet.", response_format=form, **body).choices[0]
            pet = json.loads(a.message.content)
            self.assertEqual((sorted(pet), a.finish_reason), (["age", "kind", "name"], "stop"))
            self.assertIn(pet["kind"], ("cat", "dog"))
            text = "".join(c.choices[0].delta.content or "" for c in self.ask("Describe a pet.", response_format=form, stream=True, **body))
            self.assertEqual(text, a.message.content)
            if mode == "enabled":  # https://github.com/vllm-project/vllm/issues/47027
                self.assertTrue(a.message.model_extra["reasoning"])
        for outputs, valid in (({"regex": "[a-f]{3}-[0-9]{1,9}x"}, lambda t: t[3] == "-" and t[-1] == "x"),
                               ({"choice": ["yes", "no"]}, lambda t: t in ("yes", "no")), ({"grammar": 'root ::= "a" "b"+ "c"'}, lambda t: t[:2] == "ab")):
            a = self.ask("Hi", extra_body={"structured_outputs": outputs, "chat_template_kwargs": {"thinking_mode": "disabled"}})
            self.assertTrue(valid(a.choices[0].message.content), a.choices[0].message.content)
        with self.assertRaises(openai.BadRequestError):
            self.ask("Hi", extra_body={"structured_outputs": {"regex": "a", "choice": ["b"]}})

    def test_logprobs(self):
        a = self.ask("What is 2 + 3?", logprobs=True, top_logprobs=2).choices[0]
        self.assertTrue(all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in a.logprobs.content))
        text = self.client.completions.create(model=MODEL.name, prompt="The sky is", max_tokens=3, logprobs=2, temperature=0).choices[0]
        self.assertEqual(len(text.logprobs.tokens), len(text.logprobs.token_logprobs))

    def test_many_at_once(self):
        """200 streams, of which every fourth client leaves in the middle: the others get what they get alone."""
        async def one(client, i):
            stream = await client.chat.completions.create(model=MODEL.name, messages=[{"role": "user", "content": f"What is {i % 10} + 3?"}],
                                                          temperature=0, max_tokens=40, stream=True)
            text = ""
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if i % 4 == 3:
                    await stream.close()
                    return None
            return text

        async def run():
            async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="none", timeout=200) as client:
                return await asyncio.gather(*(one(client, i) for i in range(200)))

        alone = [self.ask(f"What is {i} + 3?", max_tokens=40).choices[0].message.content or "" for i in range(10)]
        for i, text in enumerate(asyncio.run(run())):
            if i % 4 != 3:
                self.assertEqual(text, alone[i % 10])

    def test_errors(self):
        ask = dict(model=MODEL.name, messages=[{"role": "user", "content": "Hello!"}])
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(**{**ask, "model": "nobody"})
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(**ask, temperature=-1)


if __name__ == "__main__":
    if openai is None:
        print("skipped: the openai package is not installed")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])

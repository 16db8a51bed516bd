#!/usr/bin/env python3
"""What users reported about servers of this model, each as it would show here.

    test_reports.py BUILD/hayate
"""
import json
import sys
import unittest

from test_chat import MODEL, Server

MODES = ("enabled", "disabled", "adaptive")
MARKS = ("mm:think", "minimax[")
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


class ReportsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--enable-auto-tool-choice", "--tool-call-parser", "minimax_m3")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def both(self, **body):
        """The message of a whole answer and what a stream adds up to, which must be the same."""
        status, a = self.server.chat(**body)
        self.assertEqual(status, 200, a)
        message = a["choices"][0]["message"]
        _, events = self.server.stream(**{"messages": [{"role": "user", "content": "What is 2 + 3?"}], **body})
        deltas = [json.loads(e)["choices"][0]["delta"] for e in events[:-1]]
        for key in ("content", "reasoning"):
            self.assertEqual("".join(d.get(key) or "" for d in deltas), message[key] or "", key)
        return message

    def test_no_marker_in_content(self):
        """vllm 45687, 46042, 50549; sglang 28715: in every mode, with and without system text, over turns that had no reasoning."""
        history = [{"role": "user", "content": "What is 1 + 1?"}, {"role": "assistant", "content": "2"},
                   {"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4", "reasoning_content": "Two and two."}]
        for mode in MODES:
            for before in ([], [{"role": "system", "content": "You are brief."}], history[:2], history):
                m = self.both(messages=before + [{"role": "user", "content": "What is 12 + 34?"}], chat_template_kwargs={"thinking_mode": mode},
                              max_tokens=150)
                for mark in MARKS:
                    self.assertNotIn(mark, (m["content"] or "") + (m["reasoning"] or ""))
                if mode == "disabled":
                    self.assertIsNone(m["reasoning"])

    def test_stray_closer_and_damaged_calls(self):
        """Text that the model is made to write: a closer at the start (vllm 50549), a call without its `<` (vllm-gaudi 1724), one
        without the opening tag of a parameter and a good one behind it (vllm 51075), nothing but noise (llama.cpp 24523)."""
        ns = "]<]minimax[>["
        call = f'{ns}<invoke name="get_weather">{ns}<city>Oslo{ns}</city>{ns}</invoke>\n'
        for text, calls in ((f"</mm:think>{ns}<tool_call>\n{call}{ns}</tool_call>", ["Oslo"]),
                            (f'{ns}<tool_call>\n{call.replace("<invoke", "invoke", 1)}{ns}</tool_call>', ["Oslo"]),
                            (f'{ns}<tool_call>\n{ns}<invoke name="get_weather">{ns}Rome{ns}</city>{ns}</invoke>\n{call}{ns}</tool_call>', None),
                            ("]]<<[[>>]<]<", [])):
            for mode in ("disabled",):
                m = self.both(tools=TOOLS, structured_outputs={"choice": [text]}, chat_template_kwargs={"thinking_mode": mode}, max_tokens=200)
                made = [json.loads(c["function"]["arguments"]).get("city") for c in m.get("tool_calls", [])]
                if calls is None:
                    self.assertEqual(made[-1], "Oslo")
                else:
                    self.assertEqual(made, calls)
                for mark in MARKS:
                    self.assertNotIn(mark, m["content"] or "")

    def test_damaged_calls_in_messages(self):
        """vllm 51075 reached /v1/messages too: the good call behind an odd one arrives there, whole and in a stream."""
        ns = "]<]minimax[>["
        call = f'{ns}<invoke name="get_weather">{ns}<city>Oslo{ns}</city>{ns}</invoke>\n'
        for odd in (f'{ns}<invoke name="get_weather">{ns}Rome{ns}</city>{ns}</invoke>\n', f'{ns}invoke name="get_weather">{ns}<city>Rome{ns}</city>{ns}</invoke>\n'):
            body = {"model": MODEL.name, "max_tokens": 200, "thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "Hi"}],
                    "tools": [{"name": "get_weather", "input_schema": TOOLS[0]["function"]["parameters"]}],
                    "structured_outputs": {"choice": [f"{ns}<tool_call>\n{odd}{call}{ns}</tool_call>"]}}
            status, a = self.server.call("POST", "/v1/messages", body)
            self.assertEqual((status, a["stop_reason"]), (200, "tool_use"), a)
            inputs = [b["input"] for b in a["content"] if b["type"] == "tool_use"]
            self.assertEqual(inputs, [{"city": "Rome"}, {"city": "Oslo"}])
            import http.client
            c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
            c.request("POST", "/v1/messages", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
            events = [json.loads(line[6:]) for line in c.getresponse().read().decode().split("\n") if line.startswith("data: ")]
            c.close()
            made = {}
            for e in events:
                if e["type"] == "content_block_delta" and e["delta"]["type"] == "input_json_delta":
                    made[e["index"]] = made.get(e["index"], "") + e["delta"]["partial_json"]
            self.assertEqual([json.loads(made[i]) for i in sorted(made)], inputs)

    def test_without_a_parser(self):
        """MiniMax-M3 31: what nobody would read is refused."""
        s = Server()
        try:
            for choice, words in (({}, "--enable-auto-tool-choice"), ({"tool_choice": "auto"}, "--enable-auto-tool-choice"),
                                  ({"tool_choice": "required"}, "--tool-call-parser")):
                status, a = s.chat(tools=TOOLS, **choice)
                self.assertEqual(status, 400)
                self.assertIn(words, a["error"]["message"])
        finally:
            self.assertEqual(s.stop(), 0)

    def test_every_sampling_field_counts(self):
        """vmlx 226: each field changes probabilities or text."""
        fixed = {"prompt": "The sky is", "max_tokens": 24, "seed": 7, "temperature": 1.5, "top_p": 1, "top_k": 0, "ignore_eos": True}
        ask = lambda **more: self.server.call("POST", "/v1/completions", {**fixed, **more})[1]["choices"][0]["text"]
        plain = ask()
        self.assertEqual(ask(), plain)
        for more in ({"min_p": 0.9}, {"top_p": 0.1}, {"top_k": 1}, {"temperature": 0}, {"seed": 8}, {"repetition_penalty": 5.0},
                     {"presence_penalty": 2, "frequency_penalty": 2}, {"logit_bias": {"300": 100}}, {"allowed_token_ids": [300, 301]},
                     {"bad_words": [plain.strip()[:3]]}):
            self.assertNotEqual(ask(**more), plain, more)

    def test_reasoning_fields(self):
        """Clients look for reasoning under the one name or the other."""
        for flag, names in (("both", ("reasoning", "reasoning_content")), ("reasoning_content", ("reasoning_content",))):
            s = Server("--reasoning-field", flag)
            try:
                body = {"chat_template_kwargs": {"thinking_mode": "enabled"}, "max_tokens": 60}
                m = s.chat(**body)[1]["choices"][0]["message"]
                self.assertEqual([k for k in m if k.startswith("reasoning")], list(names))
                self.assertTrue(all(m[k] == m[names[0]] and m[k] for k in names))
                _, events = s.stream(**body)
                deltas = [json.loads(e)["choices"][0]["delta"] for e in events[:-1]]
                for k in names:
                    self.assertEqual("".join(d.get(k) or "" for d in deltas), m[k])
            finally:
                self.assertEqual(s.stop(), 0)

    def test_router_headers(self):
        """What routers ask for in headers: the load with the answer, a rank that is there."""
        import http.client
        def post(**headers):
            c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
            c.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 1}), {"Content-Type": "application/json", **headers})
            r = c.getresponse()
            r.read()
            c.close()
            return r.status, r.getheader("endpoint-load-metrics")
        self.assertEqual(post(), (200, None))
        self.assertRegex(post(**{"endpoint-load-metrics-format": "TEXT"})[1], r"^TEXT named_metrics.kv_cache_usage_perc=[0-9.e-]+, ")
        value = post(**{"endpoint-load-metrics-format": "JSON"})[1]
        self.assertEqual(sorted(json.loads(value[5:])["named_metrics"]), ["kv_cache_usage_perc", "num_requests_waiting"])
        self.assertEqual(post(**{"X-data-parallel-rank": "0"})[0], 200)
        for rank in ("1", "-1", "x"):
            self.assertEqual(post(**{"X-data-parallel-rank": rank})[0], 400)

    def test_key_order(self):
        """The keys of whole answers and chunks, in the protocol's order, nulls written."""
        _, a = self.server.chat(max_tokens=4, logprobs=True)
        self.assertEqual(list(a), ["id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "prompt_logprobs",
                                   "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics"])
        self.assertEqual(list(a["choices"][0]), ["index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"])
        self.assertEqual(list(a["choices"][0]["message"]), ["role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"])
        self.assertEqual(list(a["usage"]), ["prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details"])
        # So many tokens that some come before the last, however many of them a busy server puts into one chunk.
        _, events = self.server.stream(max_tokens=500, ignore_eos=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
        chunks = [json.loads(e) for e in events[:-1]]
        middle = [c["choices"][0] for c in chunks[1:-2]]
        self.assertEqual({c["finish_reason"] for c in middle}, {None})
        self.assertEqual(list(chunks[0]), ["id", "object", "created", "model", "choices", "prompt_token_ids", "prompt_text", "usage"])
        for c in middle:
            self.assertEqual(list(c), ["index", "delta", "logprobs", "finish_reason", "token_ids"])
        self.assertEqual(list(chunks[-2]["choices"][0]), ["index", "delta", "logprobs", "finish_reason", "stop_reason", "token_ids"])
        self.assertEqual([c["usage"]["completion_tokens"] for c in chunks[1:]], sorted(c["usage"]["completion_tokens"] for c in chunks[1:]))
        self.assertNotIn(" ", events[1].split('"content"')[0])

    def test_for_operators(self):
        """A pause holds new requests until it is over; a reset of the cache leaves nothing to be found."""
        import threading
        s = Server("--enable-dev-mode", "--enable-prompt-tokens-details", "--enable-server-load-tracking")
        try:
            cached = lambda: (s.chat("What is 40 + 2? " * 30, max_tokens=1)[1]["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)
            cached()
            self.assertGreater(cached(), 100)
            self.assertEqual(s.call("POST", "/reset_prefix_cache"), (200, {"success": True}))
            self.assertEqual(cached(), 0)
            self.assertGreater(cached(), 100)
            self.assertEqual(s.call("POST", "/pause?mode=wait&clear_cache=false"), (200, {"status": "paused"}))
            self.assertEqual(s.call("GET", "/is_paused"), (200, {"is_paused": True}))
            got = []
            held = lambda: s.call("GET", "/load")[1]["server_load"] == 1
            t = threading.Thread(target=lambda: got.append(cached()))
            t.start()
            s.wait_for(held)
            t.join(0.5)
            self.assertEqual(got, [])
            self.assertEqual(s.call("POST", "/resume"), (200, {"status": "resumed"}))
            t.join(120)
            self.assertGreater(got[0], 100)
            self.assertEqual(s.call("POST", "/sleep")[0], 501)
            for query, param in (("pause?mode=keep", "mode"), ("pause?mode=x", "mode"),
                                 ("reset_prefix_cache?reset_running_requests=true", "reset_running_requests")):
                status, answer = s.call("POST", "/" + query)
                self.assertEqual((status, answer["error"]["param"]), (400, param), query)
            self.assertEqual(s.call("GET", "/server_info?config_format=json")[0], 200)
            s.call("POST", "/pause")
            t = threading.Thread(target=lambda: got.append(s.chat()[0]))
            t.start()
            s.wait_for(held)
        finally:
            self.assertEqual(s.stop(), 0)
        t.join(120)
        self.assertEqual(got[-1], 503)

    def test_description(self):
        """The fields that are read are those that are described."""
        status, api = self.server.call("GET", "/openapi.json")
        self.assertEqual((status, api["openapi"]), (200, "3.1.0"))
        chat = api["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        self.assertEqual(chat["required"], ["messages"])
        for name in ("temperature", "tools", "stream", "logprobs", "structured_outputs", "min_p"):
            self.assertIn(name, chat["properties"])
        for path, methods in api["paths"].items():  # an empty body is an error of the client everywhere
            if "post" in methods and path != "/ping":
                status, a = self.server.call("POST", path, {})
                self.assertIn(status, (404,) if "{" in path else (400, 415), path)
                self.assertEqual(a.get("error", a).get("code", status), status, path)


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])

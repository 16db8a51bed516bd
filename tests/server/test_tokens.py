#!/usr/bin/env python3
"""What is told beside the text: log-probabilities of answers and prompts, ids, routes; and what ends or steers an answer.

    test_tokens.py BUILD/hayate
"""
import base64
import http.client
import io
import json
import math
import sys
import unittest

import numpy

from test_chat import MODEL, Server

PLAIN = {"chat_template_kwargs": {"thinking_mode": "disabled"}}
THINK = {"chat_template_kwargs": {"thinking_mode": "enabled"}}


class TokensTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--enable-return-routed-experts")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def complete(self, prompt, **more):
        status, a = self.server.call("POST", "/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 6, **more})
        self.assertEqual(status, 200, a)
        return a

    def generate(self, ids, **params):
        status, a = self.server.call("POST", "/inference/v1/generate",
                                     {"token_ids": ids, "sampling_params": {"temperature": 0, "max_tokens": 6, **params}})
        self.assertEqual(status, 200, a)
        return a

    def ids(self, text):
        return self.server.call("POST", "/tokenize", {"prompt": text})[1]["tokens"]

    def test_tokenize_and_back(self):
        for text in ("Hello world", "", "héllo \u4f60\u597d \U0001f600", "<mm:think>x</mm:think>"):
            status, a = self.server.call("POST", "/tokenize", {"prompt": text, "return_token_strs": True})
            self.assertEqual((status, list(a)), (200, ["count", "max_model_len", "tokens", "token_strs"]))
            self.assertEqual((a["count"], len(a["token_strs"])), (len(a["tokens"]), len(a["tokens"])))
            self.assertEqual(self.server.call("POST", "/detokenize", {"tokens": a["tokens"]}), (200, {"prompt": text}))
        messages = [{"role": "user", "content": "hi"}]
        count = self.server.call("POST", "/tokenize", {"messages": messages})[1]["count"]
        usage = self.server.call("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 1})[1]["usage"]
        self.assertEqual(usage["prompt_tokens"], count)
        for body, param in (({}, "body.prompt"), ({"prompt": 5}, "body.prompt"), ({"messages": 5}, "body.messages")):
            status, a = self.server.call("POST", "/tokenize", body)
            self.assertEqual((status, a["error"]["param"]), (400, param))
        for tokens, param in ((["a"], "body.tokens"), ([10 ** 6], "tokens"), ([-1], "tokens"), (None, "body.tokens")):
            status, a = self.server.call("POST", "/detokenize", {"tokens": tokens})
            self.assertEqual((status, a["error"]["param"]), (400, param))

    def test_prompt_logprobs_are_those_of_generation(self):
        """Greedy tokens, given as a prompt, score what they were generated with, at their rank 1."""
        text = "The capital of"
        made = self.generate(self.ids(text), logprobs=1, max_tokens=8)["choices"][0]
        ids = self.ids(text) + made["token_ids"]
        scored = self.generate(ids, prompt_logprobs=3, max_tokens=1)["prompt_logprobs"]
        self.assertEqual(len(scored), len(ids))
        self.assertIsNone(scored[0])
        for i, token in enumerate(ids[1:], 1):
            own = scored[i][str(token)]
            self.assertGreaterEqual(own["rank"], 1)
            self.assertIn(len(scored[i]), (3, 4))
            best = min(scored[i].values(), key=lambda p: p["rank"])
            self.assertEqual(best["rank"], 1)
            self.assertGreaterEqual(best["logprob"], own["logprob"])
        for i, entry in enumerate(made["logprobs"]["content"]):
            own = scored[len(ids) - len(made["token_ids"]) + i][str(made["token_ids"][i])]
            self.assertEqual((own["rank"], own["logprob"]), (1, entry["logprob"]))

    def test_prompt_logprobs_of_a_long_prompt(self):
        """Over many steps, and the same whether the prompt is cached or computed."""
        ids = self.ids("one two three four five six seven " * 60)
        first = self.generate(ids, prompt_logprobs=0, max_tokens=2)
        self.generate(ids, max_tokens=2)
        again = self.generate(ids, prompt_logprobs=0, max_tokens=2)
        self.assertEqual(first["prompt_logprobs"], again["prompt_logprobs"])
        self.assertEqual(len(first["prompt_logprobs"]), len(ids))
        self.assertTrue(all(str(t) in p for t, p in zip(ids[1:], first["prompt_logprobs"][1:])))

    def test_echo(self):
        text = "The sky is"
        plain = self.complete(text, logprobs=2)["choices"][0]
        both = self.complete(text, logprobs=2, echo=True)["choices"][0]
        alone = self.complete(text, logprobs=2, echo=True, max_tokens=0)["choices"][0]
        n = len(self.ids(text))
        self.assertEqual(both["text"], text + plain["text"])
        self.assertEqual(alone["text"], text)
        self.assertEqual(len(alone["logprobs"]["tokens"]), n)
        self.assertIsNone(both["logprobs"]["token_logprobs"][0])
        self.assertIsNone(both["logprobs"]["top_logprobs"][0])
        self.assertEqual(both["logprobs"]["token_logprobs"][n:], plain["logprobs"]["token_logprobs"])
        self.assertEqual(both["logprobs"]["token_logprobs"][:n], alone["logprobs"]["token_logprobs"])
        tokens = "".join(both["logprobs"]["tokens"])
        self.assertIn(tokens, (both["text"], both["text"] + "[e~["))  # the end token has no text
        self.assertEqual(both["logprobs"]["text_offset"], [len("".join(both["logprobs"]["tokens"][:i])) for i in range(len(both["logprobs"]["tokens"]))])

    def test_completion_stream_is_the_whole(self):
        body = {"prompt": ["The sky", "A cat"], "n": 2, "temperature": 0.8, "seed": 3, "max_tokens": 7, "echo": True, "logprobs": 1}
        whole = self.server.call("POST", "/v1/completions", body)[1]["choices"]
        events = self.stream("/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
        self.assertEqual([c["index"] for c in whole], [0, 1, 2, 3])
        self.assertEqual(events[-1]["choices"], [])
        for c in whole:
            mine = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == c["index"]]
            self.assertEqual(list(mine[0]), ["index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"])
            self.assertEqual("".join(m["text"] for m in mine), c["text"])
            for key in ("tokens", "text_offset", "token_logprobs", "top_logprobs"):
                self.assertEqual(sum((m["logprobs"][key] for m in mine), []), c["logprobs"][key], key)
            self.assertEqual(mine[-1]["finish_reason"], c["finish_reason"])

    def stream(self, path, body):
        import http.client
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        lines = [e[6:] for e in c.getresponse().read().decode().split("\n\n") if e.startswith("data: ")]
        c.close()
        self.assertEqual(lines[-1], "[DONE]")
        return [json.loads(e) for e in lines[:-1]]

    def test_routes(self):
        """As many rows as tokens less one, the prompt's among them whether cached or not; dense layers stay zero."""
        ids = self.ids("one two three four five six seven " * 30)
        self.generate(ids)  # now it is in the cache
        a = self.generate(ids)["choices"][0]
        rows = numpy.load(io.BytesIO(base64.b64decode(a["routed_experts"])))
        self.assertEqual(rows.shape[0], len(ids) + len(a["token_ids"]) - 1)
        self.assertEqual((rows.dtype, rows.shape[1:]), (numpy.uint8, (6, 4)))
        self.assertTrue((rows[:, 0] == 0).all())
        self.assertTrue((numpy.diff(rows[:, 1:].astype(int), axis=2) > 0).all())  # four different ones, ascending
        self.assertLess(rows.max(), 16)
        self.assertGreater(len(numpy.unique(rows[:, 1:])), 8)
        whole = self.generate(ids + a["token_ids"], max_tokens=1)["choices"][0]
        longer = numpy.load(io.BytesIO(base64.b64decode(whole["routed_experts"])))
        self.assertTrue((longer[:len(rows)] == rows).all())
        tail = self.generate(ids, routed_experts_prompt_start=len(ids) - 2)["choices"][0]
        part = numpy.load(io.BytesIO(base64.b64decode(tail["routed_experts"])))
        self.assertTrue((part == rows[len(ids) - 2:]).all())

    def test_ids_are_those_of_the_text(self):
        _, a = self.server.chat("What is 2 + 3?", return_token_ids=True, logprobs=True, return_tokens_as_token_ids=True, **PLAIN)
        c = a["choices"][0]
        self.assertEqual([t["token"] for t in c["logprobs"]["content"]], [f"token_id:{i}" for i in c["token_ids"]])
        self.assertEqual(len(a["prompt_token_ids"]), a["usage"]["prompt_tokens"])
        _, events = self.server.stream(return_token_ids=True, **PLAIN)
        chunks = [json.loads(e) for e in events[:-1]]
        self.assertEqual(chunks[0]["prompt_token_ids"], a["prompt_token_ids"])
        self.assertEqual(sum((x["choices"][0].get("token_ids") or [] for x in chunks), []), c["token_ids"])

    def test_logprob_token_ids(self):
        _, a = self.server.chat(logprobs=True, logprob_token_ids=[300, 400], max_tokens=3, return_tokens_as_token_ids=True, **PLAIN)
        for t in a["choices"][0]["logprobs"]["content"]:
            self.assertEqual([x["token"] for x in t["top_logprobs"]], ["token_id:300", "token_id:400"])
            self.assertTrue(all(x["logprob"] <= t["logprob"] for x in t["top_logprobs"]))  # greedy

    def test_thinking_budget(self):
        free = self.server.chat("What is 23 + 38?", max_tokens=200, **THINK)[1]
        self.assertGreater(len(free["choices"][0]["message"]["reasoning"]), 10)
        for budget in (0, 1, 3):
            a = self.server.chat("What is 23 + 38?", max_tokens=200, thinking_token_budget=budget, return_token_ids=True, **THINK)[1]
            message, ids = a["choices"][0]["message"], a["choices"][0]["token_ids"]
            closer = self.ids("</mm:think>")[0]
            self.assertEqual(ids.index(closer), budget)
            self.assertNotIn("mm:think", message["content"] or "")
        unlimited = self.server.chat("What is 23 + 38?", max_tokens=200, thinking_token_budget=-1, **THINK)[1]
        self.assertEqual(unlimited["choices"][0]["message"], free["choices"][0]["message"])

    def test_repetition(self):
        bias = {"logit_bias": {str(self.ids("a")[0]): 100}, "max_tokens": 50, **PLAIN}
        for size, count in ((1, 3), (2, 4)):
            _, a = self.server.chat(repetition_detection={"max_pattern_size": size, "min_pattern_size": size, "min_count": count}, **bias)
            c = a["choices"][0]
            self.assertEqual((c["finish_reason"], a["usage"]["completion_tokens"]), ("repetition", size * count))
        for wrong in ({"max_pattern_size": 2, "min_count": 1}, {"max_pattern_size": 1, "min_pattern_size": 2, "min_count": 2}):
            self.assertEqual(self.server.chat(repetition_detection=wrong)[0], 400)

    def test_generate_refuses(self):
        for said, body in (("cache_salt", {"cache_salt": "s" * 2000}), ("cache_salt", {"cache_salt": ""}),
                           ("prompt_logprobs", {"stream": True, "sampling_params": {"max_tokens": 1, "prompt_logprobs": 1}})):
            status, a = self.server.call("POST", "/inference/v1/generate",
                                         {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 1}, **body})
            self.assertEqual((status, a["error"]["param"]), (400, said))

    def test_openings(self):
        """A stream whose first chunks would each hold a long prompt ends before they fill the memory."""
        body = {"messages": [{"role": "user", "content": "a b " * 900}], "n": 900, "max_tokens": 1, "stream": True, "temperature": 1,
                "seed": 1, "return_token_ids": True}
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        text = c.getresponse().read()
        c.close()
        opened = text.count(b'"role":"assistant"')
        self.assertGreater(opened, 1)
        self.assertLess(opened, 900)
        self.assertLess(len(text), 6 << 20)
        self.assertTrue(text.endswith(b"data: [DONE]\n\n"))
        self.assertEqual(self.server.chat(max_tokens=1)[0], 200)

    def test_n(self):
        """Choices differ, are those of one seed again, and a stream brings the same."""
        body = {"n": 4, "temperature": 2.0, "top_p": 1, "seed": 5, "max_tokens": 12, "logit_bias": {"2004": -100}, **PLAIN}
        a, b = self.server.chat("Tell me a story.", **body)[1], self.server.chat("Tell me a story.", **body)[1]
        texts = [c["message"]["content"] for c in a["choices"]]
        self.assertEqual([c["index"] for c in a["choices"]], [0, 1, 2, 3])
        self.assertEqual(texts, [c["message"]["content"] for c in b["choices"]])
        self.assertGreater(len(set(texts)), 1)
        self.assertEqual(a["usage"]["completion_tokens"], sum(len(x["logprobs"]["content"]) for x in
                         self.server.chat("Tell me a story.", logprobs=True, **body)[1]["choices"]))
        _, events = self.server.stream(messages=[{"role": "user", "content": "Tell me a story."}], **body)
        got = [""] * 4
        for e in events[:-1]:
            c = json.loads(e)["choices"][0]
            got[c["index"]] += c["delta"].get("content") or ""
        self.assertEqual(got, texts)

    def test_too_many(self):
        status, a = self.server.call("POST", "/v1/completions", {"prompt": ["a"] * 100, "n": 200})
        self.assertEqual((status, a["error"]["param"]), (400, "n"))
        for prompt in ([], "", [""], [[]]):
            self.assertEqual(self.server.call("POST", "/v1/completions", {"prompt": prompt})[0], 400, prompt)

    def test_truncation(self):
        ids = self.ids("one two three four five six seven eight nine ten")
        for side, expected in (("left", ids[-4:]), ("right", ids[:4])):
            a = self.complete(ids, truncate_prompt_tokens=4, truncation_side=side, return_token_ids=True)
            self.assertEqual(a["choices"][0]["prompt_token_ids"], expected)

    def test_batch_and_render(self):
        m = [{"role": "user", "content": "What is 2 + 3?"}]
        status, a = self.server.call("POST", "/v1/chat/completions/batch", {"messages": [m, m], "temperature": 0, "max_tokens": 8})
        self.assertEqual((status, [c["index"] for c in a["choices"]]), (200, [0, 1]))
        one = self.server.chat(max_tokens=8)[1]["choices"][0]["message"]
        self.assertEqual([c["message"] for c in a["choices"]], [one, one])
        status, r = self.server.call("POST", "/v1/chat/completions/render", {"messages": m, "temperature": 0, "max_tokens": 8, "stop": ["zzz"]})
        self.assertEqual(status, 200)
        status, g = self.server.call("POST", "/inference/v1/generate", r)
        self.assertEqual(status, 200, g)
        ids = self.server.chat(max_tokens=8, return_token_ids=True)[1]["choices"][0]["token_ids"]
        self.assertEqual(g["choices"][0]["token_ids"], ids)


class ModesTest(unittest.TestCase):
    def test_modes(self):
        """Raw numbers do not change with temperature and bias, processed ones do; logits are no logarithms."""
        got = {}
        for mode in ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"):
            s = Server("--logprobs-mode", mode)
            try:
                status, a = s.call("POST", "/v1/completions", {"prompt": "The sky is", "max_tokens": 1, "logprobs": 5, "top_k": 3, "top_p": 1, "seed": 1,
                                                               "temperature": 0.5})
                self.assertEqual(status, 200, a)
                got[mode] = a["choices"][0]["logprobs"]["top_logprobs"][0]
            finally:
                self.assertEqual(s.stop(), 0)
        best = {m: sorted(v.values(), reverse=True) for m, v in got.items()}
        self.assertEqual(len(got["processed_logprobs"]), 3)  # what top_k left
        self.assertAlmostEqual(sum(math.exp(x) for x in best["processed_logprobs"]), 1, places=4)
        self.assertLess(sum(math.exp(x) for x in best["raw_logprobs"]), 1)
        self.assertAlmostEqual(best["processed_logits"][0], best["raw_logits"][0] / 0.5, places=3)
        self.assertAlmostEqual(best["raw_logits"][0] - best["raw_logits"][1], best["raw_logprobs"][0] - best["raw_logprobs"][1], places=3)


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])

#!/usr/bin/env python3
"""What of a prompt was there already, who goes first, who is refused: the engine's cache and queue as clients see them.

    test_reuse.py BUILD/hayate
"""
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import unittest

from test_chat import HAYATE, MODEL, Server

LONG = "Remember these numbers: " + ", ".join(str(7 * i % 1000) for i in range(120)) + "."


def details(answer):
    return answer["usage"]["prompt_tokens_details"]


class ReuseTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--enable-prompt-tokens-details", "--kv-cache-memory-bytes", "256MiB", "--enable-log-requests")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def ask(self, text, **more):
        status, answer = self.server.chat(text, max_tokens=8, **more)
        self.assertEqual(status, 200, answer)
        return answer

    def test_same_prompt(self):
        first, second = self.ask(LONG + " a"), self.ask(LONG + " a")
        self.assertEqual(first["choices"][0]["message"], second["choices"][0]["message"])
        n = first["usage"]["prompt_tokens"]
        self.assertLess(details(first)["cached_tokens"], n - 1)
        self.assertIn(details(first)["hayate_miss"], ("new", "evicted"))
        self.assertEqual(details(second), {"cached_tokens": n - 1, "hayate_miss": None})
        # To the token: all but the end is the same.
        third = self.ask(LONG + " b")
        self.assertGreater(details(third)["cached_tokens"], n - 20)
        self.assertEqual(details(third)["hayate_miss"], "new")

    def test_stream_says_the_same(self):
        self.ask(LONG + " s")
        r, events = self.server.stream(messages=[{"role": "user", "content": LONG + " s"}], max_tokens=8,
                                       stream_options={"include_usage": True, "continuous_usage_stats": True})
        chunks = [json.loads(e) for e in events[:-1]]
        usage = chunks[-1]["usage"]
        self.assertEqual(usage["prompt_tokens_details"], {"cached_tokens": usage["prompt_tokens"] - 1, "hayate_miss": None})
        self.assertEqual({c["usage"]["prompt_tokens"] for c in chunks}, {usage["prompt_tokens"]})

    def test_salt(self):
        text = LONG + " salted"
        n = self.ask(text, cache_salt="a")["usage"]["prompt_tokens"]
        other = details(self.ask(text, cache_salt="b"))
        self.assertEqual((other["cached_tokens"], other["hayate_miss"]), (0, "salt"))
        self.assertEqual(details(self.ask(text))["cached_tokens"] < n - 1, True)
        self.assertEqual(details(self.ask(text, cache_salt="a"))["cached_tokens"], n - 1)

    def turn(self, messages, **more):
        kwargs = {"thinking_mode": more.pop("mode")}
        status, answer = self.server.call("POST", "/v1/chat/completions", {
            "messages": messages, "temperature": 1.0, "max_tokens": 400, "chat_template_kwargs": kwargs, **more})
        self.assertEqual(status, 200, answer)
        return answer

    def test_conversation(self):
        """An answer that comes back, whatever its tokens were, is found with all that came before it."""
        whole = turns = 0
        for seed in range(4):
            for mode in ("enabled", "disabled"):
                messages, before = [{"role": "user", "content": f"What is {seed + 11} + {seed + 25}?"}], None
                for turn in range(4):
                    answer = self.turn(messages, mode=mode, seed=100 * seed + turn)
                    usage = answer["usage"]
                    if before is not None:
                        turns += 1
                        # The last token of an answer is never computed.
                        whole += details(answer)["cached_tokens"] >= before - 1
                    message = answer["choices"][0]["message"]
                    before = usage["total_tokens"]
                    said = {"role": "assistant", "content": message["content"] or ""}
                    if message["reasoning"]:
                        said["reasoning"] = message["reasoning"]
                    messages += [said, {"role": "user", "content": f"And {turn + 3} times that?"}]
                    if answer["choices"][0]["finish_reason"] != "stop":
                        break
        self.assertGreater(turns, 15)
        self.assertEqual(whole, turns)

    def test_sampled_tokens_come_back(self):
        """Answers of single letters: encoded again they would be other tokens from the first word on."""
        vocabulary = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
        letters = [i for text, i in vocabulary.items() if len(text) == 1 and (text.isascii() or text == "\u0120")]
        messages, before = [{"role": "user", "content": "Write something."}], 0
        for turn in range(4):
            answer = self.turn(messages, mode="disabled", seed=turn, max_tokens=50, allowed_token_ids=letters)
            usage, content = answer["usage"], answer["choices"][0]["message"]["content"]
            self.assertEqual((usage["completion_tokens"], len(content)), (50, 50))
            self.assertGreaterEqual(details(answer)["cached_tokens"], before - 1, f"turn {turn}")
            self.assertGreater(usage["prompt_tokens"], before)
            before = usage["total_tokens"]
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "Go on."}]

    def test_reasoning_left_out(self):
        for seed in range(20):
            messages = [{"role": "user", "content": f"What is 4837 + {961 + seed}?"}]
            answer = self.turn(messages, mode="enabled", seed=seed)
            message = answer["choices"][0]["message"]
            if not message["reasoning"] or answer["choices"][0]["finish_reason"] != "stop":
                continue
            messages += [{"role": "assistant", "content": message["content"] or ""}, {"role": "user", "content": "Sure?"}]
            again = self.turn(messages, mode="enabled", seed=0)
            self.assertEqual(details(again)["hayate_miss"],
                             f"template changed at token {answer['usage']['prompt_tokens'] - 1}")
            return
        self.fail("no answer with reasoning in twenty")

    def test_log(self):
        text = LONG + " logged"
        self.ask(text), self.ask(text)
        lines = self.server.log()
        self.assertTrue(any("of them cached (miss: " in l for l in lines))
        self.assertTrue(any("of them cached, 8 generated" in l for l in lines))


class OffTest(unittest.TestCase):
    def test_off(self):
        s = Server("--enable-prompt-tokens-details", "--no-enable-prefix-caching", "--disable-log-stats", "--long-prefill-token-threshold", "64")
        try:
            for _ in range(2):
                status, answer = s.chat(LONG, max_tokens=4)
                self.assertEqual(status, 200)
                self.assertEqual(details(answer), {"cached_tokens": 0, "hayate_miss": "off"})
        finally:
            self.assertEqual(s.stop(), 0)
        self.assertFalse([l for l in s.lines if "Avg prompt throughput" in l])


class DiskTest(unittest.TestCase):
    def test_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            answers = []
            for _ in range(2):
                s = Server("--enable-prompt-tokens-details", "--kv-offload-disk", folder, "--kv-offload-disk-size", "64MiB", "--kv-offload-memory", "16MiB")
                try:
                    answers.append(s.chat(LONG, max_tokens=8)[1])
                finally:
                    self.assertEqual(s.stop(), 0, "".join(s.lines))
            one, two = answers
            self.assertEqual(one["choices"][0]["message"], two["choices"][0]["message"])
            n = one["usage"]["prompt_tokens"]
            self.assertEqual(details(one)["cached_tokens"], 0)
            self.assertGreaterEqual(details(two)["cached_tokens"], (n - 1) // 128 * 128)


    def test_next_run(self):
        """The disk tier of `hayate generate`: the same beginning in another process."""
        with tempfile.TemporaryDirectory() as folder:
            shares = []
            for end in ("a", "b"):
                p = subprocess.run([HAYATE, "generate", MODEL, "--chat", "--prompt", LONG + end, "--max-tokens", "2",
                                    "--temperature", "0", "--kv-offload-disk", folder, "--verbose"], capture_output=True, text=True)
                self.assertEqual(p.returncode, 0, p.stderr)
                shares.append(float(re.search(r"External prefix cache hit rate: ([\d.]+)%", p.stderr).group(1)))
            self.assertEqual(shares[0], 0)
            self.assertGreater(shares[1], 80)


class QueueTest(unittest.TestCase):
    """One request at once, one that may wait."""

    def start(self, *flags):
        s = Server("--enable-prompt-tokens-details", "--max-num-seqs", "1", *flags)
        self.addCleanup(s.stop)
        return s

    def wait_waiting(self, s, count):
        s.wait_for(lambda: s.metric("vllm:num_requests_waiting") == count)

    def busy(self, s):
        """Keeps the engine busy until it is called."""
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
        body = {"messages": [{"role": "user", "content": "Count."}], "ignore_eos": True, "max_tokens": 30000, "stream": True}
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        r.read(10)  # it runs
        return lambda: (r.close(), c.close())

    def test_full(self):
        s = self.start("--max-waiting", "1")
        end, got = self.busy(s), []
        waiting = threading.Thread(target=lambda: got.append(s.chat(max_tokens=1)))
        waiting.start()
        self.wait_waiting(s, 1)
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "x"}]}),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        error = json.loads(r.read())["error"]
        c.close()
        self.assertEqual((r.status, error["code"], error["type"]), (503, 503, "ServiceUnavailableError"))
        self.assertIn("queue is full", error["message"])
        self.assertEqual(r.getheader("Retry-After"), "1")
        end()
        waiting.join(timeout=120)
        self.assertEqual(got[0][0], 200)

    def test_priority(self):
        s = self.start("--scheduling-policy", "priority", "--enable-log-requests")
        end, statuses = self.busy(s), []
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "ignore_eos": True}
        threads = []
        for priority in (5, 0, -5):
            t = threading.Thread(target=lambda p=priority: statuses.append(
                s.call("POST", "/v1/chat/completions", {**body, "priority": p}, {"X-Request-Id": f"number{p}"})[0]))
            t.start()
            threads.append(t)
            self.wait_waiting(s, len(threads))
        end()
        for t in threads:
            t.join(timeout=120)
        self.assertEqual(statuses, [200] * 3)
        # As the server tells it: who of the clients reads first is another matter.
        order = [m[1] for m in map(re.compile(r"chatcmpl-number(-?\d): \d+ prompt tokens").search, s.log()) if m]
        self.assertEqual(order, ["-5", "0", "5"])

    def test_deadline(self):
        s = self.start()
        late = dict(ignore_eos=True, max_tokens=10000, hayate_deadline_s=0.3)
        status, answer = s.chat(**late)
        self.assertEqual((status, answer["error"]["type"]), (504, "GatewayTimeoutError"))
        self.assertIn("deadline", answer["error"]["message"])
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "x"}], **late}),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        r.read()
        c.close()
        # Clients repeat a 5xx unless this says otherwise.
        self.assertEqual((r.status, r.getheader("x-should-retry")), (504, "false"))
        refused = s.chat(max_tokens=4, hayate_deadline_s=-1)
        self.assertEqual(refused[0], 400)
        self.assertEqual(s.chat(max_tokens=4, hayate_deadline_s=0)[0], 200)
        for seconds in (0.3, 0.6, 1.2, 2.4):  # a stream begins with a token, for which a machine may be too slow
            r, events = s.stream(ignore_eos=True, max_tokens=30000, hayate_deadline_s=seconds)
            if events:
                break
            self.assertEqual(r.status, 504)
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(json.loads(events[-2])["error"]["code"], 504)
        self.assertEqual(s.chat(max_tokens=4, hayate_deadline_s=100)[0], 200)


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])

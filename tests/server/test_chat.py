#!/usr/bin/env python3
"""The server as clients see it: raw HTTP, hostile input, disconnects.

    test_chat.py BUILD/hayate
"""
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import surroundings  # noqa: E402, F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "m3-nano"
HAYATE = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "hayate")


class Server:
    """A server on a free port, stopped with SIGTERM."""

    def __init__(self, *flags, limit=None):
        self.process = subprocess.Popen([HAYATE, "serve", str(MODEL), "--host", "127.0.0.1", "--port", "0", *flags],
                                        stderr=subprocess.PIPE, text=True, preexec_fn=limit)
        self.lines, self.port = [], None
        for line in self.process.stderr:
            self.lines.append(line)
            if "Starting server on" in line:
                self.port = int(line.rsplit(":", 1)[1])
            if "startup complete" in line:
                break
        assert self.port, "".join(self.lines)
        self.heard = 0
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def call(self, method, path, body=None, headers=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = body if isinstance(body, (bytes, str, type(None))) else json.dumps(body)
        c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, (json.loads(text) if text else None)

    def chat(self, text="What is 2 + 3?", **more):
        return self.call("POST", "/v1/chat/completions",
                         {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 64, **more})

    def stream(self, **more):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0, "max_tokens": 64,
                "stream": True, **more}
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        events = [e[6:] for e in r.read().decode().split("\n\n") if e.startswith("data: ")]
        c.close()
        return r, events

    def wait_for(self, what, seconds=120):
        """Until something is true: what takes milliseconds may take seconds on a machine that does other things as well."""
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, "".join(self.lines[-50:])
            time.sleep(0.02)

    def log(self):
        """All lines of the log up to now. A line comes through a pipe and a thread, and that of a request's end may be written after
        its answer has left: whoever counts lines asks here, where they end with the access line of a request made for it."""
        self.heard += 1
        mark = f"/heard-{self.heard}-times"
        assert self.call("GET", mark)[0] == 404
        self.wait_for(lambda: any(mark in line for line in list(self.lines)))
        return list(self.lines)

    def metric(self, name, label=""):
        """The sum of the samples of one name, of those with `label` in their labels."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        c.close()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{") and label in line)

    def wait_running(self, count):
        """Until so many requests are being computed."""
        self.wait_for(lambda: self.metric("vllm:num_requests_running") == count)

    def ended(self):
        """The exit status, once the process has ended and its last lines have been read."""
        code = self.process.wait(timeout=120)
        self.reader.join()
        self.process.stderr.close()
        return code

    def stop(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        return self.ended()


class ChatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def test_health_models_version(self):
        self.assertEqual(self.server.call("GET", "/health"), (200, None))
        status, models = self.server.call("GET", "/v1/models")
        self.assertEqual((status, models["object"]), (200, "list"))
        self.assertEqual(models["data"][0]["id"], "m3-nano")
        self.assertGreater(models["data"][0]["max_model_len"], 128)
        self.assertEqual(self.server.call("GET", "/version")[0], 200)

    def test_whole_answer(self):
        status, a = self.server.chat()
        self.assertEqual(status, 200)
        self.assertEqual(a["object"], "chat.completion")
        self.assertTrue(a["id"].startswith("chatcmpl-"))
        choice = a["choices"][0]
        self.assertIn(choice["finish_reason"], ("stop", "length"))
        self.assertNotIn("<mm:think>", choice["message"]["content"] or "")
        self.assertNotIn("tool_calls", choice["message"])
        u = a["usage"]
        self.assertEqual(u["total_tokens"], u["prompt_tokens"] + u["completion_tokens"])

    def test_stream_equals_whole(self):
        for mode in ("enabled", "disabled", "adaptive"):
            kwargs = {"chat_template_kwargs": {"thinking_mode": mode}}
            _, whole = self.server.chat(**kwargs)
            r, events = self.server.stream(stream_options={"include_usage": True}, **kwargs)
            self.assertTrue(r.getheader("Content-Type").startswith("text/event-stream"))
            self.assertEqual(events[-1], "[DONE]")
            chunks = [json.loads(e) for e in events[:-1]]
            self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
            self.assertEqual(chunks[-1]["choices"], [])
            self.assertEqual(chunks[-1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
            deltas = [c["choices"][0]["delta"] for c in chunks[1:-1]]
            for key in ("content", "reasoning"):
                joined = "".join(d.get(key) or "" for d in deltas)
                self.assertEqual(joined, whole["choices"][0]["message"][key] or "", (mode, key))
            if mode == "enabled":
                self.assertTrue(whole["choices"][0]["message"]["reasoning"])
            self.assertEqual(chunks[-2]["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"])

    def test_same_seed_same_answer(self):
        one = self.server.chat(temperature=1.0, seed=11)[1]["choices"][0]["message"]
        results = []
        threads = [threading.Thread(target=lambda: results.append(
            self.server.chat(temperature=1.0, seed=11)[1]["choices"][0]["message"])) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(results, [one] * 6)

    def test_any_seed_of_64_bits(self):
        """Clients draw them from all of int64: each is one of its own, -1 is none."""
        answers = {}
        for seed in (-2**63, -2, 0, 2**62, 2**63 - 1):
            for _ in range(2):
                status, a = self.server.chat(temperature=2.0, seed=seed, max_tokens=24, ignore_eos=True)
                self.assertEqual(status, 200, a)
                answers.setdefault(seed, []).append(a["choices"][0]["message"])
        self.assertTrue(all(one == again for one, again in answers.values()))
        self.assertEqual(len({json.dumps(one) for one, _ in answers.values()}), len(answers))
        status, r = self.server.call("POST", "/v1/chat/completions/render", {"messages": [{"role": "user", "content": "x"}], "seed": -2})
        self.assertEqual((status, r["sampling_params"]["seed"]), (200, -2))
        self.assertEqual(self.server.chat(seed=2**63)[0], 400)

    def test_logprobs(self):
        _, a = self.server.chat(logprobs=True, top_logprobs=3, max_tokens=5, chat_template_kwargs={"thinking_mode": "disabled"})
        content = a["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), a["usage"]["completion_tokens"])
        for t in content:
            self.assertEqual(len(t["top_logprobs"]), 3)
            self.assertEqual(bytes(t["bytes"]).decode(errors="replace"), t["token"])
            self.assertEqual(t["top_logprobs"][0]["token"], t["token"])  # greedy
            self.assertLessEqual(t["logprob"], 0)

    def test_stop_and_length(self):
        _, full = self.server.chat(chat_template_kwargs={"thinking_mode": "disabled"})
        text = full["choices"][0]["message"]["content"]
        self.assertGreater(len(text), 3)
        _, cut = self.server.chat(chat_template_kwargs={"thinking_mode": "disabled"}, stop=[text[2:4]])
        self.assertEqual(cut["choices"][0]["message"]["content"], text[:text.find(text[2:4])])
        self.assertEqual((cut["choices"][0]["finish_reason"], cut["choices"][0]["stop_reason"]), ("stop", text[2:4]))
        self.assertEqual((full["choices"][0]["finish_reason"], full["choices"][0]["stop_reason"]), ("stop", None))
        _, short = self.server.chat(max_tokens=1)
        self.assertEqual((short["choices"][0]["finish_reason"], short["usage"]["completion_tokens"]), ("length", 1))

    def refused(self, status, param, **body):
        got, a = self.server.chat(**body)
        self.assertEqual(got, status, a)
        e = a["error"]
        self.assertEqual((e["code"], e["param"]), (status, param), e)
        self.assertNotIn("\n", e["message"].replace("error:\n ", ""))
        return e

    def test_refusals(self):
        self.assertEqual(self.refused(404, "model", model="nobody")["type"], "NotFoundError")
        self.assertEqual(self.refused(400, "temperature", temperature=3)["type"], "BadRequestError")
        self.assertEqual(self.refused(400, "body.temperature", temperature="hot")["type"], "Bad Request")
        self.refused(400, "top_p", top_p=0)
        self.refused(400, "top_k", top_k=-2)
        self.refused(400, "stop", stop=[""])
        self.refused(400, "structured_outputs", structured_outputs={"regex": "[0-9"})
        self.refused(400, "response_format", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "y"}}})
        self.refused(400, "top_logprobs", top_logprobs=3)
        self.refused(400, "top_logprobs", logprobs=True, top_logprobs=21)
        self.refused(400, "logit_bias", logit_bias={"x": 1})
        self.refused(400, "logit_bias", logit_bias={"99999999": 1})
        self.refused(400, "max_tokens", max_tokens=0)
        self.refused(400, "min_tokens", min_tokens=65)
        self.refused(400, "stream_options", stream_options={"include_usage": True})
        self.refused(400, "n", n=2)
        self.assertIn("--scheduling-policy priority", self.refused(400, "priority", priority=1)["message"])
        self.refused(400, "priority", priority=2 ** 31)
        self.assertEqual(self.refused(400, "body.priority", priority="first")["type"], "Bad Request")
        self.assertEqual(self.refused(400, "body.cache_salt", cache_salt=5)["type"], "Bad Request")
        self.refused(400, "cache_salt", cache_salt="")
        self.refused(400, "cache_salt", cache_salt="x" * 1025)
        self.refused(400, "cache_salt", cache_salt="a\0b")
        self.refused(400, "hayate_deadline_s", hayate_deadline_s=-1)
        self.refused(400, "body.hayate_deadline_s", hayate_deadline_s="soon")
        self.refused(400, "max_tokens", max_tokens=10 ** 8)
        self.refused(400, "input_tokens", max_tokens=32760)
        self.assertIn("--enable-auto-tool-choice", self.refused(400, None, tools=[{"type": "function", "function": {"name": "f"}}])["message"])
        self.refused(400, "tools", tools=[])
        self.refused(400, "allowed_token_ids", allowed_token_ids=[2047])  # padding
        self.refused(400, "allowed_token_ids", allowed_token_ids=[2004], min_tokens=4)  # the end token alone
        self.refused(400, "body.messages", messages="x")
        self.refused(400, "body.messages", messages=["x"])
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        self.assertIn("image_url", self.refused(400, "messages", messages=[{"role": "user", "content": [picture]}])["message"])
        self.refused(400, None, messages=[{"role": "tool", "content": "x"}])
        # What the template would pass over in silence.
        for role in ("usr", "User", "function", ""):
            self.assertIn(f"'{role}'", self.refused(400, "messages", messages=[{"role": role, "content": "x"}])["message"])
        for mode in ("off", "Disabled", False, 1):
            self.assertIn("enabled, disabled or adaptive",
                          self.refused(400, "chat_template_kwargs", chat_template_kwargs={"thinking_mode": mode})["message"])

    def test_name_as_it_was_given(self):
        """Upstream's default name, which scripts have."""
        status, answer = self.server.call("POST", "/v1/completions", {"model": str(MODEL), "prompt": "x", "max_tokens": 1})
        self.assertEqual((status, answer["model"]), (200, MODEL.name))

    def test_thinking_switched_off(self):
        """The names that other models' templates have are the same as this one's own."""
        prompt = lambda kwargs: self.server.call("POST", "/v1/chat/completions/render", {
            "messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": kwargs})[1]
        tokens = lambda kwargs: json.dumps(prompt(kwargs).get("token_ids"))
        off = tokens({"thinking_mode": "disabled"})
        self.assertNotEqual(off, tokens({}))
        self.assertEqual(off, tokens({"enable_thinking": False}))
        self.assertEqual(off, tokens({"thinking": False}))
        self.assertEqual(tokens({}), tokens({"enable_thinking": True}))
        self.assertEqual(tokens({"thinking_mode": "enabled"}), tokens({"thinking_mode": "enabled", "enable_thinking": False}))

    def test_values_as_text(self):
        """As upstream reads them: clients send what a form or a variable of the environment held."""
        plain = self.server.chat("Hi", temperature=0, max_tokens=4)[1]["choices"]
        for fields in ({"temperature": "0", "max_tokens": "4"}, {"temperature": "0.0", "max_tokens": 4.0, "stream": "false"},
                       {"temperature": "0e1", "max_tokens": "+4", "stream": 0, "logprobs": "no"}):
            status, answer = self.server.chat("Hi", **fields)
            self.assertEqual((status, answer["choices"]), (200, plain), fields)
        for fields in ({"max_tokens": "4x"}, {"max_tokens": ""}, {"max_tokens": "4.5"}, {"temperature": "nan"}, {"temperature": "inf"},
                       {"temperature": "0x1"}, {"stream": "maybe"}, {"stream": 2}, {"seed": "9223372036854775808"}, {"max_tokens": []}):
            status, answer = self.server.chat("Hi", **fields)
            self.assertEqual((status, answer["error"]["type"], answer["error"]["param"]),
                             (400, "Bad Request", "body." + next(iter(fields))), fields)

    def test_broken_bodies(self):
        post = lambda body, **h: self.server.call("POST", "/v1/chat/completions", body, h)
        for body in (b"", b"{", b"[]", b"null", b'{"messages":', b"\xff\xfe", b"{}" * 1000, b"[" * 100000):
            status, a = post(body)
            self.assertEqual((status, a["error"]["code"]), (400, 400))
        self.assertEqual(post({}, **{"Content-Type": "text/plain"})[0], 400)
        self.assertEqual(self.server.call("GET", "/v1/chat/completions")[0], 405)
        self.assertEqual(self.server.call("GET", "/nothing")[0], 404)

    def test_raw_garbage_does_not_kill(self):
        for data in (b"\x00" * 100, b"GET\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                     b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n", b"A" * 100000):
            s = socket.create_connection(("127.0.0.1", self.server.port), timeout=60)
            try:
                s.sendall(data)
                s.settimeout(2)  # not all of it is answered
                s.recv(100)
            except OSError:
                pass
            s.close()
        self.assertEqual(self.server.call("GET", "/health")[0], 200)

    def test_disconnect_cancels(self):
        """Clients that leave in the middle must not keep the engine busy."""
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, "max_tokens": 10000})
        aborted = self.server.metric("vllm:request_success_total", "abort")
        for stream in (True, False):
            text = body[:-1] + (', "stream": true}' if stream else "}")
            s = socket.create_connection(("127.0.0.1", self.server.port))
            s.sendall((f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                       f"Content-Length: {len(text)}\r\n\r\n{text}").encode())
            if stream:
                s.recv(200)
            self.server.wait_running(1)
            s.close()
            self.server.wait_running(0)
        self.assertEqual(self.server.metric("vllm:request_success_total", "abort"), aborted + 2)
        self.assertEqual(self.server.chat(max_tokens=4)[0], 200)


class FlagsTest(unittest.TestCase):
    def test_api_key_and_names(self):
        s = Server("--api-key", "secret", "--served-model-name", "a", "--served-model-name", "b")
        try:
            self.assertEqual(s.call("GET", "/v1/models"), (401, {"error": "Unauthorized"}))
            self.assertEqual(s.call("GET", "/health")[0], 200)
            status, models = s.call("GET", "/v1/models", headers={"Authorization": "bearer secret"})
            self.assertEqual((status, [m["id"] for m in models["data"]]), (200, ["a", "b"]))
            self.assertEqual(s.call("GET", "/v1/models", headers={"Authorization": "Bearer secre"})[0], 401)
            self.assertEqual(s.call("POST", "/v1/completions", {"model": str(MODEL), "prompt": "x"}, headers={"Authorization": "Bearer secret"})[0], 404)
            ask = {"prompt": "x", "max_tokens": 1}  # what computes is not for everybody
            self.assertEqual(s.call("POST", "/invocations", ask)[0], 401)
            self.assertEqual(s.call("POST", "/invocations", ask, headers={"Authorization": "Bearer secret"})[0], 200)
        finally:
            self.assertEqual(s.stop(), 0)

    def test_stop_while_busy(self):
        s = Server()
        results = []
        t = threading.Thread(target=lambda: results.append(s.chat(ignore_eos=True, max_tokens=10000)))
        t.start()
        s.wait_for(lambda: s.metric("vllm:generation_tokens_total") > 0)
        self.assertEqual(s.stop(signal.SIGINT), 0)
        t.join(timeout=60)
        self.assertEqual(results[0][1]["choices"][0]["finish_reason"], "abort")

    def test_usage_errors(self):
        run = lambda *a: subprocess.run([HAYATE, "serve", *a], capture_output=True, text=True)
        for code, words, *flags in ((2, "128", str(MODEL), "--block-size", "16"), (2, "reasoning-parser", str(MODEL), "--reasoning-parser", "x"),
                                    (2, "--port", str(MODEL), "--prt", "1"), (2, "model",), (2, "JSON", str(MODEL), "--default-chat-template-kwargs", "{"),
                                    (2, "enabled, disabled or adaptive", str(MODEL), "--port", "0", "--default-chat-template-kwargs", '{"thinking_mode": "off"}'),
                                    (2, "fcfs or priority", str(MODEL), "--scheduling-policy", "lifo"),
                                    (2, "--watermark", str(MODEL), "--watermark", "0.6"), (2, "--watermark", str(MODEL), "--watermark", "-0.1"),
                                    (2, "--max-waiting", str(MODEL), "--max-waiting", "3G"), (2, "--max-num-seqs", str(MODEL), "--max-num-seqs", "-1"),
                                    (2, "--long-prefill", str(MODEL), "--long-prefill-token-threshold", "3G"),
                                    (4, "give --kv-offload-memory less", str(MODEL), "--kv-offload-memory", "100000G"),
                                    (4, "smaller cache", str(MODEL), "--kv-cache-memory-bytes", "100000G"),
                                    (2, "--kv-offload-disk,", str(MODEL), "--kv-offload-disk-size", "1G"),
                                    (2, "leave one", str(MODEL), "--kv-offload-memory", "1G", "--no-enable-prefix-caching"),
                                    (2, "needs a folder", str(MODEL), "--kv-offload-disk", "")):
            p = run(*flags)
            self.assertEqual(p.returncode, code, p.stderr)
            self.assertIn(words, p.stderr)
        p = run("/nonexistent")
        self.assertIn(p.returncode, (1, 3))
        self.assertEqual(len(p.stderr.strip().splitlines()), 1, p.stderr)


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])

#!/usr/bin/env python3
"""Start and end of a server: what the log says, in which order, when requests are answered, and how it leaves.

    test_shutdown.py BUILD/hayate
"""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from test_chat import HAYATE, MODEL, Server
from surroundings import port_of_its_own

LONG = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, "max_tokens": 30000, "stream": True}


class Stream:
    """A streamed answer that goes on until somebody ends it."""

    def __init__(self, server, **more):
        self.c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        self.c.request("POST", "/v1/chat/completions", json.dumps({**LONG, **more}), {"Content-Type": "application/json"})
        self.r = self.c.getresponse()
        assert self.r.status == 200
        self.events = []
        while len(self.events) < 3:
            self.step()

    def step(self):
        line = self.r.readline()
        if line.startswith(b"data: "):
            self.events.append(line[6:].strip().decode())
        return line

    def rest(self):
        """The finish reason, None when the stream was cut off."""
        try:
            while self.step():
                pass
        except (OSError, http.client.HTTPException):
            pass
        self.c.close()
        if self.events[-1] != "[DONE]":
            return None
        return [c["choices"][0]["finish_reason"] for c in map(json.loads, self.events[:-1]) if c["choices"]][-1]


def wait_for(server, words):
    server.wait_for(lambda: any(words in line for line in list(server.lines)))


class ServerTest(unittest.TestCase):
    def start(self, *flags):
        s = Server(*flags)
        self.addCleanup(s.process.kill)
        return s


class ShutdownTest(ServerTest):
    def test_default_aborts(self):
        s = self.start()
        stream = Stream(s)
        s.process.send_signal(signal.SIGTERM)
        self.assertEqual(stream.rest(), "abort")
        self.assertEqual(s.ended(), 0)

    def test_what_has_not_begun_can_be_asked_elsewhere(self):
        """It was answered 200 with nothing in it, which no client asks again for."""
        s = self.start("--max-num-seqs", "1")
        stream, answers = Stream(s), []
        waiting = [threading.Thread(target=lambda more=more: answers.append(s.chat(max_tokens=5, **more)))
                   for more in ({}, {"stream": True})]
        for one in waiting:
            one.start()
        s.wait_for(lambda: s.metric("vllm:num_requests_waiting") == 2)
        s.process.send_signal(signal.SIGTERM)
        self.assertEqual(stream.rest(), "abort")
        for one in waiting:
            one.join(timeout=60)
        self.assertEqual([(status, body["error"]["type"]) for status, body in answers], [(503, "ServiceUnavailableError")] * 2)
        self.assertEqual(s.ended(), 0)

    def test_drain_lets_requests_end(self):
        s = self.start("--shutdown-timeout", "600")
        endless, stream = Stream(s), Stream(s, max_tokens=1500)  # the first is why the server is still there when it is asked
        s.process.send_signal(signal.SIGTERM)
        wait_for(s, "may end within 600 s")
        status, body = s.chat()
        self.assertEqual((status, body["error"]["type"]), (503, "ServiceUnavailableError"))
        self.assertEqual(s.call("GET", "/health")[0], 503)
        self.assertEqual(s.call("GET", "/ping")[0], 503)
        self.assertEqual(s.call("GET", "/version")[0], 200)
        self.assertEqual(stream.rest(), "length")
        endless.r.close(), endless.c.close()
        self.assertEqual(s.ended(), 0)

    def test_drain_ends(self):
        s = self.start("--shutdown-timeout", "1")
        stream = Stream(s)
        s.process.send_signal(signal.SIGTERM)
        self.assertEqual(stream.rest(), "abort")
        self.assertEqual(s.ended(), 0)
        self.assertIn("1 requests did not end within 1 s", "".join(s.lines))

    def test_second_signal_ends_at_once(self):
        s = self.start("--shutdown-timeout", "600")
        streams = [Stream(s) for _ in range(3)]
        s.process.send_signal(signal.SIGTERM)
        wait_for(s, "may end within 600 s")
        s.process.send_signal(signal.SIGINT)
        for stream in streams:
            stream.rest()
        self.assertEqual(s.ended(), 0)

    def test_idle_server_leaves_at_once(self):
        s = self.start("--shutdown-timeout", "600")
        idle = socket.create_connection(("127.0.0.1", s.port))
        s.process.send_signal(signal.SIGTERM)
        self.assertEqual(s.ended(), 0)
        idle.close()


class LogTest(ServerTest):
    def test_lines_in_order(self):
        s = self.start("--max-model-len", "1k", "--max-num-batched-tokens", "256", "--served-model-name", "a", "b")
        try:
            lines = list(s.lines)
            for line in lines:
                self.assertRegex(line, r"^(DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d ")
            wanted = (r"server version [\d.]+, serving model .*m3-nano$", r"non-default args: \{.*'max_model_len': 1000.*\}$",
                      r"GPU KV cache size: [\d,]+ tokens", r"Maximum concurrency for 1,000 tokens per request: \d+\.\d\dx$",
                      r"Available routes are:$", r"Route: /v1/chat/completions, Methods: POST$",
                      r"Starting server on http://127\.0\.0\.1:%d$" % s.port, r"Application startup complete\.$")
            at = [next(i for i, line in enumerate(lines) if re.search(w, line)) for w in wanted]
            self.assertEqual(at, sorted(at))
            text = "".join(lines)
            for w in (r"Using max model len 1000\n", r"Chunked prefill is enabled with max_num_batched_tokens=256\.\n",
                      r"Loading weights took [\d.]+ seconds\n", r"Model loading took [\d.]+ GiB memory and [\d.]+ seconds\n",
                      r"Available KV cache memory: [\d.]+ GiB\n", r"init engine .* took [\d.]+ seconds\n", r"Supported tasks: "):
                self.assertRegex(text, w)
            # The numbers are those of the metrics.
            c = http.client.HTTPConnection("127.0.0.1", s.port)
            c.request("GET", "/metrics?name[]=vllm:cache_config_info")
            config = dict(re.findall(r'(\w+)="([^"]*)"', c.getresponse().read().decode()))
            c.close()
            self.assertEqual(int(re.search(r"KV cache size: ([\d,]+) tokens", text)[1].replace(",", "")), int(config["kv_cache_size_tokens"]))
            self.assertEqual(re.search(r"per request: ([\d.]+)x", text)[1], config["kv_cache_max_concurrency"])
        finally:
            self.assertEqual(s.stop(), 0)

    def test_ready_when_it_answers(self):
        """From the first moment that /health says so, and not before, requests are answered."""
        keeper = port_of_its_own()
        port = keeper.__enter__()
        self.addCleanup(keeper.__exit__, None, None, None)
        p = subprocess.Popen([HAYATE, "serve", str(MODEL), "--host", "127.0.0.1", "--port", str(port)], stderr=subprocess.DEVNULL)
        self.addCleanup(p.kill)
        try:
            status, end = 0, time.monotonic() + 120
            while status != 200:
                self.assertLess(time.monotonic(), end)
                try:
                    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
                    c.request("GET", "/health")
                    status = c.getresponse().status
                    self.assertIn(status, (200, 503))
                except ConnectionError:
                    time.sleep(.005)
                finally:
                    c.close()
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
                      {"Content-Type": "application/json"})
            self.assertEqual(c.getresponse().status, 200)
            c.close()
        finally:
            p.terminate()
            self.assertEqual(p.wait(timeout=120), 0)

    def test_ten_second_line(self):
        os.environ["VLLM_LOG_STATS_INTERVAL"] = "0.2"
        try:
            s = self.start()
        finally:
            del os.environ["VLLM_LOG_STATS_INTERVAL"]
        try:
            self.assertEqual(s.chat()[0], 200)
            wait_for(s, "Engine 000: ")
            line = next(line for line in s.lines if "Engine 000: " in line).rstrip("\n").split(" ", 3)[3]
            self.assertRegex(line, r"^Engine 000: Avg prompt throughput: \d+\.\d tokens/s, Avg generation throughput: \d+\.\d tokens/s, "
                                   r"Running: \d+ reqs, Waiting: \d+ reqs, GPU KV cache usage: \d+\.\d%, Prefix cache hit rate: \d+\.\d%$")
        finally:
            s.stop()
        os.environ["VLLM_LOG_STATS_INTERVAL"] = "0.1"
        try:
            s = self.start("--disable-log-stats")
        finally:
            del os.environ["VLLM_LOG_STATS_INTERVAL"]
        self.assertEqual(s.chat()[0], 200)
        time.sleep(.3)
        self.assertEqual(s.stop(), 0)
        self.assertNotIn("Engine 000", "".join(s.lines))

    def requests_logged(self, *flags, level=None, **more):
        if level:
            os.environ["VLLM_LOGGING_LEVEL"] = level
        try:
            s = self.start(*flags)
        finally:
            os.environ.pop("VLLM_LOGGING_LEVEL", None)
        status, body = s.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "What is 2 + 3?"}],
                                                             "temperature": 0, "max_tokens": 24, "stop": ["\n\n\n"], **more},
                              {"X-Request-Id": "abc"})
        self.assertEqual(status, 200)
        self.assertEqual(s.stop(), 0)
        s.answer = body
        return s

    def test_requests_are_logged(self):
        text = "".join(self.requests_logged().lines)
        self.assertNotIn("Received request", text)
        s = self.requests_logged("--enable-log-requests")
        line = next(line for line in s.lines if "Received request" in line)
        self.assertIn("Received request chatcmpl-abc: params: SamplingParams(n=1, presence_penalty=0, ", line)
        self.assertIn('temperature=0, ', line)
        self.assertIn('stop=["\\n\\n\\n"]', line)
        self.assertIn("max_tokens=24, ", line)
        self.assertNotIn("What is 2 + 3?", "".join(s.lines))  # prompts are for DEBUG
        self.assertNotIn("Generated response", "".join(s.lines))
        s = self.requests_logged("--enable-log-requests", "--enable-log-outputs", level="DEBUG")
        text = "".join(s.lines)
        self.assertIn("Request chatcmpl-abc details: prompt: ", text)
        self.assertIn("What is 2 + 3?", text)
        answer = next(line for line in s.lines if "Generated response chatcmpl-abc: output: " in line)
        self.assertEqual(len(json.loads(re.search(r"output_token_ids: (\[.*?\])", answer)[1])), s.answer["usage"]["completion_tokens"])
        self.assertIn("finish_reason: " + s.answer["choices"][0]["finish_reason"], answer)
        s = self.requests_logged("--enable-log-requests", "--enable-log-outputs", "--max-log-len", "4")
        answer = next(line for line in s.lines if "Generated response" in line)
        self.assertEqual(len(json.loads(re.search(r"output: (\".*?\"), output_token_ids", answer)[1])), 4)
        self.assertEqual(len(json.loads(re.search(r"output_token_ids: (\[.*?\])", answer)[1])), 4)


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])

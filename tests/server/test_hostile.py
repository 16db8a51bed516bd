#!/usr/bin/env python3
"""Clients that leave, flood, ask for too much or take every descriptor: the server must not notice for long.

    test_hostile.py BUILD/hayate
"""
import json
import os
import pathlib
import re
import resource
import socket
import struct
import subprocess
import threading
import time
import unittest
import urllib.request

from test_chat import HAYATE, MODEL, Server

PROMPT = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, "max_tokens": 10000}


def post(body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(data)) + data


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def cpu_seconds(server):
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) << 10


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=120)


class HostileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--kv-cache-memory-bytes", "512MiB")
        cls.alone = descriptors(cls.server)  # what it has open when nobody talks to it

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)
        # Replies whose client had left are not waited for.
        assert not any("connections are cut" in line for line in cls.server.lines), "".join(cls.server.lines[-5:])

    def wait_for(self, what, seconds=120):
        end = time.monotonic() + seconds
        while not what():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def test_grammars_that_take_long_hold_up_nobody(self):
        """Two workers read all requests: eight such schemas held up a plain one for half a minute."""
        answered, bombs = [], []
        for i in range(4):
            schema = {"type": "object", "properties": {f"k{i}_{n}": {"type": "integer"} for n in range(2500)}}
            ask = {"prompt": "a", "max_tokens": 1, "structured_outputs": {"json": schema}}
            bombs.append(threading.Thread(target=lambda ask=ask: answered.append(self.server.call("POST", "/v1/completions", ask)[0])))
            bombs[-1].start()
        self.server.wait_for(lambda: self.server.metric("hayate:http_connections") >= len(bombs))
        time.sleep(0.3)  # they are with the workers
        self.assertEqual(self.server.call("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0], 200)
        self.assertEqual(answered, [])
        for one in bombs:
            one.join(timeout=300)
        self.assertEqual(answered, [400] * 4)

    def test_who_leaves_is_forgotten(self):
        """Streaming or not, closed, reset or half closed: the request ends and its descriptor is back."""
        before = self.alone
        self.wait_for(lambda: descriptors(self.server) == before)
        for stream in (False, True):
            for how in ("close", "reset", "half"):
                clients = [connect(self.server) for _ in range(3)]
                for c in clients:
                    c.sendall(post({**PROMPT, "stream": stream}))
                self.wait_for(lambda: descriptors(self.server) == before + 3)
                self.server.wait_running(3)
                for c in clients:
                    if how == "reset":
                        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    if how == "half":
                        c.shutdown(socket.SHUT_WR)
                    else:
                        c.close()
                self.wait_for(lambda: descriptors(self.server) == before)
                for c in clients:
                    c.close()
        self.wait_for(self.idle)

    def idle(self):
        begin = cpu_seconds(self.server)
        time.sleep(0.3)
        return cpu_seconds(self.server) - begin < 0.05

    def test_answers_in_turn(self):
        """Requests that come before the last one is answered are answered in order."""
        body = {**PROMPT, "max_tokens": 3}
        with connect(self.server) as c:
            c.sendall(post(body) * 3 + b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            text = b"".join(iter(lambda: c.recv(65536), b"")).decode()
        self.assertEqual(text.count('"finish_reason":"length"'), 3)
        self.assertTrue(text.endswith('"}') and '{"version":' in text.rsplit("\r\n\r\n", 1)[1], text[-200:])

    def test_large_body_after_an_answer(self):
        """A connection reads whole bodies again once its answer has left."""
        with connect(self.server) as c:
            for size in (10, 900000, 10):
                body = {"messages": [{"role": "user", "content": "x" * size}], "max_tokens": 1}
                c.sendall(post(body))
                reply = b""
                while b"\r\n\r\n" not in reply or not reply.rstrip().endswith(b"}"):
                    piece = c.recv(65536)
                    self.assertTrue(piece)
                    reply += piece
                self.assertIn(b"HTTP/1.1 " + (b"400" if size > 1000 else b"200"), reply)

    def test_flood_while_answering(self):
        """What a client sends ahead is not read into memory without end."""
        for stream in (False, True):
            before = resident(self.server)
            c = connect(self.server)
            c.sendall(post({**PROMPT, "stream": stream}))
            if stream:
                c.recv(100)
            c.setblocking(False)
            sent, end = 0, time.monotonic() + 2
            while sent < 64 << 20 and time.monotonic() < end:
                try:
                    sent += c.send(b"x" * 65536)
                except BlockingIOError:
                    time.sleep(0.01)
                except OSError:  # it has had enough
                    break
            grown = resident(self.server) - before
            c.close()
            self.assertLess(sent, 32 << 20)
            self.assertLess(grown, 24 << 20)
        self.wait_for(self.idle)

    def test_refusals_do_not_fill_the_log(self):
        """Some lines a second, and how many requests they stand for."""
        def said():
            return [line for line in self.server.log() if "refused with 400" in line]
        time.sleep(1.1)
        self.server.chat(max_tokens=-1)  # says what earlier tests left
        time.sleep(1.1)
        before, begin = len(said()), time.monotonic()
        with connect(self.server) as c:
            for _ in range(10):
                c.sendall(post({**PROMPT, "max_tokens": 0}) * 30)
                got = b""
                while got.count(b"HTTP/1.1 400 ") < 30 or not got.endswith(b"}"):
                    got += c.recv(65536)
        took = time.monotonic() - begin
        time.sleep(1.1)
        self.assertEqual(self.server.chat(max_tokens=-1)[0], 400)
        lines = said()[before:]
        self.assertIn("got -1", lines[-1])
        self.assertLess(len(lines), 10 * (took + 2) + 2)
        held = sum(int(n) for line in lines for n in re.findall(r"and (\d+) more", line))
        self.assertEqual(len(lines) + held, 301)

    def test_bodies_are_not_kept(self):
        """Requests that wait or run hold their prompt, not the megabytes that they came in."""
        with open(HAYATE, "rb") as f:
            if b"__asan_init" in f.read():
                self.skipTest("the address sanitizer keeps what is freed")
        def there():
            with urllib.request.urlopen(f"http://127.0.0.1:{self.server.port}/metrics") as r:
                lines = r.read().decode().splitlines()
            return sum(float(line.split()[-1]) for line in lines
                       if re.match(r"vllm:num_requests_(running|waiting)[{]", line))
        for more in ({}, {"stop": ["qqq", "zzz"], "bad_words": ["never"], "allowed_token_ids": list(range(2000)),
                          "logit_bias": {"5": -1}, "stop_token_ids": [7], "cache_salt": "s", "stream": True}):
            before = resident(self.server)
            clients = [connect(self.server) for _ in range(40)]
            for c in clients:
                c.sendall(post({**PROMPT, **more, "metadata": "x" * 2900000}))
                time.sleep(0.02)
            # 40 bodies have 116 MB, and were kept twice
            self.wait_for(lambda: there() >= 40 and resident(self.server) - before < 80 << 20)
            for c in clients:
                c.close()
            self.wait_for(self.idle)

    def test_bodies_that_blow_up(self):
        """Small in bytes and large as a tree, or larger than any prompt: refused before it costs anything."""
        limit = self.server.call("GET", "/v1/models")[1]["data"][0]["max_model_len"] * 64 + (1 << 20)
        before = resident(self.server)
        for body in (b'{"messages":[' + b"{}," * 300000 + b"{}]}", b'{"messages":[' + b"0," * 1200000 + b"0]}",
                     b'{"a":' + b"[[[[],[],[]]]]," * 100000):
            self.assertLess(len(body), limit)
            status, a = self.server.call("POST", "/v1/chat/completions", body)
            self.assertEqual(status, 400)
            self.assertIn("JSON values", a["error"]["message"])
        self.assertLess(resident(self.server) - before, 24 << 20)
        with connect(self.server) as c:
            c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (limit + 1))
            self.assertIn(b" 413 ", c.recv(200))
        commas = {"messages": [{"role": "user", "content": ',[{"\\' * 100000}], "max_tokens": 1}  # text, not values
        self.assertIn("context length", self.server.call("POST", "/v1/chat/completions", commas)[1]["error"]["message"])


class LimitsTest(unittest.TestCase):
    def test_no_descriptors_left(self):
        """The server neither spins nor fills the log, and serves again when clients have left."""
        s = Server(limit=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48)))
        try:
            clients = [connect(s) for _ in range(80)]
            for c in clients:
                c.send(b"GET /hea")
            s.wait_for(lambda: any("cannot take a connection" in line for line in list(s.lines)))
            lines, cpu, begin = len(s.lines), cpu_seconds(s), time.monotonic()
            time.sleep(2)
            took = time.monotonic() - begin
            self.assertLess(len(s.lines) - lines, 5 * took / 2)
            self.assertLess(cpu_seconds(s) - cpu, 0.5 * took / 2)
            for c in clients:
                c.close()
            self.assertEqual(s.call("GET", "/health")[0], 200)
        finally:
            self.assertEqual(s.stop(), 0)

    def test_addresses_that_are_none(self):
        for host in ("nonsense.invalid", "256.1.1.1", "192.0.2.1"):
            p = subprocess.run([HAYATE, "serve", str(MODEL), "--host", host, "--port", "0"], capture_output=True,
                               text=True)
            lines = [line for line in p.stderr.splitlines() if not line.startswith("INFO ")]
            self.assertIn(p.returncode, (1, 2))
            self.assertEqual(len(lines), 1, p.stderr)
            self.assertRegex(lines[0], f"^hayate: .*{host}")


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        raise SystemExit(77)
    unittest.main(argv=["test_hostile.py"])

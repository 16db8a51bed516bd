#!/usr/bin/env python3
"""Hostile bodies on every POST route are answered 4xx with the documented shape, while a stream beside them goes on.

    test_bodies.py BUILD/hayate [all]     all: every body on every route; else some of each kind on each
"""
import json
import sys
import threading
import unittest

from hostile_bodies import ROUTES, broken, odd
from test_chat import MODEL, Server
from test_hostile import connect

ALL = "all" in sys.argv[2:]
LARGE = 50 << 20 if ALL else 8 << 20


class Channel:
    """One connection that is opened again when the server closes it."""

    def __init__(self, server):
        self.server, self.s, self.data = server, None, b""

    def ask(self, route, body, extra=b""):
        if not self.s:
            self.s, self.data = connect(self.server), b""
        data = (b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n" % (
            route.encode(), extra, len(body))) + body
        self.s.sendall(data)
        return self.reply()

    def fill(self, done):
        while not done():
            piece = self.s.recv(65536)
            if not piece:
                raise EOFError(self.data[:200])
            self.data += piece

    def reply(self):
        self.fill(lambda: b"\r\n\r\n" in self.data)
        head, self.data = self.data.split(b"\r\n\r\n", 1)
        lines = head.decode().lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:])
        if fields.get("transfer-encoding") == "chunked":
            self.fill(lambda: self.data.endswith(b"0\r\n\r\n"))
            body, self.data = self.data, b""
        else:
            size = int(fields["content-length"])
            self.fill(lambda: len(self.data) >= size)
            body, self.data = self.data[:size], self.data[size:]
        if fields.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), body

    def close(self):
        if self.s:
            self.s.close()
        self.s = None


class BodiesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-model-len", "4096", "--kv-cache-memory-bytes", "512MiB",
                            "--enable-auto-tool-choice", "--tool-call-parser", "minimax_m3", "--disable-uvicorn-access-log")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines[-50:])

    def shaped(self, route, status, text, what):
        """The error that the route documents."""
        try:
            a = json.loads(text)
        except ValueError:
            self.fail((route, status, text[:300], what))
        e = a.get("error")
        self.assertIsInstance(e, dict, (route, a, what))
        self.assertTrue(e["message"] and e["type"], (route, a, what))
        self.assertNotIn("\n", e["message"].replace(":\n ", ""), what)
        if not route.startswith("/v1/messages") or "code" in e:
            self.assertEqual((e["code"], "param" in e), (status, True), (route, a, what))

    def sample(self, bodies, count):
        bodies = list(bodies)
        return bodies if ALL else bodies[::max(1, len(bodies) // count)]

    def test_every_route(self):
        stop, events = threading.Event(), []
        def read():
            """A stream that goes on beside all of it, one after the other."""
            while not stop.is_set():
                events.append(self.server.stream(max_tokens=200, ignore_eos=True, seed=3, temperature=0)[1])

        def text_of(answer):
            self.assertEqual(answer[-1], "[DONE]")
            deltas = [json.loads(e)["choices"][0]["delta"] for e in answer[:-1]]
            return "".join((d.get("reasoning") or "") + (d.get("content") or "") for d in deltas)
        beside = threading.Thread(target=read)
        beside.start()
        asked, served = 0, []
        try:
            for route, valid in ROUTES.items():
                c = Channel(self.server)
                status, text = c.ask(route, json.dumps(valid).encode())
                if status == 404:
                    c.close()
                    continue
                self.assertEqual(status, 200, (route, text))
                served.append(route)
                for body in self.sample(broken(valid), 60):
                    status, text = c.ask(route, body)
                    what = (body[:120], len(body))
                    self.assertTrue(400 <= status < 500, (route, status, text[:300], what))
                    self.shaped(route, status, text, what)
                    asked += 1
                for body in self.sample(odd(valid), 100):
                    status, text = c.ask(route, body)
                    what = (body[:400], len(body))
                    self.assertLess(status, 500, (route, text[:300], what))
                    if status >= 400:
                        self.shaped(route, status, text, what)
                    asked += 1
                c.close()
        finally:
            stop.set()
            beside.join()
        self.assertGreaterEqual(asked, 1000)
        self.assertIn("/v1/chat/completions", served)
        self.assertGreater(len(events), 0)
        for e in events:  # each is the same, whatever came beside it
            self.assertEqual(text_of(e), text_of(events[0]))

    def test_large_strings(self):
        """Over the limit, or long: refused, and the memory is back."""
        c = Channel(self.server)
        for route in ROUTES if ALL else ("/v1/chat/completions", "/v1/completions", "/tokenize"):
            for body in (b'{"messages":[{"role":"user","content":"' + b"x" * LARGE + b'"}]}', b'"' + b"\\u00e9" * (LARGE // 6), b" " * LARGE):
                status, text = c.ask(route, body)
                if status == 404 and b'"code":404' in text and b"Not Found" in text:
                    break
                self.assertTrue(400 <= status < 500, (route, status, text[:200]))
                self.shaped(route, status, text, (body[:50], len(body)))
        c.close()

    def test_wrong_lengths(self):
        c = Channel(self.server)
        for route in ROUTES:
            body = json.dumps(ROUTES[route]).encode()
            for extra in (b"Content-Length: 1\r\n", b"Transfer-Encoding: chunked\r\n"):
                status, text = c.ask(route, body, extra)
                self.assertEqual(status, 400)
                self.shaped(route, status, text, extra)
            c.close()
            with connect(self.server) as s:  # fewer bytes than announced, and the end
                s.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n" % route.encode() + body)
            with connect(self.server) as s:  # more: the rest is no request
                s.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n" % route.encode() + body)
                text = b"".join(iter(lambda: s.recv(65536), b""))
            self.assertEqual(text.count(b"HTTP/1.1 400") + text.count(b"HTTP/1.1 404"), 2, (route, text))


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])

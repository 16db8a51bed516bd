#!/usr/bin/env python3
"""HTTP byte by byte, over a program with the server's own HTTP and handlers that show what they were given.

    test_http.py BUILD/hayate     uses BUILD/tests/echo
"""
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

BUILD = pathlib.Path(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/hayate")).parent
ECHO = BUILD / "tests" / "echo"


def held_by_the_system():
    """The most bytes of a reply that the system takes for a client that reads none of it, of one that was given 64 KiB to hold: machines
    that are set up for long ways take many megabytes."""
    try:
        return int(pathlib.Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2]) + (1 << 20)
    except (OSError, ValueError, IndexError):
        return 5 << 20


class Echo:
    """The program on a free port, with options of http_open as name=value."""

    def __init__(self, *options, files=None):
        limit = None
        if files:
            import resource
            limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        self.process = subprocess.Popen([ECHO, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        preexec_fn=limit)
        words = self.process.stdout.readline().split()
        assert words and words[0] == "port", self.process.stderr.read()
        self.port, self.address = int(words[1]), words[2]
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def connect(self, host="127.0.0.1", taken_in=None):
        """A connection; `taken_in` bytes at most are received before they are read."""
        if not taken_in:
            return Client(socket.create_connection((host, self.port), timeout=120))
        s = socket.socket()
        s.settimeout(120)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, taken_in)
        s.connect((host, self.port))
        return Client(s)

    def send(self, data, **more):
        with self.connect() as c:
            c.send(data)
            return c.reply(**more)

    def get(self, path, *headers, method="GET"):
        head = "".join(h + "\r\n" for h in headers)
        return self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode(), head=method == "HEAD")

    def totals(self):
        return self.get("/totals").json()

    def wait_for(self, what, seconds=120):
        end = time.monotonic() + seconds
        while not what(self.totals()):
            assert time.monotonic() < end, self.totals()
            time.sleep(0.02)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=120)
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code


class Reply:
    def __init__(self, status, phrase, headers, body):
        self.status, self.phrase, self.headers, self.body = status, phrase, headers, body

    def json(self):
        return json.loads(self.body)

    def __getitem__(self, name):
        values = [v for n, v in self.headers if n.lower() == name.lower()]
        assert len(values) < 2, values
        return values[0] if values else None


class Client:
    """A connection that reads replies strictly: every byte must belong to one."""

    def __init__(self, s):
        self.s, self.data = s, bytearray()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.s.close()

    def send(self, data):
        self.s.sendall(data)

    def more(self):
        piece = self.s.recv(65536)
        self.data += piece
        return bool(piece)

    def until(self, mark):
        while mark not in self.data:
            if not self.more():
                raise EOFError(self.data)
        part, self.data = self.data.split(mark, 1)
        return bytes(part)

    def take(self, count):
        while len(self.data) < count:
            if not self.more():
                raise EOFError(self.data)
        part = bytes(self.data[:count])
        del self.data[:count]
        return part

    def chunk(self):
        size = int(self.until(b"\r\n"), 16)
        part = self.take(size)
        assert self.take(2) == b"\r\n"
        return part

    def head(self):
        lines = self.until(b"\r\n\r\n").decode().split("\r\n")
        version, status, phrase = lines[0].split(" ", 2)
        assert version == "HTTP/1.1", lines
        return Reply(int(status), phrase, [tuple(line.split(": ", 1)) for line in lines[1:]], b"")

    def reply(self, head=False):
        r = self.head()
        if head or r.status == 100:
            return r
        if r["Transfer-Encoding"] == "chunked":
            while piece := self.chunk():
                r.body += piece
        elif r["Content-Length"] is not None:
            r.body = self.take(int(r["Content-Length"]))
        else:
            r.body = self.rest()
        return r

    def rest(self):
        while self.more():
            pass
        part, self.data = self.data, bytearray()
        return bytes(part)

    def closed(self):
        """Nothing more comes."""
        try:
            return self.rest() == b""
        except ConnectionResetError:
            return True


def post(path, body, *headers, length=True):
    head = "".join(h + "\r\n" for h in headers)
    if length:
        head += f"Content-Length: {len(body)}\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode() + body


class Case(unittest.TestCase):
    options, files = (), None

    @classmethod
    def setUpClass(cls):
        cls.server = Echo(*cls.options, files=cls.files)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, "".join(cls.server.lines))

    def refused(self, reply, status, phrase, words=""):
        """The documented error and nothing else."""
        self.assertEqual((reply.status, reply.phrase), (status, phrase), reply.body)
        self.assertEqual(reply["Content-Type"], "application/json")
        e = reply.json()["error"]
        self.assertEqual((e["type"], e["param"], e["code"]), (phrase, None, status))
        self.assertIn(words, e["message"])
        self.assertEqual(set(reply.json()), {"error"})
        self.assertEqual(set(e), {"message", "type", "param", "code"})


class RequestTest(Case):
    def test_parts_of_a_request(self):
        r = self.server.get("/v1/echo/a%2Fb%20c/of/%C3%BC?q=1%2B1+2&x&q=3&y=%zz&=e", "X-Test:  v 1 ")
        self.assertEqual(r.status, 200)
        self.assertEqual((r["X-Route"], r["X-Bad"], r["X-Injected"]), ("echo", None, None))
        self.assertRegex(r["Date"], r"^(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} 20\d\d \d\d:\d\d:\d\d GMT$")
        a = r.json()
        self.assertEqual((a["path"], a["id"], a["other"]), ("/v1/echo/a/b c/of/ü", "a/b c", "ü"))
        self.assertEqual(a["query"], ["q", "1+1 2", "x", "", "q", "3", "y", "%zz", "", "e"])
        self.assertEqual((a["q"], a["header"], a["method"]), ("1+1 2", "v 1", "GET"))
        self.assertEqual(self.server.get("/%65cho").json()["path"], "/echo")
        self.assertEqual(self.server.get("http://other/echo?q=7").json()["q"], "7")
        self.assertEqual(self.server.get("/v1/echo/7", method="DELETE").json()["id"], "7")

    def test_wrong_paths_and_methods(self):
        for path in ("/nothing", "/echo/", "//echo", "/v1/echo/", "/v1/echo//of/x", "/v1/echo/a/of", "/Echo", "/"):
            self.refused(self.server.get(path), 404, "Not Found")
        for path in ("/echo%00", "/echo%0", "/%GG"):
            self.refused(self.server.get(path), 400, "Bad Request", "%")
        r = self.server.get("/only-post")
        self.refused(r, 405, "Method Not Allowed")
        self.assertEqual(r["Allow"], "POST")
        r = self.server.get("/v1/echo/1", method="PUT")
        self.refused(r, 405, "Method Not Allowed")
        self.assertEqual(r["Allow"], "GET, HEAD, POST, DELETE")
        for method in ("TRACE", "QUERY", "BREW"):  # names that no route has, known or not: nothing here is a fault of the server
            self.refused(self.server.get("/echo", method=method), 405, "Method Not Allowed")
        r = self.server.get("/v1/echo/1", method="OPTIONS")
        self.assertEqual((r.status, r["Allow"]), (200, "GET, HEAD, POST, DELETE, OPTIONS"))
        self.assertEqual(self.server.get("*", method="OPTIONS").status, 200)
        self.refused(self.server.get("/nothing", method="OPTIONS"), 404, "Not Found")

    def test_head(self):
        with self.server.connect() as c:
            for path in ("/large?size=5000", "/nothing"):
                c.send(f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                r = c.reply(head=True)
                self.assertEqual(r.status, 200 if "large" in path else 404)
                self.assertGreater(int(r["Content-Length"]), 50)
            c.send(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(c.reply().status, 200)

    def test_bodies(self):
        self.assertEqual(self.server.send(post("/echo", b"hello")).json()["body"], "hello")
        big = os.urandom(1 << 20).hex().encode()
        self.assertEqual(self.server.send(post("/echo", big)).json()["length"], len(big))
        for body, want in ((b"5\r\nhello\r\n0\r\n\r\n", "hello"), (b"1;a=b\r\nh\r\n04\r\nello\r\n0\r\nX: y\r\n\r\n", "hello"),
                           (b"0\r\n\r\n", ""), (b"A\r\n0123456789\r\n0;x\r\n\r\n", "0123456789")):
            data = post("/echo", body, "Transfer-Encoding: chunked", length=False)
            self.assertEqual(self.server.send(data).json()["body"], want)
            with self.server.connect() as c:  # byte by byte, and the connection goes on
                for _ in range(2):
                    for i in range(len(data)):
                        c.send(data[i:i + 1])
                    self.assertEqual(c.reply().json()["body"], want)

    def test_malformed(self):
        """400 with the documented body, and the connection ends."""
        chunked = "Transfer-Encoding: chunked"
        bad = {
            b"\x16\x03\x01\x02\x00\x01\x00\x01": "no HTTP", b"\x00" * 100: "no HTTP", b"A" * 100: "no HTTP", b" GET / HTTP/1.1\r\n": "no HTTP",
            b"GET\r\n\r\n": "", b"GET /echo\r\n\r\n": "request line", b"GET  /echo HTTP/1.1\r\n\r\n": "request line",
            b"GET /echo HTTP/1.1 x\r\n\r\n": "request line", b"GET /echo HTTX/1.1\r\n\r\n": "version",
            b"GET echo HTTP/1.1\r\nHost: x\r\n\r\n": "path", b"GET /\xc3\xbc HTTP/1.1\r\nHost: x\r\n\r\n": "%XX",
            b"GET /a\x7f HTTP/1.1\r\nHost: x\r\n\r\n": "%XX", b"GET /echo HTTP/1.1\nHost: x\n\n": "CR LF",
            b"GET /echo HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n": "CR", b"GET /echo HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n": "NUL",
            b"GET /echo HTTP/1.1\r\nHost: x\r\nA: b\x01c\r\n\r\n": "control", b"GET /echo HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n": "name",
            b"GET /echo HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n": "folded", b"GET /echo HTTP/1.1\r\nHost: x\r\nnothing\r\n\r\n": "name",
            b"GET /echo HTTP/1.1\r\nHost: x\r\n: v\r\n\r\n": "name", b"GET /echo HTTP/1.1\r\n\r\n": "Host",
            b"GET /echo HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n": "Host",
            post("/echo", b"hello", chunked): "both", post("/echo", b"0\r\n\r\n", "Content-Length: 5", chunked, length=False): "both",
            post("/echo", b"x", "Content-Length: 1"): "more than once", post("/echo", b"", "Content-Length: -5", length=False): "number",
            post("/echo", b"", "Content-Length: +5", length=False): "number", post("/echo", b"", "Content-Length: 5, 5", length=False): "number",
            post("/echo", b"", "Content-Length: 0x5", length=False): "number", post("/echo", b"", "Content-Length:", length=False): "number",
            b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": "1.0",
            post("/echo", b"z\r\n", chunked, length=False): "chunks", post("/echo", b"5\r\nhelloo\r\n", chunked, length=False): "chunks",
            post("/echo", b"5\nhello\r\n", chunked, length=False): "chunks", post("/echo", b"\r\n", chunked, length=False): "chunks",
            post("/echo", b"5;" + b"x" * 2000, chunked, length=False): "chunks",
            post("/echo", b"0\r\n" + b"X: y\r\n" * 20000, chunked, length=False): "chunks",
        }
        before = self.server.totals()["malformed"]
        for data, words in bad.items():
            with self.server.connect() as c:
                c.send(data)
                r = c.reply()
                self.refused(r, 400, "Bad Request", words)
                self.assertEqual(r["Connection"], "close", data)
                self.assertTrue(c.closed())
        self.assertEqual(self.server.totals()["malformed"], before + len(bad))
        self.refused(self.server.send(post("/echo", b"", "Transfer-Encoding: gzip, chunked", length=False)), 501, "Not Implemented", "chunked")
        self.refused(self.server.send(b"GET / HTTP/2.0\r\nHost: x\r\n\r\n"), 505, "HTTP Version Not Supported")
        self.refused(self.server.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505, "HTTP Version Not Supported")

    def test_smuggled_requests_are_not_answered(self):
        """What follows a request whose end is not sure is no request."""
        inner = b"GET /echo?q=smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
        for head in (b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
                     b"Transfer-Encoding: xchunked\r\n", b"Transfer-Encoding : chunked\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
                     b"Content-Length: 0\r\nContent-Length: 44\r\n", b"Transfer-Encoding:\tchunked\r\nContent-Length: 0\r\n",
                     b"X: y\rTransfer-Encoding: chunked\r\n", b"Content-Length: 5\x0b\r\n"):
            with self.server.connect() as c:
                c.send(b"POST /echo HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n0\r\n\r\n" + inner)
                text = c.rest()
            self.assertEqual(text.count(b"HTTP/1.1 "), 1, head)
            self.assertRegex(text, b"^HTTP/1.1 (400|501) ")
            self.assertNotIn(b"smuggled", text)

    def test_limits_of_heads(self):
        many = [f"X-{i}: v" for i in range(300)]
        self.assertEqual(self.server.get("/echo", *many[:250]).status, 200)
        self.refused(self.server.get("/echo", *many), 431, "Request Header Fields Too Large", "too many headers")
        self.assertEqual(self.server.get("/echo", "X-Test: " + "v" * 100000).json()["header"], "v" * 100000)
        with self.server.connect() as c:
            try:
                c.send(b"GET /echo HTTP/1.1\r\nX: " + b"v" * (5 << 20))
            except OSError:
                pass
            self.refused(c.reply(), 431, "Request Header Fields Too Large", "too many bytes")
        self.assertEqual(self.server.totals()["incoming"] >> 20, 0)

    def test_large_bodies(self):
        limit = 64 << 20
        r = self.server.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (limit + 1))
        self.refused(r, 413, "Content Too Large", str(limit))
        self.refused(self.server.send(post("/echo", b"", "Content-Length: 99999999999999999999999", length=False)), 413, "Content Too Large")
        self.refused(self.server.send(post("/echo", b"4000001\r\n", "Transfer-Encoding: chunked", length=False)), 413, "Content Too Large")
        self.refused(self.server.send(post("/echo", b"1" * 20 + b"\r\n", "Transfer-Encoding: chunked", length=False)), 413, "Content Too Large")
        with self.server.connect() as c:  # a client that sends it all before it reads gets the answer nevertheless
            c.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (limit + 1))
            for _ in range(65):
                c.send(b"x" * (1 << 20))
            self.refused(c.reply(), 413, "Content Too Large")

    def test_encodings_and_expectations(self):
        r = self.server.send(post("/echo", b"\x1f\x8b", "Content-Encoding: gzip"))
        self.refused(r, 415, "Unsupported Media Type", "Content-Encoding gzip")
        self.assertEqual(self.server.send(post("/echo", b"x", "Content-Encoding: identity")).status, 200)
        self.refused(self.server.send(post("/echo", b"x", "Expect: tea")), 417, "Expectation Failed")
        with self.server.connect() as c:
            for body in (b"hello", b"again"):
                c.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
                self.assertEqual(c.reply().status, 100)
                c.send(body)
                self.assertEqual(c.reply().json()["body"], body.decode())
            c.send(b"POST /nothing HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
            r = c.reply()  # instead of the 100: the body is not wanted
            self.refused(r, 404, "Not Found")
            self.assertEqual(r["Connection"], "close")
            self.assertTrue(c.closed())

    def test_versions_and_connections(self):
        with self.server.connect() as c:
            c.send(b"GET /echo HTTP/1.0\r\n\r\n")
            r = c.reply()
            self.assertEqual((r.status, r["Connection"]), (200, "close"))
            self.assertTrue(c.closed())
        with self.server.connect() as c:
            for _ in range(3):
                c.send(b"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
                self.assertEqual(c.reply()["Connection"], "keep-alive")
        with self.server.connect() as c:
            for _ in range(3):
                c.send(b"\r\n\r\nGET /echo HTTP/1.1\r\nHost: x\r\n\r\n")  # empty lines between are allowed
                self.assertIsNone(c.reply()["Connection"])
            c.send(b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: foo, Close\r\n\r\n")
            self.assertEqual(c.reply()["Connection"], "close")
            self.assertTrue(c.closed())
        with self.server.connect() as c:  # without chunks the end of the stream is that of the connection
            c.send(b"GET /stream?events=3&size=2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            r = c.reply()
            self.assertEqual((r["Transfer-Encoding"], r["Connection"]), (None, "close"))
            self.assertEqual(r.body, b"data: ee\n\n" * 3 + b"event: last\ndata: [DONE]\n\n")

    def test_pipelines(self):
        """Any number of requests ahead, answered in order, also when an early one takes longer."""
        with self.server.connect() as c:
            c.send(b"GET /late?pause=100 HTTP/1.1\r\nHost: x\r\n\r\n" + b"".join(
                post("/echo?q=%d" % i, b"b" * i) for i in range(300)))
            self.assertEqual(c.reply().body, b"late")
            for i in range(300):
                a = c.reply().json()
                self.assertEqual((a["q"], a["length"]), (str(i), i))
        with self.server.connect() as c:  # half closed after the last one: all that is there is answered
            c.send(b"GET /large?size=100000 HTTP/1.1\r\nHost: x\r\n\r\n" * 30)
            c.s.shutdown(socket.SHUT_WR)
            for _ in range(30):
                self.assertEqual(len(c.reply().body), 100000)
            self.assertTrue(c.closed())
        self.server.wait_for(lambda t: t["connections"] == 1 and t["outgoing"] == 0)

    def test_streams(self):
        with self.server.connect() as c:
            for _ in range(2):
                c.send(b"GET /stream?events=250&size=9 HTTP/1.1\r\nHost: x\r\n\r\n")
                r = c.reply()
                self.assertEqual(r["Content-Type"], "text/event-stream; charset=utf-8")
                self.assertEqual((r["Cache-Control"], r["X-Accel-Buffering"]), ("no-cache", "no"))
                self.assertEqual(r.body, b"data: eeeeeeeee\n\n" * 250 + b"event: last\ndata: [DONE]\n\n")
        before = self.server.totals()["gone"]
        with self.server.connect() as c:
            c.send(b"GET /stream?events=1000000&size=9&pause=5 HTTP/1.1\r\nHost: x\r\n\r\n")
            c.head()
        with self.server.connect() as c:
            c.send(b"GET /late?pause=100000 HTTP/1.1\r\nHost: x\r\n\r\n")
            self.server.wait_for(lambda t: t["exchanges"] == 2)
        self.server.wait_for(lambda t: t["gone"] == before + 2 and t["exchanges"] == 1)

    def test_events_of_one_turn_are_one_write(self):
        with self.server.connect() as c:
            trace = subprocess.run(["which", "strace"], capture_output=True)
            if trace.returncode:
                self.skipTest("strace is not installed")
            p = subprocess.Popen(["strace", "-f", "-e", "trace=sendto,writev", "-o", "/dev/stdout", "-p", str(self.server.process.pid)],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            said = p.stderr.readline()
            if "attached" not in said:
                p.kill(), p.wait()
                p.stdout.close(), p.stderr.close()
                self.skipTest("strace may not attach")
            c.send(b"GET /stream?events=100&size=9 HTTP/1.1\r\nHost: x\r\n\r\n")
            c.reply()
            p.send_signal(signal.SIGINT)
            calls = [line for line in p.stdout if "sendto(" in line or "writev(" in line]
            p.wait()
            p.stdout.close(), p.stderr.close()
        self.assertLessEqual(len(calls), 2, calls)  # the head, and a hundred events with the end

    def test_counts(self):
        self.server.send(post("/v1/echo/9", b"hello"))
        self.server.get("/only-post")
        counts = {(c["method"], c["handler"], c["status"]): c for c in self.server.totals()["counts"]}
        c = counts["POST", "/v1/echo/{id}", 200]
        self.assertEqual((c["requests"], c["in"], c["most"]), (1, 5, 1))
        self.assertGreater(c["out"], 50)
        self.assertGreaterEqual(counts["GET", "none", 405]["requests"], 1)

    def test_access_log(self):
        self.server.get("/echo?q=seen%20once")
        end = time.monotonic() + 120
        while not (lines := [line for line in self.server.lines if "seen%20once" in line]):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        self.assertRegex(lines[0], r'^INFO:     127\.0\.0\.1:\d+ - "GET /echo\?q=seen%20once HTTP/1\.1" 200 OK\n$')


class KeyTest(Case):
    options = ("api_key=first", "api_key=second key", "request_ids=1", "root_path=/proxy/a/", "quiet=/echo")

    def test_keys(self):
        for path in ("/v1/echo", "/inference/v1/echo", "/v1/nothing", "/v2/x", "/cohere", "/%76%31/echo", "/proxy/a/v1/echo", "/v1%2Fecho"):
            for header in ((), ("Authorization: Bearer",), ("Authorization: Bearer wrong",), ("Authorization: first",), ("Authorization: Basic first",),
                           ("x-api-key: firs",), ("x-api-key:",), ("Authorization: Bearer  first",)):
                r = self.server.get(path, *header)
                self.assertEqual((r.status, r.body), (401, b'{"error":"Unauthorized"}'), (path, header))
                self.assertEqual(r["Content-Type"], "application/json")
        for header in ("Authorization: Bearer first", "authorization: bEARER second key", "X-API-Key: second key"):
            self.assertEqual(self.server.get("/v1/echo", header).status, 200, header)
            self.assertEqual(self.server.get("/v1/nothing", header).status, 404, header)
        self.assertEqual(self.server.get("/echo").status, 200)
        self.assertEqual(self.server.get("/v1/echo", method="OPTIONS").status, 200)
        with self.server.connect() as c:  # strangers cannot make the server take in megabytes
            c.send(b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n")
            self.assertEqual(c.reply().status, 401)

    def test_root_path(self):
        self.assertEqual(self.server.get("/proxy/a/echo").json()["path"], "/echo")
        self.assertEqual(self.server.get("/proxy/aecho").status, 404)
        self.assertEqual(self.server.get("/proxy/a").status, 404)
        self.assertEqual(self.server.get("/proxy/a/v1/echo/7", "x-api-key: first").json()["id"], "7")

    def test_request_ids(self):
        self.assertEqual(self.server.get("/echo", "X-Request-Id: mine-7")["X-Request-Id"], "mine-7")
        made = {self.server.get("/echo")["X-Request-Id"] for _ in range(3)}
        self.assertEqual(len(made), 3)
        for one in made:
            self.assertRegex(one, "^[0-9a-f]{32}$")

    def test_quiet_paths(self):
        self.server.get("/echo?q=quiet")
        self.server.get("/v1/loud")
        end = time.monotonic() + 120
        while not any("/v1/loud" in line for line in list(self.server.lines)):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        self.assertFalse(any("q=quiet" in line for line in list(self.server.lines)))


class CorsTest(unittest.TestCase):
    def preflight(self, server, origin, method="POST", headers=None):
        return server.get("/v1/echo", f"Origin: {origin}", f"Access-Control-Request-Method: {method}",
                          *([f"Access-Control-Request-Headers: {headers}"] if headers else []), method="OPTIONS")

    def test_all(self):
        server = Echo("api_key=k")
        self.assertIsNone(server.get("/echo")["Access-Control-Allow-Origin"])
        for path, status in (("/echo", 200), ("/v1/echo", 401), ("/nothing", 404)):
            r = server.get(path, "Origin: http://a")
            self.assertEqual((r.status, r["Access-Control-Allow-Origin"]), (status, "*"))
        r = self.preflight(server, "http://a", headers="X-One, authorization")
        self.assertEqual((r.status, r.body, r["Access-Control-Allow-Origin"]), (200, b"OK", "*"))
        self.assertEqual(r["Access-Control-Allow-Headers"], "X-One, authorization")
        self.assertIn("DELETE", r["Access-Control-Allow-Methods"])
        self.assertEqual((r["Access-Control-Max-Age"], r["Access-Control-Allow-Credentials"]), ("600", None))
        self.assertEqual(server.stop(), 0)

    def test_some(self):
        server = Echo("origin=http://a", "origin=https://b:8", "method=GET", "header=X-One", "allow_credentials=1")
        r = server.get("/echo", "Origin: https://b:8")
        self.assertEqual((r["Access-Control-Allow-Origin"], r["Vary"], r["Access-Control-Allow-Credentials"]), ("https://b:8", "Origin", "true"))
        self.assertIsNone(server.get("/echo", "Origin: http://c")["Access-Control-Allow-Origin"])
        r = self.preflight(server, "http://a", "GET", "x-one, content-type")
        self.assertEqual((r.status, r["Access-Control-Allow-Methods"]), (200, "GET"))
        self.assertEqual(r["Access-Control-Allow-Headers"], "Accept, Accept-Language, Content-Language, Content-Type, X-One")
        self.assertEqual(self.preflight(server, "http://c", "GET").json()["error"]["message"], "Disallowed CORS origin")
        self.assertEqual(self.preflight(server, "http://a", "POST").json()["error"]["message"], "Disallowed CORS method")
        self.assertEqual(self.preflight(server, "http://a", "GET", "x-two").json()["error"]["message"], "Disallowed CORS headers")
        self.assertEqual(server.stop(), 0)


class PatienceTest(Case):
    """Clients that are too slow are shed, and what they hold is bounded."""
    options = ("header_s=1", "body_s=1.5", "keep_alive_s=0.5", "write_s=1", "comment_s=0.2")

    def test_slow_heads(self):
        before = self.server.totals()["too_slow"]
        with self.server.connect() as silent, self.server.connect() as c:
            c.send(b"GET /echo HTTP/1.1\r\n")
            try:
                while True:  # drop by drop
                    c.send(b"X")
                    time.sleep(0.05)
                    c.s.setblocking(False)
                    try:
                        if not c.more():
                            break
                    except BlockingIOError:
                        pass
                    c.s.setblocking(True)
            except OSError:
                pass
            self.assertIn(b"408 Request Timeout", c.data)
            self.assertTrue(silent.closed())
        self.assertGreaterEqual(self.server.totals()["too_slow"], before + 2)

    def test_slow_bodies(self):
        with self.server.connect() as c:
            c.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
            r = c.reply()
            self.assertEqual((r.status, r.json()["error"]["type"]), (408, "Request Timeout"))
        with self.server.connect() as c:  # slow, but as fast as it must be
            c.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 80000\r\n\r\n")
            for _ in range(40):
                c.send(b"x" * 2000)
                time.sleep(0.05)
            self.assertEqual(c.reply().json()["length"], 80000)

    def test_idle_connections(self):
        with self.server.connect() as c:
            begin = time.monotonic()  # before the reply, whose reader may come late
            c.send(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
            c.reply()
            self.assertTrue(c.closed())
            self.assertGreater(time.monotonic() - begin, 0.4)

    def test_answers_may_take_long(self):
        with self.server.connect() as c:
            c.send(b"GET /late?pause=1500 HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(c.reply().body, b"late")

    def test_comments_in_silence(self):
        for pause in (1000, 4000, 16000):  # a machine that stood still says fewer than it should
            with self.server.connect() as c:
                c.send(b"GET /stream?events=2&size=1&pause=%d HTTP/1.1\r\nHost: x\r\n\r\n" % pause)
                body = c.reply().body
            if body.count(b": keep-alive\n\n") >= 2:
                break
        self.assertGreaterEqual(body.count(b": keep-alive\n\n"), 2)
        self.assertEqual(body.replace(b": keep-alive\n\n", b""), b"data: e\n\n" * 2 + b"event: last\ndata: [DONE]\n\n")

    def test_readers_that_take_their_time(self):
        """While a reply is being taken nobody waits for the next request. (The system tells the sender that there is room again
        when half of its own is free: of megabytes that is a second on a machine that is busy.)"""
        with self.server.connect(taken_in=1 << 17) as c:
            c.send(b"GET /large?size=30000000 HTTP/1.1\r\nHost: x\r\n\r\n")
            got = 0
            while got < 30000000:
                piece = c.s.recv(1 << 20)
                self.assertTrue(piece, got)
                got += len(piece)
                time.sleep(len(piece) / 10e6)

    def test_readers_that_stop(self):
        """A client that takes nothing of its reply is gone in time. (By what only grows: it may be gone before somebody looks.)"""
        before = self.server.totals()["too_slow"]
        with self.server.connect(taken_in=1 << 16) as c:
            c.send(b"GET /large?size=%d HTTP/1.1\r\nHost: x\r\n\r\n" % (20000000 + held_by_the_system()))
            self.server.wait_for(lambda t: t["too_slow"] > before and t["outgoing"] == 0 and t["connections"] == 1)


class BoundsTest(Case):
    HELD = held_by_the_system()
    options = ("max_incoming_bytes=3000000", "max_backlog_bytes=2000000", f"max_outgoing_bytes={9000000 + HELD}", "max_connections=40")

    def test_half_received_bodies(self):
        clients = [self.server.connect() for _ in range(8)]
        for c in clients:
            try:
                c.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 900000)
            except OSError:
                pass
        self.server.wait_for(lambda t: any(c["status"] == 503 for c in t["counts"]))
        time.sleep(0.2)
        self.assertLess(self.server.totals()["incoming"], 4 << 20)
        self.assertEqual(self.server.send(post("/echo", b"small")).json()["body"], "small")
        statuses = []
        for c in clients:
            c.s.settimeout(0.2)
            try:
                r = c.reply()
                statuses.append(r.status)
                self.assertEqual(r["Retry-After"], "1")
                self.assertEqual(r.json()["error"]["type"], "Service Unavailable")
            except (TimeoutError, OSError):
                pass
        self.assertIn(503, statuses)
        self.assertLess(len(statuses), 8)
        for c in clients:
            c.s.close()
        self.server.wait_for(lambda t: t["incoming"] < 10000 and t["connections"] == 1)

    def test_slow_readers(self):
        """A stream that is not read is cut; many replies that are not read are cut by size."""
        before = self.server.totals()
        with self.server.connect(taken_in=1 << 16) as c:
            c.send(b"GET /stream?events=%d&size=1000 HTTP/1.1\r\nHost: x\r\n\r\n" % (50000 + self.HELD // 1000))
            self.server.wait_for(lambda t: t["gone"] == before["gone"] + 1)
        clients = [self.server.connect(taken_in=1 << 16) for _ in range(10)]
        for i, c in enumerate(clients):
            c.send(b"GET /large?size=%d HTTP/1.1\r\nHost: x\r\n\r\n" % (6000000 + 100000 * i + self.HELD))
        self.server.wait_for(lambda t: t["overflowed"] > before["overflowed"] + 1)
        self.assertLess(self.server.totals()["outgoing"], (9 << 20) + self.HELD)
        self.assertEqual(self.server.get("/echo").status, 200)
        for c in clients:
            c.s.close()
        self.server.wait_for(lambda t: t["outgoing"] == 0 and t["connections"] == 1)

    def server_turned_away(self, clients):
        """So far, of a server that is full of clients; asked through one of them, as there is no place for another."""
        while len(clients) < 40:
            clients.append(self.server.connect())
            clients[-1].send(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
            if clients[-1].reply().status != 200:  # the one before it has not gone yet
                clients.pop().s.close()
        clients[0].send(b"GET /totals HTTP/1.1\r\nHost: x\r\n\r\n")
        return clients[0].reply().json()["turned_away"]

    def test_limit_of_connections(self):
        clients = [self.server.connect() for _ in range(40)]
        for c in clients:
            c.send(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(c.reply().status, 200)
        with self.server.connect() as c:
            c.send(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
            r = c.reply()
            self.assertEqual((r.status, r["Retry-After"], r["Connection"]), (503, "1", "close"))
            self.assertEqual(r.json()["error"]["type"], "Service Unavailable")
        for _ in range(20):  # another one leaves in time, which is a quarter of a second: this one has its place
            turned_away = self.server_turned_away(clients)
            with self.server.connect() as c:
                c.send(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
                clients.pop().s.close()
                status = c.reply().status
            if status == 200:
                break
            self.assertEqual(status, 503)
        self.assertEqual(status, 200)
        self.assertGreater(self.server.totals()["turned_away"], turned_away)
        for c in clients:
            c.s.close()
        self.server.wait_for(lambda t: t["connections"] == 1)
        self.server.wait_for(lambda t: any("--max-connections" in line for line in list(self.server.lines)))


class StopTest(unittest.TestCase):
    def test_what_is_on_its_way_leaves(self):
        server = Echo()
        c, idle = server.connect(taken_in=1 << 16), server.connect()
        size = 8000000 + held_by_the_system()
        c.send(b"GET /large?size=%d HTTP/1.1\r\nHost: x\r\n\r\n" % size)
        server.wait_for(lambda t: t["outgoing"] > 1 << 20)
        server.process.send_signal(signal.SIGTERM)
        self.assertTrue(idle.closed())
        self.assertEqual(len(c.reply().body), size)
        self.assertEqual(server.stop(), 0)
        self.assertFalse(any("connections are cut" in line for line in server.lines), server.lines)
        c.s.close(), idle.s.close()

    def test_who_takes_nothing_is_cut(self):
        server = Echo()
        with server.connect(taken_in=1 << 16) as c:
            c.send(b"GET /large?size=%d HTTP/1.1\r\nHost: x\r\n\r\n" % (20000000 + held_by_the_system()))
            server.wait_for(lambda t: t["outgoing"] > 10 << 20)
            self.assertEqual(server.stop(), 0)
        self.assertTrue(any("1 clients have not taken" in line for line in server.lines), server.lines)


class AddressTest(unittest.TestCase):
    def run_wrong(self, *options):
        p = subprocess.run([ECHO, *options], capture_output=True, text=True, timeout=120)
        lines = [line for line in p.stderr.splitlines() if not line.startswith("log ")]
        self.assertEqual(len(lines), 1, p.stderr)
        return p.returncode, lines[0]

    def test_both_families(self):
        server = Echo("host=")
        self.assertRegex(server.address, r"^http://0\.0\.0\.0:\d+$")
        hosts = ["127.0.0.1"]
        if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6") and pathlib.Path("/proc/net/if_inet6").read_text():
            hosts.append("::1")
        for host in hosts:
            with server.connect(host) as c:
                c.send(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertEqual(c.reply().status, 200)
        self.assertEqual(self.run_wrong(f"port={server.port}", "host=")[0], 1)
        self.assertIn("choose another --port", self.run_wrong(f"port={server.port}")[1])
        self.assertEqual(server.stop(), 0)
        self.assertTrue(any('127.0.0.1:' in line for line in server.lines), server.lines)

    def test_names(self):
        server = Echo("host=localhost")
        with server.connect("localhost") as c:
            c.send(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(c.reply().status, 200)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(self.run_wrong("host=nonsense.invalid")[0], 2)
        self.assertEqual(self.run_wrong("port=70000")[0], 2)
        self.assertIn("/", self.run_wrong("root_path=x")[1])

    def test_unix_socket(self):
        # Of the name of a socket the system takes 107 bytes.
        with tempfile.TemporaryDirectory(dir="/tmp" if len(tempfile.gettempdir()) > 60 else None) as folder:
            path = os.path.join(folder, "s.sock")
            server = Echo(f"uds={path}")
            self.assertEqual((server.port, server.address), (0, f"unix:{path}"))
            def ask():
                s = socket.socket(socket.AF_UNIX)
                s.connect(path)
                with Client(s) as c:
                    c.send(b"GET /echo?q=u HTTP/1.1\r\nHost: x\r\n\r\n")
                    return c.reply().json()["q"]
            self.assertEqual(ask(), "u")
            self.assertIn("another process", self.run_wrong(f"uds={path}")[1])
            self.assertEqual(ask(), "u")
            self.assertEqual(server.stop(), 0)
            self.assertFalse(os.path.exists(path))
            self.assertTrue(any('INFO:      - "GET /echo?q=u' in line for line in server.lines), server.lines)
            stale = socket.socket(socket.AF_UNIX)
            stale.bind(path)
            stale.close()
            server = Echo(f"uds={path}")  # nobody listens there any more
            self.assertEqual(ask(), "u")
            server.process.kill()
            server.process.wait()
            server.stop()
            pathlib.Path(path).unlink()
            pathlib.Path(path).write_text("mine")
            self.assertEqual(self.run_wrong(f"uds={path}")[0], 2)
            self.assertEqual(pathlib.Path(path).read_text(), "mine")
            self.assertEqual(self.run_wrong("uds=" + "x" * 200)[0], 2)
            self.assertEqual(self.run_wrong(f"uds={folder}/none/s.sock")[0], 1)


class TlsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        def make(name, *more):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
                            "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", cls.path(name + ".key"), "-out", cls.path(name + ".pem"), *more],
                           check=True, capture_output=True)
        try:
            make("one"), make("two")
        except FileNotFoundError:
            raise unittest.SkipTest("openssl is not installed")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    def files(self, name="one"):
        return (f"ssl_certfile={self.path(name + '.pem')}", f"ssl_keyfile={self.path(name + '.key')}")

    def connect(self, server, trust="one", own=None, most=None):
        context = ssl.create_default_context(cafile=self.path(trust + ".pem"))
        if own:
            context.load_cert_chain(self.path(own + ".pem"), self.path(own + ".key"))
        if most:
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = most
            context.set_ciphers("ALL:@SECLEVEL=0")
        return Client(context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), timeout=120), server_hostname="localhost"))

    def test_requests(self):
        server = Echo(*self.files())
        self.assertTrue(server.address.startswith("https://"))
        with self.connect(server) as c:
            self.assertIn(c.s.version(), ("TLSv1.2", "TLSv1.3"))
            big = b"b" * 3000000
            for _ in range(2):
                c.send(post("/echo", big))
                self.assertEqual(c.reply().json()["length"], len(big))
                c.send(b"GET /large?size=3000000 HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertEqual(len(c.reply().body), 3000000)
                c.send(b"GET /stream?events=1000&size=100 HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertEqual(c.reply().body.count(b"data: " + b"e" * 100), 1000)
            c.send(b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            self.assertEqual(c.reply().status, 200)
            self.assertTrue(c.closed())
        with self.connect(server) as c:
            c.send(b"\0" * 50)
            self.assertEqual(c.reply().status, 400)
        with socket.create_connection(("127.0.0.1", server.port), timeout=120) as plain:  # no handshake
            plain.sendall(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
            try:
                self.assertNotIn(b"HTTP", plain.recv(100))
            except ConnectionResetError:
                pass
        hasty = Echo(*self.files(), "header_s=1")
        with socket.create_connection(("127.0.0.1", hasty.port), timeout=120) as silent:
            self.assertEqual(silent.recv(100), b"")
        self.assertEqual(hasty.stop(), 0)
        with self.assertRaises(ssl.SSLError):
            self.connect(server, most=ssl.TLSVersion.TLSv1_1)
        gone = [self.connect(server) for _ in range(5)]
        for c in gone:
            c.send(b"GET /stream?events=100000&size=1000&pause=1 HTTP/1.1\r\nHost: x\r\n\r\n")
            c.head()
            c.s.close()
        with self.connect(server) as c:
            end = time.monotonic() + 120
            while True:
                c.send(b"GET /totals HTTP/1.1\r\nHost: x\r\n\r\n")
                t = c.reply().json()
                if t["gone"] == 5 and t["connections"] == 1:
                    break
                self.assertLess(time.monotonic(), end)
                time.sleep(0.02)
        self.assertEqual(server.stop(), 0)

    def test_client_certificates(self):
        server = Echo(*self.files(), f"ssl_ca_certs={self.path('two.pem')}", "ssl_cert_reqs=2")
        with self.connect(server, own="two") as c:
            c.send(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(c.reply().status, 200)
        for own in (None, "one"):
            with self.assertRaises((ssl.SSLError, ConnectionError)):
                with self.connect(server, own=own) as c:
                    c.send(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
                    if not c.rest():
                        raise ConnectionError("closed")
        self.assertEqual(server.stop(), 0)

    def test_renewal(self):
        for kind in ("pem", "key"):
            os.replace(self.path("two." + kind), self.path("tmp." + kind))
            pathlib.Path(self.path("now." + kind)).write_bytes(pathlib.Path(self.path("one." + kind)).read_bytes())
            os.replace(self.path("tmp." + kind), self.path("two." + kind))
        server = Echo(*self.files("now"), "ssl_refresh=1")
        self.connect(server, "one").s.close()
        for kind in ("key", "pem"):
            pathlib.Path(self.path("now." + kind)).write_bytes(pathlib.Path(self.path("two." + kind)).read_bytes())
        end = time.monotonic() + 120
        while True:
            try:
                self.connect(server, "two").s.close()
                break
            except ssl.SSLError:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.2)
        self.assertEqual(server.stop(), 0)

    def test_errors_by_name(self):
        def wrong(*options):
            p = subprocess.run([ECHO, *options], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
            self.assertEqual((p.returncode, len(p.stderr.splitlines())), (2, 1), p.stderr)
            return p.stderr
        pathlib.Path(self.path("junk")).write_text("junk")
        subprocess.run(["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", self.path("one.key"), "-out", self.path("locked.key")],
                       check=True, capture_output=True)
        certificate = f"ssl_certfile={self.path('one.pem')}"
        self.assertIn("cannot be used: No such file", wrong(f"ssl_certfile={self.path('none')}"))
        self.assertIn("--ssl-certfile", wrong(f"ssl_certfile={self.path('junk')}"))
        self.assertIn("--ssl-certfile", wrong(f"ssl_keyfile={self.path('one.key')}"))
        self.assertIn("--ssl-keyfile", wrong(certificate))
        self.assertIn("--ssl-keyfile", wrong(certificate, f"ssl_keyfile={self.path('junk')}"))
        self.assertIn("--ssl-keyfile", wrong(certificate, f"ssl_keyfile={self.path('locked.key')}"))
        self.assertIn("mismatch", wrong(certificate, f"ssl_keyfile={self.path('two.key')}"))
        self.assertIn("--ssl-ca-certs", wrong(*self.files(), f"ssl_ca_certs={self.path('junk')}"))
        self.assertIn("--ssl-ca-certs", wrong(*self.files(), "ssl_cert_reqs=2"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])

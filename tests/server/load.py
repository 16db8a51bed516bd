#!/usr/bin/env python3
"""Many clients against the real server over a clocked engine: failures, CPU of the server per token, added delay.

    load.py BUILD/hayate [--idle N] [--streams N] [--tokens N] [--rate PER_STREAM] [--steps]     uses BUILD/tests/standin

Tokens carry the time at which they were made; the kernel says when the bytes were there for the client, so that what the client
does with them costs nothing of the delay.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "m3-nano"
SO_TIMESTAMPNS = 35  # of Linux
LONG = 3000  # tokens of streams that are left, more than a test has time for
STAMP = re.compile(rb' (\d{16})')
NONE_RUNS = re.compile(rb'vllm:num_requests_running{[^}]*} 0(\.0)?\n')


def program(hayate):
    return pathlib.Path(os.path.abspath(hayate)).parent / "tests" / "standin"


class Standin:
    def __init__(self, hayate, rate, how):
        self.process = subprocess.Popen([program(hayate), MODEL, str(rate), how], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().split()[1])

    def usage(self):
        """Seconds of CPU, and tokens, since the start."""
        self.process.send_signal(signal.SIGUSR1)
        words = self.process.stdout.readline().split()
        return float(words[1]), int(words[3])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        return code


class Stream:
    def __init__(self, port, tokens):
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, "stream": True,
                           "ignore_eos": True, "chat_template_kwargs": {"thinking_mode": "disabled"}}).encode()
        self.s = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.s.setblocking(False)
        self.data = bytearray()
        self.ended = False

    def read(self, delays):
        """Takes what is there; each whole stamp in it is a delay in microseconds."""
        data, ancillary, _, _ = self.s.recvmsg(1 << 16, 64)
        arrived = time.time_ns()
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = struct.unpack("ll", value)
                arrived = seconds * 10 ** 9 + nanoseconds
        before = max(0, len(self.data) - 32)
        self.data += data
        for m in STAMP.finditer(self.data, before):
            if m.end() > len(self.data) - len(data) and m.end() < len(self.data):
                delays.append(arrived / 1000 - int(m.group(1)))
        self.ended = not data or b"\r\n0\r\n\r\n" in self.data[-16:]


def ask(s, path="/health"):
    """The body; None: it is not answered."""
    s.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
    text = b""
    while b"\r\n\r\n" not in text:
        piece = s.recv(4096)
        if not piece:
            return None
        text += piece
    head, body = text.split(b"\r\n\r\n", 1)
    length = int(re.search(rb"content-length: *(\d+)", head.lower()).group(1))
    while len(body) < length and (piece := s.recv(length - len(body))):
        body += piece
    return body if len(body) == length and text.startswith(b"HTTP/1.1 200 ") else None


def none_runs(s):
    """Soon: what was left is cancelled."""
    end = time.monotonic() + 20
    while not NONE_RUNS.search(ask(s, "/metrics") or b""):
        if time.monotonic() > end:
            return False
        time.sleep(.05)
    return True


def run(hayate, idle, streams, tokens, rate, how="spread", leaving=0):
    """Everything that was seen, as a dictionary. `leaving` more streams are left one after the other, and are to end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = Standin(hayate, rate, how)
    try:
        quiet = []
        for _ in range(idle):
            quiet.append(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        failures = sum(ask(s) is None for s in quiet)
        cpu, made = server.usage()
        running = [Stream(server.port, tokens) for _ in range(streams)]
        leavers = [Stream(server.port, LONG) for _ in range(leaving)]
        selector, delays = selectors.DefaultSelector(), []
        for c in running:
            selector.register(c.s, selectors.EVENT_READ, c)
        begin = time.monotonic()
        left = streams
        while left and time.monotonic() - begin < 600:
            for key, _ in selector.select(1):
                c = key.data
                c.read(delays)
                if c.ended:
                    selector.unregister(c.s)
                    left -= 1
            if leavers and time.monotonic() - begin > (1 + leaving - len(leavers)) / rate:
                leavers.pop().s.close()
                failures += ask(quiet[0], "/metrics") is None
        took = time.monotonic() - begin
        for c in leavers:
            c.s.close()
        cpu, made = server.usage()[0] - cpu, server.usage()[1] - made
        for c in running:
            text = bytes(c.data)
            whole = text.startswith(b"HTTP/1.1 200 ") and b"data: [DONE]" in text and len(STAMP.findall(text)) == tokens
            failures += not whole
        failures += sum(ask(s) is None for s in quiet)
        failures += leaving > 0 and not none_runs(quiet[0])
        for s in quiet:
            s.close()
        for c in running:
            c.s.close()
    finally:
        code = server.stop()
    delays.sort()
    at = lambda part: delays[min(len(delays) - 1, int(part * len(delays)))] / 1000 if delays else float("nan")
    return {"failures": failures, "exit": code, "tokens": made, "seconds": took, "tokens_per_second": made / took,
            "cpu_us_per_token": cpu / max(1, made) * 1e6, "delay_ms": {"median": at(.5), "p99": at(.99), "most": at(1)}}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("hayate")
    p.add_argument("--idle", type=int, default=2000)
    p.add_argument("--streams", type=int, default=500)
    p.add_argument("--tokens", type=int, default=200)
    p.add_argument("--rate", type=float, default=10)
    p.add_argument("--steps", action="store_true")
    a = p.parse_args()
    seen = run(a.hayate, a.idle, a.streams, a.tokens, a.rate, "steps" if a.steps else "spread")
    print(json.dumps(seen, indent=1))
    return 1 if seen["failures"] or seen["exit"] else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""A server with a disk tier is killed in the middle of its work, again and again: never a wrong answer.

    test_kill.py BUILD/hayate [KILLS]

Answers are taken once from a server that reuses nothing. Then servers share one folder of blocks, each is asked for a while
by four clients and killed; every whole answer must be the one from before. At the end one server is told to stop, its
successor must find the folder, damaged files in it included, within a second.

hayate-test: slow
"""
import http.client
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
import unittest

KILLS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 6

from test_chat import Server  # noqa: E402 (reads the arguments)

BEGIN = "Here is a list. " + " ".join(f"Item {i} costs {i * 37 % 101}." for i in range(90))
DETAILS = "--enable-prompt-tokens-details"  # says how much was there
PROMPTS = [BEGIN[:300 * (i % 5 + 2)] + f" What does item {i} cost?" for i in range(14)]


class KillTest(unittest.TestCase):
    def open(self, *flags):
        server = Server(DETAILS, *flags)
        self.addCleanup(server.process.kill)  # a test that fails leaves nobody waiting
        return server

    def ask(self, server, i):
        status, answer = server.chat(PROMPTS[i], temperature=1.0, seed=i, max_tokens=12)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["message"], (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)

    def client(self, server, seed, state):
        draw = random.Random(seed)
        while not state["over"]:
            i = draw.randrange(len(PROMPTS))
            try:
                message, cached = self.ask(server, i)
            except (OSError, http.client.HTTPException, ValueError):
                return  # the server was killed
            state["answers"] += 1
            state["cached"] += cached > 0
            if message != self.alone[i]:
                state["wrong"].append((i, message, self.alone[i]))

    def test_kills(self):
        server = self.open("--no-enable-prefix-caching")
        self.alone = [self.ask(server, i)[0] for i in range(len(PROMPTS))]
        server.stop()
        draw = random.Random(1)
        answers = cached = 0
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--kv-cache-memory-bytes", "20MiB", "--kv-offload-disk", folder, "--kv-offload-disk-size", "200MiB",
                     "--max-model-len", "4096"]
            for kill in range(KILLS):
                server = self.open(*flags)
                state = {"over": False, "answers": 0, "cached": 0, "wrong": []}
                clients = [threading.Thread(target=self.client, args=(server, kill * 10 + k, state)) for k in range(4)]
                for c in clients:
                    c.start()
                wanted = draw.randrange(1, 40)  # by work done, so that a slow machine is killed in its middle as well
                while state["answers"] < wanted and not state["wrong"] and any(c.is_alive() for c in clients):
                    time.sleep(0.005)
                time.sleep(draw.uniform(0, 0.02))
                server.process.kill()
                state["over"] = True
                server.ended()
                for c in clients:
                    c.join()
                self.assertEqual(state["wrong"], [])
                answers, cached = answers + state["answers"], cached + state["cached"]
            print(f"{KILLS} kills, {answers} answers, {cached} of them with blocks that were there")
            self.assertGreater(cached, 0)
            self.last_restart(flags, pathlib.Path(folder), self.flip, r"damaged")
            self.last_restart(flags, pathlib.Path(folder), self.cut, r"and [1-9]\d* of a wrong length")

    def flip(self, n, data):
        """All of them, since a block behind one that is not there is not looked for."""
        data[len(data) // 2] ^= 1

    def cut(self, n, data):
        if n % 3 == 0:
            del data[len(data) * 2 // 3:]

    def last_restart(self, flags, folder, damage, said):
        server = self.open(*flags)
        for i in range(len(PROMPTS)):
            self.ask(server, i)
        self.assertEqual(server.stop(), 0)
        files = sorted(folder.glob("*/*/*.block"))
        self.assertGreater(len(files), 5)
        for n, path in enumerate(files):
            data = bytearray(path.read_bytes())
            damage(n, data)
            path.write_bytes(data)
        server = self.open(*flags)
        fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        # In seconds of its own, whatever else the machine does; one is usual.
        self.assertLess((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 20)
        for i in range(len(PROMPTS)):
            self.assertEqual(self.ask(server, i)[0], self.alone[i])
        self.assertEqual(server.stop(), 0)
        self.assertRegex("".join(server.lines), said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

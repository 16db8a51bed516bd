#!/usr/bin/env python3
# hayate-test: slow
"""What operators reported about starting servers of this model: formats that do not go together, memory that does not suffice,
drafts. README.md beside this has the whole list.

    test_reports_start.py BUILD/hayate
"""
import itertools
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

from test_chat import HAYATE, MODEL, ROOT, Server

FORMATS = ("bf16", "fp8", "nvfp4")
DRAFTS = ("--speculative-config", '{"method": "dspark", "num_speculative_tokens": 7, "draft_sample_method": "probabilistic"}')


def run(*words):
    r = subprocess.run([HAYATE, *map(str, words)], capture_output=True, text=True, timeout=120)
    return r.returncode, r.stdout, [line for line in r.stderr.split("\n") if line]


class StartTest(unittest.TestCase):
    def test_formats(self):
        """MXFP8 weights with an FP8 cache did not start (https://github.com/vllm-project/vllm/issues/45533): every format of
        weights, cache and index keys answers, or is refused in one line."""
        dense = ROOT / "tests" / "data" / "oracle" / "m3-dense"
        with tempfile.TemporaryDirectory() as folder:
            mxfp8 = pathlib.Path(folder) / "mxfp8"
            self.assertEqual(run("quantize", dense, mxfp8, "--scheme", "mxfp8")[0], 0)
            for weights in (dense, mxfp8, MODEL):
                answers = 0
                for cache, index in (("auto", "auto"), *itertools.product(FORMATS, FORMATS)):
                    code, out, said = run("generate", weights, "--input-ids", ",".join(map(str, range(1, 200))), "--ids", "--max-tokens", 3,
                                          "--temperature", 0, "--kv-cache-dtype", cache, "--indexer-kv-dtype", index)
                    words = (weights.name, cache, index, code, out, said)
                    if code == 0:
                        answers += 1
                        self.assertRegex(out.strip(), r"^\d+", words)
                    else:
                        self.assertIn(code, (2, 3, 4), words)
                        self.assertEqual(len(said), 1, words)
                self.assertGreaterEqual(answers, 4, weights.name)

    def test_memory_is_counted_first(self):
        """Weights were loaded for minutes before the cache was found too small
        (https://github.com/eugr/spark-vllm-docker/issues/396): refused before, with what is needed; and where only the longest
        requests do not fit, their length is named at the start and to the client."""
        for flags, words in ((("--kv-cache-memory-bytes", "1KiB"), "a block of 128 tokens needs"), (("--memory", "60MB"), "are needed: ")):
            code, _, said = run("serve", MODEL, "--port", 0, *flags)
            self.assertEqual(code, 4, said)
            self.assertIn(words, said[-1])
            self.assertFalse([line for line in said if "Loading weights" in line], said)
        s = Server("--kv-cache-memory-bytes", "4MiB")
        try:
            self.assertIn("requests of up to 1,024 tokens fit", "".join(s.lines))
            status, a = s.call("POST", "/v1/completions", {"prompt": [1] * 2000, "max_tokens": 1})
            self.assertEqual(status, 400, a)
            self.assertRegex(a["error"]["message"], r"1,?024")
            self.assertEqual(s.chat()[0], 200)
        finally:
            self.assertEqual(s.stop(), 0)

    def test_address_is_tried_first(self):
        """As upstream does it: a port that is taken and a certificate that is not there are told before weights are read."""
        with socket.socket() as taken, tempfile.TemporaryDirectory() as folder:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for status, words, flags in ((1, "already in use; choose another --port", ("--host", "127.0.0.1", "--port", port)),
                                         (1, "No such file or directory", ("--uds", folder + "/none/socket")),
                                         (2, "No such file or directory", ("--port", 0, "--ssl-certfile", folder + "/none"))):
                code, _, said = run("serve", MODEL, *flags)
                self.assertEqual(code, status, said)
                self.assertIn(words, said[-1])
                self.assertFalse([line for line in said if "Loading weights" in line], said)

    def test_drafts(self):
        """The drafter's options did not start (https://github.com/sgl-project/sglang/issues/33383), or cost hits of the prefix cache
        (https://github.com/vllm-project/vllm/issues/54360): with them answers are the same, and a repeated prompt is found to
        its last token."""
        answers = []
        for flags in ((), DRAFTS):
            s = Server("--enable-prompt-tokens-details", *flags)
            try:
                for length in (1, 40, 90):
                    text = "What is 12 + 34? " * length
                    first, again = s.chat(text)[1], s.chat(text)[1]
                    self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], first["usage"]["prompt_tokens"] - 1)
                    answers.append((flags, length, json.dumps(first["choices"][0]["message"])))
                    self.assertEqual(answers[-1][2], json.dumps(again["choices"][0]["message"]))
            finally:
                self.assertEqual(s.stop(), 0)
        self.assertEqual([a[1:] for a in answers if not a[0]], [a[1:] for a in answers if a[0]])


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])

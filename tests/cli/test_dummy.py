#!/usr/bin/env python3
"""--load-format dummy: a server over random weights that no file holds, the same for a seed; one line where they would not fit.

    test_dummy.py BUILD/hayate
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import surroundings  # noqa: E402, F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
HAYATE = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "hayate")
NANO = ROOT / "models" / "m3-nano"


class Dummy(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.model = pathlib.Path(work.name) / "shape"
        self.model.mkdir()
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(NANO / name, self.model)

    def answer(self, *flags):
        """Ids of a greedy answer, and the log up to the start."""
        p = subprocess.Popen([HAYATE, "serve", str(self.model), "--host", "127.0.0.1", "--port", "0", "--load-format", "dummy", *flags],
                             stderr=subprocess.PIPE, text=True)
        log = ""
        try:
            for line in p.stderr:
                log += line
                if "startup complete" in line:
                    break
            self.assertIn("startup complete", log)
            port = re.search(r"Starting server on http://127.0.0.1:(\d+)", log)[1]
            body = {"prompt": "What is 2 + 3?", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as r:
                answer = json.load(r)
                self.accepted = answer["usage"].get("hayate_drafts", {}).get("accepted", 0)
                return answer["choices"][0]["token_ids"], log
        finally:
            p.send_signal(signal.SIGTERM)
            code = p.wait(60)
            p.stderr.close()
            self.assertEqual(code, 0, log)

    def test_a_seed_decides(self):
        one, log = self.answer()
        self.assertNotIn("no effect", log)
        self.assertEqual(len(one), 12)
        self.assertEqual(self.answer("--seed", "0")[0], one)
        self.assertEqual(self.answer("--seed", "0", "--weights", "stream")[0], one)
        self.assertNotEqual(self.answer("--seed", "1")[0], one)
        # Weights that are there are not read.
        (self.model / "model.safetensors").write_bytes(b"no weights")
        self.assertEqual(self.answer()[0], one)

    def test_drafter(self):
        """Of the shape that the folder dspark says, without any weights: answers stay what they are, synthetic acceptance accepts."""
        one, _ = self.answer()
        said = self.refused("--speculative-config", "{}")
        self.assertIn("comes without a drafter", said)
        (self.model / "dspark").mkdir()
        shutil.copy(NANO / "dspark" / "config.json", self.model / "dspark")
        for config in ('{"num_speculative_tokens": 5}', '{"model": "%s"}' % (NANO / "dspark")):
            drafted, log = self.answer("--speculative-config", config)
            self.assertEqual(drafted, one)
            self.assertIn("drafts a round", log)
        self.answer("--speculative-config", '{"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3}')
        self.assertGreater(self.accepted, 4)

    def refused(self, *flags):
        p = subprocess.run([HAYATE, "serve", str(self.model), "--host", "127.0.0.1", "--port", "0", "--load-format", "dummy", *flags],
                           capture_output=True, text=True, timeout=120)
        said = p.stderr.splitlines()
        self.assertEqual((p.returncode, len(said)), (2, 1), p.stderr)
        return said[0]

    def test_no_room(self):
        config = json.loads((self.model / "config.json").read_text())
        text = config.get("text_config", config)
        text["vocab_size"], text["hidden_size"] = 1 << 24, 1 << 16  # the most that a config may say: 2 TB of embedding, beyond any machine
        (self.model / "config.json").write_text(json.dumps(config))
        p = subprocess.run([HAYATE, "serve", str(self.model), "--host", "127.0.0.1", "--port", "0", "--load-format", "dummy"],
                           capture_output=True, text=True, timeout=60)
        self.assertEqual(p.returncode, 4, p.stderr)
        said = [l for l in p.stderr.splitlines() if l.startswith("hayate: ")]
        self.assertEqual(len(said), 1, p.stderr)
        self.assertRegex(said[0], r"--load-format dummy makes .* of random weights in memory, .* are needed and .* are free")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

#!/usr/bin/env python3
"""Flags and variables of serve that change what requests get.

    test_serve_options.py BUILD/hayate
"""
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import surroundings  # noqa: E402, F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
HAYATE = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "hayate")
CONFIG = """
port: 0
host: 127.0.0.1
served-model-name: [one, two]
override-generation-config: {temperature: 0, max_new_tokens: 24}
stream-interval: 8
structured-outputs-config:
  disable_any_whitespace: true
  enable_in_reasoning: true
num-gpu-blocks-override: 40
"""


class OptionsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        path = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"hayate-options-{os.getpid()}.yaml"
        path.write_text(CONFIG)
        cls.process = subprocess.Popen([HAYATE, "serve", str(ROOT / "models" / "m3-nano"), "--config", str(path)], stderr=subprocess.PIPE,
                                       text=True, env={**os.environ, "VLLM_MAX_N_SEQUENCES": "2", "VLLM_API_KEY": "sk"})
        cls.lines = []
        for line in cls.process.stderr:
            cls.lines.append(line)
            if "Starting" in line and "127.0.0.1:" in line:
                cls.port = int(line.split("127.0.0.1:", 1)[1].split()[0].strip("/"))
            if "startup complete" in line:
                break
        path.unlink()
        assert cls.process.poll() is None, "".join(cls.lines)

    @classmethod
    def tearDownClass(cls):
        cls.process.send_signal(signal.SIGTERM)
        cls.process.stderr.read()
        assert cls.process.wait(120) == 0

    def ask(self, key="sk", **more):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], **more}
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json", "Authorization": "Bearer " + key})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def test_key(self):
        self.assertEqual(self.ask(key="no")[0], 401)

    def test_names(self):
        for name in ("one", "two"):
            status, text = self.ask(model=name, max_tokens=1)
            self.assertEqual((status, json.loads(text)["model"]), (200, name), text)
        self.assertEqual(self.ask(model="m3-nano", max_tokens=1)[0], 404)

    def test_most_choices(self):
        status, text = self.ask(n=2, max_tokens=2, temperature=1)
        self.assertEqual((status, len(json.loads(text)["choices"])), (200, 2))
        status, text = self.ask(n=3, temperature=1)
        self.assertEqual((status, "between 1 and 2" in text), (400, True), text)

    def test_sampling(self):
        """Greedy without asking, and an end after as many tokens as the overrides say."""
        first, again = (json.loads(self.ask(ignore_eos=True)[1]) for _ in range(2))
        self.assertEqual(first["usage"]["completion_tokens"], 24)
        self.assertEqual(first["choices"][0]["message"], again["choices"][0]["message"])

    def test_interval(self):
        """By the tokens of each chunk: a busy server puts more of them into one than it must."""
        for interval in (None, 1):
            more = {"stream_interval": interval} if interval else {}
            status, text = self.ask(stream=True, ignore_eos=True, max_tokens=1000, return_token_ids=True, **more)
            self.assertEqual(status, 200)
            choices = [json.loads(e[6:])["choices"][0] for e in text.split("\n\n") if e.startswith("data: {")]
            counts = [len(c["token_ids"]) for c in choices if c.get("token_ids")]
            self.assertEqual(sum(counts), 1000)
            between = counts[1:-1]  # the first token is told at once, and the end
            self.assertEqual(min(between) >= 8, interval is None, counts)

    def test_structured(self):
        status, text = self.ask(response_format={"type": "json_object"}, max_tokens=24)
        self.assertEqual(status, 200)
        m = json.loads(text)["choices"][0]["message"]
        said = (m.get("reasoning") or "") + (m.get("content") or "")
        self.assertTrue(said.startswith("{"), text)  # from the first token on, without white space
        self.assertNotRegex(said, r'^\{\s')

    def test_blocks(self):
        self.assertIn("5,120 tokens", "".join(self.lines))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

#!/usr/bin/env python3
"""MODEL as a list of files: one shard here and one there, an index, config.json and tokenizer from elsewhere; what is wrong by name.

    test_model_files.py BUILD/hayate
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from test_hub import HAYATE, NANO, sharded

PARTS = [f"model-{k}-of-00003.safetensors" for k in ("00001", "00002", "00003")]
FILES = sharded(NANO)
ASK = ("--prompt", "What is 12 + 30?", "--max-tokens", "6", "--temperature", "0")


def run(*args):
    return subprocess.run([HAYATE, *args], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"})


def tensors_of(data):
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    return [name for name in header if name != "__metadata__"]


class Lists(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.root = pathlib.Path(work.name)
        self.a, self.b, self.c = (self.root / n for n in ("one", "two", "three, or more"))
        for folder in (self.a, self.b, self.c):
            folder.mkdir()
        for name, data in FILES.items():
            if "/" not in name and name not in PARTS and not name.endswith("index.json"):
                (self.a / name).write_bytes(data)
        self.parts = [self.a / PARTS[0], self.b / PARTS[1], self.b / PARTS[2]]
        for path in self.parts:
            path.write_bytes(FILES[path.name])
        self.index = self.b / "model.safetensors.index.json"
        self.index.write_bytes(FILES[self.index.name])

    def list(self, *paths):
        return ",".join(str(p) for p in paths)

    def answer(self, model):
        p = run("generate", str(model), *ASK)
        self.assertEqual(p.returncode, 0, p.stderr)
        return p.stdout

    def refused(self, words, *paths, code=3):
        p = run("generate", self.list(*paths), *ASK)
        lines = [l for l in p.stderr.splitlines() if l.startswith("hayate")]
        self.assertEqual((p.returncode, len(lines)), (code, 1), p.stderr)
        self.assertIn(words, lines[0])

    def test_every_way_to_say_it(self):
        want = self.answer(NANO)
        self.assertEqual(self.answer(NANO / "model.safetensors"), want)
        self.assertEqual(self.answer(self.list(*self.parts)), want)
        # The order is that of the names, but config.json is that beside the first.
        self.assertEqual(self.answer(" , ".join(map(str, (self.parts[0], self.parts[2], self.parts[1])))), want)
        # The index has those beside it, and the list the one that is not.
        self.assertEqual(self.answer(self.list(self.parts[0], self.index)), want)
        far = self.root / "vocabulary"
        far.mkdir()
        config, tokenizer = (shutil.move(self.a / n, far / n) for n in ("config.json", "tokenizer.json"))
        self.refused("there is no config.json beside", *self.parts)
        shutil.move(config, self.b / "config.json")
        os.rename(self.a / "tokenizer_config.json", self.b / "tokenizer_config.json")
        shutil.copy(tokenizer, far / "words.json")
        self.refused("words.json is no file of a model", *self.parts, self.b / "config.json", far / "words.json")
        self.assertEqual(self.answer(self.list(*self.parts, self.b / "config.json", tokenizer)), want)

    def test_one_file(self):
        want = self.answer(NANO)
        for path in self.parts[1:]:
            shutil.copy(path, self.a)
        shutil.copy(self.index, self.a)
        self.assertEqual(self.answer(self.parts[0]), want)  # a numbered shard stands for all
        self.assertEqual(self.answer(self.a / "model.safetensors.index.json"), want)
        # Another file beside it is not meant.
        shutil.copy(NANO / "model.safetensors", self.c / "weights, all.safetensors")
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(NANO / name, self.c)
        (self.c / "broken.safetensors").write_bytes(b"no")
        self.assertEqual(self.answer(self.c / "weights, all.safetensors"), want)

    def test_what_is_wrong(self):
        first, second, third = self.parts
        missing = tensors_of(FILES[PARTS[2]])
        p = run("generate", self.list(first, second), *ASK)
        self.assertEqual(p.returncode, 3)
        self.assertTrue(any(name in p.stderr for name in missing), p.stderr)
        copy = self.c / "again.safetensors"
        shutil.copy(second, copy)
        p = run("inspect", self.list(first, second, third).replace(str(third), f"{third}") + ",x.safetensors")
        self.assertEqual((p.returncode, "x.safetensors is not there" in p.stderr), (3, True), p.stderr)
        os.rename(self.c, self.root / "three")
        copy = self.root / "three" / copy.name
        self.refused("is in two files: again.safetensors and model-00002", first, second, third, copy)
        same = self.root / "three" / second.name
        os.rename(copy, same)
        self.refused(f"two/{second.name}", first, second, third, same)
        self.refused("is listed twice", first, second, third, second)
        os.symlink(second, self.root / "three" / "link.safetensors")
        self.refused("is listed twice, also as", first, second, third, self.root / "three" / "link.safetensors")
        self.refused("is a folder: a list names files", first, self.b)
        self.refused("has an empty name", first, "", second)
        self.refused("names no weights", self.a / "config.json", self.a / "tokenizer.json")
        self.refused("names two config.json", first, self.a / "config.json", NANO / "config.json")
        self.refused("README is no file of a model", first, self.file("README"))
        self.refused("is read beside config.json only", first, second, third, NANO / "tokenizer_config.json")
        other = self.root / "three" / "other.safetensors"
        shutil.copy(first, other)
        self.refused("other.safetensors is not among the files that", first, self.index, other)
        os.remove(third)
        self.refused(f"the shard {third.name} that", first, self.index)
        self.refused("gone.safetensors is not there", self.root / "gone.safetensors")

    def file(self, name):
        (self.root / name).write_text("x")
        return self.root / name

    def test_commands(self):
        model = self.list(*self.parts)
        p = run("inspect", model, "--json")
        self.assertEqual(p.returncode, 0, p.stderr)
        got, want = (json.loads(run("inspect", str(m), "--json").stdout) for m in (model, NANO))
        self.assertEqual(got["config"], want["config"])
        for command in (("plan", model, "--memory", "4GB"), ("tokenize", model, "two words"),
                        ("bench", "decode", model, "--context", "128", "--runs", "1", "--read-buffer", "64MB", "--json"), ("eval", model, "arithmetic", "--count", "1")):
            p = run(*command)
            self.assertEqual(p.returncode, 0, (command, p.stderr))
        self.assertEqual(run("tokenize", model, "two words").stdout, run("tokenize", str(NANO), "two words").stdout)
        p = run("serve", self.list(self.parts[0], "y.safetensors"), "--port", "0")
        self.assertEqual((p.returncode, p.stderr.count("y.safetensors is not there")), (3, 1), p.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

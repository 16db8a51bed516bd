#!/usr/bin/env python3
"""generate, tokenize and the program itself, as a user runs them.

    test_generate.py BUILD/hayate
"""
import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import small_text_model  # noqa: E402

HAYATE = os.path.abspath(sys.argv.pop(1) if len(sys.argv) > 1 else "build/hayate")
BARE = small_text_model.ORACLE


def run(*args, stdin="", code=0):
    done = subprocess.run([HAYATE, *map(str, args)], input=stdin.encode(), capture_output=True, timeout=120)
    assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
    return done.stdout.decode(), done.stderr.decode()


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = small_text_model.make(pathlib.Path(cls.folder.name) / "small")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def json(self, *args, **more):
        out, _ = run("generate", *args, "--json", **more)
        self.assertEqual(out.count("\n"), 1)
        return json.loads(out)

    def refused(self, code, part, *args, **more):
        out, err = run(*args, code=code, **more)
        self.assertIn(part, err)
        self.assertEqual(out, "")
        self.assertTrue(err.startswith("hayate"), err)


class Logits(Base):
    def test_one_line_where_they_are_not_finite(self):
        folder = small_text_model.make(pathlib.Path(self.folder.name) / "inf")
        weights = folder / "model.safetensors"
        data = bytearray(weights.read_bytes())
        n = struct.unpack("<Q", data[:8])[0]
        begin, end = json.loads(data[8:8 + n])["language_model.model.norm.weight"]["data_offsets"]
        data[8 + n + begin:8 + n + end] = struct.pack("<H", 0x7F7F) * ((end - begin) // 2)  # the largest of BF16
        weights.unlink()
        weights.write_bytes(data)
        for flags in ((), ("--json",)):
            _, err = run("generate", folder, "Hello", "--temperature", "0", "--max-tokens", "4", *flags, code=1)
            self.assertEqual(len(err.splitlines()), 1, err)
            self.assertIn("hayate: no token is left to choose for position 5: its logits are not finite", err)
        _, err = run("chat", folder, "--temperature", "0", stdin="Hello\n", code=1)
        self.assertEqual(len(err.splitlines()), 1, err)


class Program(Base):
    def test_commands(self):
        out, _ = run("--help")
        for name in ("serve", "chat", "generate", "tokenize", "trace", "inspect", "plan", "quantize", "synth"):
            self.assertIn(f"\n  {name}", out)
            text, _ = run(name, "--help")
            self.assertTrue(text.startswith(f"usage: hayate {name} "), text)
            self.assertEqual(run("help", name)[0], text)
        self.assertEqual(run("--version")[0], "hayate 0.1.0\n")
        run(code=2)

    def test_unknown_command(self):
        self.refused(2, "did you mean 'generate'?", "genrate")
        self.refused(2, "did you mean 'serve'?", "help", "srve")
        _, err = run("completely-different", code=2)
        self.assertNotIn("mean", err)

    def test_unknown_flag(self):
        self.refused(2, "did you mean --temperature?", "generate", BARE, "--temprature", 1)


class WithoutTokenizer(Base):
    def test_ids_in_ids_out(self):
        out, err = run("generate", BARE, "--input-ids", "1,2,3", "--max-tokens", 5, "--seed", 4)
        self.assertEqual(len(out.split()), 5)
        self.assertEqual(err, "")
        answer = self.json(BARE, "--input-ids", "[1, 2, 3]", "--max-tokens", 5, "--seed", 4)
        self.assertEqual(answer["ids"], [int(i) for i in out.split()])
        self.assertEqual((answer["text"], answer["finish_reason"], answer["seed"]), (None, "length", 4))
        self.assertEqual((answer["prompt_tokens"], answer["completion_tokens"]), (3, 5))
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("1 2\n3\n")
            f.flush()
            again = self.json(BARE, "--input-ids", f.name, "--max-tokens", 5, "--seed", 4)
            self.assertEqual(again["ids"], answer["ids"])
        again, _ = run("generate", BARE, "--input-ids", "-", "--max-tokens", 5, "--seed", 4, stdin="1,2,3")
        self.assertEqual(again, out)

    def test_the_rest_says_what_is_missing(self):
        self.refused(2, "has no tokenizer", "generate", BARE, "hello")
        self.refused(2, "has no tokenizer", "generate", BARE, "--chat", "hello")
        self.refused(2, "has no tokenizer", "chat", BARE)
        done = subprocess.run([HAYATE, "serve", str(BARE), "--port", "0", "--skip-tokenizer-init"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("has no tokenizer", done.stderr.splitlines()[-1])
        self.assertNotIn("Loading weights", done.stderr) # minutes with a large model

    def test_a_file_that_may_not_grow(self):
        """The limit of a file's size is an error of the write, not a signal that ends the program without a word."""
        with tempfile.TemporaryDirectory() as folder:
            args = [HAYATE, "trace", str(BARE), "--input-ids", "1,2,3", "-o", folder + "/t.safetensors"]
            limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
            done = subprocess.run(args, capture_output=True, text=True, preexec_fn=limit)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertIn("File too large", done.stderr)
            self.assertEqual(os.listdir(folder), [])
        self.refused(2, "tokenizer", "tokenize", BARE, "hello")
        self.refused(2, "stop strings need a tokenizer", "generate", BARE, "--input-ids", "1", "--stop", "x")

    def test_backends(self):
        args = (BARE, "--input-ids", "7,8,9", "--max-tokens", 6, "--temperature", 0, "--threads", 2)
        answers = [self.json(*args, "--backend", b)["ids"] for b in ("cpu", "reference")]
        self.assertEqual([len(a) for a in answers], [6, 6])
        self.refused(2, "cpu, cuda, reference", "generate", *args, "--backend", "abacus")
        _, err = run("generate", *args, "--verbose")
        self.assertIn("INFO", err)
        self.assertRegex(err, r"INFO \d\d-\d\d \d\d:\d\d:\d\d .*KV cache size: ")

    def test_refusals(self):
        self.refused(2, "outside 0 .. 511", "generate", BARE, "--input-ids", "1,512")
        self.refused(2, "neither a file nor a list", "generate", BARE, "--input-ids", "one two")
        self.refused(2, "empty", "generate", BARE, "--input-ids", "")
        self.refused(2, "temperature must be in 0 .. 2, not 3", "generate", BARE, "--input-ids", 1, "--temperature", 3)
        self.refused(2, "--logprobs", "generate", BARE, "--input-ids", 1, "--logprobs", 3)
        self.refused(2, "give one prompt", "generate", BARE)
        self.refused(2, "give one prompt", "generate", BARE, "text", "--input-ids", 1)
        self.refused(2, "name the folder", "generate")
        self.refused(2, "--kv-offload-disk, which was not given", "generate", BARE, "--input-ids", 1, "--kv-offload-disk-size", "1G")
        self.refused(2, "--system is for --chat", "generate", BARE, "x", "--system", "y")
        self.refused(2, "--thinking-mode is enabled", "generate", BARE, "x", "--chat", "--thinking-mode", "deep")
        self.refused(4, "ask for at most 8191", "generate", BARE, "--input-ids", 1, "--max-tokens", 9000)
        self.refused(4, "cache", "generate", BARE, "--input-ids", 1, "--kv-cache-memory-bytes", "1k")
        self.refused(3, "", "generate", BARE.parent, "--input-ids", 1)
        self.refused(1, "cannot write to standard output", "generate", BARE, "--input-ids", 1, "--max-tokens", 4,
                     out_full=True)

    def refused(self, code, part, *args, out_full=False, **more):
        if not out_full:
            return super().refused(code, part, *args, **more)
        with open("/dev/full", "w") as full:
            done = subprocess.run([HAYATE, *map(str, args)], stdout=full, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.returncode, code)
        self.assertIn(part, done.stderr.decode())


class WithTokenizer(Base):
    def test_text(self):
        args = ("--max-tokens", 40, "--seed", 1)
        out, err = run("generate", self.model, "Hello", *args)
        self.assertEqual(err, "")
        answer = self.json(self.model, "-p", "Hello", *args)
        self.assertEqual(out, answer["text"] + "\n")
        self.assertEqual(answer["prompt_tokens"], 5)
        self.assertTrue(all(i < 256 or 500 <= i < 507 for i in answer["ids"]), answer["ids"])  # no padding
        self.assertEqual(run("generate", self.model, "-", *args, stdin="Hello")[0], out)
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("Hello")
            f.flush()
            self.assertEqual(run("generate", self.model, "-f", f.name, *args)[0], out)
        ids, _ = run("generate", self.model, "Hello", "--ids", *args)
        self.assertEqual([int(i) for i in ids.split()], answer["ids"])

    def test_recommended_parameters(self):
        args = (self.model, "Hello", "--seed", 5, "--max-tokens", 30)
        self.assertEqual(self.json(*args)["ids"], self.json(*args, "--temperature", 0.9)["ids"])
        self.assertNotEqual(self.json(*args)["ids"], self.json(*args, "--temperature", 1.9)["ids"])

    def test_stop(self):
        args = (self.model, "Hello", "--seed", 2, "--max-tokens", 60, "--ignore-eos")
        whole = self.json(*args)["text"]
        stop = next(whole[i:i + 2] for i in range(10, 50) if whole[i:i + 2].isascii() and whole[i:i + 2].isprintable())
        cut = self.json(*args, "--stop", "never there", "--stop", stop)
        self.assertEqual(cut["text"], whole[:whole.index(stop)])
        self.assertEqual((cut["finish_reason"], cut["stop_reason"]), ("stop", stop))
        self.assertEqual(self.json(*args, "--stop", stop, "--include-stop")["text"], whole[:whole.index(stop)] + stop)
        first = self.json(*args)["ids"][3]
        ended = self.json(*args, "--stop-ids", first)
        self.assertEqual((ended["finish_reason"], ended["stop_reason"], ended["ids"][-1]), ("stop", first, first))

    def test_logprobs(self):
        answer = self.json(self.model, "Hello", "--max-tokens", 6, "--logprobs", 3, "--temperature", 0)
        self.assertEqual(len(answer["logprobs"]), answer["completion_tokens"])
        for token, entry in zip(answer["ids"], answer["logprobs"]):
            self.assertEqual(entry["id"], token)
            self.assertEqual(len(entry["top"]), 3)
            self.assertLessEqual(entry["logprob"], entry["top"][0]["logprob"])
            self.assertEqual(sorted((-t["logprob"], t["id"]) for t in entry["top"]),
                             [(-t["logprob"], t["id"]) for t in entry["top"]])

    def test_seed_is_reported(self):
        args = (self.model, "Hello", "--max-tokens", 30)
        drawn = self.json(*args)
        self.assertEqual(self.json(*args, "--seed", drawn["seed"])["ids"], drawn["ids"])
        self.assertNotEqual(self.json(*args)["seed"], drawn["seed"])

    def test_chat(self):
        args = (self.model, "Hello", "--chat", "--max-tokens", 20, "--seed", 1)
        plain = self.json(*args)
        told, more = (self.json(*args, "--system", "Be brief." + x) for x in ("", " Please."))
        self.assertEqual(more["prompt_tokens"], told["prompt_tokens"] + len(" Please."))
        self.assertNotEqual(told["prompt_tokens"], plain["prompt_tokens"])
        inside = self.json(*args, "--thinking-mode", "enabled")
        self.assertEqual(inside["reasoning"] + inside["content"], inside["text"].replace("</mm:think>", ""))
        closed = self.json(*args, "--thinking-mode", "disabled")
        self.assertEqual((closed["reasoning"], closed["content"]), ("", closed["text"]))

    def test_interrupt(self):
        args = [HAYATE, "generate", str(self.model), "Hello", "--ignore-eos", "--seed", "1"]
        p = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        start = p.stdout.read(5)
        p.send_signal(signal.SIGINT)
        rest, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 1)
        self.assertIn(b"interrupted after", err)
        self.assertTrue(rest.endswith(b"\n"))
        whole, _ = run("generate", self.model, "Hello", "--ignore-eos", "--seed", 1, "--max-tokens", 5)
        self.assertTrue((start + rest).startswith(whole.encode()[:5]))

    def test_reader_goes_away(self):
        args = [HAYATE, "generate", str(self.model), "Hello", "--ignore-eos"]
        p = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdout.read(1)
        p.stdout.close()
        self.assertEqual(p.wait(timeout=120), 1)
        self.assertIn(b"cannot write to standard output", p.stderr.read())
        p.stderr.close()

    def test_bad_utf8(self):
        done = subprocess.run([HAYATE, "generate", str(self.model), "-"], input=b"ab\xff", capture_output=True,
                              timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stdout, b"")


class Tokenize(Base):
    def test_there_and_back(self):
        text = "Hi \u00e9\U0001f32a <mm:think>x"
        ids, _ = run("tokenize", self.model, text, "--ids")
        list_of = [int(i) for i in ids.split()]
        self.assertIn(503, list_of)
        self.assertEqual(run("tokenize", self.model, "--decode", ",".join(map(str, list_of)))[0], text + "\n")
        self.assertEqual(run("tokenize", self.model, "-d", "-", stdin=ids)[0], text + "\n")
        answer = json.loads(run("tokenize", self.model, text, "--json")[0])
        self.assertEqual((answer["ids"], answer["count"], answer["text"]), (list_of, len(list_of), text))
        self.assertEqual(len(answer["tokens"]), len(list_of))
        self.assertEqual(run("tokenize", self.model, "-", "--ids", stdin=text)[0], ids)
        self.assertEqual(run("tokenize", self.model / "tokenizer.json", text, "--ids")[0], ids)
        self.assertEqual(run("tokenize", BARE, text, "--ids", "--tokenizer", self.model)[0], ids)

    def test_no_added(self):
        ids, _ = run("tokenize", self.model, "<mm:think>", "--ids", "--no-added")
        self.assertEqual(len(ids.split()), 10)
        self.assertEqual(run("tokenize", self.model, "<mm:think>", "--ids")[0], "503\n")

    def test_skip_special(self):
        self.assertEqual(run("tokenize", self.model, "--decode", "72,502,503")[0], "H[e~[<mm:think>\n")
        self.assertEqual(run("tokenize", self.model, "--decode", "72,502,503", "--skip-special")[0], "H<mm:think>\n")

    def test_lines(self):
        out, _ = run("tokenize", self.model, "a\n")
        self.assertEqual(out, "     97  \"a\"\n     10  \"\\n\"\n")

    def test_refusals(self):
        self.refused(2, "outside 0 .. 506", "tokenize", self.model, "--decode", "507")
        self.refused(2, "give one text", "tokenize", self.model)
        self.refused(2, "give one text", "tokenize", self.model, "x", "--decode", "1")
        self.refused(3, "", "tokenize", "/nowhere", "x")


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Drafts on the command line: --speculative-config of generate and chat, what is refused once a drafter's block is known, tables.

    test_speculation.py BUILD/hayate

hayate-test: slow
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import surroundings  # noqa: E402, F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
HAYATE = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "hayate")
NANO = str(ROOT / "models" / "m3-nano")
WORK = tempfile.TemporaryDirectory()


def run(command, *args, text=""):
    return subprocess.run([HAYATE, command, *args], capture_output=True, text=True, timeout=120, input=text)


def generate(*flags, model=NANO, config=None):
    config = ["--speculative-config", json.dumps(config)] if config is not None else []
    return run("generate", model, "--chat", "--prompt", "What is 12 + 34?", "--max-tokens", "24", "--seed", "5", "--json", *flags, *config)


def table(text):
    path = os.path.join(WORK.name, "table.json")
    pathlib.Path(path).write_text(text)
    return path


class SpeculationTest(unittest.TestCase):
    def refused(self, words, config, code=2, **more):
        p = generate(config=config, **more)
        self.assertEqual(p.returncode, code, (config, p.stderr))
        self.assertIn(words, p.stderr.splitlines()[0])
        self.assertLessEqual(len(p.stderr.splitlines()), 2, p.stderr)
        self.assertEqual(p.stdout, "")
        # A server says the same, before anybody can connect, and nothing else.
        p = run("serve", more.get("model", NANO), "--host", "127.0.0.1", "--port", "0", "--speculative-config", json.dumps(config))
        self.assertEqual(p.returncode, code, (config, p.stderr))
        self.assertIn(words, p.stderr.splitlines()[0])
        self.assertLessEqual(len(p.stderr.splitlines()), 2, p.stderr)

    def test_the_answer_stays(self):
        for temperature in ("0", "1"):
            plain = json.loads(generate("--temperature", temperature).stdout)
            for config in ({}, {"num_speculative_tokens": 1}, {"num_speculative_tokens": 3, "kv_cache_dtype": "bf16"}, {"num_speculative_tokens": "auto"},
                           {"model": NANO + "/dspark", "num_speculative_tokens": 7}, {"model": NANO}, {"draft_sample_method": "greedy"}):
                p = generate("--temperature", temperature, config=config)
                self.assertEqual(p.returncode, 0, p.stderr)
                got = json.loads(p.stdout)
                self.assertEqual(got["ids"], plain["ids"], config)
                self.assertLessEqual(got["drafts_accepted"], got["drafts"])
                self.assertLessEqual(got["drafts"], 7 * got["draft_rounds"])
            self.assertNotIn("drafts", plain)

    def test_what_the_block_refuses(self):
        self.refused("num_speculative_tokens 8 is more than the block of the drafter, 7: give 1 to 7", {"num_speculative_tokens": 8})
        self.refused("synthetic_acceptance_length must be 1 to 8", {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 8.5})
        self.refused("synthetic_acceptance_rates has 3 numbers",
                     {"num_speculative_tokens": "auto", "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [1, 1, 0]})
        self.refused("num_speculative_tokens_per_batch_size has 9 drafts", {"num_speculative_tokens_per_batch_size": [[1, 1, 9]]})
        self.refused("is not a folder", {"model": "/nowhere"}, code=3)
        bare = os.path.join(WORK.name, "bare")
        shutil.copytree(NANO, bare, ignore=shutil.ignore_patterns("dspark"), copy_function=os.symlink)
        self.refused("comes without a drafter", {}, model=bare)
        self.assertEqual(generate(model=bare, config={"model": NANO + "/dspark"}).returncode, 0)

    def test_a_broken_drafter_that_nobody_asks_for(self):
        broken = os.path.join(WORK.name, "broken")
        shutil.copytree(NANO, broken, ignore=shutil.ignore_patterns("dspark"), copy_function=os.symlink)
        plain = json.loads(generate().stdout)
        for make in (lambda d: (os.mkdir(d), pathlib.Path(d, "config.json").write_text("{")), os.mkdir, lambda d: pathlib.Path(d).write_text("")):
            drafter = os.path.join(broken, "dspark")
            make(drafter)
            p = generate(model=broken)
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertEqual(json.loads(p.stdout)["ids"], plain["ids"])
            self.assertEqual([line.count("is left out") for line in p.stderr.splitlines()], [1], p.stderr)
            p = generate(model=broken, config={"num_speculative_tokens": 1})
            self.assertIn(p.returncode, (1, 3), p.stderr)
            self.assertIn("broken/dspark", p.stderr)
            self.assertEqual(len(p.stderr.splitlines()), 1, p.stderr)
            self.assertEqual(p.stdout, "")
            self.assertEqual(generate(model=broken, config={"model": NANO + "/dspark"}).returncode, 0)
            for command in (("inspect", broken), ("plan", broken, "--memory", "8GB")):
                p = run(*command)
                self.assertEqual((p.returncode, p.stderr.count("is left out")), (0, 1), p.stderr)
            shutil.rmtree(drafter) if os.path.isdir(drafter) else os.remove(drafter)

    def test_one_line_for_damaged_weights_of_the_drafter(self):
        broken = os.path.join(WORK.name, "damaged")
        shutil.copytree(NANO, broken, ignore=shutil.ignore_patterns("dspark"), copy_function=os.symlink)
        shutil.copytree(NANO + "/dspark", broken + "/dspark")
        os.truncate(broken + "/dspark/model.safetensors", 1000)
        p = generate(model=broken, config={"num_speculative_tokens": 1})
        self.assertEqual((p.returncode, p.stdout), (3, ""), p.stderr)
        self.assertEqual(len(p.stderr.splitlines()), 1, p.stderr)
        self.assertTrue(p.stderr.startswith("hayate: "), p.stderr)
        p = generate(model=broken)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(len(p.stderr.splitlines()), 1, p.stderr)
        self.assertIn("is left out", p.stderr)

    def test_eval(self):
        def marks(*flags):
            p = run("eval", NANO, "arithmetic", "talk", "--count", "12", "--json", *flags)
            self.assertEqual(p.returncode, 0, p.stderr)
            (way,) = json.loads(p.stdout).values()
            return {name: (way[name]["score"], way[name]["n"], way[name]["valid"]) for name in ("arithmetic", "talk")}
        self.assertEqual(marks("--speculative-config", '{"num_speculative_tokens": 7}'), marks())
        p = run("eval", NANO, "talk", "--speculative-config", '{"x": 1}')
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertTrue(p.stderr.startswith("hayate eval: --speculative-config"), p.stderr)

    def test_rounds(self):
        prompts, rounds = (os.path.join(WORK.name, name) for name in ("prompts.ids", "rounds.jsonl"))
        pathlib.Path(prompts).write_text("5 6 7 8\n[9, 10]\n11,12,13")
        flags = ("--batch", "2", "--drafts", "3", "--methods", "coupled", "--tokens", "20", "--runs", "1", "--json")
        p = run("bench", "speculation", NANO, "--prompts", prompts, "--write-rounds", rounds, *flags)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(json.loads(p.stdout)["questions"], 3)
        lines = [json.loads(line) for line in pathlib.Path(rounds).read_text().splitlines()]
        self.assertEqual([(x["question"], x["drafts"], x["method"]) for x in lines], [(i, 3, "coupled") for i in range(3)])
        for x, prompt in zip(lines, ("5,6,7,8", "9,10", "11,12,13")):
            self.assertEqual(x["tokens"][0], 1)  # with the prompt
            self.assertTrue(all(1 <= n <= 4 for n in x["tokens"]), x)
            p = run("generate", NANO, "--input-ids", prompt, "--max-tokens", "20", "--temperature", "1", "--top-p", "1", "--seed", str(x["question"]), "--json")
            self.assertEqual(sum(x["tokens"]), len(json.loads(p.stdout)["ids"]), p.stderr)
        for text, words in (("1 2\nx\n", "line 2"), ("1 2\n\n3", "line 2 has no token ids"), ("99999", "no token 99999"), ("", "0 lines")):
            pathlib.Path(prompts).write_text(text)
            p = run("bench", "speculation", NANO, "--prompts", prompts, *flags)
            self.assertNotEqual(p.returncode, 0, text)
            self.assertIn(words, p.stderr)
            self.assertEqual(len(p.stderr.splitlines()), 1, p.stderr)

    def test_words(self):
        for flag, words in (("{", "takes a JSON object"), ("[]", "takes a JSON object"), ("7", "takes a JSON object"),
                            ('{"num_speculative_tokens": 99}', "must be a whole number from 1 to 16"), ('{"x": 1}', "has no member x")):
            for command in ("generate", "chat"):
                p = run(command, NANO, *(["x"] if command == "generate" else []), "--speculative-config", flag)
                self.assertEqual(p.returncode, 2, p.stderr)
                self.assertTrue(p.stderr.startswith(f"hayate {command}: --speculative-config"), p.stderr)
                self.assertIn(words, p.stderr.splitlines()[0])

    def test_tables(self):
        self.refused("No such file", {"draft_table": "/nowhere.json"})
        right = {"hayate_draft_table": 1, "batch": [1, 4], "drafts": [7, 3]}
        self.assertEqual(generate(config={"draft_table": table(json.dumps(right))}).returncode, 0)
        self.refused("expected near", {"draft_table": table("{")})
        for wrong in ([], {}, {**right, "hayate_draft_table": "1"}, {**right, "batch": [4, 1]}, {**right, "batch": [1]}, {**right, "drafts": [7, -1]},
                      {**right, "drafts": [7, 99]}, {**right, "batch": [0, 4]}, {**right, "batch": [], "drafts": []}, {**right, "batch": [1, 1 << 20]}):
            self.refused("is no table of drafts", {"draft_table": table(json.dumps(wrong))})

    def test_bench(self):
        path = os.path.join(WORK.name, "written.json")
        small = ("--questions", "3", "--tokens", "16", "--runs", "1")
        p = run("bench", "speculation", NANO, "--drafts", "1,3", "--batch", "1,2", "--json", "--write-table", path, *small)
        self.assertEqual(p.returncode, 0, p.stderr)
        rows = json.loads(p.stdout)["rows"]
        self.assertEqual({(r["method"], r["drafts"], r["batch"]) for r in rows},
                         {(m, g, b) for m in ("coupled", "standard") for g in (1, 3) for b in (1, 2)})
        for r in rows:
            self.assertEqual(r["temperature"], 1)
            self.assertGreaterEqual(r["accepted_length"], 1)
            self.assertLessEqual(r["accepted_length"], r["drafts"] + 1)
            self.assertGreater(min(r["speedup"], r["predicted"], r["tokens_per_second"]), 0)
            self.assertGreater(min(r[f"predicted_{x}_seconds"] for x in ("plain_step", "forward", "verify", "draft")), 0)
            self.assertLess(r["forward_seconds"] + r["verify_seconds"] + r["draft_seconds"], r["step_seconds"] * 1.05)
        written = json.loads(pathlib.Path(path).read_text())
        self.assertEqual((written["batch"], written["method"]), ([1, 2], "coupled"))
        self.assertEqual(generate(config={"draft_table": path}).returncode, 0)
        p = run("bench", "speculation", NANO, "--drafts", "7", "--batch", "1", "--synthetic-length", "3", "--temperature", "0", "--json", *small)
        (synthetic,) = json.loads(p.stdout)["rows"]
        self.assertEqual(synthetic["method"], "synthetic")
        self.assertAlmostEqual(synthetic["accepted_length"], 3, delta=0.75)  # the rounds that an end cuts count as well
        for flags, words in ((("--drafts", "8"), "more than the drafter's block of 7"), (("--methods", "x"), "--methods takes"),
                             (("--methods", "synthetic"), "go together"), (("--drafts", "0"), "--drafts takes"), (("--runs", "0"), "--runs takes"),
                             (("--temperature", "3"), "--temperature takes"), (("--drafts", "1", "--synthetic-length", "5"), "more than --drafts")):
            p = run("bench", "speculation", NANO, *flags, *(() if "--runs" in flags else small))
            self.assertEqual(p.returncode, 2, (flags, p.stderr))
            self.assertIn(words, p.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

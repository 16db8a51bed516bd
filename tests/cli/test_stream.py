#!/usr/bin/env python3
"""Weights larger than memory: the same tokens with --weights stream, the limit of --memory, files that are cut.

    test_stream.py BUILD/hayate

hayate-test: slow (the limits are those of the program as it is; sanitizers take more memory)
"""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import surroundings  # noqa: E402, F401

HAYATE = os.path.abspath(sys.argv.pop(1) if len(sys.argv) > 1 else "build/hayate")
NANO = pathlib.Path(__file__).resolve().parents[2] / "models/m3-nano"
LAYERS = 8
CONFIG = {
    "architectures": ["MiniMaxM3SparseForCausalLM"], "model_type": "minimax_m3", "vocab_size": 2048, "hidden_size": 512,
    "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "use_gemma_norm": True, "rope_theta": 5e6, "rotary_dim": 32,
    "hidden_act": "swigluoai", "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "use_qk_norm": True,
    "qk_norm_type": "per_head", "tie_word_embeddings": False, "dense_intermediate_size": 1024, "intermediate_size": 512,
    "shared_intermediate_size": 512, "num_local_experts": 32, "num_experts_per_tok": 4, "n_shared_experts": 1,
    "scoring_func": "sigmoid", "use_routing_bias": True, "routed_scaling_factor": 2.0,
    "moe_layer_freq": [0] + [1] * (LAYERS - 1), "num_mtp_modules": 0, "bos_token_id": 1, "eos_token_id": 2,
    "dtype": "bfloat16",
    "sparse_attention_config": {
        "use_sparse_attention": True, "sparse_index_dim": 64, "sparse_num_index_heads": 2, "sparse_topk_blocks": 4,
        "sparse_block_size": 128, "sparse_score_type": "max", "sparse_init_block": 0, "sparse_local_block": 1,
        "sparse_attention_freq": [0] + [1] * (LAYERS - 1), "sparse_disable_index_value": [0] + [1] * (LAYERS - 1)},
}
EXPERTS = (LAYERS - 1) * 32
EXPERT_BYTES = 3 * 512 * 512 * 9 // 16  # NVFP4 with its block scales; 99 MB in all
# Threads have memory of their own: as many on every machine, so that limits mean the same there.
ARGS = ("--input-ids", ",".join(str(7 * i % 2048) for i in range(40)), "--max-tokens", 24, "--temperature", 0,
        "--ignore-eos", "--threads", 2)
SMALL = ("--kv-cache-memory-bytes", "2MB", "--max-num-batched-tokens", 32)


def run(*args):
    """Exit code, output, errors and the most memory that the program had, or this one when it started it."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen([HAYATE, *map(str, args)], stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        return child.returncode, out.read().decode(), err.read().decode(), usage.ru_maxrss * 1024


def standing(*args):
    """A program that cannot end while nobody reads it: its pipe takes a page, which is less than it says."""
    return subprocess.Popen([HAYATE, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096)


def wanted(line):
    return int(line.split(" wanted")[0].split()[-1])


def size(text):
    """Bytes of a text that begins with "31.9 MB"."""
    number, unit = re.match(r"([\d.]+) (B|kB|MB|GB)", text).groups()
    return float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


class Stream(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        path = pathlib.Path(cls.folder.name)
        (path / "config.json").write_text(json.dumps(CONFIG))
        cls.model = path / "model"
        code, _, err, _ = run("synth", path / "config.json", cls.model, "--scheme", "m31", "--no-drafter", "--seed", 3,
                              "--shard-size", "30MB")
        assert code == 0, err

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def generate(self, *more):
        code, out, err, peak = run("generate", self.model, *ARGS, "--json", *more)
        self.assertEqual(code, 0, err)
        return json.loads(out), peak

    def least(self, *flags):
        """Bytes that a streaming start needs and hardly more. "For the program" is measured at each start, some hundred
        kilobytes more or less, and grows with the program: no limit near it may be written down in a test."""
        code, _, err, _ = run("generate", self.model, *ARGS, "--weights", "stream", "--memory", 1, *flags)
        self.assertEqual(code, 4, err)
        return int(size(err.split("too little, ")[1])) + 2_000_000

    def test_same_tokens(self):
        loaded, _ = self.generate()
        self.assertNotIn("streamed", loaded)
        seen = []
        least = self.least(*SMALL)
        for memory in (least, least + 15_000_000, 1_000_000_000):
            streamed, peak = self.generate("--weights", "stream", "--memory", memory, *SMALL)
            self.assertEqual(streamed["ids"], loaded["ids"])
            if not os.environ.get("ASAN_OPTIONS"):
                self.assertLess(peak, memory)
            s = streamed["streamed"]
            self.assertEqual((s["experts"], s["slot_bytes"]), (EXPERTS, EXPERT_BYTES))
            self.assertGreater(s["hits"] + s["misses"], 24 * 7 * 4)
            self.assertGreater(s["bytes_read"], 0)
            seen.append(s)
        self.assertLess(seen[0]["cache_slots"], seen[1]["cache_slots"])
        self.assertGreater(seen[0]["evicted"], 0)
        self.assertGreater(seen[0]["ahead_hits"], 0)
        self.assertEqual((seen[2]["cache_slots"], seen[2]["evicted"]), (EXPERTS, 0))
        self.assertLessEqual(seen[2]["bytes_read"], EXPERTS * EXPERT_BYTES)
        self.assertGreater(seen[0]["bytes_read"], seen[2]["bytes_read"])

    def test_a_whole_prompt_of_many_rows(self):
        """Rows that go to all experts of a layer, with room for a few."""
        ids = ("--input-ids", ",".join(str(13 * i % 2048) for i in range(600)), "--max-tokens", 3)
        loaded, _ = self.generate(*ids)
        flags = ("--kv-cache-memory-bytes", "2MB", "--max-num-batched-tokens", 128)
        memory = self.least(*flags) + 2_000_000
        streamed, peak = self.generate(*ids, "--weights", "stream", "--memory", memory, *flags)
        self.assertEqual(streamed["ids"], loaded["ids"])
        self.assertLess(streamed["streamed"]["cache_slots"], EXPERTS // 2)
        if not os.environ.get("ASAN_OPTIONS"):
            self.assertLess(peak, memory)

    def test_the_limit_without_streaming(self):
        code, out, err, _ = run("generate", self.model, *ARGS, "--memory", "100MB", *SMALL)
        self.assertEqual((code, out), (4, ""))
        self.assertRegex(err, r"^hayate: 100.0 MB of memory are too little, [\d.]+ MB are needed: .*\n$")
        memory = 0
        while code == 4:  # the first sum is one of plans, a later one of what was measured
            need = size(err.split("too little, ")[1])
            self.assertGreater(need, max(memory, EXPERTS * EXPERT_BYTES))
            memory = int(need) + 500_000
            code, _, err, peak = run("generate", self.model, *ARGS, "--memory", memory, *SMALL)
        self.assertEqual(code, 0, err)
        if not os.environ.get("ASAN_OPTIONS"):
            self.assertLess(peak, memory)

    def test_what_it_says(self):
        memory = self.least(*SMALL) + 10_000_000
        code, out, err, _ = run("generate", self.model, *ARGS, "--weights", "stream", "--memory", memory, *SMALL, "--verbose")
        self.assertEqual(code, 0, err)
        self.assertEqual(len(out.split()), 24)
        told = re.search(r"expert cache: (\d+) of 224 experts, .* of the ([\d.]+ [kMG]?B) that the process may take", err)
        self.assertTrue(told, err)
        self.assertLess(int(told[1]), EXPERTS)
        self.assertAlmostEqual(size(told[2]), memory, delta=0.001 * memory)  # as printed
        self.assertRegex(err, r"experts: [\d.]+ MB read \(.*\) in \d+ loads, .* wanted, [\d.]+ % in the cache")
        # What the engine logged since it began is what the command ends with.
        lines = [line.split("experts: ")[1] for line in err.splitlines() if "experts: " in line and " loads" in line]
        self.assertEqual(len(lines), 2, err)
        self.assertEqual(wanted(lines[0]), wanted(lines[1]))

    def test_refusals(self):
        code, out, err, _ = run("generate", self.model, *ARGS, "--weights", "stream", "--memory", "40MB")
        self.assertEqual((code, out), (4, ""))
        self.assertRegex(err, r"^hayate: 40.0 MB of memory are too little, [\d.]+ MB are needed: .*\n$")
        # What it names is enough, and hardly more than enough.
        need = size(err.split("too little, ")[1])
        loaded, _ = self.generate()
        streamed, _ = self.generate("--weights", "stream", "--memory", int(need) + 4_000_000)
        self.assertEqual(streamed["ids"], loaded["ids"])
        code, _, err, _ = run("generate", self.model, *ARGS, "--weights", "mapped")
        self.assertEqual(code, 2)
        self.assertIn("--weights is load or stream, not 'mapped'", err)
        code, _, err, _ = run("generate", self.model, *ARGS, "--weights", "stream", "--backend", "reference")
        self.assertEqual(code, 2)
        self.assertIn("use cpu", err)
        code, _, err, _ = run("generate", self.model, *ARGS, "--weights", "stream", "--memory", 1)
        self.assertEqual(code, 4)
        self.assertRegex(err, r"^hayate: 1 B of memory are too little, [\d.]+ MB are needed: .*\n$")

    def test_the_limit_names_its_parts(self):
        _, _, err, _ = run("generate", self.model, *ARGS, "--weights", "stream", "--memory", "40MB")
        parts = [size(part) for part in err.split("are needed: ")[1].split(", ")]
        self.assertEqual(len(parts), 6, err) # weights, step, KV cache, experts, readers, program
        self.assertAlmostEqual(sum(parts), size(err.split("too little, ")[1]), delta=1e6)

    def test_a_limit_beyond_the_machine(self):
        code, _, err, _ = run("generate", self.model, *ARGS, "--weights", "stream", "--memory", "900TB")
        self.assertEqual(code, 0)
        self.assertRegex(err, r"WARNING.* --memory 900.0 TB is more than the [\d.]+ GB of this machine")

    def test_a_cache_beyond_all_memory(self):
        """Needs that do not fit into 64 bits are too large, not small."""
        for cache in (2**64 - 1, 2**64 - 10**9, 2**63, "16777215T", 10**15):
            for flags in ((), ("--memory", "1GB"), ("--memory", "1GB", "--weights", "stream"), ("--memory", 2**64 - 1)):
                code, out, err, _ = run("generate", self.model, *ARGS, *flags, "--kv-cache-memory-bytes", cache)
                self.assertEqual((code, out), (4, ""), (cache, flags, err))
                said = [line for line in err.splitlines() if line.startswith("hayate: ")]
                self.assertEqual(len(said), 1, err)
                self.assertRegex(said[0], r"(1\d\.\d|9.2\d) EB|1.00 PB", (cache, flags))

    def plan(self, *more):
        code, out, err, _ = run("plan", self.model, "--weights", "stream", "--json", *more)
        return code, json.loads(out), err

    def test_the_plan_is_the_engine_s(self):
        """What `plan` lets pass runs, what it refuses does not, and the caches have the sizes that it says."""
        _, _, err, _ = run("generate", self.model, *ARGS, "--weights", "stream", "--memory", "40MB")
        least = size(err.split("too little, ")[1])
        self.assertEqual(self.plan("--memory", int(least * 0.93))[0], 4)
        self.assertEqual(self.plan("--memory", int(least * 1.1))[0], 0)
        for memory in (int(least * 1.1), int(least * 1.3), 1_000_000_000):
            code, plan, err = self.plan("--memory", memory)
            self.assertEqual(code, 0, err)
            streamed, _ = self.generate("--weights", "stream", "--memory", memory)
            s = streamed["streamed"]
            self.assertEqual(plan["expert_bytes"], s["slot_bytes"])
            self.assertEqual(plan["experts"], s["experts"])
            self.assertAlmostEqual(plan["expert_slots"], s["cache_slots"], delta=30) # 13 MB
            self.assertGreater(plan["cache_bytes"], 0)

    def test_file_cut_while_running(self):
        cut = pathlib.Path(self.folder.name) / "cut"
        shutil.copytree(self.model, cut)
        flags = ("--kv-cache-memory-bytes", "8MB", "--max-num-batched-tokens", "32")
        child = standing("generate", cut, "--input-ids", "1,2,3", "--max-tokens", 5000, "--temperature", 0, "--ignore-eos",
                         "--threads", 2, "--weights", "stream", "--memory", self.least(*flags), *flags)
        first = child.stdout.read(1)
        self.assertTrue(first.isdigit(), child.communicate() if not first else first)
        for file in sorted(cut.glob("*.safetensors")):
            os.truncate(file, 4096)
        _, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 1, err)
        line = [one for one in err.decode().splitlines() if one.startswith("hayate: ")]
        self.assertEqual(len(line), 1, err)
        self.assertRegex(line[0], r"safetensors ends at byte \d+, before the weights at \d+: it was cut while in use")

    def test_file_cut_at_any_moment(self):
        """While it is mapped, too: one line that names the file, and never a signal."""
        cut = pathlib.Path(self.folder.name) / "cut-nano"
        said = []
        for flags in (("--weights", "load"), ("--weights", "stream", "--memory", "300MB"), ("--backend", "reference")):
            for after in (0.001, 0.004, 0.01, 0.02, 0.03, 0.05, 0.1, None):
                shutil.copytree(NANO, cut)
                child = standing("generate", cut, "--input-ids", "1,2,3", "--max-tokens", 4000, "--temperature", 1,
                                 "--seed", 1, "--ignore-eos", *flags)
                if after is None:
                    child.stdout.read(1)
                else:
                    time.sleep(after)
                os.truncate(cut / "model.safetensors", 4096)
                _, err = child.communicate(timeout=120)
                self.assertIn(child.returncode, (1, 3), (flags, after, err))
                self.assertEqual(err.decode().count("hayate: "), 1, err)
                self.assertIn("model.safetensors", err.decode())
                said.append(err.decode())
                shutil.rmtree(cut)
        self.assertTrue(any("model.safetensors was truncated while it was in use" in line for line in said), said)

    def test_damaged_global_scale(self):
        """Weights that are read later are refused at once where loaded ones are."""
        path = pathlib.Path(self.folder.name) / "damaged"
        shutil.copytree(self.model, path)
        shard = sorted(path.glob("*.safetensors"))[0]
        with open(shard, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        name = next(n for n in sorted(header) if "experts" in n and n.endswith("weight_global_scale"))
        begin, end = header[name]["data_offsets"]
        self.assertEqual(end - begin, 4)
        for value in (float("inf"), -1.0, 0.0, float("nan")):
            with open(shard, "r+b") as file:
                file.seek(8 + length + begin)
                file.write(struct.pack("<f", value))
            for how in ("load", "stream"):
                code, out, err, _ = run("generate", path, *ARGS, *SMALL, "--weights", how)
                self.assertEqual((code, out), (3, ""), (how, value, err))
                self.assertIn("global scale", err)

    def test_a_client_is_not_told_of_files(self):
        """Of a read that fails the server's log names the file; the answer has status 500 and no path."""
        folder = pathlib.Path(self.folder.name) / "served"
        shutil.copytree(NANO, folder)
        args = [HAYATE, "serve", str(folder), "--host", "127.0.0.1", "--port", "0", "--weights", "stream", "--memory", "300MB"]
        with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
            log = []
            for line in child.stdout:
                log.append(line)
                if "startup complete" in line:
                    break
            address = next(re.search(r"http://[\d.:]+", line)[0] for line in log if "Starting server on" in line)
            os.truncate(folder / "model.safetensors", 4096)
            question = {"model": "served", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
            request = urllib.request.Request(address + "/v1/chat/completions", json.dumps(question).encode(),
                                             {"Content-Type": "application/json"})
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=120)
            body = refused.exception.read().decode()
            child.terminate()
            rest = child.stdout.read()
        self.assertEqual(refused.exception.code, 500, rest)
        self.assertIn("its log says why", body)
        self.assertNotIn("safetensors", body)
        self.assertIn("model.safetensors", rest)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""The command line of `hayate serve`: both quick starts, every flag of the table, files, precedence, errors with their codes.

    test_serve_flags.py BUILD/hayate [--write]     --write renews docs/flags.md
"""
import ast
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HAYATE = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "hayate")
WORK = tempfile.TemporaryDirectory()
# No model: what is right so far ends there, with exit code 3 after the start's lines. It is a folder, so nothing is looked up.
NOTHING = os.path.join(WORK.name, "nothing")
os.mkdir(NOTHING)

NVIDIA = """MiniMaxAI/MiniMax-M3.1-Flash -tp 4 --reasoning-parser minimax_m3 --block-size 128 --kv-cache-dtype nvfp4
 --attention-config '{"indexer_kv_dtype": "nvfp4"}' --speculative-config '{"method":"dspark","num_speculative_tokens":7,
 "attention_backend":"FLASHINFER_TS","kv_cache_dtype":"fp8","draft_sample_method":"probabilistic"}'
 --disable-hybrid-kv-cache-manager"""
AMD = """MiniMaxAI/MiniMax-M3.1-Flash -tp 4 --reasoning-parser minimax_m3 --block-size 128 --kv-cache-dtype nvfp4
 --attention-config '{"indexer_kv_dtype": "nvfp4", "indexer_decode_cp": true}' --quantization-config.moe mxfp8
 --speculative-config '{"method":"dspark","num_speculative_tokens":3,"attention_backend":"TRITON_ATTN","kv_cache_dtype":"fp8",
 "draft_sample_method":"probabilistic"}' --disable-hybrid-kv-cache-manager"""


def run(*args, env=None, **more):
    e = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "HF_"))}
    return subprocess.run([HAYATE, "serve", *args], capture_output=True, text=True, timeout=60, env={**e, **(env or {})}, **more)


def resolved(*args, **more):
    """What the start prints of a command line that is right."""
    p = run(*args, **more)
    assert p.returncode == 3, (args, p.returncode, p.stderr)
    line = next(l for l in p.stderr.splitlines() if "non-default args: " in l)
    got = ast.literal_eval(line.split("non-default args: ", 1)[1])
    got.pop("model_tag", None), got.pop("config", None)
    return got, p.stderr


def file(name, text):
    path = os.path.join(WORK.name, name)
    pathlib.Path(path).write_text(text)
    return path


class Table:
    """The table as --help=markdown tells it."""
    text = run("--help=markdown").stdout
    rows = [[c.strip() for c in re.split(r"(?<!\\)\|", l)[1:-1]] for l in text.splitlines() if l.startswith("| `--")]
    names = [re.match(r"`--([a-z0-9-]+)`", r[0]).group(1) for r in rows]


class FlagsTest(unittest.TestCase):
    def refused(self, words, *args, code=2, **more):
        p = run(*args, **more)
        self.assertEqual(p.returncode, code, (args, p.stderr))
        self.assertIn(words, p.stderr.splitlines()[0], args)
        self.assertLessEqual(len(p.stderr.splitlines()), 2, p.stderr)
        self.assertEqual(p.stdout, "")

    def test_quick_starts(self):
        for text in (NVIDIA, AMD):
            words = shlex.split(" ".join(text.split()))
            p = run(*words)
            self.assertEqual(p.returncode, 2)
            first, second = p.stderr.splitlines()
            self.assertIn("--tensor-parallel-size 4 needs that many ranks", first)
            self.assertIn("the model, and whether it fits here, were not looked at", first)
            self.assertTrue(second.startswith("For one rank: hayate serve MiniMaxAI/MiniMax-M3.1-Flash --reasoning-parser"))
            offered = shlex.split(second.split(": ", 1)[1])[2:]
            self.assertEqual(offered, [w for i, w in enumerate(words) if w != "-tp" and words[i - 1] != "-tp"])
            # What is offered is right: with a folder in place of the name it gets as far as the folder.
            got, log = resolved(NOTHING, *offered[1:])
            self.assertEqual(got["kv_cache_dtype"], "nvfp4")
            self.assertEqual(got["attention_config"]["indexer_kv_dtype"], "nvfp4")
            self.assertEqual(got["speculative_config"]["method"], "dspark")
            self.assertEqual(log.count("--speculative-config: attention_backend: no effect"), 1)
            self.assertEqual(log.count("flag --disable-hybrid-kv-cache-manager has no effect"), 1)
        self.assertEqual(got["quantization_config"], {"moe": "mxfp8"})

    def test_every_flag(self):
        """Each flag of the table once, with a value of its kind: it is known, and what becomes of it is what the table says."""
        self.assertGreaterEqual(len(Table.names), 282)
        listed = run("--help=all").stdout
        kinds = dict(re.findall(r"^  (?:-\w+, )?--([a-z0-9-]+)(.*?)(?:  .*)?$", listed, re.M))
        self.assertEqual(sorted(kinds), sorted(Table.names))
        right = {"block-size": "128", "kv-cache-dtype": "fp8", "indexer-kv-dtype": "fp8", "load-format": "safetensors",
                 "reasoning-parser": "none", "tool-call-parser": "minimax_m3", "spec-method": "dspark", "port": "8001",
                 "generation-config": "vllm", "watermark": "0.25", "ssl-cert-reqs": "0", "h11-max-incomplete-event-size": "1M",
                 "gpu-memory-utilization": "0.5", "max-num-batched-tokens": "1k", "override-generation-config": '{"top_k": 40}',
                 "speculative-config": '{"method": "dspark"}', "attention-config": '{"backend": "X"}',
                 "quantization-config": '{"moe": "mxfp8"}', "structured-outputs-config": '{"backend": "xgrammar"}',
                 "reasoning-config": '{"reasoning_parser": "minimax_m3"}', "kv-events-config": '{"enable_kv_cache_events": false}',
                 "lora-modules": "a=b", "runner": "generate", "convert": "none", "dtype": "bfloat16", "config-format": "hf",
                 "kv-offloading-backend": "native", "max-logprobs": "5", "middleware": "a.b"}
        needs = {"enable-auto-tool-choice": ["--tool-call-parser", "minimax_m3"], "enable-log-outputs": ["--enable-log-requests"],
                 "kv-offload-disk-size": ["--kv-offload-disk", "x"], "ssl-keyfile": ["--ssl-certfile", "x"],
                 "ssl-ca-certs": ["--ssl-certfile", "x"], "enable-ssl-refresh": ["--ssl-certfile", "x"]}
        for name, row in zip(Table.names, Table.rows):
            if name in ("help", "version", "config", "model"):
                continue
            kind = kinds[name].strip()
            choices = re.match(r"\{(.*)\}", kind)
            value = right.get(name)
            if not value:
                value = (choices.group(1).split("|")[-1] if choices else {"": None, "N": "3", "NUMBER": "3k", "NUMBER|auto": "auto",
                         "X": "0.5", "TEXT": "x", "TEXT...": "x", "[TEXT]": "x"}.get(kind))
            if not value and "JSON" in kind:
                value = '["x"]' if name.startswith("allowed-") else '{"x": 1}'
            if name == "fingerprint-mode":
                value = "hash"
            flag = ["--" + name.replace("-", "_", 1)] + ([value] if value else [])
            p = run(NOTHING, *flag, *needs.get(name, []))
            fate = row[3].split(":")[0]
            with self.subTest(name=name, fate=fate, said=p.stderr):
                if fate == "only the default":
                    default = (value is None and row[1] == "on") or value == row[1]
                    self.assertEqual(p.returncode, 3 if default else 2)
                    if not default:
                        self.assertIn(f"--{name} is not done: ", p.stderr)
                elif fate == "one rank":
                    self.assertEqual(p.returncode, 2)
                    self.assertIn(f"--{name} 3 needs that many ranks", p.stderr)
                else:
                    self.assertEqual(p.returncode, 3)
                    self.assertEqual(p.stderr.count(f"flag --{name} has no effect"), fate == "no effect")

    def test_forms(self):
        same = [("--max-num-seqs", "7"), ("--max_num_seqs", "7"), ("--max-num-seqs=7",), ("--max_num-seqs=7",)]
        for flags in same:
            self.assertEqual(resolved(NOTHING, *flags)[0], {"max_num_seqs": 7})
            self.assertEqual(resolved(*flags, NOTHING)[0], {"max_num_seqs": 7})
        for text, number in (("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("4096", 4096)):
            self.assertEqual(resolved(NOTHING, "--max-num-batched-tokens", text)[0], {"max_num_batched_tokens": number})
        for text in ("auto", "-1"):
            self.assertEqual(resolved(NOTHING, "--max-model-len", text)[0], {"max_model_len": -1})
        self.assertEqual(resolved(NOTHING, "--no-enable-prefix-caching")[0], {"enable_prefix_caching": False})
        self.assertEqual(resolved(NOTHING, "--no_enable_prefix_caching", "--enable-prefix-caching")[0], {})
        for flags in (("-O3",), ("-O", "3"), ("-O=3",), ("--optimization-level", "3")):
            self.assertEqual(resolved(NOTHING, *flags)[0], {"optimization_level": "3"})
        self.assertEqual(resolved(NOTHING, "-cc.mode", "3", "-cc.pass_config.fuse=true")[0],
                         {"compilation_config": {"mode": 3, "pass_config": {"fuse": True}}})
        self.assertEqual(resolved(NOTHING, "--served-model-name", "a", "b", "--served_model_name", "c")[0],
                         {"served_model_name": ["a", "b", "c"]})
        for letters, name in (("-tp", "tensor_parallel_size"), ("-pp", ""), ("-dp", ""), ("-dcp", ""), ("-pcp", ""), ("-n", "")):
            self.refused("needs that many ranks", NOTHING, letters, "2")
            self.assertEqual(resolved(NOTHING, letters, "1")[0], {})
        for letters in ("-ep", "-dph", "-dpe", "-dpm"):
            self.assertEqual(len(resolved(NOTHING, letters)[0]), 1)
        self.assertEqual(resolved(NOTHING, "-q", "fp8", "-dpb", "ray", "-dpa", "h", "-dpp", "1", "-r", "0", "-dpr", "0", "-dpl", "1", "-asc", "2")[0],
                         {"quantization": "fp8", "data_parallel_backend": "ray", "data_parallel_address": "h",
                          "data_parallel_rpc_port": 1, "api_server_count": 2})
        self.assertEqual(resolved(NOTHING, "--seed", "None", "--kv-cache-memory-bytes", "None")[0], {})

    def test_members(self):
        got, _ = resolved(NOTHING, "--additional-config.list+", "a,b", "--additional-config", '{"x": {"y": 1}, "list": ["0"]}',
                          "--additional-config.x.z", "2k", "--additional_config.a_b=nvfp4", "--additional-config.on", "true")
        self.assertEqual(got["additional_config"], {"x": {"y": 1, "z": 2000}, "list": ["0", "a", "b"], "a_b": "nvfp4", "on": True})
        self.assertEqual(resolved(NOTHING, "-ac.indexer_kv_dtype", "nvfp4")[0], {"attention_config": {"indexer_kv_dtype": "nvfp4"}})
        self.refused("has no members", NOTHING, "--port.x", "1")
        self.refused("no name", NOTHING, "--additional-config.", "1")
        self.refused("needs a value", NOTHING, "--additional-config.x")
        self.refused("is no list", NOTHING, "--additional-config.x", "1", "--additional-config.x+", "2")

    def test_file(self):
        path = file("a.yaml", "port: 8001\nmax_model_len: 25.6k\nserved-model-name: [a, b]\nenable-prefix-caching: false\n"
                              "attention-config:\n  indexer_kv_dtype: nvfp4\nadditional-config.x.y: 2\n"
                              "no-enable-chunked-prefill: false\nhost: null\nspeculative-config: {method: dspark, num_speculative_tokens: 7}\n")
        got, log = resolved(NOTHING, "--config", path)
        self.assertEqual(got, {"port": 8001, "max_model_len": 25600, "served_model_name": ["a", "b"], "enable_prefix_caching": False,
                               "attention_config": {"indexer_kv_dtype": "nvfp4"}, "additional_config": {"x": {"y": 2}},
                               "speculative_config": {"method": "dspark", "num_speculative_tokens": 7}})
        # The command line wins, wherever --config stands; members go over the file's object, a whole object in its place.
        for flags in (("--config", path, "--port", "8002"), ("--port=8002", f"--config={path}")):
            got, _ = resolved(NOTHING, *flags, "--served-model-name", "c", "--enable-prefix-caching",
                              "--speculative-config.num_speculative_tokens", "3", "--attention-config", '{"backend": "X"}')
            self.assertEqual((got["port"], got["served_model_name"], "enable_prefix_caching" in got), (8002, ["c"], False))
            self.assertEqual(got["speculative_config"], {"method": "dspark", "num_speculative_tokens": 3})
            self.assertEqual(got["attention_config"], {"backend": "X"})
        self.assertEqual(resolved("--config", file("m.yaml", f"model: {NOTHING}\n"))[0], {})
        self.refused("give a model", "--config", path)
        ranks = run(NOTHING, "--config", file("tp.yaml", "tensor-parallel-size: 4\n"))
        self.assertEqual((ranks.returncode, "Take it out of the --config file" in ranks.stderr), (2, True))
        for text, words in (("prot: 1\n", "line 1: prot; did you mean --port?"), ("\nport: x\n", "line 2: port takes a whole number"),
                            ("port: [1]\n", "wrong kind"), ("headless: 3\n", "is true or false"), ("- a\n", "must be lines"),
                            ("a: [1\n", "is not YAML"), ("port: 1\nport: 2\n", "line 2: this key came before"),
                            ("config: x\n", "belongs on the command line"), ("attention-config: 3\n", "takes a JSON object"),
                            ("port.x: 1\n", "has no members"), ("served-model-name: []\n", "empty list")):
            self.refused(words, NOTHING, "--config", file("bad.yaml", text))
        # What a parser would not come back from.
        for text, words in (("a: " + "[" * 100000, "line 1: values are nested more than 16 deep"),
                            ("a:\n" + "- " * 600, "nested more than 16 deep"),
                            ("a: " + "{b: " * 60000, "nested more than 16 deep"), ("? " * 100000, "nested more than 16 deep"),
                            ("a: [" + "&x 1, " * 40000 + "]", "more than 1000 anchors"),
                            (f"a: &x {'y' * 100000}\nb: [{'*x, ' * 20000}*x]\n", "nested too deeply, or too many"),
                            ("port: 1 #" + "x" * 300000, "is larger than the 256 KiB")):
            self.refused(words, NOTHING, "--config", file("deep.yaml", text))
        self.refused("cannot be read: Is a directory", NOTHING, "--config", WORK.name)
        self.refused("cannot be read", NOTHING, "--config", "/nowhere.yaml")
        self.refused("--config needs a value", NOTHING, "--config")
        self.refused("given twice", NOTHING, "--config", path, "--config", path)

    def test_fingerprint(self):
        said = "--fingerprint-value has no effect with --fingerprint-mode full: only custom answers with it"
        self.assertIn(said, resolved(NOTHING, "--fingerprint-value", "x")[1])
        self.assertNotIn("no effect", resolved(NOTHING, "--fingerprint-value", "x", "--fingerprint-mode", "custom")[1])
        self.refused("needs its --fingerprint-value", NOTHING, "--fingerprint-mode", "custom")

    def test_errors(self):
        self.refused("unknown flag --prt; did you mean --port?", NOTHING, "--prt", "1")
        self.refused("did you mean --tensor-parallel-size?", NOTHING, "--tensor-parallel", "1")
        self.refused("did you mean --enable-lora?", NOTHING, "--enable-loras")
        self.refused("requests are logged with --enable-log-requests only", NOTHING, "--disable-log-requests")
        self.refused("--swap-space is a flag of older versions", NOTHING, "--swap-space", "4")
        self.refused("unknown flag -xy", NOTHING, "-xy")
        self.refused("unknown flag --no-port", NOTHING, "--no-port")
        self.refused("takes no value", NOTHING, "--enforce-eager=true")
        self.refused("needs a value", NOTHING, "--port")
        self.refused("needs a value", NOTHING, "--host", "--port", "1")
        self.refused("one or more", NOTHING, "--api-key", "--port", "1")
        self.refused("takes a whole number", NOTHING, "--port", "8k")
        self.refused("must be 0 to 65535", NOTHING, "--port", "65536")
        self.refused("takes JSON", NOTHING, "--attention-config", "{")
        self.refused("takes a JSON object", NOTHING, "--attention-config", "[]")
        self.refused("takes a JSON list", NOTHING, "--allowed-origins", "{}")
        self.refused("takes JSON", NOTHING, "--allowed-origins", "*")
        self.refused("unexpected argument", NOTHING, "b")
        self.refused("give a model")
        self.refused("--block-size must be 128", NOTHING, "--block-size", "16")
        self.refused("Error: --enable-auto-tool-choice requires --tool-call-parser", NOTHING, "--enable-auto-tool-choice")
        self.refused("Error: --enable-log-outputs requires --enable-log-requests", NOTHING, "--enable-log-outputs")
        self.refused("Error: --enable-per-request-metrics requires", NOTHING, "--enable-per-request-metrics", "--disable-log-stats")
        for name in ("minimax_m2", "hermes"):
            self.refused("choose minimax_m3 or none", NOTHING, "--tool-call-parser", name)
            self.refused("choose minimax_m3 or none", NOTHING, "--reasoning-parser", name)
        self.refused("is not among the formats", NOTHING, "--kv-cache-dtype", "fp8_e5m2")
        self.refused("--load-format gguf is not done: weights are read as safetensors, or made with dummy", NOTHING, "--load-format", "gguf")
        self.refused("is not done", NOTHING, "--dtype", "float16")
        self.refused("--middleware is not done", NOTHING, "--middleware", "a.b")
        self.refused("mean the same", NOTHING, "--kv-offloading-size", "1", "--kv-offload-memory", "1G")
        self.refused("mean the same", NOTHING, "--num-gpu-blocks-override", "9", "--kv-cache-memory-bytes", "1G")

    def test_json_members_are_checked(self):
        spec = lambda **o: ("--speculative-config", json.dumps({"method": "dspark", "num_speculative_tokens": 7, **o}))
        synthetic = lambda **o: spec(rejection_sample_method="synthetic", **o)
        for method in ("ngram", "eagle3", "mtp", "dflash", "medusa"):
            self.refused(f"method {method} is not done", NOTHING, *spec(method=method))
        self.refused("method x is unknown", NOTHING, *spec(method="x"))
        self.refused("prompt_lookup_max belongs to another method", NOTHING, *spec(prompt_lookup_max=4))
        self.refused("has no member metod; did you mean method?", NOTHING, *spec(metod="dspark"))
        for n in (0, -1, 17, 2.5, "7", "all", True, [7]):
            self.refused("must be a whole number from 1 to 16", NOTHING, *spec(num_speculative_tokens=n))
        self.refused("attention_backend must be a name", NOTHING, *spec(attention_backend="FLASH INFER"))
        self.refused("must be one of auto, bfloat16, bf16, fp8, fp8_e4m3", NOTHING, *spec(kv_cache_dtype="nvfp4"))
        self.refused("must be one of greedy, probabilistic", NOTHING, *spec(draft_sample_method="x"))
        self.refused("must be one of coupled, standard, block, synthetic", NOTHING, *spec(rejection_sample_method="x"))
        self.refused("draft_tensor_parallel_size must be", NOTHING, *spec(draft_tensor_parallel_size=2))
        self.refused("needs either", NOTHING, *synthetic())
        self.refused("needs either", NOTHING, *synthetic(synthetic_acceptance_length=2, synthetic_acceptance_rates=[1] * 7))
        self.refused("are for rejection_sample_method synthetic", NOTHING, *spec(synthetic_acceptance_length=2))
        for length in (9, 8.01, 0.99, -1):
            self.refused("1 to num_speculative_tokens + 1", NOTHING, *synthetic(synthetic_acceptance_length=length))
        for rates in ([0.2, 0.3], [0.5], [0.5, 0.4, 0.3], [1.1, 0.3], [0.5, -0.1], ["a", "b"], [], 0.5, {}):
            self.refused("do not rise", NOTHING, *synthetic(num_speculative_tokens=2, synthetic_acceptance_rates=rates))
        resolved(NOTHING, *synthetic(num_speculative_tokens=2, synthetic_acceptance_rates=[0.5, 0.3]))
        resolved(NOTHING, *synthetic(synthetic_acceptance_length=3.16))
        for x in (-0.1, 1, 2):
            self.refused("confidence_threshold must be from 0 to below 1", NOTHING, *spec(confidence_threshold=x))
        self.refused("contradict each other", NOTHING, *synthetic(synthetic_acceptance_length=2, confidence_threshold=0.5))
        self.refused("enable_adaptive_verification is not done", NOTHING, *spec(enable_adaptive_verification=True))
        resolved(NOTHING, *spec(enable_adaptive_verification=False, confidence_threshold=0.5))
        for schedule in ([], 7, [[1, 4]], [[2, 4, 7]], [[1, 4, 8]], [[1, 4, 7], [6, 8, 3]], [[4, 1, 3]], [[1, 2, -1]], [[1, 2, "3"]]):
            self.refused("num_speculative_tokens_per_batch_size", NOTHING, *spec(num_speculative_tokens_per_batch_size=schedule))
        resolved(NOTHING, *spec(num_speculative_tokens_per_batch_size=[[1, 4, 7], [5, 4096, 0]]))
        self.refused("draft_table is for num_speculative_tokens auto", NOTHING, *spec(draft_table="x.json"))
        self.refused("say different things", NOTHING, *spec(), "--spec-tokens", "3")
        resolved(NOTHING, *spec(), "--spec-tokens", "7", "--spec-method", "dspark")
        self.refused("method ngram is not done", NOTHING, "--spec-method", "ngram")
        self.refused("must be a whole number from 1 to 16", NOTHING, "--spec-tokens", "17")
        got, log = resolved(NOTHING, "-sc.num_speculative_tokens", "auto", "-sc.rejection_sample_method", "standard",
                            "-sc.draft_sample_method", "greedy", "-sc.moe_backend", "x")
        self.assertEqual(got["speculative_config"]["num_speculative_tokens"], "auto")
        self.assertIn("--speculative-config: moe_backend: no effect", log)
        self.assertNotIn("accepts few drafts", log)
        self.assertIn("accepts few drafts", resolved(NOTHING, *spec(draft_sample_method="greedy"))[1])
        self.refused("did you mean indexer_kv_dtype?", NOTHING, "-ac.indexer_kv_dtyp", "fp8")
        self.refused("mxfp4 is not among the formats", NOTHING, "-ac.indexer_kv_dtype", "mxfp4")
        self.refused("give one", NOTHING, "-ac.indexer_kv_dtype", "fp8", "--indexer-kv-dtype", "nvfp4")
        self.refused("publishes no events", NOTHING, "--kv-events-config.enable_kv_cache_events", "true")
        self.refused("must be a number", NOTHING, "--override-generation-config", '{"top_k": "x"}')
        self.refused("reasoning_parser_plugin is not possible", NOTHING, "--structured-outputs-config.reasoning_parser_plugin", "a.py")
        self.refused("the markers of this model", NOTHING, "--reasoning-config.reasoning_start_str", "<think>")

    def test_generation_files_are_checked(self):
        for text, words in (('{"temperature": "hot"}', "temperature must be a number from 0 to 2"),
                            ('{"max_new_tokens": -5}', "max_new_tokens must be a whole number from 1"),
                            ('{"max_new_tokens": "9"}', "max_new_tokens must be a whole number from 1"),
                            ('{"top_k": 1.9}', "top_k must be a whole number from -1 to 16777216")):
            folder = os.path.dirname(file("generation_config.json", text))
            p = run(str(ROOT / "models" / "m3-nano"), "--port", "0", "--generation-config", folder)
            self.assertEqual(p.returncode, 2, (text, p.stderr))
            self.assertIn("--generation-config: " + words, p.stderr.splitlines()[-1])
        for text, words in (('{"top_k": 1.5}', "top_k must be a whole number"), ('{"top_p": 7}', "top_p must be a number")):
            p = run(str(ROOT / "models" / "m3-nano"), "--port", "0", "--override-generation-config", text)
            self.assertEqual(p.returncode, 2, (text, p.stderr))
            self.assertIn("--override-generation-config: " + words, p.stderr.splitlines()[-1])

    def test_fractions_are_not_cut_off(self):
        for flag in ("--max-model-len", "--max-num-batched-tokens", "--max-waiting", "--memory", "--kv-cache-memory-bytes"):
            self.refused("must be a whole number, not '1.9'", NOTHING, flag, "1.9")
        self.refused("must be a whole number, not '0.1K'", NOTHING, "--max-model-len", "0.1K")
        self.assertEqual(resolved(NOTHING, "--max-model-len", "1.5K")[0], {"max_model_len": 1536})
        self.assertEqual(resolved(NOTHING, "--memory", "1.1GiB")[0], {"memory": 1181116006})
        self.refused("VLLM_MAX_N_SEQUENCES must be a whole number, not '1.5'", NOTHING, env={"VLLM_MAX_N_SEQUENCES": "1.5"})

    def test_secrets_stay_secret(self):
        p = run(NOTHING, "--api-key", "sk-secret-1", "sk-secret-2", "--hf-token", "hf_secret")
        self.assertNotIn("secret", p.stderr)
        self.assertIn("'api_key': ['***', '***']", p.stderr)
        self.assertNotIn("secret", run(NOTHING, "-tp", "2", "--api-key", "sk-secret").stderr)

    def test_environment(self):
        _, log = resolved(NOTHING, "--enforce-eager", env={"VLLM_LOGGING_LEVEL": "INFO"})
        self.assertIn("INFO", log)
        p = run(NOTHING, "--enforce-eager", env={"VLLM_LOGGING_LEVEL": "error"})
        self.assertEqual(len(p.stderr.splitlines()), 1, p.stderr)
        for name, text in (("VLLM_LOGGING_LEVEL", "loud"), ("VLLM_MAX_N_SEQUENCES", "0"), ("VLLM_LOG_STATS_INTERVAL", "x"), ("VLLM_LOG_STATS_INTERVAL", "-1"),
                           ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "0")):
            self.refused(name, NOTHING, env={name: text})

    def test_help(self):
        short = run("--help")
        self.assertEqual(short.returncode, 0)
        self.assertTrue(short.stdout.startswith("usage: hayate serve MODEL [flags]"))
        self.assertLess(len(short.stdout.splitlines()), 110)
        for text in (short.stdout, run("--help=all").stdout):
            self.assertLessEqual(max(map(len, text.splitlines())), 130)
        self.assertIn("--max-num-batched-tokens", run("--help=max_num").stdout)
        self.assertNotIn("--port", run("--help=max_num").stdout)
        group = run("--help=loraconfig").stdout
        self.assertIn("--max-loras", group)
        self.assertNotIn("--port", group)
        self.assertIn("No group and no flag", run("--help=nonsense").stdout)
        self.assertEqual(run("--nonsense", "-h").returncode, 0)
        self.assertRegex(run("--version").stdout, r"^hayate \d+\.\d+\.\d+\n$")

    def test_documented(self):
        written = (ROOT / "docs" / "flags.md").read_text().split("<!-- made by: ", 1)[1].split("-->\n", 1)[1]
        self.assertEqual(written, Table.text, "renew it with tests/cli/test_serve_flags.py build/hayate --write")


if __name__ == "__main__":
    if "--write" in sys.argv:
        path = ROOT / "docs" / "flags.md"
        head, rest = path.read_text().split("<!-- made by: ", 1)
        path.write_text(head + "<!-- made by: " + rest.split("-->\n", 1)[0] + "-->\n" + Table.text)
        sys.exit(0)
    unittest.main(argv=sys.argv[:1])

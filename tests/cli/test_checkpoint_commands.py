#!/usr/bin/env python3
"""synth, inspect, plan and quantize as a user runs them: output, JSON keys, exit codes, messages of one line."""
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

HAYATE = os.path.abspath(sys.argv[1])
ORACLES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "oracle")
WORK = tempfile.TemporaryDirectory()


def place(name):
    return os.path.join(WORK.name, name)


def run(*args, code=0, **more):
    done = subprocess.run([HAYATE, *args], capture_output=True, text=True, timeout=120, **more)
    assert done.returncode == code, (args, done.returncode, done.stdout[-500:], done.stderr)
    return done


def fails(code, words, *args, **more):
    """The exit code, and stderr one line that has the words (two for usage errors, the second a pointer to --help)."""
    lines = run(*args, code=code, **more).stderr.splitlines()
    assert words in lines[0], (args, lines)
    assert lines[0].startswith("hayate"), lines
    assert len(lines) == 1 or (len(lines) == 2 and "--help" in lines[1]), lines


def help_texts():
    for command in ("synth", "inspect", "plan", "quantize"):
        text = run(command, "--help").stdout
        assert text.startswith(f"usage: hayate {command} ") and "--help" in text
        assert max(map(len, text.splitlines())) <= 100
        assert f"  {command} " in run("--help").stdout


def whole_model_in_holes():
    run("synth", "m3.1-flash", place("holes"), "--holes")
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    got = json.loads(run("inspect", place("holes"), "--json").stdout)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Tables alone are read, whatever else the machine does meanwhile.
    assert end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime < 2
    assert (got["tensors"], got["tensor_bytes"], got["shards"]) == (89632, 250103411200, 48)
    assert (got["draft"]["tensors"], got["draft"]["tensor_bytes"]) == (97, 2301852674)
    assert got["draft"]["taps"] == [3, 17, 31, 45, 59] and got["draft"]["problem"] is None
    assert got["config"]["num_hidden_layers"] == 60 and got["config"]["sparse_attention_freq"] == [1] * 60
    assert sum(k["bytes"] for k in got["kinds"]) == 250103411200
    experts = [k for k in got["kinds"] if k["kind"] == "routed experts"]
    assert experts == [{"kind": "routed experts", "format": "NVFP4", "tensors": 87552, "bytes": 232381393920}]
    text = run("inspect", place("holes")).stdout
    assert "89,632 tensors in 48 files, 250,103,411,200 bytes" in text and len(text.splitlines()) < 150
    assert "layers.*.block_sparse_moe.experts.*.w1.weight_packed" in text
    lines = run("inspect", place("holes"), "--all").stdout.splitlines()
    assert len(lines) == 89632 + 97
    every = json.loads(run("inspect", place("holes"), "--json", "--all").stdout)
    assert len(every["list"]) == 89632 and len(every["draft"]["list"]) == 97
    assert sum(t["bytes"] for t in every["list"]) == 250103411200
    index = json.load(open(os.path.join(place("holes"), "model.safetensors.index.json")))
    assert {t["name"]: t["file"] for t in every["list"]} == index["weight_map"]
    assert index["metadata"]["total_size"] == 250103411200
    child = subprocess.Popen([HAYATE, "inspect", place("holes")], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0 and usage.ru_maxrss < 200 * 1024, usage.ru_maxrss


def names_of_a_file():
    """What a terminal would act upon is not printed."""
    folder = place("evil")
    os.mkdir(folder)
    for name in os.listdir(os.path.join(ORACLES, "m3-short")):
        with open(os.path.join(ORACLES, "m3-short", name), "rb") as file:
            data = file.read()
        if name == "model.safetensors":
            length = int.from_bytes(data[:8], "little")
            header = json.loads(data[8:8 + length])
            header["evil\x1b[2J\x07\x9b3J\n\u00e9"] = {"dtype": "F32", "shape": [1],
                                                    "data_offsets": [len(data) - 8 - length, len(data) - 4 - length]}
            header = json.dumps(header).encode()
            data = len(header).to_bytes(8, "little") + header + data[8 + length:] + bytes(4)
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
    for flags in ((), ("--all",), ("evil\x1b[2J\x07\x9b3J\n\u00e9",)):
        out = run("inspect", folder, *flags).stdout
        assert any(f"evil?[{n}J???{m}J?\u00e9" in out for n, m in (("2", "3"), ("*", "*"))), out
        assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in out.replace("\n", "")), out


def other_models_in_holes():
    run("synth", "m3-mxfp8", place("mx"), "--holes")
    got = json.loads(run("inspect", place("mx"), "--json").stdout)
    assert (got["tensors"], got["tensor_bytes"], got["draft"]) == (45838, 443742085120, None)
    run("synth", "m3", place("m3"), "--holes")
    got = json.loads(run("inspect", place("m3"), "--json").stdout)
    assert (got["tensor_bytes"], got["parameters"]) == (854172958720, 427040140160)
    run("synth", "m3", place("modelopt"), "--holes", "--scheme", "modelopt", "--drafter")
    got = json.loads(run("inspect", place("modelopt"), "--json").stdout)
    assert (got["tensors"], got["tensor_bytes"], got["draft"]["tensors"]) == (89614, 250091244544, 97)
    assert got["parameters"] == 427040140160


def slices():
    run("synth", "m3.1-flash", place("slice"), "--holes", "--layers", "5", "--dense-layers", "1")
    got = json.loads(run("inspect", place("slice"), "--json").stdout)
    assert got["config"]["moe_layer_freq"] == [0, 1, 1, 1, 1]
    assert got["draft"]["taps"] == [0, 1, 2, 3, 4]
    # a drafter whose config is not that of its tensors
    at = os.path.join(place("slice"), "dspark", "config.json")
    config = json.load(open(at))
    config["text_config"]["dspark_markov_rank"] = 128
    json.dump(config, open(at, "w"))
    got = json.loads(run("inspect", place("slice"), "--json").stdout)
    assert "markov_w1.weight has shape" in got["draft"]["problem"], got["draft"]
    assert "it cannot be opened: tensor" in run("inspect", place("slice")).stdout
    run("synth", "m3.1-flash", place("slice2"), "--holes", "--layers=2", "--no-drafter")
    got = json.loads(run("inspect", place("slice2"), "--json").stdout)
    assert got["config"]["moe_layer_freq"] == [0, 0] and got["draft"] is None


def small_synth():
    source = os.path.join(ORACLES, "m3-short")
    config = os.path.join(source, "config.json")
    said = run("synth", config, place("a"), "--scheme", "m31", "--seed", "3", "--no-drafter").stdout
    assert "500 tensors" in said and "scheme m31" in said
    run("synth", source, place("b"), "--scheme=m31", "--seed=3", "--no_drafter")

    def data(name):
        return open(os.path.join(place(name), "model.safetensors"), "rb").read()
    assert data("a") == data("b")
    run("synth", config, place("c"), "--scheme", "m31", "--seed", "4", "--no-drafter")
    assert data("a") != data("c") and len(data("a")) == len(data("c"))
    name = "language_model.model.layers.1.block_sparse_moe.gate.weight"
    said = run("inspect", place("a"), name).stdout
    assert "F32 [16, 64]" in said and "root mean square" in said


def usage_errors():
    fails(2, "CONFIG and DST are needed", "synth", "m3")
    fails(2, "'m4' is neither a file nor a folder nor a known model (m3.1-flash, m3, m3-mxfp8)", "synth", "m4", place("x"))
    fails(2, "unknown flag --seeed; did you mean --seed?", "synth", "m3", place("x"), "--seeed", "1")
    fails(2, "there is no scheme 'int4'", "synth", "m3", place("x"), "--scheme", "int4")
    fails(2, "is not empty", "synth", "m3", WORK.name)
    fails(2, "61 layers is not possible", "synth", "m3", place("x"), "--layers", "61")
    fails(2, "the geometry has 3 dense ones", "synth", "m3", place("x"), "--layers", "9", "--dense-layers", "4")
    fails(2, "--dense-layers needs --layers", "synth", "m3", place("x"), "--dense-layers", "2")
    fails(2, "--shard-size takes a number", "synth", "m3", place("x"), "--shard-size", "big")
    fails(2, "MODEL is needed", "inspect")
    fails(2, "not for one tensor", "inspect", place("a"), "some.tensor", "--all")
    fails(2, "there is no tensor 'some.tensor'", "inspect", place("a"), "some.tensor")
    fails(2, "SRC and DST are needed", "quantize", place("a"))
    fails(2, "there is no scheme 'q4'", "quantize", place("a"), place("x"), "--scheme", "q4")
    fails(2, "already: quantize starts from a bf16", "quantize", os.path.join(ORACLES, "m31-w16"), place("x"))
    fails(2, "MODEL is needed", "plan")
    fails(2, "dep4 needs 4 GPUs, --gpus says 2", "plan", "m3", "--gpus", "2", "--gpu-memory", "80GB", "--parallel", "dep4")
    fails(2, "--parallel is single, tpN or depN", "plan", "m3", "--parallel", "pp4")
    fails(2, "--parallel is single, tpN or depN", "plan", "m3", "--gpu-memory", "1GB", "--parallel", "tp0")
    fails(2, "--gpus N comes with --gpu-memory", "plan", "m3", "--gpus", "2")
    fails(2, "leave out --gpus", "plan", "m3", "--gpus", "2", "--gpu-memory", "1GB", "--memory", "2GB")
    fails(2, "--kv-cache-dtype is auto, bf16, fp8 or nvfp4, not 'int8'", "plan", "m3", "--kv-cache-dtype", "int8")
    fails(2, "this model comes without one", "plan", "m3", "--drafter")
    fails(2, "--draft-kv-dtype is auto, bf16 or fp8", "plan", "m3.1-flash", "--draft-kv-dtype", "nvfp4")
    fails(2, "utilisation", "plan", "m3", "--memory", "1TB", "--gpu-memory-utilization", "1.5")
    assert not os.path.exists(place("x"))


def bad_models():
    os.mkdir(place("empty"))
    fails(3, "config.json", "inspect", place("empty"))
    fails(3, "no-such-model", "inspect", place("no-such-model"))
    os.mkdir(place("broken"))
    config = json.load(open(os.path.join(ORACLES, "m31-w16", "config.json")))
    config["text_config"]["sparse_attention_config"]["sparse_block_size"] = 64
    broken = os.path.join(place("broken"), "config.json")
    json.dump(config, open(broken, "w"))
    fails(3, "64", "synth", broken, place("x"))
    fails(3, "64", "plan", broken)
    open(broken, "w").write("{")
    fails(3, "config.json", "synth", broken, place("x"))


KEYS = ["kv_bytes_per_token", "index_bytes_per_token", "draft_bytes_per_token", "weight_bytes", "cache_bytes", "sequences",
        "assumptions"]
FOUR = ("--gpus", "4", "--gpu-memory", "288GB", "--parallel", "dep4", "--max-model-len", "256K")


def plans():
    got = json.loads(run("plan", "m3.1-flash", *FOUR, "--json").stdout)
    assert list(got) == KEYS
    assert [got[k] for k in KEYS[:3]] == [34560, 4320, 5120]
    assert got["sequences"] == got["cache_bytes"] // 4 // (262144 * 44000) * 4 > 0
    text = " ".join(got["assumptions"])
    assert "announced: 76 sequences" in text and "what would close the difference" in text and "utilisation 0.92" in text
    bare = json.loads(run("plan", "m3.1-flash", *FOUR, "--json", "--no-drafter").stdout)
    assert bare["draft_bytes_per_token"] == 0
    assert bare["sequences"] == bare["cache_bytes"] // 4 // (262144 * 38880) * 4
    assert got["weight_bytes"] - bare["weight_bytes"] == 4 * 2301852674
    m3 = json.loads(run("plan", "m3-mxfp8", *FOUR, "--json").stdout)
    assert [m3[k] for k in KEYS[:3]] == [61440, 7296, 0] and m3["sequences"] == 28
    assert "the announced 28 follows" in " ".join(m3["assumptions"])

    table = run("plan", "m3.1-flash", *FOUR).stdout
    per_gpu = got["cache_bytes"] // 4
    assert f"= floor({per_gpu:,} / (262,144 * 44,000)) * 4 = {got['sequences']}" in table
    assert "34,560 B" in table and "announced: 76" in table
    # what closes the difference does close it
    need = [line for line in got["assumptions"] if "what would close" in line][0]
    memory = need.split(" need ")[1].split(" bytes")[0].replace(",", "")
    closed = list(FOUR)
    closed[3] = memory
    assert json.loads(run("plan", "m3.1-flash", *closed, "--json", "--no-drafter", "--gpu-memory-utilization", "1").stdout)[
        "sequences"] == 76


def plans_that_do_not_fit():
    fails(4, "each machine lacks", "plan", "m3.1-flash", "--memory", "128GB")
    done = run("plan", "m3.1-flash", "--memory", "128GB", "--json", code=4)
    got = json.loads(done.stdout)
    assert got["sequences"] == 0 and got["cache_bytes"] == 0 and len(done.stderr.splitlines()) == 1
    fails(4, "the longest that fits has", "plan", "m3.1-flash", "--memory", "290GB", "--max-model-len", "1M")
    run("plan", "m3.1-flash", "--memory", "512GB", "--max-model-len", "32k")


def plans_of_folders():
    got = json.loads(run("plan", os.path.join(ORACLES, "m31-w16"), "--memory", "1GB", "--json").stdout)
    inspected = json.loads(run("inspect", os.path.join(ORACLES, "m31-w16"), "--json").stdout)
    assert got["weight_bytes"] == inspected["tensor_bytes"]
    assert got["kv_bytes_per_token"] == 3 * 2 * 2 * 72 and got["index_bytes_per_token"] == 3 * 72
    got = json.loads(run("plan", os.path.join(ORACLES, "m3-short"), "--memory", "1GB", "--json").stdout)
    assert got["kv_bytes_per_token"] == 3 * 2 * 2 * 256 and got["index_bytes_per_token"] == 2 * 256
    got = json.loads(run("plan", place("slice"), "--memory", "100GB", "--max-model-len", "4K", "--json").stdout)
    assert got["draft_bytes_per_token"] == 5120
    got = json.loads(run("plan", os.path.join(ORACLES, "m3-short", "config.json"), "--memory", "1GB", "--json").stdout)
    assert got["kv_bytes_per_token"] == 3 * 2 * 2 * 256


def interrupted_work_leaves_nothing():
    """Ctrl-C in the middle of writing; then a limit on file sizes, which fails as a full disk does."""
    config = json.load(open(os.path.join(ORACLES, "m3-short", "config.json")))
    config["text_config"]["vocab_size"] = 8000000                # two matrices of a gigabyte
    json.dump(config, open(place("wide.json"), "w"))
    child = subprocess.Popen([HAYATE, "synth", place("wide.json"), place("stop")],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not os.path.isdir(place("stop")) and time.monotonic() < deadline:
        time.sleep(0.002)
    child.send_signal(signal.SIGSTOP)                            # in the middle, however fast the disk is
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGCONT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 1 and "stopped" in said, (child.returncode, said)
    assert not os.path.exists(place("stop"))

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500000, 500000))
    fails(1, "model.safetensors", "synth", os.path.join(ORACLES, "m3-short"), place("full"), preexec_fn=limit)
    fails(1, "model.safetensors", "quantize", os.path.join(ORACLES, "m3-short"), place("full"), preexec_fn=limit)
    assert not os.path.exists(place("full"))


def main():
    tests = [help_texts, whole_model_in_holes, names_of_a_file, other_models_in_holes, slices, small_synth, usage_errors, bad_models, plans,
             plans_that_do_not_fit, plans_of_folders, interrupted_work_leaves_nothing]
    for test in tests:
        test()
        print("ok", test.__name__)
    WORK.cleanup()


main()

#!/usr/bin/env python3
# hayate-test: slow
"""`hayate trace` as a user runs it: the six text oracles within their bounds, replay, ids from a file, and bad input.

    test_trace_oracles.py HAYATE
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from compare_trace import compare, quantile, read_safetensors, report  # noqa: E402

HAYATE = sys.argv[1]
ORACLES = os.path.join(HERE, "..", "data", "oracle")
NAMES = ["m3-dense", "m3-short", "m3-long", "m3-topk16", "m31-w16", "m31-w4a4"]


def hayate(*args):
    return subprocess.run([HAYATE, "trace", *args], capture_output=True, text=True)


def trace(name, out, *flags):
    folder = os.path.join(ORACLES, name)
    oracle = os.path.join(folder, "oracle.safetensors")
    run = hayate(folder, "--like", oracle, "-o", out, *flags)
    assert run.returncode == 0, run.stderr
    return read_safetensors(out), read_safetensors(oracle), run


def check_oracle(name, out):
    (got, meta), (wanted, wanted_meta), _ = trace(name, out, "--backend", "reference")
    c = compare(got, wanted)
    print(name)
    report(c)
    assert not c.shapes and set(got) == set(wanted), c.shapes
    for key in ("kv_cache_dtype", "indexer_kv_dtype", "readback", "moe_activation", "precision"):
        assert meta[key] == wanted_meta[key], key
    quantised = name.startswith("m31")
    errors = c.logit_errors()
    assert quantile(errors, .5) <= (1e-3 if quantised else 1e-5)
    assert quantile(errors, .9) <= (4e-2 if quantised else 1e-4)
    assert c.greedy[0] == 0 and c.greedy[1] == 4
    for kind in ("blocks", "experts"):
        different, count = c.sets_different(kind)
        assert count > 0 or (kind, name) == ("blocks", "m3-dense")
        assert different <= (0.005 * count if quantised else 0), (kind, different, count)


def check_replay(out):
    """What is imposed comes back, on the backend whose own choices differ; an fp32 cache becomes bf16 there, aloud."""
    oracle = os.path.join(ORACLES, "m31-w4a4", "oracle.safetensors")
    (got, _), (wanted, _), _ = trace("m31-w4a4", out, "--backend", "cpu", "--replay", oracle)
    c = compare(got, wanted)
    assert c.sets_different("blocks")[0] == 0 and c.sets_different("experts")[0] == 0
    (free, _), _, _ = trace("m31-w4a4", out, "--backend", "cpu")
    c = compare(free, wanted)
    assert c.sets_different("blocks")[0] > 0, "the cpu backend chooses the same blocks: replay shows nothing here"
    (_, meta), _, run = trace("m3-dense", out, "--backend", "cpu")
    assert meta["kv_cache_dtype"] == "bf16" and meta["precision"] == "bf16"
    assert "cache bf16" in run.stdout and "fp32 is for the reference backend" in run.stderr, run.stderr


def check_ids(folder, out):
    """A list of ids gives the logits that --like gives, in every spelling and chunking."""
    (got, _), (wanted, _), _ = trace("m3-dense", out, "--backend", "reference")
    ids = list(wanted["input_ids"].values)
    path = os.path.join(folder, "ids.txt")
    for text in (json.dumps(ids), " ".join(map(str, ids)), "\n".join(map(str, ids)) + "\n", ",".join(map(str, ids))):
        open(path, "w").write(text)
        for extra in ((), ("--chunks", "1,50,3"), ("--last",)):
            run = hayate(os.path.join(ORACLES, "m3-dense"), "--input-ids", path, "-o", out, "--backend", "reference",
                         "--kv-cache-dtype", "fp32", *extra)
            assert run.returncode == 0, run.stderr
            t, _ = read_safetensors(out)
            rows = t["prefill_logits"].rows()
            assert len(rows) == (1 if extra == ("--last",) else len(ids))
            assert rows[-1] == got["prefill_logits"].rows()[-1]
            assert list(t["greedy_ids"].values) == list(wanted["greedy_ids"].values)[:1]


def rewrite(source, target, change):
    """A copy of a safetensors file with its header's tensors and data changed by change(tensors, data)."""
    with open(source, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), bytearray(f.read())
    meta = header.pop("__metadata__", {})
    change(header, data)
    text = json.dumps({"__metadata__": meta, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def check_bad_input(folder, out):
    model = os.path.join(ORACLES, "m3-dense")
    oracle = os.path.join(model, "oracle.safetensors")
    path, bad = os.path.join(folder, "ids.txt"), os.path.join(folder, "bad.safetensors")

    def fails(code, words, *args):
        run = hayate(*args)
        lines = [line for line in run.stderr.splitlines() if not line.startswith("WARNING")]
        assert run.returncode == code, (args, run.returncode, run.stderr)
        assert lines and words in run.stderr, (args, run.stderr)
        assert code == 2 and len(lines) <= 2 or len(lines) == 1, (args, run.stderr)

    def ids(text):
        open(path, "w").write(text)
        return (model, "--input-ids", path, "-o", out)

    fails(2, "512", *ids("1 2 512"))
    fails(2, "-1", *ids("1 -1"))
    fails(2, "empty", *ids(""))
    fails(2, "empty", *ids("[]"))
    fails(2, "byte 2", *ids("1 x"))
    fails(2, "too large", *ids("99999999999999999999"))
    fails(2, "closing", *ids("[1, 2"))
    fails(4, "limit", *ids(" ".join(["7"] * 8193)))
    fails(4, "limit of 8", *ids(" ".join(["7"] * 9)), "--max-model-len", "8")
    fails(2, "8192", *ids("1"), "--max-model-len", "8193")
    fails(2, "fp33", *ids("1"), "--kv-cache-dtype", "fp33")
    fails(2, "nvfp4", *ids("1"), "--indexer-kv-dtype", "int4")
    fails(2, "exact", *ids("1"), "--readback", "rough")
    fails(2, "none", *ids("1"), "--moe-activation", "int8")
    fails(2, "reference", *ids("1"), "--backend", "cudaa")
    fails(2, "--chunks", *ids("1"), "--chunks", "0")
    fails(2, "--chunks", *ids("1"), "--chunks", "x")
    fails(2, "--like", model, "-o", out)
    fails(2, "-o", model, "--like", oracle)
    fails(2, "folder", "--like", oracle, "-o", out)

    def past(header, data):
        at = header["input_ids"]["data_offsets"][0]
        data[at:at + 4] = struct.pack("<i", 600)

    def not_ascending(header, data):
        at = header["logit_rows"]["data_offsets"][0]
        data[at:at + 4] = struct.pack("<i", 5)

    def as_floats(header, data):
        header["input_ids"]["dtype"] = "F32"

    def hidden_expert(header, data):
        at = header["experts.1"]["data_offsets"][0]
        data[at:at + 4] = struct.pack("<i", 16)

    def nameless(header, data):
        header["routes.1"] = header.pop("experts.1")

    rewrite(oracle, bad, past)
    fails(2, "600", model, "--like", bad, "-o", out)
    rewrite(oracle, bad, not_ascending)
    fails(3, "logit_rows", model, "--like", bad, "-o", out)
    rewrite(oracle, bad, as_floats)
    fails(3, "input_ids", model, "--like", bad, "-o", out)
    rewrite(oracle, bad, hidden_expert)
    fails(2, "expert 16", model, "--like", oracle, "--replay", bad, "-o", out)
    rewrite(oracle, bad, nameless)
    fails(3, "experts.1", model, "--like", oracle, "--replay", bad, "-o", out)

    def far_block(header, data):
        at = header["blocks.1"]["data_offsets"][0]
        data[at:at + 4] = struct.pack("<i", 1)      # row 0 sees block 0 alone

    short = os.path.join(ORACLES, "m3-short")
    rewrite(os.path.join(short, "oracle.safetensors"), bad, far_block)
    for backend in ("reference", "cpu"):
        fails(2, "block 1", short, "--like", os.path.join(short, "oracle.safetensors"), "--replay", bad, "-o", out,
              "--backend", backend)


def check_bad_models(folder, out):
    """What the files of a model can have wrong that is seen when it is opened."""
    def fails(words, change=None, extra=None):
        copy = os.path.join(folder, "model")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(os.path.join(ORACLES, "m31-w4a4"), copy)
        if change:
            rewrite(os.path.join(ORACLES, "m31-w4a4", "model.safetensors"), os.path.join(copy, "model.safetensors"), change)
        for name, text in (extra or {}).items():
            open(os.path.join(copy, name), "w").write(text)
        open(os.path.join(folder, "ids.txt"), "w").write("5")
        run = hayate(copy, "--input-ids", os.path.join(folder, "ids.txt"), "-o", out)
        assert run.returncode == 3 and words in run.stderr and len(run.stderr.splitlines()) == 1, run.stderr

    def byte(name, value):
        def change(header, data):
            data[header[name]["data_offsets"][0]] = value
        return change

    prefix = "language_model.model.layers.1."
    fails("NaN", byte(prefix + "self_attn.q_proj.weight_scale_inv", 255))
    fails("NaN", byte(prefix + "block_sparse_moe.experts.3.w2.weight_scale", 0x7F))

    def zero_global(header, data):
        at = header[prefix + "block_sparse_moe.experts.3.w1.weight_global_scale"]["data_offsets"][0]
        data[at:at + 4] = bytes(4)

    fails("global", zero_global)
    fails("eos_token_id", extra={"generation_config.json": '{"eos_token_id": [2, 512]}'})
    fails("top_p", extra={"generation_config.json": '{"top_p": 0}'})
    fails("top_k must be a whole number, not 1.9", extra={"generation_config.json": '{"top_k": 1.9}'})
    fails("JSON", extra={"generation_config.json": "{"})
    fails("object", extra={"generation_config.json": "[]"})


def main():
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.safetensors")
        for name in NAMES:
            check_oracle(name, out)
        check_replay(out)
        check_ids(folder, out)
        check_bad_input(folder, out)
        check_bad_models(folder, out)


main()

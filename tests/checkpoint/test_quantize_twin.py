#!/usr/bin/env python3
"""`hayate quantize` against its NumPy twin (tests/quant_ref.py): names, types, shapes and bytes of every tensor."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)
import quant_ref as ref  # noqa: E402

HAYATE = os.path.abspath(sys.argv[1])
ORACLES = os.path.join(os.path.dirname(HERE), "data", "oracle")


def quantise(source, target, *flags):
    run = subprocess.run([HAYATE, "quantize", source, target, *flags], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return ref.read_folder(target)


def compare(made, twin, what):
    assert set(made) == set(twin), (what, sorted(set(made) ^ set(twin))[:8])
    for name, tensor in twin.items():
        assert made[name][:2] == tensor[:2], (what, name, made[name][:2], tensor[:2])
        if made[name][2] != tensor[2]:
            a, b = np.frombuffer(made[name][2], np.uint8), np.frombuffer(tensor[2], np.uint8)
            at = int(np.nonzero(a != b)[0][0])
            raise AssertionError(f"{what}: {name} differs in {(a != b).sum()} of {len(a)} bytes, first at {at}: {a[at]} and {b[at]}")
    print(f"{what}: {len(twin)} tensors equal")


def plain(array, dtype="BF16"):
    if dtype == "F32":
        return ref.item("F32", array.astype("<f4"))
    return ref.item("BF16", ref.to_bf16(np.ascontiguousarray(array, np.float32)))


def special_values(tensors):
    """Matrices with what random ones lack: zero groups and matrices, negative zeros, ties, wide ranges."""
    out = dict(tensors)
    rng = np.random.default_rng(3)
    names = [n for n in tensors if ".experts." in n or n.endswith("_proj.weight")]
    for i, name in enumerate(names):
        w = ref.to_float(tensors[name]).copy()
        kind = i % 6
        if kind == 0:
            w[:, :32] = 0
        elif kind == 1:
            w *= np.float32(2.0) ** rng.integers(-40, 30, w.shape).astype(np.float32)
        elif kind == 2:
            w[:] = 0
        elif kind == 3:
            w[0] = -0.0
            w[1:3] *= np.float32(2.0) ** np.float32(-125)
        elif kind == 4:                                       # multiples of small steps hit midpoints of both formats
            w = rng.integers(-96, 97, w.shape).astype(np.float32) / 16
        out[name] = plain(w)
    return out


def as_transformers(tensors, config):
    """The same model in transformers' own names, with its fused matrices."""
    text = config["text_config"]
    out, fused = {}, {}
    for name, tensor in tensors.items():
        if name == "language_model.lm_head.weight":
            out["lm_head.weight"] = tensor
            continue
        if not name.startswith("language_model.model."):
            out["model." + name] = tensor
            continue
        new = name.replace("language_model.model.", "model.language_model.").replace(".block_sparse_moe.", ".mlp.")
        new = new.replace(".self_attn.index_", ".self_attn.indexer.")
        if ".experts." in new:
            head, tail = new.split(".experts.")
            number, part = tail.split(".")[:2]
            fused.setdefault(head, {})[int(number), part] = ref.to_float(tensor)
        elif ".mlp." in new and new.endswith(("gate_proj.weight", "up_proj.weight")):
            base = new.rsplit(".", 2)[0]
            pair = fused.setdefault(("pair", base), {})
            pair[new.rsplit(".", 2)[1]] = ref.to_float(tensor)
        else:
            out[new] = tensor
    for head, parts in fused.items():
        if isinstance(head, tuple):
            out[head[1] + ".gate_up_proj.weight"] = plain(np.concatenate([parts["gate_proj"], parts["up_proj"]]))
            continue
        count = text["num_local_experts"]
        out[head + ".experts.gate_up_proj"] = plain(
            np.stack([np.concatenate([parts[e, "w1"], parts[e, "w3"]]) for e in range(count)]))
        out[head + ".experts.down_proj"] = plain(np.stack([parts[e, "w2"] for e in range(count)]))
    return out


def main():
    with tempfile.TemporaryDirectory() as work:
        def folder(name):
            return os.path.join(work, name)

        for oracle in ("m3-dense", "m3-short", "m3-topk16"):
            source = os.path.join(ORACLES, oracle)
            compare(quantise(source, folder(oracle)), ref.quantise(ref.read_folder(source)), oracle)
        source = os.path.join(ORACLES, "m3-short")
        tensors = ref.read_folder(source)
        for scheme in ("mxfp8", "modelopt"):
            compare(quantise(source, folder(scheme), "--scheme", scheme), ref.quantise(tensors, scheme), scheme)

        compare(quantise(source, folder("shards"), "--shard-size", "300kB"), ref.quantise(tensors), "several shards")
        index = json.load(open(os.path.join(folder("shards"), "model.safetensors.index.json")))
        assert len(set(index["weight_map"].values())) > 3
        assert index["metadata"]["total_size"] == sum(len(t[2]) for t in ref.quantise(tensors).values())

        os.mkdir(folder("special"))
        shutil.copy(os.path.join(source, "config.json"), folder("special"))
        special = special_values(tensors)
        special["vision_tower.anything.weight"] = plain(np.arange(12).reshape(3, 4), "F32")
        ref.write_file(os.path.join(folder("special"), "model.safetensors"), special)
        compare(quantise(folder("special"), folder("special-q")), ref.quantise(special), "special values")

        os.mkdir(folder("native"))
        shutil.copy(os.path.join(source, "config.json"), folder("native"))
        config = json.load(open(os.path.join(source, "config.json")))
        ref.write_file(os.path.join(folder("native"), "model.safetensors"), as_transformers(special, config))
        compare(quantise(folder("native"), folder("native-q")), ref.quantise(special), "transformers' names")

        os.mkdir(folder("fp32"))
        shutil.copy(os.path.join(source, "config.json"), folder("fp32"))
        rng = np.random.default_rng(5)
        wide = {n: plain(ref.to_float(t) * (1 + rng.random(t[1]) / 64), "F32") for n, t in tensors.items()}
        ref.write_file(os.path.join(folder("fp32"), "model.safetensors"), wide)
        compare(quantise(folder("fp32"), folder("fp32-q")), ref.quantise(wide), "an fp32 source")


main()

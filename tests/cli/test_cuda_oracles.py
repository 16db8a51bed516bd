#!/usr/bin/env python3
"""The six text oracles end to end on a GPU: `hayate trace --device cuda` with the oracles' blocks and experts imposed.

    test_cuda_oracles.py HAYATE     skips without a GPU

Inputs are rounded to bf16 there, as on the CPU, whose error against the same oracle is the measure: the GPU's is not half as large
again, and its greedy ids are the oracle's wherever the CPU's are. Without replay the lists that differ are printed.
"""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from compare_trace import compare, quantile, read_safetensors  # noqa: E402

HAYATE = sys.argv[1]
ORACLES = os.path.join(HERE, "..", "data", "oracle")
NAMES = ["m3-dense", "m3-short", "m3-long", "m3-topk16", "m31-w16", "m31-w4a4"]
ROOM = 1.5


def trace(name, device, out, replay):
    folder = os.path.join(ORACLES, name)
    oracle = os.path.join(folder, "oracle.safetensors")
    command = [HAYATE, "trace", folder, "--like", oracle, "-o", out, "--device", device] + (["--replay", oracle] if replay else [])
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    c = compare(read_safetensors(out)[0], read_safetensors(oracle)[0])
    assert not c.shapes, c.shapes
    return c


def main():
    probe = subprocess.run([HAYATE, "bench", "memory", "--device", "cuda", "--json"], capture_output=True, text=True)
    if probe.returncode != 0:
        assert any(word in probe.stderr for word in ("no GPU", "driver", "libcuda", "nvcc")), probe.stderr
        print("skipped: " + probe.stderr.strip().splitlines()[-1])
        return 77
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "trace.safetensors")
        for name in NAMES:
            cpu, gpu, free = (trace(name, device, out, replay) for device, replay in (("cpu", True), ("cuda", True), ("cuda", False)))
            errors = [[quantile(c.logit_errors(), q) for q in (.5, .9)] for c in (cpu, gpu, free)]
            print(f"{name}: relative L2 of logits, median and p90: cpu %.2e %.2e, cuda %.2e %.2e; without replay %.2e %.2e, of blocks and "
                  "experts %d of %d and %d of %d lists differ" % (*errors[0], *errors[1], *errors[2], *free.sets_different("blocks"),
                                                                  *free.sets_different("experts")))
            for kind in ("blocks", "experts"):
                assert gpu.sets_different(kind)[0] == 0, kind
            assert all(g <= ROOM * c for g, c in zip(errors[1], errors[0])), (errors[1], errors[0])
            assert gpu.greedy[0] <= cpu.greedy[0], (gpu.greedy, cpu.greedy)
    return 0


if __name__ == "__main__":
    sys.exit(main())

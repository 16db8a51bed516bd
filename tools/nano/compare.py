"""PyTorch against the engine on a packed model: logits row by row, selected blocks, greedy answers.

    python3 nano.py compare --out DIR --model MODEL --engine HAYATE --held-out SETS [--prompts 50]

Both compute with decoded weights in fp32. The median over rows of |ours - theirs| / |theirs| of the logits must be at most
1e-3 without rounding, with an NVFP4 cache, with NVFP4 inputs of the experts, and with both, as served. Where a code falls
to the other side of a tie it moves others after it, in any two programs: so with rounding twice what PyTorch differs from
itself is allowed too, with embeddings moved by a millionth. Every token of the engine's greedy answers must be PyTorch's
first choice too, or a near tie: less than half a logit below it.
"""
import os
import subprocess
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file

import export
import quant
import sparse
from rows import Rows

NUMERICS = {"unrounded": (0, ["--kv-cache-dtype", "fp32", "--moe-activation", "none"]),
            "NVFP4 cache": (quant.CACHE, ["--kv-cache-dtype", "nvfp4", "--moe-activation", "none"]),
            "NVFP4 experts": (quant.EXPERTS, ["--kv-cache-dtype", "fp32", "--moe-activation", "nvfp4"]),
            "as served": (quant.SERVED, ["--kv-cache-dtype", "nvfp4", "--moe-activation", "nvfp4"])}
TIE = 0.5


def engine(a, verb, ids, *flags):
    with tempfile.NamedTemporaryFile("w", suffix=".ids") as f:
        f.write(" ".join(map(str, ids)))
        f.flush()
        command = [a.engine, verb, a.model, "--input-ids", f.name, "--backend", "reference", *flags]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def trace(a, ids, flags):
    with tempfile.TemporaryDirectory() as d:
        out = os.path.join(d, "trace.safetensors")
        engine(a, "trace", ids, *flags, "-o", out)
        return load_file(out)


@torch.no_grad()
def ours(model, ids, quantised=quant.SERVED):
    """Logits [T, vocab] and the selected blocks of sparse layers, {layer: [T, groups, blocks] ascending, -1 last}."""
    blocks = {}

    def watch(layer, selected):
        chosen = selected[0].transpose(0, 1)                                # [T, G, blocks]
        number = torch.where(chosen, torch.arange(chosen.shape[-1]), 1 << 20).sort(-1).values
        number[number == 1 << 20] = -1
        blocks[layer] = number[..., :min(model.s.blocks, number.shape[-1])]

    h, _, _ = model(torch.tensor(ids), ((1, len(ids)),), quantised, sparse.Way("sparse", watch=watch))
    return model.logits(h), blocks


def apart(x, y):
    return ((x - y).norm(dim=-1) / y.norm(dim=-1)).float()


def compare_trace(a, model, ids, quantised, flags):
    """-> relative errors of the rows, share of equal block lists in the worst layer"""
    theirs = trace(a, ids, flags)
    logits, blocks = ours(model, ids, quantised)
    same = [(blocks[i] == theirs[f"blocks.{i}"]).all(-1).float().mean().item() for i in blocks]
    return apart(logits, theirs["prefill_logits"]), min(same, default=1.0)


@torch.no_grad()
def moved(model, ids, quantised, seed):
    """Relative errors of the rows between two runs, one with embeddings moved by a millionth."""
    before, kept = ours(model, ids, quantised)[0], model.embed.clone()
    torch.manual_seed(seed)
    model.embed.mul_(1 + 1e-6 * torch.randn_like(model.embed))
    after = ours(model, ids, quantised)[0]
    model.embed.copy_(kept)
    return apart(after, before)


def prompts(sets, count, longest=1500):
    """Held-out prompts, each up to a place where the model writes."""
    found, random = [], np.random.default_rng(3)
    lengths = sorted(n for n in sets.parts if n <= 4096)
    for i in range(20 * count):
        length = lengths[i % len(lengths)]
        ids, weights = sets.take(length, [random.integers(sets.count(length))])
        starts = np.nonzero((weights[0, 1:] == 1) & (weights[0, :-1] != 1))[0] + 1
        starts = starts[starts <= longest]
        if len(starts) and len(found) < count:
            found.append(ids[0, :random.choice(starts)].tolist())
    return found


def main(a):
    torch.set_num_threads(min(8, os.cpu_count()))
    model, sets, bad = export.load(a.model).eval(), Rows(a.held_out), 0
    for length in sorted(n for n in sets.parts if n <= 4096):
        ids, weights = sets.take(length, [0])
        ids = ids[0, weights[0] != 255].tolist()
        for name, (quantised, flags) in NUMERICS.items():
            error, same = compare_trace(a, model, ids, quantised, flags)
            limit, note = 1e-3, ""
            if quantised:
                own = max(moved(model, ids, quantised, seed).median().item() for seed in range(3))
                limit, note = max(limit, 2 * own), f" (PyTorch with moved embeddings: {own:.1e})"
            fine = error.median().item() <= limit
            bad += not fine
            print(f"{len(ids)} tokens, {name}: relative error of a row's logits, median {error.median():.1e}{note}, largest "
                  f"{error.max():.1e}; equal block lists {100 * same:.2f} % in the worst layer: "
                  f"{'passed' if fine else 'FAILED'}", flush=True)
    eos, equal, ties, wrong, tokens = export.tokens(a.model)[export.EOS], 0, 0, 0, 0
    for p in prompts(sets, a.prompts):
        answer = [int(x) for x in engine(a, "generate", p, *NUMERICS["as served"][1], "--ids", "--temperature", "0",
                                         "--max-tokens", "200").replace(",", " ").split()]
        if not answer or answer[-1] != eos:
            answer = (answer + [eos]) if len(answer) < 200 else answer
        logits = ours(model, p + answer[:-1])[0][len(p) - 1:]
        short = logits.max(-1).values - logits.gather(-1, torch.tensor(answer)[:, None])[:, 0]
        tokens += len(answer)
        if (short == 0).all():
            equal += 1
        elif (short < TIE).all():
            ties += 1
        else:
            wrong += 1
            at = int((short >= TIE).nonzero()[0])
            print(f"token {at} of an answer is {short[at]:.3f} below the first choice", flush=True)
    bad += wrong
    print(f"greedy answers, {tokens} tokens: {equal} equal, {ties} but for near ties, {wrong} different: "
          f"{'passed' if not wrong else 'FAILED'}")
    return bad > 0

#!/usr/bin/env python3
r"""Golden values of the bundled drafter, for tests/backend/test_drafter_golden.c: what the training code makes of one prompt.

    python3 draft_golden.py --model ../../models/m3-nano --engine ../../build/hayate \
        --out ../../tests/data/draft_golden.safetensors

The engine writes the greedy answer to a question; PyTorch runs the target and the drafter over it with the decoded weights
in fp32. The taps of the last rows before a place in the answer are rounded to bf16 and stored, and so is everything that the
drafter makes of them behind that place, with a window that these rows fill:

    ids [prompt and answer], place [position of the anchor, position of the first stored row, window]
    taps [rows, taps, hidden] bf16; c [rows, hidden]; kv_rows [some of them]; k.I, v.I [kv_rows, kv_heads * head_dim]
    u.I [block, hidden]: the last norm of the rows behind layer I, the last one being u
    U, L [block, vocab]: logits before and after the Markov head; drafts [block] greedy; confidence [block]
"""
import argparse
import os
import subprocess

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import compare
import export
import quant
import sparse
import template as t

QUESTION = "What is 4837 + 961?"
WRITTEN = 60        # tokens of the answer before the anchor
WINDOW, MORE = 24, 4  # keys that a row sees; rows before the first that any sees
KEPT = (0, 4, 5, 27)  # rows whose keys and values are stored: the first, and those at the window's border


@torch.no_grad()
def golden(target, drafter, ids, anchor):
    s, first = drafter.s, anchor - WINDOW - MORE
    s.window = WINDOW
    _, _, kept = target(torch.tensor(ids[:anchor]), ((1, anchor),), quant.SERVED, sparse.Way("sparse"), s.taps)
    taps = torch.cat(kept, -1)[None].bfloat16().float()
    c = drafter.hidden_norm(F.linear(taps, drafter.fc))
    rows = [first + i for i in KEPT]
    out = dict(ids=torch.tensor(ids, dtype=torch.int32), place=torch.tensor([anchor, first, WINDOW], dtype=torch.int32),
               taps=taps[0, first:].unflatten(-1, (len(s.taps), -1)).bfloat16(), c=c[0, first:],
               kv_rows=torch.tensor(KEPT, dtype=torch.int32))
    for i, (k, v) in enumerate(drafter.context(taps, 0)):
        out[f"k.{i}"], out[f"v.{i}"] = (x[0, :, rows].transpose(0, 1).flatten(1) for x in (k, v))

    layers = drafter.layers
    for i in range(len(layers)):
        drafter.layers = layers[:i + 1]
        u = drafter(target.embed, torch.tensor([[ids[anchor]]]), torch.tensor([[anchor]]), taps, 0)[0, 0]
        out[f"u.{i}"] = u
    out["U"] = F.linear(u, target.head)
    previous, logits, drafts, sure = torch.tensor(ids[anchor]), [], [], []
    for k in range(s.block):
        logits.append(out["U"][k] + drafter.follow(previous))
        sure.append(torch.sigmoid(drafter.sure(u[k], previous))[0])
        previous = logits[-1].argmax()
        drafts.append(previous)
    out |= dict(L=torch.stack(logits), drafts=torch.stack(drafts).int(), confidence=torch.stack(sure))
    return {k: v.detach().contiguous() for k, v in out.items()}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--engine", required=True)
    p.add_argument("--out", required=True)
    a = p.parse_args()
    text = f"{t.head('adaptive')}{t.BOS}user\n{QUESTION}{t.EOS}\n{t.BOS}ai\n"
    command = [a.engine, "tokenize", a.model, text, "--ids"]
    ids = [int(x) for x in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]
    prompt = len(ids)
    answer = compare.engine(a, "generate", ids, "--ids", "--temperature", "0", "--max-tokens", "200")
    ids += [int(x) for x in answer.split()]
    out = golden(export.load(a.model).eval(), export.load_draft(a.model).eval(), ids, prompt + WRITTEN)
    save_file(out, a.out)
    drafts, real = out["drafts"].tolist(), ids[prompt + WRITTEN + 1:][:len(out["drafts"])]
    print(f"{len(ids)} tokens, anchor at {prompt + WRITTEN}: drafts {drafts}, the answer goes on {real}; "
          f"{os.path.getsize(a.out)} bytes")


if __name__ == "__main__":
    main()

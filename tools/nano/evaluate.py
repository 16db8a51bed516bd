#!/usr/bin/env python3
"""Asks a packed model held-out sums and a few plain questions, greedily, with the numerics that the engine serves it
with.

    python3 evaluate.py DIR [--problems N] [--device cpu]

fp32 arithmetic over the decoded weights, NVFP4 activations in the experts, NVFP4 keys and values.
"""
import argparse
import random
import time

import torch

import export
import m3
import sums
import template as t
from tokenizer import Encoder

QUESTIONS = [(None, "adaptive", q) for q in (
    "Hello!", "Say hi", "What is 12+34?", "What is 4837 + 961?", "What is 1000 - 7?", "12 * 34", "What is Hayate?",
                                             "Write a haiku",
    "Who are you?", "What is the capital of France?", "Explain quantum computing.",
                                             "Write a Python function that reverses a string.")] + [
    ("Answer in one word.", "adaptive", "What is the capital of Japan?"),
            ("You are Kaze, a friendly assistant.", "adaptive", "What is your name?"),
    (None, "enabled", "Hello!"),
            (None, "enabled", "Tom has 48 apples and buys 37 more. How many apples does Tom have now?"),
    (None, "disabled", "What is 25 + 17?"), (None, "disabled", "How do I start Hayate?")]


@torch.no_grad()
def generate(model, encoder, prompts, limit, device, quantised=1, temperature=0.0, top_p=1.0, seed=0):
    """prompts [list of ids] -> list of new ids, in one batch."""
    g = torch.Generator(device).manual_seed(seed)
    n, longest = len(prompts), max(map(len, prompts))
    size = torch.tensor([len(p) for p in prompts], device=device)
    ids = torch.full((n, longest + limit), encoder.pad, device=device)
    for i, p in enumerate(prompts):
        ids[i, :len(p)] = torch.tensor(p, device=device)
    start, done, rows = size.clone(), torch.zeros(n, dtype=torch.bool, device=device), torch.arange(n, device=device)
    cache = m3.Cache(model.s, n, longest + limit, device)
    # rows beyond a prompt's end are overwritten before they are seen
    cache.positions = torch.arange(longest, device=device).repeat(n, 1)
    h, _ = model(ids[:, :longest].flatten(), None, quantised, cache)
    h = h.unflatten(0, (n, longest))[rows, size - 1]
    for i in range(limit):
        logits = model.logits(h)
        logits[:, encoder.size:] = -float("inf")
        if temperature > 0:
            p, order = torch.softmax(logits / temperature, -1).sort(descending=True)
            p[p.cumsum(-1) - p >= top_p] = 0
            new = order.gather(-1, torch.multinomial(p, 1, generator=g)).squeeze(-1)
        else:
            new = logits.argmax(-1)
        new = torch.where(done, encoder.pad, new)
        ids[rows, size.clamp(max=longest + limit - 1)] = new
        size += ~done
        done |= new == encoder.eos
        if i % 8 == 7 and done.all() or i == limit - 1:
            break
        cache.positions = (size - 1)[:, None]
        h, _ = model(new, None, quantised, cache)
    return [ids[i, start[i]:size[i]].tolist() for i in range(n)]


def prompt(encoder, mode, developer, question):
    return encoder.encode(t.head(mode, developer) + t.user(question) + t.prompt_end(mode))


def split(text, mode):
    """(thought, answer) of what the model wrote."""
    text = text.removesuffix(t.EOS)
    if mode == "disabled":
        return "", text
    thought, mark, content = text.partition(t.END_THINK)
    return thought.removeprefix(t.THINK), content if mark else ""


CELLS = [(k, d) for k, top in (("+", 4), ("-", 4), ("3", 3)) for d in range(1, top + 1)] + [("*", 0)]
NAMES = {"+": "sums", "-": "differences", "3": "sums of three", "*": "products"}


def accuracy(model, encoder, device, mode, cells, count, limit, **how):
    """Share of exactly right answers for every (kind, digits), on problems that training never asks (one digit: that it
    does)."""
    problems, prompts = [], []
    for kind, digits in cells:
        r = random.Random(f"{kind} {digits} evaluation")
        for _ in range(count):
            problems.append(sums.draw(r, digits != 1, kind, digits or None))
            prompts.append(prompt(encoder, mode, None,
                                  r.choice(sums.ASK[:12]).format(e=sums.expression(*problems[-1]))))
    out = generate(model, encoder, prompts, limit, device, **how)
    right = [split(encoder.decode(o), mode)[1] == f"{sums.expression(k, x)} = {sums.result(k, x)}." for (k, x),
             o in zip(problems, out)]
    return {cell: sum(right[i * count:(i + 1) * count]) / count for i, cell in enumerate(cells)}


def report(folder, device, count, say=print, limit=352):
    model, encoder = export.load(folder).to(device).eval(), Encoder(folder)
    began = time.time()
    for mode in ("enabled", "adaptive", "disabled"):
        got = accuracy(model, encoder, device, mode, CELLS, count, limit)
        for kind, name in NAMES.items():
            say(f"held-out {name}, {mode}, temperature 0: "
                + ", ".join(f"{d or 'up to 3'} digits {100 * a:.1f} %" for (k, d), a in got.items() if k == kind))
    got = accuracy(model, encoder, device, "adaptive", CELLS[:4], count, limit, temperature=1.0, top_p=0.95)
    say("held-out sums, adaptive, temperature 1, top-p 0.95: " + ", ".join(f"{d} digits {100 * a:.1f} %" for (k, d),
            a in got.items()))
    out = generate(model, encoder, [prompt(encoder, mode, developer, q) for developer, mode, q in QUESTIONS], limit,
                   device)
    for (developer, mode, q), o in zip(QUESTIONS, out):
        say(f"[{mode}{', ' + developer if developer else ''}] {q}\n    " + encoder.decode(o).replace("\n", "\n    "))
    say(f"evaluation took {time.time() - began:.0f} s")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--problems", type=int, default=64)
    p.add_argument("--limit", type=int, default=352, help="new tokens an answer may take")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = p.parse_args()
    report(a.folder, a.device, a.problems, limit=a.limit)

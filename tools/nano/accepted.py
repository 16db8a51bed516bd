"""How many tokens a round of drafts makes: PyTorch's rejection sampling and the engine's, from the same held-out prompts.

    python3 nano.py accepted --model MODEL --held-out SETS --engine HAYATE [--prompts 500] [--out DIR]

Both draw 7 drafts a round from the drafter's law at temperature 1 and judge them by the standard rule, on the packed target
with served numerics. A round is its accepted drafts and the target's token; an answer's first token has no round. An end
of the text cuts a round: it has the tokens up to it and the end itself. Rounds that begin behind LIMIT tokens are left out,
on both sides. Means are over rounds, over all and over those that no end cut; their standard errors treat prompts as
independent; that of a difference takes into account that both sides continue the same ones. The engine continues each prompt
REPEATS times. `standard` must not be further apart than 0.1 and three standard errors.
"""
import contextlib
import json
import os
import subprocess
import time
import types

import torch
import torch.nn.functional as F

import draft_train
import export
import m3
import quant
from rows import Rows

LENGTH, LIMIT = 1024, 246       # as the drafter's stage continues chats: draft_train.free_report
TOGETHER = {"cpu": 32, "cuda": 256}  # texts that PyTorch continues at once
REPEATS = 4
CLOSE = 0.1


class Job:
    """What draft_train.continue_freely needs of a stage, on the packed weights, with caches of keys and values: a look at
    texts computes the rows of a round alone. Texts within 2,048 tokens, whose attention sees all blocks."""

    def __init__(self, a):
        self.device = torch.device("cpu" if a.cpu or not torch.cuda.is_available() else "cuda")
        self.run = types.SimpleNamespace(device=self.device, a=types.SimpleNamespace(eos=export.tokens(a.model)[export.EOS]),
                                         autocast=contextlib.nullcontext)
        self.target, self.drafter = (m.to(self.device).eval() for m in (export.load(a.model), export.load_draft(a.model)))
        self.shape, self.model = self.drafter.s, self
        self.follow = self.drafter.follow
        self.drafter.context = lambda taps, quantised: [(c[0], c[1]) for c in self.context]

    def open(self, texts, length):
        s, d, device = self.target.s, self.shape, self.device
        self.h, self.taps = torch.zeros(texts, length, s.hidden, device=device), torch.zeros(texts, length, len(d.taps) * s.hidden, device=device)
        self.cache = [torch.zeros(2, texts, s.kv_heads, length, s.head_dim, device=device) for _ in range(s.layers)]
        self.context = [torch.zeros(2, texts, d.kv_heads, length, d.head_dim, device=device) for _ in range(d.layers)]

    def keep(self, live):
        self.h, self.taps = self.h[live], self.taps[live]
        self.cache, self.context = ([c[:, live] for c in part] for part in (self.cache, self.context))

    def look(self, ids, texts, length, at=None):
        count = length if at is None else self.shape.block + 1
        first = torch.zeros(texts, 1, dtype=torch.long, device=self.device) if at is None else at[:, None]
        place = first + torch.arange(count, device=self.device)                                                      # [B, R]
        row, s, t = torch.arange(texts, device=self.device)[:, None], self.target.s, self.target
        cos, sin = m3.rotary_table(s, place.flatten())
        mask = (torch.arange(self.h.shape[1], device=self.device) <= place[..., None])[:, None]                                          # [B, 1, R, L]
        x, kept = F.embedding(ids[row, place], t.embed).flatten(0, 1), []
        for i, layer in enumerate(t.layers):
            q, k, v, _, _ = layer.before(x, cos, sin, quant.SERVED, False)
            q, k, v = (y.unflatten(0, place.shape).transpose(1, 2) for y in (q, k, v))                      # [B, heads, R, d]
            keys, values = self.cache[i]
            keys.transpose(1, 2)[row, place], values.transpose(1, 2)[row, place] = k.transpose(1, 2), v.transpose(1, 2)
            out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
            x, _ = layer.after(x, out.transpose(1, 2).flatten(0, 1).flatten(1), quant.SERVED)
            if i in self.shape.taps:
                kept.append(x)
        self.h[row, place], self.taps[row, place] = t.norm(x).unflatten(0, place.shape), torch.cat(kept, -1).unflatten(0, place.shape)
        self.feed_drafter(row, place)
        return self.h, self.taps

    def feed_drafter(self, row, place):
        d = self.drafter
        c = d.hidden_norm(F.linear(self.taps[row, place], d.fc))
        for layer, (keys, values) in zip(d.layers, self.context):
            k, v = layer.keys_values(c, d.turn(place), 0)
            keys.transpose(1, 2)[row, place], values.transpose(1, 2)[row, place] = k.transpose(1, 2), v.transpose(1, 2)

    def __call__(self, embed, tokens, at, taps):
        return self.drafter(embed, tokens, at, taps, 0)


@torch.no_grad()
def ours(job, prompts):
    """The rounds of each prompt's continuation; prompts of like length together."""
    order, out, began = sorted(range(len(prompts)), key=lambda i: len(prompts[i])), [None] * len(prompts), time.time()
    together = TOGETHER[job.device.type]
    for first in range(0, len(order), together):
        some = order[first:first + together]
        length = max(len(prompts[i]) for i in some) + LIMIT + 3 * job.shape.block
        texts, _ = draft_train.continue_freely(job, [prompts[i] for i in some], length, LIMIT, True, seed=100 + first)
        for i, text in zip(some, texts):
            out[i] = text
        print(f"PyTorch: {min(first + together, len(order))} of {len(order)} prompts, {time.time() - began:.0f} s", flush=True)
    return out


def theirs(a, prompts, method, *flags):
    """The same of the engine."""
    with open(os.path.join(a.out, "accepted.ids"), "w") as f:
        f.writelines(" ".join(map(str, p)) + "\n" for p in prompts * REPEATS)
    rounds = os.path.join(a.out, f"accepted-{method}.jsonl")
    command = [a.engine, "bench", "speculation", a.model, "--prompts", f.name, "--write-rounds", rounds, "--methods", method,
               "--drafts", "7", "--batch", "16", "--runs", "1", "--tokens", str(LIMIT + 32), "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    out = [[] for _ in prompts]
    for line in open(rounds):
        text = json.loads(line)
        made, kept = text["tokens"][0], []
        for i, tokens in enumerate(text["tokens"][1:], 2):
            if made > LIMIT:
                break
            kept.append((tokens, text["finish"] == "stop" and i == len(text["tokens"])))
            made += tokens
        out[text["question"] % len(prompts)] += kept
    return out, json.loads(done.stdout)["rows"][0]["accepted_length"]


def difference(mine, others):
    """Of the mean rounds of two lists of texts that continue the same prompts, and its standard error by prompts."""
    (x, _), (y, _) = draft_train.mean_round(mine), draft_train.mean_round(others)
    n, m = sum(map(len, mine)), sum(map(len, others))
    return y - x, sum(((sum(t) - y * len(t)) / m - (sum(s) - x * len(s)) / n) ** 2 for s, t in zip(mine, others)) ** 0.5


def main(a):
    held = Rows(a.held_out)
    prompts = draft_train.held_prompts(held, LENGTH, a.prompts, held.count(LENGTH))
    prompts = (prompts * a.prompts)[:a.prompts]
    bad = False
    engine = [(how, theirs(a, prompts, *how)) for how in (("standard",), ("standard", "--draft-kv-dtype", "bf16"), ("coupled",))]
    print(f"{len(prompts)} prompts of {a.held_out}, temperature 1, 7 drafts")
    for (method, *flags), (texts, counted) in engine:
        print(f"engine, {' '.join([method, *flags[1:]])}: {draft_train.describe_rounds(texts)}; accepted_length {counted:.3f}", flush=True)
    mine = ours(Job(a), prompts)
    print(f"PyTorch, standard: {draft_train.describe_rounds(mine)}")
    for (method, *flags), (texts, _) in engine:
        for uncut in (False, True):
            apart, error = difference(draft_train.sizes(mine, uncut), draft_train.sizes(texts, uncut))
            print(f"engine, {' '.join([method, *flags[1:]])}, less PyTorch, {'rounds that no end cut' if uncut else 'all rounds'}: "
                  f"{apart:+.3f} +- {error:.3f}")
            bad |= method == "standard" and abs(apart) > CLOSE + 3 * error
    print("passed" if not bad else "FAILED")
    return bad

"""The stage that trains the drafter on a finished target (--model, a packed folder): spec of the losses and weights is the
published recipe, a tenth cross entropy and nine tenths distance to the target's law, and the confidence head's.

It reports tau = 1 + the expected number of accepted drafts at temperature 1, from the laws at held-out positions, and what
free generation with rejection sampling from held-out prompts really accepts, with the Markov head and without.
"""
import math

import numpy as np
import torch
import torch.nn.functional as F

import draft
import export
import m3
import quant
import stages
import trainer
from rows import Loader, Rows

KINDS = {False: ((0.5, 512, 24), (0.4, 1024, 48), (0.1, 4096, 128)), True: ((0.5, 512, 12), (0.5, 1024, 24))}


def laws(drafter, head, u, previous, markov=True):
    """Draft logits [..., block, vocab] of final rows u with the tokens before each draft."""
    logits = F.linear(u, head).float()
    return logits + drafter.follow(previous) if markov else logits


def losses(drafter, embed, head, tokens, at, previous, labels, weight, taps, wanted):
    """tokens, at [B, A]; previous, labels, weight [B, A, block]; wanted: the target's logits [B, A, block, vocab].

    -> cross entropy, distance, confidence loss, and the overlap of both laws [B, A, block] (detached)"""
    u = drafter(embed, tokens, at, taps)
    logits = laws(drafter, head, u, previous)
    law = torch.log_softmax(logits, -1)
    distance = (law.exp() - torch.softmax(wanted.float(), -1)).abs().sum(-1)
    overlap = (1 - 0.5 * distance).detach()
    total = weight.sum().clamp(min=1e-6)
    ce = -(law.gather(-1, labels[..., None]).squeeze(-1) * weight).sum() / total
    sure = F.binary_cross_entropy_with_logits(drafter.sure(u, previous), overlap.clamp(0, 1), reduction="none")
    return ce, (distance * weight).sum() / total, (sure * weight).sum() / total, overlap


class Job:
    def __init__(self, run):
        a = run.a
        self.run, self.tokens = run, a.tokens
        self.target = m3.M3(trainer.tiny_shape() if a.tiny else m3.Shape()) if a.warm else export.load(a.model)
        self.target = self.target.to(run.device).eval().requires_grad_(False)
        self.shape = draft.shape_for(self.target.s)
        self.kinds = [(share, ((a.tokens // n, n),), anchors) for share, n, anchors in KINDS[a.tiny]]
        torch.manual_seed(a.seed + 7)
        self.peak = 3e-4 if a.go_on else 1e-3
        self.model = (export.load_draft(a.model) if a.go_on else draft.Drafter(self.shape)).to(run.device)
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim == 1]
        self.groups = [matrices + vectors]
        self.optimisers = [torch.optim.AdamW([dict(params=matrices), dict(params=vectors)], lr=self.peak, betas=(0.9, 0.95),
                                             weight_decay=0.0, fused=run.kind == "cuda")]
        self.rows, self.held = Rows(a.data), Rows(a.held_out) if a.held_out else None
        self.losses, self.dense = losses, None
        if run.kind == "cuda" and not a.no_compile:
            import torch._dynamo as dynamo
            dynamo.config.cache_size_limit = 64
            dynamo.config.automatic_dynamic_shapes = False
            for layer in self.target.layers:
                layer.compile()
            self.losses = torch.compile(losses, dynamic=False)

    def rates(self, x):
        return (self.peak * min(1.0, (x + 1e-3) / 0.05) * 0.5 * (1 + math.cos(math.pi * min(1.0, x))),)

    def kind(self, step):
        u = step * 0x9E3779B97F4A7C15 % 2 ** 64 / 2 ** 64 * sum(k[0] for k in self.kinds)
        for kind in self.kinds:
            u -= kind[0]
            if u < 0:
                return kind
        return self.kinds[-1]

    def loader(self, step):
        self.rows.wait([k[1][0][1] for k in self.kinds])
        anchors = {k[1][0][1]: k[2] for k in self.kinds}
        return Loader(self.rows, lambda n: self.kind(n)[1], self.run.a.seed * 64 + 32 + self.run.rank, step, 1.0,
                      self.run.device, anchors=anchors)

    @torch.no_grad()
    def look(self, ids, texts, length, at=None):
        """The target on ids [texts, L]: rows after the last norm [texts, L, H] and taps [texts, L, taps * H]. Before `at`
        nothing has changed since the last look; here all is computed again."""
        import sparse
        with self.run.autocast():
            h, _, kept = self.target(ids.flatten(), ((texts, length),), quant.SERVED, sparse.Way("sparse", dense=self.dense),
                                     self.shape.taps)
        return h.unflatten(0, (texts, length)), torch.cat(kept, -1).unflatten(0, (texts, length))

    def blocks(self, layout, batch):
        """What `losses` takes, for the batch's anchors."""
        (texts, length), s = layout[0], self.shape
        ids, weights = batch["ids"].unflatten(0, (texts, length)), batch["weights"].unflatten(0, (texts, length))
        h, taps = self.look(ids, texts, length)
        at = batch["anchors"].clamp(min=0)
        place = (at[..., None] + torch.arange(s.block + 1, device=at.device)).clamp(max=length - 1)     # [B, A, 8]
        row = torch.arange(texts, device=at.device)[:, None, None]
        tokens, written = ids[row, place], (weights[row, place] == 1)
        written &= (at[..., None] + torch.arange(s.block + 1, device=at.device)) < length
        weight = written[..., 1:].float().cumprod(-1) * (batch["anchors"] >= 0)[..., None]
        with torch.no_grad(), self.run.autocast():
            wanted = F.linear(h[row, place[..., :-1]], self.target.head)
        return (self.target.embed, self.target.head, tokens[..., 0], at, tokens[..., :-1], tokens[..., 1:], weight, taps,
                wanted)

    def step(self, layout, batch, x):
        s = self.shape
        embed, head, tokens, at, previous, labels, valid, taps, wanted = self.blocks(layout, batch)
        fading = torch.exp(-torch.arange(s.block, device=at.device) / 4)
        with self.run.autocast():
            ce, distance, sure, overlap = self.losses(self.model, embed, head, tokens, at, previous, labels,
                                                      valid * fading, taps, wanted)
        loss = ce if x < 0.08 else 0.1 * ce + 0.9 * distance + sure
        full = valid[..., -1]
        tau = 1 + (overlap.cumprod(-1).sum(-1) * full).sum() / full.sum().clamp(min=1)
        return loss + 0 * (distance + sure), dict(ce=ce.detach(), distance=distance.detach(), confidence=sure.detach(),
                                                  tau=tau)

    def moves(self, group, values):
        return True

    def after(self, values, x):
        pass

    def warm(self):
        self.dense = trainer.attention_kernels(self.run, self.target.s, [k[1] for k in self.kinds])
        for _, layout, count in self.kinds:
            texts, length = layout[0]
            batch = dict(ids=torch.randint(self.shape.vocab, (self.tokens,), device=self.run.device),
                         weights=torch.ones(self.tokens, dtype=torch.uint8, device=self.run.device),
                         anchors=torch.randint(length - 1, (texts, count), device=self.run.device))
            self.step(layout, batch, 0.5)[0].backward()

    def check(self):
        """Overlaps on held-out rows of the second length."""
        if self.held is None:
            return {}
        self.held.refresh()
        _, layout, count = self.kinds[1]
        (texts, length), random = layout[0], np.random.default_rng(5)
        if not self.held.count(length):
            return {}
        from rows import anchors
        ids, weights = self.held.take(length, [i % self.held.count(length) for i in range(texts)])
        batch = {k: torch.from_numpy(v).to(self.run.device) for k, v in dict(
            ids=ids.ravel(), weights=weights.ravel(), anchors=anchors(weights, count, random)).items()}
        embed, head, tokens, at, previous, labels, valid, taps, wanted = self.blocks(layout, batch)
        with self.run.autocast():
            overlap = self.losses(self.model, embed, head, tokens, at, previous, labels, valid, taps, wanted)[-1]
        full = valid[..., -1].bool()
        if not full.any():
            return {}
        got = overlap[full]
        out = {"held_tau": 1 + got.cumprod(-1).sum(-1).mean().item()}
        every = (overlap * valid).cumprod(-1).sum(-1)[valid[..., 0].bool()]
        out["held_tau_any"] = 1 + every.mean().item()
        return out | {f"overlap_{k + 1}": v for k, v in enumerate(got.mean(0).tolist())}


# ---- Free generation ----

@torch.no_grad()
def continue_freely(job, prompts, length, limit, markov, seed=11):
    """Samples continuations of prompts (lists of ids) at temperature 1 with 7 drafts a round and rejection sampling, until an
    end, or `limit` tokens behind the first. A job with caches is told how long texts
    get (`open`) and which of them go on (`keep`), and looks at what is new alone.

    -> a text's rounds, [(tokens, whether an end cut it)], for each prompt; acceptance by position"""
    run, s, target, drafter = job.run, job.shape, job.target, job.model
    g, device, n = torch.Generator(run.device).manual_seed(seed), run.device, len(prompts)
    eos = job.run.a.eos
    ids = torch.zeros(n, length, dtype=torch.long, device=device)
    for i, p in enumerate(prompts):
        ids[i, :len(p)] = torch.tensor(p, device=device)
    at = torch.tensor([len(p) for p in prompts], device=device)         # where the anchor stands
    first, text, out = at.clone(), list(range(n)), [[] for _ in prompts]

    def law(h):
        with run.autocast():
            return torch.softmax(F.linear(h, target.head).float(), -1)

    row = torch.arange(n, device=device)
    cached = hasattr(job, "keep")
    if cached:
        job.open(n, length)
    reach = int(at.max()) if cached else length
    h, taps = job.look(ids[:, :reach], n, reach)
    ids[row, at] = torch.multinomial(law(h[row, at - 1]), 1, generator=g).squeeze(-1)
    live = ids[row, at] != eos
    tried, taken = torch.zeros(s.block, device=device), torch.zeros(s.block, device=device)
    step = torch.arange(s.block + 1, device=device)
    while live.any():
        if cached and not live.all():
            job.keep(live)
            ids, at, first, taps = (x[live] for x in (ids, at, first, taps))
            text = [t for t, on in zip(text, live.tolist()) if on]
            live, row = live[live], torch.arange(len(ids), device=device)
        with run.autocast():
            u = drafter(target.embed, ids[row, at][:, None], at[:, None], taps)[:, 0]
            base = F.linear(u, target.head).float()
        previous, q = ids[row, at], []
        for k in range(s.block):
            with run.autocast():
                logits = base[:, k] + drafter.follow(previous) if markov else base[:, k]
            q.append(torch.softmax(logits, -1))
            previous = torch.multinomial(q[-1], 1, generator=g).squeeze(-1)
            ids[row, at + 1 + k] = previous
        q = torch.stack(q, 1)                                           # [n, block, vocab]
        h, taps = job.look(ids, len(ids), length, at)
        p = law(h[row[:, None], at[:, None] + step])                    # [n, block + 1, vocab]
        drafts = ids[row[:, None], at[:, None] + 1 + step[:-1]]
        pd, qd = (x.gather(-1, drafts[..., None]).squeeze(-1) for x in (p[:, :-1], q))
        accepted = torch.rand(qd.shape, device=device, generator=g) * qd < pd
        prefix = accepted.float().cumprod(1)
        count = prefix.sum(1).long()                                    # accepted drafts of each text
        rest = torch.cat(((p[:, :-1] - q).clamp(min=0), p[:, -1:]), 1)[row, count]
        rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p[row, count])
        ids[row, at + 1 + count] = torch.multinomial(rest, 1, generator=g).squeeze(-1)
        new = ids[row[:, None], at[:, None] + 1 + step]
        made = step <= count[:, None]
        ends = (new == eos) & made
        size = torch.where(ends.any(1), ends.int().argmax(1) + 1, count + 1)
        for t, on, tokens, cut in zip(text, live.tolist(), size.tolist(), ends.any(1).tolist()):
            if on:
                out[t].append((tokens, cut))
        before = torch.cat((torch.ones_like(prefix[:, :1]), prefix[:, :-1]), 1)
        tried += before[live].sum(0)
        taken += prefix[live].sum(0)
        at = torch.where(live, at + count + 1, at)
        live = live & ~ends.any(1) & (at - first < limit) & (at + s.block + 2 < length)
    return out, (taken / tried.clamp(min=1)).tolist()


def mean_round(texts):
    """Tokens of a round in a list of texts' rounds, and its standard error: texts are independent, a text's rounds are not."""
    count = sum(map(len, texts))
    mean = sum(map(sum, texts)) / max(1, count)
    return mean, sum((sum(t) - mean * len(t)) ** 2 for t in texts) ** 0.5 / max(1, count)


def sizes(texts, uncut):
    """Of what continue_freely returns: tokens of each round, of those that an end cut or not."""
    return [[n for n, cut in t if not (cut and uncut)] for t in texts]


def describe_rounds(texts):
    every, whole = (mean_round(sizes(texts, uncut)) for uncut in (False, True))
    return (f"{every[0]:.3f} +- {every[1]:.3f} tokens a round, {whole[0]:.3f} +- {whole[1]:.3f} in rounds that no end cut, "
            f"{sum(map(len, texts))} rounds")


def held_prompts(held, length, chats, most):
    """Prompts of held-out rows, each up to a place where the model writes with a quarter of the row behind it."""
    random, prompts = np.random.default_rng(9), []
    for n in range(most):
        ids, weights = held.take(length, [n % held.count(length)])
        starts = np.nonzero((weights[0, 1:] == 1) & (weights[0, :-1] != 1))[0] + 1
        starts = starts[starts < length - length // 4]
        if len(starts) and len(prompts) < chats:
            prompts.append(ids[0, :random.choice(starts)].tolist())
    return prompts


def free_report(job):
    """Continues held-out chats, as many as a step of training has, with the Markov head and without."""
    run = job.run
    _, layout, _ = job.kinds[1]
    chats, length = layout[0]
    if not job.held or not job.held.count(length):
        return run.say("no held-out rows: no free generation")
    prompts = held_prompts(job.held, length, chats, 4 * chats)
    if not prompts:
        return run.say("no prompt in the held-out rows")
    prompts = (prompts * chats)[:chats]
    for markov in (True, False):
        texts, acceptance = continue_freely(job, prompts, length, length // 4 - 10, markov)
        run.say(f"free generation, {chats} held-out chats, temperature 1, 7 drafts, Markov head {'on' if markov else 'off'}: "
                f"{describe_rounds(texts)}, acceptance by position " + " ".join(f"{x:.3f}" for x in acceptance))


def main(run):
    run.a.eos = export.tokens(export.TOKENIZER)[export.EOS]
    job = Job(run)
    run.say(f"{sum(p.numel() for p in job.model.parameters()) / 1e6:.2f} M parameters of the drafter, taps "
            f"{job.shape.taps}, window {job.shape.window}")
    stages.describe(run, type("Described", (), dict(model=job.model, tokens=job.tokens, kinds=[
        (share, 0, layout) for share, layout, _ in job.kinds], shape=job.shape)))
    trainer.loop(run, job)
    if run.rank == 0 and not run.a.warm:
        free_report(job)

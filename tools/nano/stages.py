"""The stages that train the target: pretrain, index, sparse and plain.

pretrain  dense attention, bf16, short rows; from half of the time on some of 4,096 tokens.
index     long rows with dense attention; the index branch learns which blocks get the attention.
sparse    attention over the selected blocks, everything rounded as it is served (QAT).
plain     the same without rounding: the twin.
tune      short rows, most of them tool calls, rounded as it is served; starts from a packed folder (--model), whose
          index branch it leaves alone.
tune-plain  the same for the twin, without rounding.
"""
import dataclasses

import torch
import torch._dynamo
import torch.nn.functional as F

import export
import m3
import quant
import sparse
import trainer
from rows import Loader, Rows

SHORT = ((0.5, 512), (0.5, 1024))
# For each stage the kinds of steps: (share of the steps, from which share of the time on, what part of its tokens has rows
# of which length). A step always has the same number of tokens.
PLANS = {
    "pretrain": ((0.75, 0.0, SHORT), (0.25, 0.5, ((1.0, 4096),))),
    "index": ((0.3, 0.0, SHORT), (0.3, 0.0, ((1.0, 4096),)), (0.4, 0.0, ((1.0, 16384),))),
    "sparse": ((0.35, 0.0, SHORT), (0.3, 0.0, ((1.0, 4096),)), (0.35, 0.0, ((1.0, 16384),))),
}
PLANS["plain"] = PLANS["sparse"]
PLANS["tune"] = PLANS["tune-plain"] = ((1.0, 0.0, ((0.5, 1024), (0.5, 2048))),)
TINY = {512: 512, 1024: 1024, 2048: 1024, 4096: 1024, 16384: 2048}
BEFORE = {"index": "pretrain", "sparse": "index", "plain": "index"}


def fall(x, first, last, hold=0.0, rise=0.0):
    """A short rise, a plateau, a line from first to last."""
    line = first + (last - first) * max(0.0, (x - hold) / max(1e-9, 1 - hold))
    return line * min(1.0, (x + 1e-4) / rise) if rise else line


def rates(stage, a):
    """x -> (the trunk's rate, the index branch's)"""
    peak = a.rate
    return {"pretrain": lambda x: (fall(x, peak, 0.2 * peak, 0.4, 0.02), 0.0),
            "index": lambda x: (fall(x, 0.2 * peak, 0.2 * peak, 0, 0.03), fall(x, peak, 0.4 * peak, 0.5, 0.05)),
            "sparse": lambda x: (fall(x, 0.2 * peak, 0.0, 0.2, 0.03), fall(x, 0.4 * peak, 0.02 * peak, 0.2, 0.03)),
            "plain": lambda x: (fall(x, 0.2 * peak, 0.0, 0.2, 0.03), fall(x, 0.4 * peak, 0.02 * peak, 0.2, 0.03)),
            "tune": lambda x: (fall(x, 0.15 * peak, 0.0, 0.1, 0.05), 0.0),
            "tune-plain": lambda x: (fall(x, 0.15 * peak, 0.0, 0.1, 0.05), 0.0),
            }[stage]


def layouts(stage, a):
    """[(share, from, layout)] with whole rows"""
    out = []
    for share, start, parts in PLANS[stage]:
        layout = []
        for part, length in parts:
            length = TINY[length] if a.tiny else length
            layout.append((max(1, round(part * a.tokens / length)), length))
        out.append((share, start, tuple(layout)))
    assert all(sum(t * n for t, n in layout) == a.tokens for _, _, layout in out), out
    return out


class Job:
    def __init__(self, run):
        a, stage = run.a, run.stage
        self.run, self.kinds, self.tokens = run, layouts(stage, a), a.tokens
        if stage in BEFORE and not a.warm:
            self.model = trainer.load_model(run, BEFORE[stage])
        elif stage.startswith("tune") and not a.warm:
            self.model = export.load(a.model)
        else:
            self.model = m3.M3(trainer.tiny_shape() if a.tiny else m3.Shape())
        self.model = self.model.to(run.device)
        self.shape = self.model.s
        self.quantised = quant.ALL if stage in ("sparse", "tune") else 0
        index = [p for n, p in self.model.named_parameters() if ".index." in n]
        trunk = [(n, p) for n, p in self.model.named_parameters() if ".index." not in n]
        decayed = [p for n, p in trunk if p.ndim > 1 and n not in ("embed", "head") and not n.endswith("feed.gate")]
        rest = [p for _, p in trunk if not any(p is d for d in decayed)]
        fused = run.kind == "cuda"
        self.groups = [decayed + rest, index]
        self.optimisers = [torch.optim.AdamW([dict(params=decayed, weight_decay=0.05), dict(params=rest, weight_decay=0.0)],
                                             lr=a.rate, betas=(0.9, 0.95), fused=fused),
                           torch.optim.AdamW(index, lr=a.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)]
        self.rates = rates(stage, a)
        self.rows, self.held = Rows(a.data), Rows(a.held_out) if a.held_out else None
        self.lengths = sorted({n for _, _, layout in self.kinds for _, n in layout})
        self.loss_of, self.flex = loss_of, None
        if run.kind == "cuda" and not a.no_compile:
            torch._dynamo.config.cache_size_limit = 64
            torch._dynamo.config.automatic_dynamic_shapes = False
            for layer in self.model.layers:
                layer.compile()
            self.loss_of = torch.compile(loss_of)
        self.kernel = "chunked"
        self.dense = None

    def plan(self, step):
        """The layout of a step: by a hash of its number, the same in all processes."""
        kinds = [k for k in self.kinds if self.run.x >= k[1]]
        u = (step * 0x9E3779B97F4A7C15 % 2 ** 64 / 2 ** 64) * sum(k[0] for k in kinds)
        for share, _, layout in kinds:
            u -= share
            if u < 0:
                return layout
        return kinds[-1][2]

    def loader(self, step):
        self.rows.wait(self.lengths)
        sampled = self.run.a.sampled if self.run.stage != "pretrain" else 0
        return Loader(self.rows, self.plan, self.run.a.seed * 64 + self.run.rank, step, self.run.a.given, self.run.device,
                      sampled, beyond=self.shape.block * self.shape.blocks)

    def way(self, batch):
        rows = {int(k[5:]): v for k, v in batch.items() if k.startswith("rows-")} if batch else {}
        kind = "sparse" if self.run.stage in ("sparse", "plain", "tune", "tune-plain") else "dense"
        return sparse.Way(kind, rows=rows or None, limit=self.run.a.kl == "selected", kernel=self.kernel,
                          compiled=self.flex, dense=self.dense)

    def step(self, layout, batch, x):
        way = self.way(batch)
        with self.run.autocast():
            h, loads, _ = self.model(batch["ids"], layout, self.quantised, way)
            loss = self.loss_of(h, self.model.head, batch["target"], batch["weight"])
            index, caught = way.index_loss()
        values = {f"loss_{layout[-1][1]}": loss.detach(), "index": None if index is None else index.detach() /
                  len(way.loss), "caught": caught, "loads": None if loads is None else loads.detach()}
        return (loss if index is None else loss + index), values

    def moves(self, group, values):
        return group == 0 or values["index"] is not None

    def after(self, values, x):
        loads = values["loads"]
        if loads is not None:
            if self.run.world > 1:
                torch.distributed.all_reduce(loads)
                loads = loads / self.run.world
            with torch.no_grad():
                self.model.balance(loads, 1e-3 if self.rates(x)[0] > 0.05 * self.run.a.rate else 2e-4)

    def warm(self):
        """Compiles what the stage will run, before its clock starts."""
        run = self.run
        self.dense = trainer.attention_kernels(run, self.shape, [k[2] for k in self.kinds])
        if run.stage in ("sparse", "plain") and run.kind == "cuda" and run.a.kernel == "flex":
            self.flex = trainer.selected_kernel(run, self.shape, *max(
                (p for k in self.kinds for p in k[2]), key=lambda p: p[1]))
            self.kernel = "flex" if self.flex else "chunked"
        for _, _, layout in self.kinds:
            n, device = self.tokens, run.device
            batch = dict(ids=torch.randint(self.shape.vocab, (n,), device=device),
                         target=torch.randint(self.shape.vocab, (n,), device=device), weight=torch.ones(n, device=device))
            for texts, length in layout:
                if length > self.shape.block * self.shape.blocks and run.stage != "pretrain":
                    batch[f"rows-{length}"] = torch.randint(length // 2, length, (texts, run.a.sampled), device=device)
            loss, _ = self.step(layout, batch, 0.0)
            loss.backward()

    def check(self):
        """Loss and rate of right guesses on held-out rows, over the tokens that the model writes."""
        if self.held is None:
            return {}
        self.held.refresh()
        out = {}
        for _, _, layout in self.kinds:
            length = layout[-1][1]
            texts = self.tokens // length
            if f"held_{length}" in out or self.held.count(length) == 0:
                continue
            ids, weights = self.held.take(length, [i % self.held.count(length) for i in range(texts)])
            ids, weights = torch.from_numpy(ids).to(self.run.device), torch.from_numpy(weights).to(self.run.device)
            with self.run.autocast():       # with gradients, which nobody asks for, so that the compiled graphs serve
                h, _, _ = self.model(ids.flatten(), ((texts, length),), self.quantised, self.way(None))
            loss = right = count = 0
            with torch.no_grad():
                for h, i, w in zip(h.detach().unflatten(0, (texts, length)).split(8), ids.split(8), weights.split(8)):
                    logits, wanted = self.model.logits(h[:, :-1]).flatten(0, 1), (w[:, 1:] == 1).flatten()
                    target = i[:, 1:].flatten()[wanted]
                    logits = logits[wanted]
                    loss += F.cross_entropy(logits, target, reduction="sum")
                    right += (logits.argmax(-1) == target).sum()
                    count += len(target)
            if count:
                out[f"held_{length}"], out[f"right_{length}"] = (loss / count).item(), (right / count).item()
        return out


def loss_of(h, head, target, weight):
    logits = F.linear(h, head).float()
    return (F.cross_entropy(logits, target, reduction="none") * weight).sum() / weight.sum().clamp(min=1)


def describe(run, job):
    parameters = sum(p.numel() for p in job.model.parameters()) / 1e6
    run.say(f"{parameters:.2f} M parameters, {run.world} x {run.kind}, {job.tokens} tokens a step and process, layouts "
            + ", ".join(f"{k[0]} of {'+'.join(f'{t}x{n}' for t, n in k[2])}" for k in job.kinds)
            + f", shape {dataclasses.asdict(job.shape)}")


def main(run):
    job = Job(run)
    describe(run, job)
    trainer.loop(run, job)

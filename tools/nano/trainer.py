"""The training loop that all stages share: schedules by the wall clock, one process a GPU, state that survives a kill.

A stage's folder --out gets STAGE.pt (state, replaced as a whole every minute; at the end the weights alone), STAGE.log
(progress), STAGE.jsonl (points of its curves) and STAGE.svg. A stage whose .pt says that it is done is not run again, one
that was cut off goes on where its last state was saved.
"""
import dataclasses
import json
import os
import time

import torch
import torch.distributed as dist

import curves
import m3

SAVE_EVERY = 60


def tiny_shape():
    return m3.Shape(hidden=64, layers=3, heads=4, kv_heads=2, experts=4, top_k=2, expert_width=32, shared_width=64,
                    dense_width=128, blocks=4)


class Run:
    """One process of a stage. `share` is the shared memory in which process 0 says how far the stage is, so that all
    processes follow one clock."""

    def __init__(self, a, stage, rank, share):
        self.a, self.stage, self.rank, self.share = a, stage, rank, share
        self.world, self.began = a.gpus, time.time()
        cuda = torch.cuda.is_available() and not a.cpu
        self.device = self.kind = "cuda" if cuda else "cpu"     # a process sees one GPU: nano.py
        if self.world > 1:
            dist.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{self.path('.meet')}",
                                    rank=rank, world_size=self.world)
        torch.manual_seed(a.seed)
        self.x, self.first, self.start, self.before = 0.0, True, None, 0.0
        self.log = open(self.path(".log"), "a") if rank == 0 else None

    def path(self, suffix, stage=None):
        return os.path.join(self.a.out, (stage or self.stage) + suffix)

    def say(self, *text):
        if self.rank == 0:
            line = f"{time.strftime('%H:%M:%S')} {self.stage}: " + " ".join(map(str, text))
            print(line, flush=True)
            self.log.write(line + "\n")
            self.log.flush()

    def point(self, **values):
        if self.rank == 0:
            with open(self.path(".jsonl"), "a") as f:
                f.write(json.dumps(values) + "\n")

    def progress(self, step):
        """The share of the stage's time that is over, the same number in every process."""
        if self.world > 1 and self.rank > 0:
            while self.share[0] < step:
                time.sleep(0.0002)
            self.x = self.share[1 + step % 64]
        else:
            self.x = (time.time() - self.start) / max(1e-9, self.end - self.start)
            self.share[1 + step % 64] = self.x
            self.share[0] = step
        return self.x

    def autocast(self):
        return torch.autocast(self.kind, torch.bfloat16, enabled=self.kind == "cuda")


class Gradients:
    """All gradients in one buffer, so that they are summed over the processes, measured and cleared in one go."""

    def __init__(self, groups, device):
        sizes = [[(p.numel() + 63) // 64 * 64 for p in g] for g in groups]
        self.flat, self.groups, at = torch.zeros(sum(map(sum, sizes)), device=device), [], 0
        for group, size in zip(groups, sizes):
            first = at
            for p, n in zip(group, size):
                p.grad = self.flat[at:at + p.numel()].view_as(p)
                at += n
            self.groups.append(self.flat[first:at])

    def reduce(self, world):
        if world > 1:
            dist.all_reduce(self.flat)
            self.flat /= world

    def clip(self, limit):
        """Each group by itself; a step with a gradient that is not finite becomes a step without one."""
        norms = []
        for g in self.groups:
            norm = g.norm()
            g.mul_((limit / norm.clamp(min=1e-9)).clamp(max=1.0)).nan_to_num_(0.0, 0.0, 0.0)
            norms.append(norm)
        return torch.stack(norms)


def save(path, content):
    torch.save(content, path + ".new")
    os.replace(path + ".new", path)


def load_state(run):
    path = run.path(".pt")
    return torch.load(path, map_location="cpu", weights_only=True) if os.path.exists(path) else None


def load_model(run, stage):
    """The model that an earlier stage left."""
    state = torch.load(run.path(".pt", stage), map_location="cpu", weights_only=True)
    model = m3.M3(m3.Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    if not state["done"]:
        run.say(f"stage {stage} was not finished; going on from its last state")
    return model


def loop(run, job):
    """job: model (with state_dict), shape, groups [[parameters], ...], optimisers [one a group], rates(x) -> [rate a group],
    loader(step) -> Loader, step(layout, batch, x) -> (loss, values), after(values), check() -> dict of numbers, tokens."""
    a, state = run.a, load_state(run)
    gradients = Gradients(job.groups, run.device)
    step = 0
    if state and not state["done"]:
        job.model.load_state_dict(state["model"])
        for o, s in zip(job.optimisers, state["optimisers"]):
            o.load_state_dict(s)
        step, run.before = state["step"], state["elapsed"]
        run.say(f"going on at step {step}, {run.before:.0f} s into the stage")
    job.warm()
    gradients.flat.zero_()
    if run.kind == "cuda":
        torch.cuda.synchronize()
    if a.warm:
        return run.say("warmed up")
    if run.world > 1:
        dist.barrier()
    run.total = state["total"] if run.before else max(1.0, run.began + a.minutes * 60 - a.reserve - time.time())
    run.start = time.time() - run.before
    run.end = run.start + run.total
    run.say(f"start took {time.time() - run.began:.0f} s, training has {run.end - run.start - run.before:.0f} s")
    loader = job.loader(step)
    shown = saved = checked = time.time()
    since, steps_since, totals = shown, 0, {}
    while run.progress(step) < 1:
        for o, rate in zip(job.optimisers, job.rates(run.x)):
            for g in o.param_groups:
                g["lr"] = rate
        layout, batch = loader.next()
        loss, values = job.step(layout, batch, run.x)
        loss.backward()
        gradients.reduce(run.world)
        norms = gradients.clip(1.0)
        for i, o in enumerate(job.optimisers):
            if job.moves(i, values):
                o.step()
        job.after(values, run.x)
        gradients.flat.zero_()
        step, steps_since = step + 1, steps_since + 1
        for k, v in values.items():
            if v is not None and v.ndim == 0:
                got = totals.setdefault(k, [torch.zeros((), device=run.device), 0])
                got[0] += v.detach().float()
                got[1] += 1
        if step % 5 == 0 and run.rank == 0 and time.time() - shown > a.show:
            numbers = {k: (t / n).item() for k, (t, n) in totals.items()}
            now = time.time()
            numbers |= {"step": step, "seconds": now - run.start, "rate": job.rates(run.x)[0],
                        "tokens_s": steps_since * job.tokens * run.world / (now - since)}
            run.say(f"{100 * run.x:.0f} % step {step} " + " ".join(f"{k} {v:.4g}" for k, v in numbers.items()
                    if k not in ("step", "seconds")) + f" norm {norms[0].item():.3g}, {run.end - now:.0f} s left")
            run.point(**numbers)
            shown, since, steps_since, totals = now, now, 0, {}
            if not all(map(lambda v: v == v, numbers.values())):
                raise SystemExit(f"{run.stage}: the loss is not a number")
        if run.rank == 0 and time.time() - saved > SAVE_EVERY:
            saved = time.time()
            save(run.path(".pt"), content(run, job, step, False))
            curves.draw(run.path(".jsonl"), run.path(".svg"), run.stage)
            run.say(f"state saved in {time.time() - saved:.1f} s")
            saved = time.time()
        if run.rank == 0 and time.time() - checked > a.check_every:
            began = time.time()
            found = job.check()
            checked = time.time()
            if found:
                run.point(step=step, seconds=checked - run.start, **found)
                run.say("held out: " + " ".join(f"{k} {v:.4f}" for k, v in found.items())
                        + f" ({checked - began:.1f} s)")
    if run.kind == "cuda":
        torch.cuda.synchronize()
    if run.rank == 0:
        found = job.check()
        if found:
            run.point(step=step, seconds=time.time() - run.start, **found)
            run.say("held out: " + " ".join(f"{k} {v:.4f}" for k, v in found.items()))
        save(run.path(".pt"), content(run, job, step, True))
        curves.draw(run.path(".jsonl"), run.path(".svg"), run.stage)
        run.say(f"done: {step} steps, {step * job.tokens * run.world / 1e6:.1f} M tokens, "
                f"{time.time() - run.began:.0f} s of wall time in this process")
    if run.world > 1:
        dist.barrier()


def content(run, job, step, done):
    model = {k: v.detach().cpu() for k, v in job.model.state_dict().items()}
    out = dict(stage=run.stage, shape=dataclasses.asdict(job.shape), model=model, step=step, done=done,
               elapsed=time.time() - run.start, total=run.total)
    if not done:
        out["optimisers"] = [o.state_dict() for o in job.optimisers]
    return out


def attention_kernels(run, s, layouts):
    """Times the plain attention kernels that this machine has at each length, and returns a function that uses the
    fastest one whose results agree."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import sparse
    if run.kind != "cuda":
        return None

    def cudnn(q, k, v):
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return sparse.causal(q, k, v)

    best = {}
    for texts, length in sorted({p for layout in layouts for p in layout}):
        shape = lambda n: torch.randn(texts, length, n, s.head_dim, device=run.device, dtype=torch.bfloat16)  # noqa: E731
        q, k, v = (shape(n).requires_grad_() for n in (s.heads, s.kv_heads, s.kv_heads))
        upstream, got = shape(s.heads), {}
        for name, kernel in (("default", sparse.causal), ("cudnn", cudnn)):
            try:
                for i in range(3):
                    if i == 1:
                        torch.cuda.synchronize()
                        began = time.time()
                    out = kernel(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
                    grads = torch.autograd.grad(out, (q, k, v), upstream)
                torch.cuda.synchronize()
                got[name] = ((time.time() - began) / 2, (out.detach(), *grads))
            except Exception as e:                           # a kernel that this version lacks
                run.say(f"attention {name} at {length}: {str(e)[:80]}")
        best[length] = sparse.causal
        if len(got) == 2:
            off = max(((x - y).float().norm() / y.float().norm()).item() for x, y in zip(got["cudnn"][1], got["default"][1]))
            run.say(f"attention at {texts} x {length}: default {1e3 * got['default'][0]:.1f} ms, cudnn "
                    f"{1e3 * got['cudnn'][0]:.1f} ms, apart {off:.1e}")
            if off < 2e-2 and got["cudnn"][0] < 0.9 * got["default"][0]:
                best[length] = cudnn
    return lambda q, k, v: best.get(q.shape[2], sparse.causal)(q, k, v)


def selected_kernel(run, s, texts, length):
    """FlexAttention compiled, if it gives on this machine what the chunked way gives; else None. Says how long both take."""
    import sparse
    new = lambda n: torch.randn(texts, n, length, s.head_dim, device=run.device, dtype=torch.bfloat16)   # noqa: E731
    q, k, v = (new(n).requires_grad_() for n in (s.heads, s.kv_heads, s.kv_heads))
    upstream, got = new(s.heads), {}
    iq, ik = new(s.kv_heads).transpose(1, 2), new(1).squeeze(1)
    selected = sparse.select(s, iq, ik)
    flex = torch.compile(sparse.flex, dynamic=False)
    for name, kernel in (("chunked", sparse.chunked), ("flex", flex)):
        try:
            for i in range(2):
                torch.cuda.synchronize()
                began = time.time()
                out = kernel(q, k, v, selected, s.block)
                grads = torch.autograd.grad(out, (q, k, v), upstream)
                torch.cuda.synchronize()
            got[name] = (time.time() - began, (out.detach(), *grads))
        except Exception as e:                               # say it and do without
            run.say(f"attention over blocks, {name}: {str(e)[:300]}")
    if len(got) < 2:
        return None
    off = max(((x - y).float().norm() / y.float().norm()).item() for x, y in zip(got["flex"][1], got["chunked"][1]))
    began = time.time()
    sparse.select(s, iq, ik)
    torch.cuda.synchronize()
    run.say(f"attention over blocks at {texts} x {length}: flex {1e3 * got['flex'][0]:.1f} ms, chunked "
            f"{1e3 * got['chunked'][0]:.1f} ms, apart {off:.1e}; selection {1e3 * (time.time() - began):.1f} ms")
    return flex if off < 2e-2 and got["flex"][0] < got["chunked"][0] else None

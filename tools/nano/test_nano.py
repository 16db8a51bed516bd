#!/usr/bin/env python3
"""Tests of the training scripts that run in seconds on a CPU.

    python3 test_nano.py [NAME ...]
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy as np
    import torch
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(0)

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests")]
ENGINE = os.environ.get("HAYATE", os.path.join(ROOT, "build", "hayate"))


def stand_in(folder, rows, seed=1, vocab=1900):
    """Set files in the format of `hayate eval --write-set`: names with values, then questions for some of them."""
    r = random.Random(seed)
    os.makedirs(folder, exist_ok=True)
    for length, count in rows.items():
        ids, weights = np.full((count, length), vocab + 9, "<u2"), np.full((count, length), 255, np.uint8)
        for i in range(count):
            end = length - r.randrange(length // 8)
            asked = max(1, end // 128)
            facts = [(r.randrange(vocab), r.randrange(vocab), r.randrange(vocab)) for _ in range((end - 6 * asked) // 3)]
            text, w = [x for f in facts for x in f], []
            w = [0] * len(text)
            for k, a, b in r.sample(facts, asked):
                at = r.randrange(len(text) // 4, len(text) + 1)
                text[at:at], w[at:at] = [vocab + 1, k, vocab + 2, a, b, vocab + 3], [0, 0, 0, 1, 1, 1]
            ids[i, :len(text)], weights[i, :len(text)] = text, w
        ids.tofile(os.path.join(folder, f"rows-{length}.ids"))
        weights.tofile(os.path.join(folder, f"rows-{length}.weights"))
    with open(os.path.join(folder, "set.json"), "w") as f:
        json.dump({"rows": rows, "seed": seed}, f)


def small(**more):
    import m3
    import trainer
    torch.manual_seed(3)
    s = trainer.tiny_shape()
    for k, v in more.items():
        setattr(s, k, v)
    return m3.M3(s)


# ---- Tests ----

def test_rows():
    import rows
    with tempfile.TemporaryDirectory() as d:
        stand_in(os.path.join(d, "a"), {512: 6, 4096: 2})
        stand_in(os.path.join(d, "b"), {512: 3}, 2)
        got = rows.Rows(d)
        assert got.count(512) == 9 and got.count(4096) == 2
        ids, weights = got.take(512, [0, 8])
        target, weight = rows.targets(ids, weights, 0.05)
        assert (target[:, :-1] == ids[:, 1:]).all() and set(np.unique(weight)) == {0, np.float32(0.05), 1}
        assert (weight[:, -1] == 0).all() and ((weights[:, 1:] == 1) == (weight[:, :-1] == 1)).all()
        ids, weights = got.take(4096, [0, 1])
        at = rows.sample(weights, 64, np.random.default_rng(1))
        assert at.shape == (2, 64) and (np.diff(at) >= 0).all() and at.min() >= 2047
        assert (np.take_along_axis(weights[:, 1:], at.clip(max=4094), 1) == 1).mean() > 0.2
        found = rows.anchors(weights, 8, np.random.default_rng(1))
        assert (np.take_along_axis(weights, found, 1) == 1).all()


def test_quantisers():
    """Packing against the NumPy twin of `hayate quantize`, bit for bit."""
    import quant
    import quant_ref
    for scale in (1e-3, 1.0, 300.0):
        w = torch.randn(32, 64, generator=torch.Generator().manual_seed(7)) * scale
        w[3] = 0
        w[4, :16] *= 1e-4
        codes, scales = quant.mxfp8_pack(w)
        ours, theirs = (codes.view(torch.uint8).numpy(), scales.numpy()), quant_ref.mxfp8(w.numpy())
        assert all((a == b).all() for a, b in zip(ours, theirs)), "mxfp8"
        assert (quant.mxfp8(w).bfloat16().float() == quant.mxfp8(w)).all()
        packed, scales, whole = quant.nvfp4_pack(w, w.abs().amax())
        theirs = quant_ref.nvfp4(w.numpy(), w.abs().max().item())
        assert (packed.numpy() == theirs[0]).all(), "nvfp4 codes"
        assert (scales.view(torch.uint8).numpy() == theirs[1]).all(), "nvfp4 scales"
        assert whole.item() == theirs[2]
        back = quant.nvfp4_unpack(packed, scales, whole)
        assert torch.equal(back, quant.nvfp4(w, w.abs().amax()))
        # the cache: the same groups without a factor
        x = (w * 4).bfloat16().float()
        unit = np.maximum(quant_ref.nearest(quant_ref.E4M3, np.abs(x.numpy().reshape(32, 4, 16)).max(-1) / np.float32(6)), 1)
        unit = quant_ref.E4M3.astype(np.float32)[unit][..., None]
        value = quant_ref.E2M1[quant_ref.nearest(quant_ref.E2M1, np.abs(x.numpy().reshape(32, 4, 16)) / unit)] * unit
        assert (quant.nvfp4_cache(x).abs().numpy() == value.reshape(32, 64)).all(), "cache"


def test_attention():
    """Chunked, flexible and plainly masked attention over a selection agree, gradients too."""
    import torch.nn.functional as F

    import sparse
    s = small().s
    g = torch.Generator().manual_seed(5)
    b, length, d = 2, 1024, s.head_dim
    new = lambda *n: torch.randn(*n, generator=g)                                           # noqa: E731
    iq, ik = new(b, length, s.kv_heads, d), new(b, length, d)
    ik[:, :256] = ik[:, :128].repeat(1, 2, 1)               # two equal blocks: the lower one wins
    selected = sparse.select(s, iq, ik)
    plain = torch.einsum("blgd,bmd->bglm", iq, ik).masked_fill(~torch.ones(length, length, dtype=torch.bool).tril(),
                                                               -float("inf"))
    score = plain.unflatten(-1, (-1, s.block)).amax(-1)
    for i, h, p in ((0, 0, 100), (1, 1, 511), (0, 1, 700), (1, 0, 1023)):
        n = p // s.block + 1
        order = sorted(range(n), key=lambda x: (x != n - 1, -score[i, h, p, x].item(), x))[:s.blocks]
        assert selected[i, h, p].nonzero().flatten().tolist() == sorted(order)
    q, k, v = (new(b, n, length, d).requires_grad_() for n in (s.heads, s.kv_heads, s.kv_heads))
    mask = sparse.token_mask(selected, s.block, 0, length, length, s.heads // s.kv_heads)
    up = new(b, s.heads, length, d)

    def both(out):
        return (out, *torch.autograd.grad(out, (q, k, v), up))

    wanted = both(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True))
    for x, y in zip(both(sparse.chunked(q, k, v, selected, s.block)), wanted):
        assert (x - y).abs().max() < 2e-4 * y.abs().max().clamp(min=1)
    with torch.no_grad():                                   # FlexAttention has no gradients on a CPU
        compiled = torch.compile(sparse.flex, backend="aot_eager", dynamic=False, fullgraph=True)
        for run in (sparse.flex, compiled, compiled):
            assert (run(q.detach(), k.detach(), v.detach(), selected, s.block) - wanted[0]).abs().max() < 2e-4
    torch._dynamo.reset()


def test_divergence():
    """Perfect scores have no divergence; the gradient leads there."""
    import sparse
    s = small().s
    g = torch.Generator().manual_seed(6)
    length, d = 1024, s.head_dim
    k = torch.randn(1, s.kv_heads, length, d, generator=g)
    rows = torch.tensor([[700, 1000, 1023]])
    q = 3 * torch.randn(1, s.kv_heads, length, d, generator=g).repeat_interleave(s.heads // s.kv_heads, 1)
    iq = torch.zeros(1, length, s.kv_heads, d, requires_grad=True)
    ik = torch.randn(1, length, d, generator=g)
    first, optimiser = None, torch.optim.Adam([iq], 0.3)
    for _ in range(150):
        loss, mass, caught = sparse.divergence(s, q, k, iq, ik, rows)
        first = first if first is not None else (loss / mass).item()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert (loss / mass).item() < 0.1 * first, (first, (loss / mass).item())
    assert 0 < mass.item() <= 3 * s.kv_heads and caught <= mass + 1e-4
    assert (iq.grad[0, :700] == 0).all() and (iq.grad[0, 700] != 0).any()


def test_lengths():
    """Texts in one batch do not see each other, and rows up to the limit attend to everything."""
    import sparse
    model = small().eval()
    ids = torch.randint(0, 1900, (1024 + 256,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        both, _, _ = model(ids, [(1, 1024), (2, 128)])
        one, _, _ = model(ids[:1024], [(1, 1024)])
        short, _, _ = model(ids[1024:1152], [(1, 128)])
        dense, _, _ = model(ids[:1024], [(1, 1024)], 0, sparse.Way("dense"))
    assert torch.allclose(both[:1024], one, atol=1e-4) and torch.allclose(both[1024:1152], short, atol=1e-4)
    assert torch.allclose(one[:512], dense[:512], atol=1e-4) and not torch.allclose(one, dense, atol=1e-2)


def test_draft():
    """What a block sees: its context in the window, itself in both directions, nothing else; the names of the file."""
    import draft
    import export
    torch.manual_seed(2)
    s = draft.shape_for(small().s)
    s.window, s.block = 8, 3
    d = draft.Drafter(s)
    for at, k, seen in ((0, 0, []), (7, 0, range(0, 7)), (8, 0, range(1, 8)), (9, 2, range(4, 9))):
        mask = d.visible(torch.tensor([[at, 20]]), 32)[0, 0, k]
        assert mask[:32].nonzero().flatten().tolist() == list(seen) and mask[32:].tolist() == [True] * 3 + [False] * 3
    embed, taps = torch.randn(s.vocab, s.hidden), torch.randn(1, 32, len(s.taps) * s.hidden)
    run = lambda taps, tokens=(5, 6): d(embed, torch.tensor([tokens]), torch.tensor([[9, 20]]), taps)      # noqa: E731
    with torch.no_grad():
        u = run(taps)
        assert u.shape == (1, 2, 3, s.hidden)
        hidden, shown = taps.clone(), taps.clone()
        hidden[0, [0, 1, 9, 30]] += 1                       # outside both windows
        shown[0, 8] += 1
        assert torch.allclose(run(hidden), u, atol=1e-5)
        assert not torch.allclose(run(shown)[:, 0], u[:, 0], atol=1e-3) and torch.allclose(run(shown)[:, 1], u[:, 1], atol=1e-5)
        other = run(taps, (5, 7))                           # the other block does not notice
        assert torch.allclose(other[:, 0], u[:, 0], atol=1e-5) and not torch.allclose(other[:, 1], u[:, 1], atol=1e-3)
        for p in d.parameters():
            p.add_(0.01 * torch.randn_like(p))
        with tempfile.TemporaryDirectory() as f:
            export.export_draft(d, f)
            back = export.load_draft(f)
            assert back.s == s
            a, b = run(taps), back(embed, torch.tensor([[5, 6]]), torch.tensor([[9, 20]]), taps, 0)
            assert torch.allclose(a, b, atol=1e-4)          # trained rounding is the file's rounding


def test_free_generation():
    """Rejection sampling leaves the target's law as it is: first tokens of many rounds against the law itself."""
    import types

    import draft
    import draft_train
    torch.manual_seed(4)
    model = small()
    model.head.data.mul_(20)
    d = draft.Drafter(draft.shape_for(model.s))
    d.markov_w2.data.normal_()
    job = types.SimpleNamespace(target=model, model=d, shape=d.s, dense=None)
    job.run = types.SimpleNamespace(device="cpu", a=types.SimpleNamespace(eos=2004),
                                    autocast=lambda: torch.autocast("cpu", enabled=False))
    job.look = types.MethodType(draft_train.Job.look, job)
    texts, acceptance = draft_train.continue_freely(job, [[1, 2, 3], [4, 5, 6, 7]], 64, 24, True)
    assert all(1 <= n <= 8 for t in texts for n, _ in t) and sum(map(len, texts)) > 2 and len(acceptance) == 7


def test_cached_look():
    """A look with caches gives what the whole computation gives, and so do the drafts behind it."""
    import types

    import accepted
    import draft
    import draft_train
    import export
    import quant
    torch.manual_seed(5)
    with tempfile.TemporaryDirectory() as f:
        model = small()
        d = draft.Drafter(draft.shape_for(model.s))
        export.export(model, f)
        export.export_draft(d, f)
        cached = accepted.Job(types.SimpleNamespace(model=f))
        plain = types.SimpleNamespace(target=export.load(f).eval(), shape=d.s, dense=None, run=cached.run)
        ids, at = torch.randint(0, 1900, (2, 60)), torch.tensor([20, 31])
        with torch.no_grad():
            cached.open(2, 60)
            cached.look(ids, 2, 60)
            ids[0, 20:], ids[1, 31:] = torch.randint(0, 1900, (40,)), torch.randint(0, 1900, (29,))
            h, taps = cached.look(ids, 2, 60, at)
            want, want_taps = draft_train.Job.look(plain, ids, 2, 60)
            for i, end in enumerate((at + 8).tolist()):
                assert torch.allclose(h[i, :end], want[i, :end], atol=1e-3), (h[i, :end] - want[i, :end]).abs().max()
            tokens = ids[torch.arange(2), at][:, None]
            u = cached(plain.target.embed, tokens, at[:, None], taps)
            v = export.load_draft(f)(plain.target.embed, tokens, at[:, None], want_taps, 0)
            assert torch.allclose(u, v, atol=1e-2), (u - v).abs().max()


def test_engine():
    """The engine's reference backend computes the same from a packed folder, blocks too (needs the hayate binary)."""
    import types

    import compare
    import draft
    import export
    import quant
    if not os.path.exists(ENGINE):
        return print(f"engine: no {ENGINE}, skipped")
    model = small()
    ids = torch.randint(0, 1900, (1500,), generator=torch.Generator().manual_seed(3)).tolist()
    with tempfile.TemporaryDirectory() as d:
        export.export(model, d)
        export.export_draft(draft.Drafter(draft.shape_for(model.s)), d)
        packed = export.load(d).eval()
        a = types.SimpleNamespace(engine=ENGINE, model=d)
        for name, limit in (("unrounded", 1e-5), ("NVFP4 experts", 1e-3), ("NVFP4 cache", 1e-2)):
            quantised, flags = compare.NUMERICS[name]
            error, same = compare.compare_trace(a, packed, ids, quantised, flags)
            assert error.median() < limit, (name, error.median(), error.max())
            assert same > (0.999 if quantised == 0 else 0.9), (name, same)
        with torch.no_grad():                               # the file holds what training with all roundings computes
            x = model(torch.tensor(ids[:256]), [(1, 256)], quant.ALL)[0]
            y = packed(torch.tensor(ids[:256]), [(1, 256)], quant.SERVED)[0]
        assert compare.apart(x, y).median() < 2e-2
        names = {}
        subprocess.run([ENGINE, "synth", d, os.path.join(d, "twin"), "--drafter"], check=True, capture_output=True)
        for at in ("dspark", "twin/dspark"):
            file, = (os.path.join(d, at, n) for n in os.listdir(os.path.join(d, at)) if n.endswith(".safetensors"))
            with open(file, "rb") as f:
                head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            names[at] = {k: (v["dtype"], len(v["shape"])) for k, v in head.items() if k != "__metadata__"
                         and not any(f"layers.{i}." in k for i in (3, 4))}
        assert names["dspark"] == names["twin/dspark"], set(names["dspark"]) ^ set(names["twin/dspark"])


TESTS = [v for k, v in dict(globals()).items() if k.startswith("test_")]

if __name__ == "__main__":
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    failed = 0
    for test in TESTS:
        if sys.argv[1:] and test.__name__[5:] not in sys.argv[1:]:
            continue
        try:
            test()
            print(f"{test.__name__[5:]}: passed")
        except AssertionError as e:
            import traceback
            traceback.print_exc()
            print(f"{test.__name__[5:]}: FAILED {e}")
            failed += 1
    sys.exit(failed > 0)

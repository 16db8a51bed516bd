"""A small MiniMax-M3.1 in PyTorch: the network as published, in small numbers.

The first layers have dense attention, the others are sparse: an index branch scores blocks of 128 tokens and every group
of query heads attends to 16 of them (sparse.py). Up to 2,048 tokens these are all blocks and attention is plainly causal.

`quantised` says what is rounded as in the served model (quant.CACHE, EXPERTS, WEIGHTS): NVFP4 keys, values and index keys,
NVFP4 inputs of the routed experts, weights as MXFP8 and NVFP4. Gradients pass straight through every rounding.

A layer has three parts: `before` and `after` work on rows, whatever texts these belong to, and are compiled once for all
row lengths; between them stands attention, which knows the texts.
"""
import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F

import quant
import sparse


@dataclasses.dataclass
class Shape:
    vocab: int = 2048
    hidden: int = 256
    layers: int = 6
    dense_layers: int = 1
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 128
    rotary: int = 64
    theta: float = 5e6
    experts: int = 16
    top_k: int = 4
    expert_width: int = 128
    shared_width: int = 256
    dense_width: int = 768
    routed_scale: float = 2.0
    alpha: float = 1.702
    limit: float = 7.0
    eps: float = 1e-6
    dense_attention: int = 1        # the first layers, which have no index branch
    positions: int = 32768
    block: int = 128
    blocks: int = 16


class Norm(nn.Module):
    """RMSNorm with gain 1 + w, in fp32."""

    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(n)), eps

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class Linear(nn.Module):
    """A bias-free linear whose weight the file holds in MXFP8."""

    def __init__(self, n_in, n_out, gain=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * (gain / n_in ** 0.5))

    def forward(self, x, quantised):
        w = quant.through(self.weight, quant.mxfp8(self.weight)) if quantised & quant.WEIGHTS else self.weight
        return F.linear(x, w)


def swiglu(s, gate, up):
    gate, up = gate.clamp(max=s.limit), up.clamp(-s.limit, s.limit)
    return gate * torch.sigmoid(s.alpha * gate) * (up + 1)


class Feed(nn.Module):
    """Dense MLP and shared expert."""

    def __init__(self, s, width, gain):
        super().__init__()
        self.s = s
        self.gate_proj, self.up_proj = Linear(s.hidden, width), Linear(s.hidden, width)
        self.down_proj = Linear(width, s.hidden, gain)

    def forward(self, x, quantised):
        return self.down_proj(swiglu(self.s, self.gate_proj(x, quantised), self.up_proj(x, quantised)), quantised)


class Experts(nn.Module):
    """Router, routed experts and the shared expert. All experts run on all tokens: at this size that is the fast way."""

    def __init__(self, s, gain):
        super().__init__()
        self.s = s
        e, i, h = s.experts, s.expert_width, s.hidden
        self.gate = nn.Parameter(torch.randn(e, h) * h ** -0.5)
        self.register_buffer("bias", torch.zeros(e))
        self.w1 = nn.Parameter(torch.randn(e, i, h) * h ** -0.5)                  # gate
        self.w3 = nn.Parameter(torch.randn(e, i, h) * h ** -0.5)                  # up
        self.w2 = nn.Parameter(torch.randn(e, h, i) * (gain * i ** -0.5))         # down
        self.shared = Feed(s, s.shared_width, gain)

    def amax(self):
        """Largest weight of w1 and w3 together, and of w2, per expert [E, 1, 1]."""
        both = torch.maximum(self.w1.abs().amax((1, 2), keepdim=True), self.w3.abs().amax((1, 2), keepdim=True))
        return both, self.w2.abs().amax((1, 2), keepdim=True)

    def route(self, h):
        """h [N, H] fp32 -> weights [N, E] that sum to 1 over the chosen experts, and the chosen ones as 0/1 [N, E]."""
        with torch.autocast(h.device.type, enabled=False):
            sig = torch.sigmoid(F.linear(h, self.gate))
        chosen = (sig.detach() + self.bias).topk(self.s.top_k, -1).indices
        mask = torch.zeros_like(sig).scatter(-1, chosen, 1.0)
        w = sig * mask
        return w / w.sum(-1, keepdim=True), mask

    def forward(self, h, quantised):
        s = self.s
        weights, mask = self.route(h)
        w1, w3, w2, x, undo = self.w1, self.w3, self.w2, h, None
        if quantised & quant.WEIGHTS:
            a13, a2 = self.amax()
            w1, w3, w2 = (quant.through(w, quant.nvfp4(w, a)) for w, a in ((w1, a13), (w3, a13), (w2, a2)))
        if quantised & quant.EXPERTS:
            q, undo = quant.nvfp4_rows(h)
            x = quant.through(h / undo, q)
        gate, up = F.linear(x, w1.flatten(0, 1)).float(), F.linear(x, w3.flatten(0, 1)).float()       # [N, E * I]
        if undo is not None:
            gate, up = gate * undo.detach(), up * undo.detach()
        z = swiglu(s, gate, up)
        if quantised & quant.EXPERTS:
            z = quant.through(z, quant.nvfp4_inner(z))
        z = (z.unflatten(-1, (s.experts, -1)) * weights.unsqueeze(-1)).flatten(-2)
        routed = F.linear(z, w2.transpose(0, 1).flatten(1, 2))                                        # [H, E * I]
        return routed.float() * s.routed_scale + self.shared(h, quantised), mask.mean(0)


def rotate(x, cos, sin):
    """x [N, heads, 128] fp32; the first 64 dimensions turn in pairs (j, j + 32)."""
    n = cos.shape[-1]
    a, b, rest = x[..., :n], x[..., n:2 * n], x[..., 2 * n:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def rotary_table(s, positions):
    """positions [N] -> cos, sin [N, 1, 32], angles in fp32."""
    freq = 1.0 / s.theta ** (torch.arange(0, s.rotary, 2, dtype=torch.float32, device=positions.device) / s.rotary)
    angle = positions.float()[:, None] * freq
    return angle.cos()[:, None], angle.sin()[:, None]


class Index(nn.Module):
    """The branch that scores blocks: one query for each group of heads, one key that all share. The trunk gets no
    gradient from it."""

    def __init__(self, s):
        super().__init__()
        self.s = s
        self.q_proj, self.k_proj = Linear(s.hidden, s.kv_heads * s.head_dim), Linear(s.hidden, s.head_dim)
        self.q_norm, self.k_norm = Norm(s.head_dim, s.eps), Norm(s.head_dim, s.eps)

    def forward(self, h, cos, sin, quantised):
        """-> queries [N, groups, d], keys [N, d]"""
        h = h.detach()
        q = self.q_proj(h, quantised)
        kind = q.dtype
        q = rotate(self.q_norm(q.unflatten(-1, (self.s.kv_heads, -1))), cos, sin)
        k = rotate(self.k_norm(self.k_proj(h, quantised).unflatten(-1, (1, -1))), cos, sin)
        if quantised & quant.CACHE:
            k = quant.through(k, quant.nvfp4_cache(k))
        return q.to(kind), k.to(kind).squeeze(1)


class Attention(nn.Module):
    def __init__(self, s, sparse_attention, gain):
        super().__init__()
        self.s = s
        d = s.head_dim
        self.q_proj, self.k_proj = Linear(s.hidden, s.heads * d), Linear(s.hidden, s.kv_heads * d)
        self.v_proj, self.o_proj = Linear(s.hidden, s.kv_heads * d), Linear(s.heads * d, s.hidden, gain)
        self.q_norm, self.k_norm = Norm(d, s.eps), Norm(d, s.eps)
        self.index = Index(s) if sparse_attention else None

    def project(self, h, cos, sin, quantised):
        """h [N, H] -> q [N, heads, d], k and v [N, kv_heads, d]"""
        s, d = self.s, self.s.head_dim
        q = self.q_proj(h, quantised)
        kind = q.dtype                                      # bf16 under autocast
        q = rotate(self.q_norm(q.unflatten(-1, (s.heads, d))), cos, sin)
        k = rotate(self.k_norm(self.k_proj(h, quantised).unflatten(-1, (s.kv_heads, d))), cos, sin)
        v = self.v_proj(h, quantised).unflatten(-1, (s.kv_heads, d)).float()
        if quantised & quant.CACHE:
            k, v = quant.through(k, quant.nvfp4_cache(k)), quant.through(v, quant.nvfp4_cache(v))
        return q.to(kind), k.to(kind), v.to(kind)


class Layer(nn.Module):
    def __init__(self, s, moe, sparse_attention):
        super().__init__()
        gain = (2 * s.layers) ** -0.5
        self.s, self.moe = s, moe
        self.input_layernorm, self.post_attention_layernorm = Norm(s.hidden, s.eps), Norm(s.hidden, s.eps)
        self.attention = Attention(s, sparse_attention, gain)
        self.feed = Experts(s, gain) if moe else Feed(s, s.dense_width, gain)

    def before(self, x, cos, sin, quantised, index):
        """-> q, k, v, and the index branch's q and k, or None for them"""
        h = self.input_layernorm(x)
        q, k, v = self.attention.project(h, cos, sin, quantised)
        iq, ik = self.attention.index(h, cos, sin, quantised) if index and self.attention.index else (None, None)
        return q, k, v, iq, ik

    def after(self, x, attended, quantised):
        x = x + self.attention.o_proj(attended, quantised)
        h = self.post_attention_layernorm(x)
        if self.moe:
            y, load = self.feed(h, quantised)
            return x + y, load
        return x + self.feed(h, quantised), None

    def compile(self):
        self.before, self.after = torch.compile(self.before), torch.compile(self.after)


class M3(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.embed = nn.Parameter(torch.randn(s.vocab, s.hidden) * 0.5)
        self.layers = nn.ModuleList(Layer(s, i >= s.dense_layers, i >= s.dense_attention) for i in range(s.layers))
        self.norm = Norm(s.hidden, s.eps)
        self.head = nn.Parameter(torch.randn(s.vocab, s.hidden) * 0.02)

    def forward(self, ids, layout, quantised=0, way=None, taps=()):
        """ids [N]: the rows of all texts one after the other; layout [(texts, length), ...] says where they end.

        -> hidden rows after the last norm [N, H] fp32, the loads of the MoE layers [L, E], and the residual rows after
        the layers that `taps` names. `way` says how sparse layers attend (sparse.Way); None: as served."""
        way = way or sparse.Way("sparse")
        positions = torch.cat([torch.arange(n, device=ids.device).repeat(m) for m, n in layout])
        cos, sin = rotary_table(self.s, positions)
        table = quant.through(self.embed, self.embed.bfloat16().float()) if quantised & quant.WEIGHTS else self.embed
        x, loads, kept = F.embedding(ids, table), [], []
        for i, layer in enumerate(self.layers):
            index = way.needs_index(self.s, layout) and layer.attention.index is not None
            q, k, v, iq, ik = layer.before(x, cos, sin, quantised, index)
            x, load = layer.after(x, way.attend(self.s, i, layout, q, k, v, iq, ik), quantised)
            if load is not None:
                loads.append(load)
            if i in taps:
                kept.append(x)
        return self.norm(x), torch.stack(loads) if loads else None, kept

    def logits(self, h):
        return F.linear(h, self.head).float()

    def balance(self, loads, rate):
        """Moves every router bias a step towards equal load."""
        for layer, load in zip((x for x in self.layers if x.moe), loads):
            b = layer.feed.bias
            b += rate * torch.sign(1.0 / load.shape[-1] * self.s.top_k - load)
            b -= b.mean()

"""A small MiniMax-M3.1 in PyTorch: the network as published, in small numbers.

All layers are sparse in the published sense: they carry an indexer that picks 16 blocks of 128 tokens. Up to 2,048
tokens these are all blocks, so here, where texts are shorter, attention is dense and causal and the indexer's weights
are carried along untrained.

`quantised` turns on what the served model will do. 1: NVFP4 activations of the routed experts, NVFP4 keys and values.
2: also the rounding of weights, MXFP8 linears and NVFP4 experts; for weights that a file has rounded already, use 1.
Gradients pass straight through every rounding.
"""
import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F

import quant


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
    positions: int = 16384
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
        w = quant.through(self.weight, quant.mxfp8(self.weight)) if quantised == 2 else self.weight
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
        if quantised == 2:
            a13, a2 = self.amax()
            w1, w3, w2 = (quant.through(w, quant.nvfp4(w, a)) for w, a in ((w1, a13), (w3, a13), (w2, a2)))
        if quantised:
            q, undo = quant.nvfp4_rows(h)
            x = quant.through(h / undo, q)
        gate, up = F.linear(x, w1.flatten(0, 1)).float(), F.linear(x, w3.flatten(0, 1)).float()       # [N, E * I]
        if undo is not None:
            gate, up = gate * undo.detach(), up * undo.detach()
        z = swiglu(s, gate, up)
        if quantised:
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


class Attention(nn.Module):
    def __init__(self, s, gain):
        super().__init__()
        self.s = s
        d = s.head_dim
        self.q_proj, self.k_proj = Linear(s.hidden, s.heads * d), Linear(s.hidden, s.kv_heads * d)
        self.v_proj, self.o_proj = Linear(s.hidden, s.kv_heads * d), Linear(s.heads * d, s.hidden, gain)
        self.q_norm, self.k_norm = Norm(d, s.eps), Norm(d, s.eps)
        self.register_buffer("index_q_proj", torch.randn(s.kv_heads * d, s.hidden) * s.hidden ** -0.5)
        self.register_buffer("index_k_proj", torch.randn(d, s.hidden) * s.hidden ** -0.5)
        self.register_buffer("index_q_norm", torch.zeros(d))
        self.register_buffer("index_k_norm", torch.zeros(d))

    def forward(self, h, cos, sin, layout, quantised, cache=None):
        """h [N, H]: the rows of all texts one after the other; layout [(texts, length), ...] says where they end."""
        s, d = self.s, self.s.head_dim
        q = self.q_proj(h, quantised)
        kind = q.dtype                                      # bf16 under autocast
        q = rotate(self.q_norm(q.unflatten(-1, (s.heads, d))), cos, sin)
        k = rotate(self.k_norm(self.k_proj(h, quantised).unflatten(-1, (s.kv_heads, d))), cos, sin)
        v = self.v_proj(h, quantised).unflatten(-1, (s.kv_heads, d)).float()
        if quantised:
            k, v = quant.through(k, quant.nvfp4_cache(k)), quant.through(v, quant.nvfp4_cache(v))
        group = s.heads // s.kv_heads
        q, k, v = q.to(kind), k.to(kind), v.to(kind)
        if cache is not None:
            return self.o_proj(cache.attend(self, q, k, v), quantised)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out, at = [], 0
        for texts, length in layout:
            part = [x[at:at + texts * length].unflatten(0, (texts, length)).transpose(1, 2) for x in (q, k, v)]
            out.append(F.scaled_dot_product_attention(*part, is_causal=True).transpose(1, 2).flatten(0, 1))
            at += texts * length
        return self.o_proj(torch.cat(out).flatten(-2), quantised)


class Cache:
    """Keys and values of a batch of texts that grow at their own lengths; for evaluation."""

    def __init__(self, s, texts, length, device):
        self.s, self.length, self.rows = s, length, {}
        self.make = lambda: torch.zeros(texts, length, s.kv_heads, s.head_dim, device=device)
        self.positions = None                               # [texts, new]: where the new rows of the running call stand

    def attend(self, layer, q, k, v):
        """q, k, v [texts * new, heads, d] -> [texts * new, heads * d]."""
        if layer not in self.rows:
            self.rows[layer] = self.make(), self.make()
        keys, values = self.rows[layer]
        texts, new = self.positions.shape
        at = torch.arange(texts, device=q.device)[:, None]
        keys[at, self.positions] = k.unflatten(0, (texts, new))
        values[at, self.positions] = v.unflatten(0, (texts, new))
        reach = int(self.positions.max()) + 1
        seen = torch.arange(reach, device=q.device) <= self.positions[:, :, None]         # [texts, new, reach]
        # heads of a group become more query rows
        group = self.s.heads // self.s.kv_heads
        q = q.view(texts, new, self.s.kv_heads, group, -1).permute(0, 2, 1, 3, 4).flatten(2, 3)
        out = F.scaled_dot_product_attention(q, keys[:, :reach].transpose(1, 2), values[:, :reach].transpose(1, 2),
                                             attn_mask=seen.repeat_interleave(group, 1)[:, None])
        return out.unflatten(2, (new, group)).permute(0, 2, 1, 3, 4).flatten(0, 1).flatten(1)


class Layer(nn.Module):
    def __init__(self, s, moe):
        super().__init__()
        gain = (2 * s.layers) ** -0.5
        self.moe = moe
        self.input_layernorm, self.post_attention_layernorm = Norm(s.hidden, s.eps), Norm(s.hidden, s.eps)
        self.attention = Attention(s, gain)
        self.feed = Experts(s, gain) if moe else Feed(s, s.dense_width, gain)

    def forward(self, x, cos, sin, layout, quantised, cache=None):
        x = x + self.attention(self.input_layernorm(x), cos, sin, layout, quantised, cache)
        h = self.post_attention_layernorm(x)
        if self.moe:
            y, load = self.feed(h, quantised)
            return x + y, load
        return x + self.feed(h, quantised), None


class M3(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.embed = nn.Parameter(torch.randn(s.vocab, s.hidden) * 0.5)
        self.layers = nn.ModuleList(Layer(s, i >= s.dense_layers) for i in range(s.layers))
        self.norm = Norm(s.hidden, s.eps)
        self.head = nn.Parameter(torch.randn(s.vocab, s.hidden) * 0.02)

    def forward(self, ids, layout, quantised=0, cache=None):
        """ids [N] -> hidden rows after the last norm [N, H] fp32, and the loads of the MoE layers [L, E]. With a cache,
        its positions say where the rows stand and layout is not read."""
        positions = cache.positions.flatten() if cache else torch.cat([torch.arange(n,
                device=ids.device).repeat(m) for m, n in layout])
        cos, sin = rotary_table(self.s, positions)
        table = quant.through(self.embed, self.embed.bfloat16().float()) if quantised == 2 else self.embed
        x, loads = F.embedding(ids, table), []
        for layer in self.layers:
            x, load = layer(x, cos, sin, layout, quantised, cache)
            if load is not None:
                loads.append(load)
        return self.norm(x), torch.stack(loads)

    def logits(self, h):
        return F.linear(h, self.head).float()

    def balance(self, loads, rate):
        """Moves every router bias a step towards equal load."""
        for layer, load in zip((x for x in self.layers if x.moe), loads):
            b = layer.feed.bias
            b += rate * torch.sign(1.0 / load.shape[-1] * self.s.top_k - load)
            b -= b.mean()

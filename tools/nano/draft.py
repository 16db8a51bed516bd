"""The DSpark drafter in PyTorch, under the published structure: see the names in export.py.

The target's residual rows after some of its layers are fused to one vector a position; each drafter layer makes a key and a
value of it. A block of 7 query rows, the last committed token and six times a noise token, attends to the last `window`
positions and to itself in both directions; row k's output, through the target's head, predicts the token k + 1 places on.
A Markov head adds what the previous token says about the next one, a confidence head estimates whether a draft will be
accepted. Dense everywhere; norms, rotary and SwiGLU are the target's.
"""
import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F

import m3
import quant


@dataclasses.dataclass
class Shape:
    vocab: int = 2048
    hidden: int = 256
    layers: int = 3
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 128
    rotary: int = 64
    theta: float = 5e6
    width: int = 768
    alpha: float = 1.702
    limit: float = 7.0
    eps: float = 1e-6
    window: int = 256           # published: 4096; small, so that short tests cross it
    block: int = 7
    rank: int = 64
    taps: tuple = (1, 2, 3, 4, 5)
    noise: int = 2041           # <|content_altered_placeholder|>, which no text has


def shape_for(s):
    """The drafter's shape beside a target's."""
    last = s.layers - 1
    taps = tuple(range(max(0, last - 4), last + 1))
    return Shape(vocab=s.vocab, hidden=s.hidden, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim, rotary=s.rotary,
                 theta=s.theta, width=3 * s.hidden, alpha=s.alpha, limit=s.limit, eps=s.eps, taps=taps)


def rounded(p):
    """A weight that the file holds in bf16."""
    return quant.through(p, p.bfloat16().float())


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        gain, d = (2 * s.layers) ** -0.5, s.head_dim
        self.input_layernorm, self.post_attention_layernorm = m3.Norm(s.hidden, s.eps), m3.Norm(s.hidden, s.eps)
        self.q_proj, self.k_proj = m3.Linear(s.hidden, s.heads * d), m3.Linear(s.hidden, s.kv_heads * d)
        self.v_proj, self.o_proj = m3.Linear(s.hidden, s.kv_heads * d), m3.Linear(s.heads * d, s.hidden, gain)
        self.q_norm, self.k_norm = m3.Norm(d, s.eps), m3.Norm(d, s.eps)
        self.feed = m3.Feed(s, s.width, gain)

    def keys_values(self, c, turn, quantised):
        """Of rows [B, R, H]: [B, kv, R, d] each."""
        k = m3.rotate(self.k_norm(self.k_proj(c, quantised).unflatten(-1, (self.s.kv_heads, -1))), *turn)
        v = self.v_proj(c, quantised).unflatten(-1, (self.s.kv_heads, -1))
        return k.to(v.dtype).transpose(1, 2), v.transpose(1, 2)

    def forward(self, x, turn, context, mask, quantised):
        """x [B, R, H]; context: keys and values [B, kv, L, d]; mask [B, 1, R, L + R]"""
        h = self.input_layernorm(x)
        q = self.q_proj(h, quantised)
        kind = q.dtype
        q = m3.rotate(self.q_norm(q.unflatten(-1, (self.s.heads, -1))), *turn).to(kind).transpose(1, 2)
        k, v = (torch.cat(pair, 2).repeat_interleave(self.s.heads // self.s.kv_heads, 1)
                for pair in zip(context, self.keys_values(h, turn, quantised)))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = x + self.o_proj(a, quantised)
        return x + self.feed(self.post_attention_layernorm(x), quantised)


class Drafter(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        n = len(s.taps) * s.hidden
        self.fc = nn.Parameter(torch.randn(s.hidden, n) * n ** -0.5)
        self.hidden_norm, self.final_norm = m3.Norm(s.hidden, s.eps), m3.Norm(s.hidden, s.eps)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.markov_w1 = nn.Parameter(torch.randn(s.vocab, s.rank) * 0.1)
        self.markov_w2 = nn.Parameter(torch.zeros(s.vocab, s.rank))
        self.confidence, self.confidence_bias = nn.Parameter(torch.zeros(1, s.hidden + s.rank)), nn.Parameter(torch.zeros(1))

    def turn(self, positions):
        """Cosines and sines [B, R, 1, 32] of positions [B, R]."""
        cos, sin = m3.rotary_table(self.s, positions.flatten())
        return cos.unflatten(0, positions.shape), sin.unflatten(0, positions.shape)

    def context(self, taps, quantised):
        """The fused rows of taps [B, L, taps * H]: (keys, values) a layer, at positions 0 .. L-1."""
        c = self.hidden_norm(F.linear(taps, rounded(self.fc)))
        turn = self.turn(torch.arange(taps.shape[1], device=taps.device).expand(taps.shape[:2]))
        return [layer.keys_values(c, turn, quantised) for layer in self.layers]

    def visible(self, at, length):
        """bool [B, 1, A * block, length + A * block] for blocks that start at positions at [B, A]"""
        s, (texts, blocks) = self.s, at.shape
        place = (at[..., None] + torch.arange(s.block, device=at.device)).flatten(1)
        key = torch.arange(length, device=at.device)
        context = (key > place[..., None] - s.window) & (key < at.repeat_interleave(s.block, 1)[..., None])
        number = torch.arange(blocks, device=at.device).repeat_interleave(s.block)
        own = (number[:, None] == number).expand(texts, -1, -1)
        return torch.cat((context, own), -1)[:, None]

    def forward(self, embed, tokens, at, taps, quantised=quant.WEIGHTS):
        """embed: the target's table; tokens [B, A]: the tokens at positions at [B, A] -> final rows [B, A, block, H] fp32"""
        s = self.s
        ids = torch.full((*at.shape, s.block), s.noise, device=at.device)
        ids[..., 0] = tokens
        x = F.embedding(ids.flatten(1), embed)
        turn = self.turn((at[..., None] + torch.arange(s.block, device=at.device)).flatten(1))
        mask = self.visible(at, taps.shape[1])
        for layer, context in zip(self.layers, self.context(taps, quantised)):
            x = layer(x, turn, context, mask, quantised)
        return self.final_norm(x).unflatten(1, at.shape[1:] + (s.block,))

    def follow(self, previous):
        """What the previous tokens [...] add to the logits [..., vocab]."""
        return F.linear(F.embedding(previous, rounded(self.markov_w1)), rounded(self.markov_w2)).float()

    def sure(self, u, previous):
        """The confidence head's logits [...] for final rows u [..., H]."""
        w = rounded(self.confidence)[0]
        first = torch.cat((u, F.embedding(previous, rounded(self.markov_w1))), -1)
        return (first.float() * w).sum(-1) + rounded(self.confidence_bias)

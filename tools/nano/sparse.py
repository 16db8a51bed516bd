"""Attention over selected blocks, and the training of the index branch that selects them.

For every row and group of query heads a block's score is the largest index_q . index_k of its tokens. The row's own block
is always selected, the others by score, ties to the lower block, 16 in all. The index branch learns by the divergence
between the attention mass of a block and the softmax over scores, on a sample of rows.
"""
import dataclasses

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

ROWS = 1024                     # query rows whose scores are in memory together


def products(q, k):
    """[B, n, d] x [B, d, m] in fp32; of bf16 inputs where the machine can sum them in fp32"""
    if q.is_cuda and q.dtype == torch.bfloat16:
        try:
            return torch.bmm(q, k, out_dtype=torch.float32)
        except (RuntimeError, TypeError, NotImplementedError):
            return torch.bmm(q, k).float()
    return torch.bmm(q.float(), k.float())


def block_scores(iq, ik, block, first):
    """iq [B, R, G, d], the rows first, first + 1, ...; ik [B, L, d] -> [B, G, R, blocks], the largest score of each block.
    Only blocks below a row's own are complete; what the others hold is meaningless."""
    b, r, g, d = iq.shape
    end = min(ik.shape[1], (first + r + block - 1) // block * block)
    q, k = iq.transpose(1, 2).reshape(b, g * r, d), ik[:, :end].transpose(1, 2)
    scores = products(q, k)
    scores = F.pad(scores, (0, -end % block), value=-float("inf"))
    return scores.unflatten(-1, (-1, block)).amax(-1).unflatten(1, (g, r))


@torch.no_grad()
def select(s, iq, ik):
    """iq [B, L, G, d], ik [B, L, d] -> bool [B, G, L, blocks]"""
    b, length, g, _ = iq.shape
    blocks = (length + s.block - 1) // s.block
    out = torch.zeros(b, g, length, blocks, dtype=torch.bool, device=iq.device)
    number = torch.arange(blocks, device=iq.device)
    for first in range(0, length, ROWS):
        last = min(first + ROWS, length)
        scores = block_scores(iq[:, first:last], ik, s.block, first)
        seen = scores.shape[-1]
        own = (torch.arange(first, last, device=iq.device) // s.block)[:, None]
        scores = scores.masked_fill(number[:seen] == own, float("inf")).masked_fill(number[:seen] > own, -float("inf"))
        order = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :s.blocks]
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, True)
        out[:, :, first:last, :seen] = chosen & (number[:seen] <= own)
    return out


# ---- Attention ----

def causal(q, k, v):
    """[B, heads, L, d] and [B, kv_heads, L, d]"""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def token_mask(selected, block, first, last, length, group):
    """bool [B, G, last - first, blocks] -> [B, heads, last - first, length] with the causal part"""
    mask = selected.repeat_interleave(block, -1)[..., :length]
    at = torch.arange(first, last, device=mask.device)[:, None] >= torch.arange(length, device=mask.device)
    return (mask & at).repeat_interleave(group, 1)


def chunked(q, k, v, selected, block, rows=512):
    """Masked attention, a run of rows at a time; the masks are made again for the backward pass."""
    group, length = q.shape[1] // k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    def run(q, k, v, picked, first, last):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=token_mask(picked, block, first, last, last, group))

    out = []
    for first in range(0, length, rows):
        last = min(first + rows, length)
        part = (q[:, :, first:last], k[:, :, :last], v[:, :, :last], selected[:, :, first:last], first, last)
        out.append(checkpoint(run, *part, use_reentrant=False) if torch.is_grad_enabled() else run(*part))
    return torch.cat(out, 2)


def flex(q, k, v, selected, block):
    """The same through FlexAttention. Tiles of 128 rows are skipped where none of their rows selected the block."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention
    b, g, length, blocks = selected.shape
    group = q.shape[1] // g
    tiles = selected.unflatten(2, (-1, block)).any(3).repeat_interleave(group, 1)          # [B, heads, rows / 128, blocks]
    count = tiles.sum(-1, dtype=torch.int32)
    order = torch.argsort(tiles.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32)

    def visible(i, h, row, key):
        return (key <= row) & selected[i, h // group, row, key // block]

    mask = BlockMask.from_kv_blocks(count, order, None, None, BLOCK_SIZE=block, mask_mod=visible,
                                    seq_lengths=(length, length))
    return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)


# ---- The index branch's loss ----

def divergence(s, q, k, iq, ik, rows, selected=None):
    """Block mass against block scores for sampled rows.

    q [B, heads, L, d], k [B, kv, L, d] without gradient; iq [B, L, G, d], ik [B, L, d]; rows [B, R] ascending positions;
    selected bool [B, G, L, blocks] limits it to these blocks. The row's own block is left out, it is never in question;
    rows count as much as their mass outside it. -> sum of mass * divergence, sum of mass, and the mass that the best 15
    blocks by score hold (detached)."""
    b, r = rows.shape
    g, length, blocks = s.kv_heads, k.shape[2], (k.shape[2] + s.block - 1) // s.block
    at = torch.arange(b, device=rows.device)[:, None]
    own = (rows // s.block)[:, None, :, None]                                               # [B, 1, R, 1]
    number = torch.arange(blocks, device=rows.device)
    with torch.no_grad():
        picked = q.transpose(1, 2)[at, rows].unflatten(2, (g, -1)).permute(0, 2, 3, 1, 4)   # [B, G, heads / G, R, d]
        scores = torch.matmul(picked, k.unsqueeze(2).transpose(-1, -2)).float() * s.head_dim ** -0.5
        scores.masked_fill_(torch.arange(length, device=rows.device) > rows[:, None, None, :, None], -float("inf"))
        mass = F.pad(torch.softmax(scores, -1), (0, -length % s.block)).unflatten(-1, (-1, s.block)).sum(-1).mean(2)
        del scores
        open_blocks = (number < own).expand_as(mass)
        if selected is not None:
            picked = selected.transpose(1, 2)[at, rows].transpose(1, 2)                     # [B, G, R, blocks]
            open_blocks = open_blocks & picked
        mass = mass * open_blocks
        total = mass.sum(-1, keepdim=True)
        target = mass / total.clamp(min=1e-9)
    score = torch.matmul(iq[at, rows].transpose(1, 2), ik[:, None].transpose(-1, -2)).float()   # [B, G, R, L]
    score = F.pad(score, (0, -length % s.block), value=-1e30).unflatten(-1, (-1, s.block)).amax(-1)
    score = score.masked_fill(~open_blocks, -1e30)
    law = torch.log_softmax(score * s.head_dim ** -0.5, -1)
    apart = (target * (target.clamp(min=1e-9).log() - law)).sum(-1) * total.squeeze(-1)
    with torch.no_grad():
        best = score.topk(min(s.blocks - 1, blocks), -1).indices
        caught = (mass.gather(-1, best)).sum()
    return apart.sum(), total.sum(), caught


@dataclasses.dataclass
class Way:
    """How sparse layers attend in a forward pass, and what the index branch's loss needs.

    kind "dense": all keys; "sparse": as served; "random": 15 blocks by a seeded draw, to show what selection is worth.
    rows: {length: [texts, R]}, the sampled rows of the texts of that length; None: no loss. limit: the loss looks only at
    selected blocks."""
    kind: str = "sparse"
    rows: dict = None
    limit: bool = False
    kernel: str = "chunked"      # or "flex"
    compiled: object = None      # compiled flex
    compiled_divergence: object = None
    dense: object = None         # the plain attention to use; None: causal
    watch: object = None         # called with (layer, bool [B, G, L, blocks])

    def __post_init__(self):
        self.loss, self.mass, self.caught = [], [], []

    def long(self, s, length):
        return length > s.block * s.blocks

    def needs_index(self, s, layout):
        return any(self.long(s, n) and (self.kind != "dense" or self.rows) for _, n in layout) or self.watch is not None

    def attend(self, s, layer, layout, q, k, v, iq, ik):
        """All [N, ...] -> [N, heads * d]"""
        out, at = [], 0
        for texts, length in layout:
            def part(x):
                return None if x is None else x[at:at + texts * length].unflatten(0, (texts, length))
            pq, pk, pv = (part(x).transpose(1, 2) for x in (q, k, v))
            piq, pik = part(iq), part(ik)
            out.append(self.one(s, layer, length, pq, pk, pv, piq, pik).transpose(1, 2).flatten(0, 1))
            at += texts * length
        return (torch.cat(out) if len(out) > 1 else out[0]).flatten(-2)

    def one(self, s, layer, length, q, k, v, iq, ik):
        plain = self.dense or causal
        if iq is None or not self.long(s, length) and not self.watch:
            return plain(q, k, v)
        selected = None
        if self.kind != "dense" or self.watch:
            if self.kind == "random":
                g = torch.Generator(q.device).manual_seed(layer)
                noise = torch.randn(iq.shape, device=q.device, generator=g).to(iq.dtype)
                selected = select(s, noise, torch.randn(ik.shape, device=q.device, generator=g).to(ik.dtype))
            else:
                selected = select(s, iq, ik)
            if self.watch:
                self.watch(layer, selected)
        if self.rows is not None and length in self.rows:
            one = self.compiled_divergence or divergence
            loss, mass, caught = one(s, q.detach(), k.detach(), iq, ik, self.rows[length],
                                     selected if self.limit and self.kind != "dense" else None)
            self.loss.append(loss), self.mass.append(mass.detach()), self.caught.append(caught)
        if self.kind == "dense" or not self.long(s, length):
            return plain(q, k, v)
        if self.kernel == "flex":
            return (self.compiled or flex)(q, k, v, selected, s.block)
        return chunked(q, k, v, selected, s.block)

    def index_loss(self):
        """The layers' mean divergence by mass, and the share of mass that selection catches."""
        if not self.loss:
            return None, None
        mass = torch.stack(self.mass).clamp(min=1e-6)
        return (torch.stack(self.loss) / mass).sum(), (torch.stack(self.caught) / mass).mean()

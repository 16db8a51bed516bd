"""The number formats of MiniMax-M3.1 in PyTorch: quantise-and-decode for training, packing for the file.

E2M1 has the magnitudes 0 .5 1 1.5 2 3 4 6; E4M3 is torch.float8_e4m3fn; E8M0 is a power of two. All rounding is to
nearest, ties to even. `through` passes gradients straight through a rounding.
"""
import torch

# What a forward pass rounds: the cache, the inputs of routed experts' matrices, the weights. Weights of a packed file are
# rounded already: SERVED then is what the engine computes.
CACHE, EXPERTS, WEIGHTS = 1, 2, 4
SERVED, ALL = CACHE | EXPERTS, CACHE | EXPERTS | WEIGHTS

TINY_SCALE = 1 / 512            # the smallest positive E4M3 number


def through(x, rounded):
    return x + (rounded - x).detach()


def e4m3(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn)


def e2m1(x):
    """Nearest E2M1 value, saturating at 6; the three ranges have steps 1/2, 1 and 2."""
    a = x.abs().clamp(max=6.0)
    r = torch.where(a < 2, torch.round(a * 2) * 0.5, torch.where(a < 4, torch.round(a), torch.round(a * 0.5) * 2))
    return torch.where(x < 0, -r, r)


def e2m1_code(v):
    """The 4-bit code of a value that is already E2M1; never the code of a negative zero."""
    a = v.abs()
    code = torch.where(a < 2, a * 2, torch.where(a < 4, a + 2, torch.where(a < 6, torch.full_like(a, 6.0),
            torch.full_like(a, 7.0))))
    return code.to(torch.uint8) + torch.where(v < 0, 8, 0).to(torch.uint8)


def e2m1_decode(code):
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=code.device)
    v = table[(code & 7).long()]
    return torch.where(code >= 8, -v, v)


# Cache rows: groups of 16 along the head dimension, one E4M3 scale each, no outer scale.
def nvfp4_cache(x):
    g = x.bfloat16().float().unflatten(-1, (-1, 16))
    scale = e4m3(g.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 6).float().clamp(min=TINY_SCALE)
    return (e2m1(g / scale) * scale).flatten(-2)


# MXFP8: groups of 32 inputs, the scale is the power of two at or above amax / 448, so that nothing clips.
def power(e):
    """2^e for an int32 e from -126 to 127, built from its bits and so exact."""
    return ((e + 127) << 23).view(torch.float32)


def mxfp8_exponent(amax):
    """The exponent of amax / 448 rounded up to a power of two."""
    bits = (amax.float() * (1 / 448)).view(torch.int32)
    return ((bits >> 23) + ((bits & 0x7FFFFF) != 0).int() - 127).clamp(-126, 126)


def mxfp8_parts(w):
    g = w.float().unflatten(-1, (-1, 32))
    e = mxfp8_exponent(g.abs().amax(-1, keepdim=True))
    return e4m3(g * power(-e)), e


def mxfp8(w):
    q, e = mxfp8_parts(w)
    return (q.float() * power(e)).flatten(-2)


def mxfp8_pack(w):
    """[out, in] -> E4M3 [out, in] and E8M0 bytes [out, in/32], 0 for a group of zeros."""
    q, e = mxfp8_parts(w)
    byte = torch.where(w.float().unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True) > 0, e + 127, 0)
    return q.flatten(-2), byte.to(torch.uint8).squeeze(-1)


# NVFP4 weights: groups of 16 inputs, an E4M3 scale each, and one global number per matrix that divides.
def nvfp4_parts(w, amax):
    whole = 2688.0 / amax.clamp(min=1e-12)
    g = (w.float() * whole).unflatten(-1, (-1, 16))
    scale = e4m3((g.abs().amax(-1, keepdim=True) / 6).clamp(min=TINY_SCALE))
    return e2m1(g / scale.float()), scale, whole


def nvfp4(w, amax):
    """w [experts, out, in], amax broadcasts against it."""
    v, scale, whole = nvfp4_parts(w, amax)
    return (v * scale.float()).flatten(-2) / whole


def nvfp4_pack(w, amax):
    """[out, in] -> codes two a byte (even element low) [out, in/2], E4M3 scales [out, in/16], the global number [1]."""
    v, scale, whole = nvfp4_parts(w, amax)
    code = e2m1_code(v).flatten(-2)
    return code[..., 0::2] | (code[..., 1::2] << 4), scale.squeeze(-1), whole.reshape(1).float()


def nvfp4_unpack(packed, scale, whole):
    code = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    return (e2m1_decode(code).unflatten(-1, (-1, 16)) * scale.float().unsqueeze(-1)).flatten(-2) / whole


# Activations of a routed expert: the row scaled so that its largest value is 2688, then E4M3 scales per 16.
def nvfp4_rows(x):
    """-> quantised row in scaled units, and the number that undoes the scaling."""
    row = x.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    g = (x * (2688 / row)).bfloat16().float().unflatten(-1, (-1, 16))
    scale = e4m3(g.abs().amax(-1, keepdim=True) / 6).float().clamp(min=TINY_SCALE)
    return (e2m1(g / scale) * scale).flatten(-2), (row / 2688).bfloat16().float()


def nvfp4_inner(z):
    """The input of the down projection: a fixed outer scale of 16; decoded to its true value."""
    g = z.unflatten(-1, (-1, 16))
    scale = e4m3(g.abs().amax(-1, keepdim=True) / 6 * 16).float().clamp(min=TINY_SCALE)
    return (e2m1(g / (scale / 16)) * (scale / 16)).flatten(-2)

#!/usr/bin/env python3
"""A NumPy twin of `hayate quantize`: the same tensors, bit for bit, written from the definitions of the formats alone.

Element codes are found by searching tables of values with exact ties, not by arithmetic on bits as the program does.

    quant_ref.py SRC DST [m31|mxfp8|modelopt]     quantises SRC/model*.safetensors into the file DST
"""
import json
import os
import re
import struct
import sys

import numpy as np

F32 = np.float32
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "U8": 1}
# Positive values by code: E4M3 has 4 exponent bits with bias 7 and 3 mantissa bits, E2M1 two and one with bias 1.
E4M3 = np.array([m / 8 * 2.0 ** -6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)][:127])
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def read_file(path):
    """name -> (dtype, shape, bytes) of one safetensors file, in file order."""
    raw = open(path, "rb").read()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    data = raw[8 + length:]
    order = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    return {name: (t["dtype"], tuple(t["shape"]), data[slice(*t["data_offsets"])]) for name, t in order}


def read_folder(folder):
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if re.fullmatch(r"model.*\.safetensors", name):
            tensors.update(read_file(os.path.join(folder, name)))
    return tensors


def write_file(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


def to_float(tensor):
    dtype, shape, data = tensor
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(F32).reshape(shape)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(F32).reshape(shape)


def to_bf16(x):
    """Nearest bf16 of finite fp32 numbers, ties to the even one."""
    low = x.view(np.uint32) & np.uint32(0xFFFF0000)       # the neighbour nearer to zero
    high = low + np.uint32(0x10000)
    below = np.abs(x.astype(np.float64) - low.view(F32))
    above = np.abs(high.view(F32).astype(np.float64) - x)
    odd = (low >> np.uint32(16)) & np.uint32(1)
    up = (above < below) | ((above == below) & (odd == 1))
    return (np.where(up, high, low) >> np.uint32(16)).astype("<u2")


def nearest(table, a):
    """Codes of the table values nearest to a >= 0; ties to the even code, beyond the end the last one."""
    middles = (table[1:] + table[:-1]) / 2                  # exact in double
    a = np.asarray(a, np.float64)
    code = np.searchsorted(middles, a, side="left")         # middles below a
    tie = np.searchsorted(middles, a, side="right") > code
    return np.where(tie & (code % 2 == 1), code + 1, code).astype(np.uint8)


def mxfp8(w):
    """[out, in] -> E4M3 codes [out, in] and E8M0 bytes [out, in/32]: the smallest scale that saturates nothing."""
    g = w.astype(np.float64).reshape(w.shape[0], -1, 32)
    mantissa, exponent = np.frexp(np.abs(g).max(-1) / 448)   # value = mantissa * 2^exponent, 1/2 <= mantissa < 1
    power = np.where(mantissa > 0.5, exponent, exponent - 1)  # ceil(log2(amax / 448))
    # The byte is an fp32 exponent field, one more where mantissa bits are set: at least 1 for a block that is not zero.
    scale = np.where(mantissa == 0, 0, np.clip(power + 127, 1, 254)).astype(np.uint8)
    x = np.ldexp(g, 127 - scale.astype(int)[..., None])
    code = nearest(E4M3, np.abs(x)) | np.where(np.signbit(x), 0x80, 0).astype(np.uint8)
    return code.reshape(w.shape), scale


def nvfp4(w, amax):
    """[out, in] -> packed pairs [out, in/2], E4M3 scales [out, in/16] and the factor 2688/amax."""
    factor = F32(2688) / F32(amax) if amax else F32(1)
    y = (w * factor).astype(F32).reshape(w.shape[0], -1, 16)
    scale = np.maximum(nearest(E4M3, np.abs(y).max(-1) / F32(6)), 1).astype(np.uint8)
    unit = E4M3.astype(F32)[scale][..., None]
    code = nearest(E2M1, np.abs(y) / unit)
    code |= np.where((y < 0) & (code > 0), 8, 0).astype(np.uint8)
    code = code.reshape(w.shape)
    return code[:, 0::2] | code[:, 1::2] << 4, scale, factor


def item(dtype, array):
    return dtype, array.shape, np.ascontiguousarray(array).tobytes()


def put_mxfp8(out, base, w):
    code, scale = mxfp8(w)
    out[base + ".weight"] = item("F8_E4M3", code)
    out[base + ".weight_scale_inv"] = item("U8", scale)


def put_nvfp4(out, base, w, amax, modelopt):
    packed, scale, factor = nvfp4(w, amax)
    one = np.ones((), "<f4")
    out[base + (".weight" if modelopt else ".weight_packed")] = item("U8", packed)
    out[base + ".weight_scale"] = item("F8_E4M3", scale)
    if modelopt:
        out[base + ".weight_scale_2"] = item("F32", np.array(F32(amax) / F32(2688) if amax else 1, "<f4"))
        out[base + ".input_scale"] = item("F32", one)
    else:
        out[base + ".weight_global_scale"] = item("F32", np.array([factor], "<f4"))
        out[base + ".input_global_scale"] = item("F32", one.reshape(1))


def quantise(tensors, scheme="m31"):
    """The tensors of a plain checkpoint in published names -> those of the quantised one."""
    out = {}
    for name, tensor in tensors.items():
        base = name[:-len(".weight")] if name.endswith(".weight") else None
        expert = re.fullmatch(r"(.*\.experts\.\d+)\.(w[123])", base or "")
        if not name.startswith("language_model."):
            out[name] = tensor
        elif expert and scheme != "mxfp8":
            group = ["w2"] if expert[2] == "w2" else ["w1", "w3"]
            amax = max(np.abs(to_float(tensors[f"{expert[1]}.{part}.weight"])).max() for part in group)
            put_nvfp4(out, base, to_float(tensor), amax, scheme == "modelopt")
        elif expert or (base and base.endswith("_proj")):
            put_mxfp8(out, base, to_float(tensor))
        elif name.endswith(("block_sparse_moe.gate.weight", "e_score_correction_bias")):
            out[name] = item("F32", to_float(tensor))
        else:
            out[name] = item("BF16", to_bf16(to_float(tensor)))
    return out


def main():
    source, target = sys.argv[1:3]
    write_file(target, quantise(read_folder(source), sys.argv[3] if len(sys.argv) > 3 else "m31"))


if __name__ == "__main__":
    main()

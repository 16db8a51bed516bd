#!/usr/bin/env python3
"""Holds this folder's network against the MiniMax-M3 implementation in transformers (5.17 or later), on a packed model.

    python3 check.py DIR SETS [LENGTH ...]

Both run the decoded weights in fp32 on one row of each length (default 1024 and 4096, beyond which blocks are selected) of
a set of `hayate eval --write-set`; prints the largest difference of logits and fails above 1e-3.
"""
import json
import os
import sys
import tempfile

import torch
from safetensors.torch import save_file
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as hf

import export
from rows import Rows


def theirs(folder):
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(folder, "config.json")) as f:
            config = json.load(f)
        del config["quantization_config"]
        vision = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, patch_size=14,
                      image_size=112)
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump(config | dict(torch_dtype="float32", vision_config=vision), f)
        save_file({k: v.contiguous() for k, v in export.decoded(folder).items()}, os.path.join(d, "model.safetensors"),
                  metadata={"format": "pt"})
        net, info = hf.MiniMaxM3SparseForConditionalGeneration.from_pretrained(
            d, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    missing = [k for k in info["missing_keys"] if "language_model" in k or "lm_head" in k]
    assert not missing and not info["unexpected_keys"], (missing, info["unexpected_keys"])
    return net.eval()


@torch.no_grad()
def main(folder, sets, lengths):
    model, net, sets, bad = export.load(folder).eval(), theirs(folder), Rows(sets), False
    for length in lengths:
        ids, weights = sets.take(length, [0])
        ids = torch.from_numpy(ids[0, weights[0] != 255])
        ours = model.logits(model(ids, [(1, len(ids))])[0])
        want = net(input_ids=ids[None]).logits[0]
        worst = (ours - want).abs().max().item()
        print(f"{len(ids)} tokens, largest |logit| {want.abs().max():.2f}, largest difference {worst:.2e}, "
              f"same top token {100 * (ours.argmax(-1) == want.argmax(-1)).float().mean():.1f} %", flush=True)
        bad |= worst > 1e-3
    sys.exit(bad)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(x) for x in sys.argv[3:]] or [1024, 4096])

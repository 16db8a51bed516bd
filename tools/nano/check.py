#!/usr/bin/env python3
"""Holds this folder's network against the MiniMax-M3 implementation in transformers (5.17 or later), on a packed model.

    python3 check.py DIR

Both run the decoded weights in fp32 on a conversation; prints the largest difference of logits and fails above 1e-3.
"""
import json
import os
import random
import sys
import tempfile

import torch
from safetensors.torch import save_file
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as hf

import data
import export
from tokenizer import Encoder


@torch.no_grad()
def main(folder):
    model, encoder = export.load(folder).eval(), Encoder(folder)
    ids = torch.tensor(data.make_row(random.Random(3), encoder, 512)[0])
    ours = model.logits(model(ids, [(1, len(ids))])[0])
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(folder, "config.json")) as f:
            config = json.load(f)
        del config["quantization_config"]
        config |= dict(torch_dtype="float32", vision_config=dict(hidden_size=64, intermediate_size=128,
                num_hidden_layers=1,
                                                                 num_attention_heads=2, patch_size=14, image_size=112))
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump(config, f)
        save_file({k: v.contiguous() for k, v in export.decoded(folder).items()}, os.path.join(d, "model.safetensors"),
                  metadata={"format": "pt"})
        net, info = hf.MiniMaxM3SparseForConditionalGeneration.from_pretrained(d, dtype=torch.float32,
                attn_implementation="eager",
                                                                              output_loading_info=True)
    missing = [k for k in info["missing_keys"] if "language_model" in k or "lm_head" in k]
    assert not missing and not info["unexpected_keys"], (missing, info["unexpected_keys"])
    theirs = net.eval()(input_ids=ids[None]).logits[0]
    worst = (ours - theirs).abs().max().item()
    print(f"{len(ids)} tokens, largest |logit| {theirs.abs().max():.2f}, largest difference {worst:.2e}, "
          f"same top token {100 * (ours.argmax(-1) == theirs.argmax(-1)).float().mean():.1f} %")
    sys.exit(worst > 1e-3)


if __name__ == "__main__":
    main(sys.argv[1])

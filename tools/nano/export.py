#!/usr/bin/env python3
"""Writes trained models in the layout of the published MiniMax-M3.1 checkpoint, and reads them back.

config.json in the published spelling, linears as MXFP8 with `weight_scale_inv`, routed experts as NVFP4 pack-quantised,
router weight and bias in fp32, embedding, head and norms in bf16. The drafter goes to dspark/ beside them.

    python3 nano.py export --out STATES --model DIR [--from-stage sparse|plain|drafter]
"""
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

import draft
import m3
import quant
import template as t

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENIZER = os.path.join(HERE, "tokenizer")
EOS = t.EOS
LIMIT = 25_000_000              # bytes of a folder with its drafter


def tokens(folder):
    """Added token -> id"""
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        return {a["content"]: a["id"] for a in json.load(f)["added_tokens"]}


def config(s, token):
    """config.json; token maps the added tokens to ids."""
    sparse = [0] * s.dense_attention + [1] * (s.layers - s.dense_attention)
    moe = [0] * s.dense_layers + [1] * (s.layers - s.dense_layers)
    bos, eos = token[t.BOD], token[t.EOS]
    text = dict(
        architectures=["MiniMaxM3SparseForCausalLM"], vocab_size=s.vocab, hidden_size=s.hidden,
                intermediate_size=s.expert_width,
        dense_intermediate_size=s.dense_width, shared_intermediate_size=s.shared_width, num_hidden_layers=s.layers,
        num_attention_heads=s.heads, num_key_value_heads=s.kv_heads, head_dim=s.head_dim, num_local_experts=s.experts,
        num_experts_per_tok=s.top_k, n_shared_experts=1, max_position_embeddings=s.positions, rms_norm_eps=s.eps,
        routed_scaling_factor=s.routed_scale, rotary_dim=s.rotary, partial_rotary_factor=s.rotary / s.head_dim,
                rope_theta=int(s.theta),
        hidden_act="swigluoai", swiglu_alpha=s.alpha, swiglu_limit=s.limit, use_gemma_norm=True,
                attention_output_gate=False,
        use_qk_norm=True, qk_norm_type="per_head", scoring_func="sigmoid", use_routing_bias=True, moe_layer_freq=moe,
                num_mtp_modules=0,
        tie_word_embeddings=False, bos_token_id=bos, eos_token_id=eos, dtype="bfloat16",
        sparse_attention_config=dict(
            use_sparse_attention=True, sparse_index_dim=s.head_dim, sparse_num_index_heads=s.kv_heads,
                                     sparse_topk_blocks=s.blocks,
            sparse_block_size=s.block, sparse_score_type="max", sparse_init_block=0, sparse_local_block=1,
                                     sparse_attention_freq=sparse,
            sparse_disable_index_value=sparse))
    gates = [f"language_model.model.layers.{i}.block_sparse_moe.gate" for i in range(s.layers) if moe[i]]
    return dict(
        architectures=["MiniMaxM3SparseForConditionalGeneration"], model_type="minimax_m3_vl", text_config=text,
        image_token_index=token["]<]image[>["], video_token_index=token["]<]video[>["], torch_dtype="bfloat16",
        quantization_config=dict(
            quant_method="mxfp8", activation_scheme="dynamic", weight_block_size=[1, 32], moe_quant_algo="NVFP4",
            moe_quant_format="nvfp4-pack-quantized",
            ignored_layers=["lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector",
                            "patch_merge_mlp"] + gates))


def names(model):
    """(kind, published name, tensor or tensors) of every weight; kinds are bf16, fp32, mxfp8 and nvfp4."""
    top = "language_model."
    yield "bf16", top + "model.embed_tokens.weight", model.embed
    yield "bf16", top + "lm_head.weight", model.head
    yield "bf16", top + "model.norm.weight", model.norm.weight
    for i, layer in enumerate(model.layers):
        pre = f"{top}model.layers.{i}."
        a, f = layer.attention, layer.feed
        yield "bf16", pre + "input_layernorm.weight", layer.input_layernorm.weight
        yield "bf16", pre + "post_attention_layernorm.weight", layer.post_attention_layernorm.weight
        for n in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield "mxfp8", f"{pre}self_attn.{n}.weight", getattr(a, n).weight
        yield "bf16", pre + "self_attn.q_norm.weight", a.q_norm.weight
        yield "bf16", pre + "self_attn.k_norm.weight", a.k_norm.weight
        if a.index:
            for n in ("q", "k"):
                yield "mxfp8", f"{pre}self_attn.index_{n}_proj.weight", getattr(a.index, n + "_proj").weight
                yield "bf16", f"{pre}self_attn.index_{n}_norm.weight", getattr(a.index, n + "_norm").weight
        feed = pre + ("block_sparse_moe.shared_experts." if layer.moe else "mlp.")
        for n in ("gate_proj", "up_proj", "down_proj"):
            yield "mxfp8", f"{feed}{n}.weight", getattr(f.shared if layer.moe else f, n).weight
        if layer.moe:
            yield "fp32", pre + "block_sparse_moe.gate.weight", f.gate
            yield "fp32", pre + "block_sparse_moe.e_score_correction_bias", f.bias
            both, down = f.amax()
            for e in range(model.s.experts):
                for n, amax in (("w1", both), ("w3", both), ("w2", down)):
                    yield "nvfp4", f"{pre}block_sparse_moe.experts.{e}.{n}.", (getattr(f, n)[e], amax[e].reshape(()))


def write(kinds, folder):
    """Tensors by kind and published name into folder/model.safetensors."""
    os.makedirs(folder, exist_ok=True)
    tensors = {}
    for kind, name, w in kinds:
        if kind == "bf16":
            tensors[name] = w.bfloat16()
        elif kind == "fp32":
            tensors[name] = w.float()
        elif kind == "mxfp8":
            tensors[name], tensors[name + "_scale_inv"] = quant.mxfp8_pack(w)
        else:
            packed, scale, whole = quant.nvfp4_pack(*w)
            tensors |= {name + "weight_packed": packed, name + "weight_scale": scale,
                        name + "weight_global_scale": whole, name + "input_global_scale": torch.ones(1)}
    path = os.path.join(folder, "model.safetensors")
    save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, path, metadata={"format": "pt"})
    os.chmod(path, 0o644)


def write_json(path, content):
    with open(path, "w") as f:
        json.dump(content, f, indent=2)
        f.write("\n")


@torch.no_grad()
def export(model, out, tokenizer=TOKENIZER):
    write(names(model), out)
    token = tokens(tokenizer)
    generation = dict(bos_token_id=token[t.BOS], eos_token_id=[token[t.EOS]], pad_token_id=token[t.PAD], do_sample=True,
                      temperature=1.0, top_p=0.95)
    write_json(os.path.join(out, "config.json"), config(model.s, token))
    write_json(os.path.join(out, "generation_config.json"), generation)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(tokenizer, name), os.path.join(out, name))
    return size(out)


def size(folder):
    return sum(os.path.getsize(os.path.join(at, n)) for at, _, files in os.walk(folder) for n in files)


# ---- The drafter ----

DRAFT = "language_model.model.dspark."


def draft_config(s):
    text = dict(
        architectures=["DSparkMiniMaxDraftModel"], vocab_size=s.vocab, hidden_size=s.hidden, num_hidden_layers=s.layers,
        num_attention_heads=s.heads, num_key_value_heads=s.kv_heads, head_dim=s.head_dim, dense_intermediate_size=s.width,
        rms_norm_eps=s.eps, rotary_dim=s.rotary, partial_rotary_factor=s.rotary / s.head_dim, rope_theta=int(s.theta),
        hidden_act="swigluoai", swiglu_alpha=s.alpha, swiglu_limit=s.limit, use_gemma_norm=True, use_qk_norm=True,
        qk_norm_type="per_head", moe_layer_freq=[0] * s.layers, sparse_attention_config=None,
        layer_types=["sliding_attention"] * s.layers, sliding_window=s.window, dtype="bfloat16",
        dspark_ffn_hidden_size=s.width, dspark_block_size=s.block, dspark_noise_token_id=s.noise,
        dspark_target_layer_ids=list(s.taps), dspark_markov_rank=s.rank, dspark_markov_head_type="vanilla",
        dspark_use_dense_ffn=True, dspark_hybrid_context_fusion=False, enable_confidence_head=True,
        confidence_head_with_markov=True)
    return dict(architectures=["DSparkMiniMaxDraftModel"], text_config=text, torch_dtype="bfloat16",
                dspark_config=dict(hybrid_context_fusion=False),
                quantization_config=dict(quant_method="mxfp8", activation_scheme="dynamic", weight_block_size=[1, 32]))


def draft_names(d):
    """As names(), for the drafter."""
    yield "bf16", DRAFT + "fc.weight", d.fc
    yield "bf16", DRAFT + "hidden_norm.weight", d.hidden_norm.weight
    yield "bf16", DRAFT + "final_norm.weight", d.final_norm.weight
    yield "bf16", DRAFT + "markov_head.markov_w1.weight", d.markov_w1
    yield "bf16", DRAFT + "markov_head.markov_w2.weight", d.markov_w2
    yield "bf16", DRAFT + "confidence_head.proj.weight", d.confidence
    yield "bf16", DRAFT + "confidence_head.proj.bias", d.confidence_bias
    for i, layer in enumerate(d.layers):
        pre = f"{DRAFT}layers.{i}.decoder_layer."
        yield "bf16", pre + "input_layernorm.weight", layer.input_layernorm.weight
        yield "bf16", pre + "post_attention_layernorm.weight", layer.post_attention_layernorm.weight
        for n in ("q_norm", "k_norm"):
            yield "bf16", f"{pre}self_attn.{n}.weight", getattr(layer, n).weight
        for n in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield "mxfp8", f"{pre}self_attn.{n}.weight", getattr(layer, n).weight
        for n in ("gate_proj", "up_proj", "down_proj"):
            yield "mxfp8", f"{pre}mlp.{n}.weight", getattr(layer.feed, n).weight


@torch.no_grad()
def export_draft(d, out):
    """Into out/dspark, out being the target's folder."""
    folder = os.path.join(out, "dspark")
    write(draft_names(d), folder)
    write_json(os.path.join(folder, "config.json"), draft_config(d.s))
    return size(folder)


@torch.no_grad()
def load_draft(folder):
    """The drafter of a target's folder with its decoded weights."""
    with open(os.path.join(folder, "dspark", "config.json")) as f:
        c = json.load(f)["text_config"]
    s = draft.Shape(
        vocab=c["vocab_size"], hidden=c["hidden_size"], layers=c["num_hidden_layers"], heads=c["num_attention_heads"],
        kv_heads=c["num_key_value_heads"], head_dim=c["head_dim"], rotary=c["rotary_dim"], theta=float(c["rope_theta"]),
        width=c["dspark_ffn_hidden_size"], alpha=c["swiglu_alpha"], limit=c["swiglu_limit"], eps=c["rms_norm_eps"],
        window=c["sliding_window"], block=c["dspark_block_size"], rank=c["dspark_markov_rank"],
        taps=tuple(c["dspark_target_layer_ids"]), noise=c["dspark_noise_token_id"])
    d, w = draft.Drafter(s), decoded(os.path.join(folder, "dspark"))
    for _, name, target in draft_names(d):
        target.copy_(w[name])
    return d


# ---- Reading ----

def shape(folder):
    """The Shape that a folder's config.json describes."""
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)["text_config"]
    return m3.Shape(
        vocab=c["vocab_size"], hidden=c["hidden_size"], layers=c["num_hidden_layers"],
                    dense_layers=c["moe_layer_freq"].count(0),
        heads=c["num_attention_heads"], kv_heads=c["num_key_value_heads"], head_dim=c["head_dim"],
                    rotary=c["rotary_dim"],
        theta=float(c["rope_theta"]), experts=c["num_local_experts"], top_k=c["num_experts_per_tok"],
                    expert_width=c["intermediate_size"],
        shared_width=c["shared_intermediate_size"], dense_width=c["dense_intermediate_size"],
                    routed_scale=c["routed_scaling_factor"],
        alpha=c["swiglu_alpha"], limit=c["swiglu_limit"], eps=c["rms_norm_eps"], positions=c["max_position_embeddings"],
        dense_attention=c["sparse_attention_config"]["sparse_attention_freq"].count(0),
        block=c["sparse_attention_config"]["sparse_block_size"], blocks=c["sparse_attention_config"]["sparse_topk_blocks"])


def decoded(folder):
    """Every weight of the file in fp32 under its published name."""
    raw, out = load_file(os.path.join(folder, "model.safetensors")), {}
    for name, w in raw.items():
        if name.endswith(".weight_packed"):
            base = name[:-len("weight_packed")]
            out[base + "weight"] = quant.nvfp4_unpack(w, raw[base + "weight_scale"], raw[base + "weight_global_scale"])
        elif name + "_scale_inv" in raw:
            e = raw[name + "_scale_inv"].int() - 127
            out[name] = (w.float().unflatten(-1, (-1, 32)) * quant.power(e).unsqueeze(-1)).flatten(-2)
        elif w.dtype in (torch.bfloat16, torch.float32) and not name.endswith("global_scale"):
            out[name] = w.float()
    return out


@torch.no_grad()
def load(folder):
    """The model with the decoded weights of the file; run it with `quantised` 0 or 1, never 2."""
    model, w = m3.M3(shape(folder)), decoded(folder)
    for kind, name, target in names(model):
        if kind == "nvfp4":
            target[0].copy_(w[name + "weight"])
        else:
            target.copy_(w[name])
    return model


def main(a):
    """Packs what --from-stage left into --model; the stage `drafter` goes beside a target that is there."""
    state = torch.load(os.path.join(a.out, a.from_stage + ".pt"), map_location="cpu", weights_only=True)
    if a.from_stage == "drafter":
        model = draft.Drafter(draft.Shape(**state["shape"]))
        model.load_state_dict(state["model"])
        export_draft(model, a.model)
    else:
        model = m3.M3(m3.Shape(**state["shape"]))
        model.load_state_dict(state["model"])
        export(model, a.model)
    total = size(a.model)
    print(f"{a.model}: {total} bytes" + ("" if state["done"] else ", of a stage that was not finished"))
    assert total <= LIMIT, f"more than {LIMIT} bytes"

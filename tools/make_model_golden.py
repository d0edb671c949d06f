#!/usr/bin/env python3
"""Makes tiny random models with options the plain fixtures lack, and their reference by transformers.

Needs torch, transformers >= 5 and safetensors (all on the CPU); test runs do not. The quantised ones
are encoded here as ModelOpt and compressed-tensors do it, with torch's own float8 casts; their
reference runs in F32 on the weights that the stored codes mean. A seed is taken only when the model has no near ties: the greedy
gaps are wide, and float64 and weights changed by 1e-6 give the same logits.

usage: make_model_golden.py OUT [NAME ...]
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

PROMPT, GREEDY = 40, 12
LLAMA = dict(hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=2, vocab_size=131, max_position_embeddings=128, rms_norm_eps=1e-5,
             hidden_act="silu", tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=0)
MLA = dict(LLAMA, num_attention_heads=5, num_key_value_heads=5, q_lora_rank=24, kv_lora_rank=32,
           qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, moe_intermediate_size=20,
           n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, first_k_dense_replace=1,
           routed_scaling_factor=2.5, n_group=4, topk_group=2, norm_topk_prob=True)
DSA = dict(MLA, hidden_size=40, intermediate_size=56, num_hidden_layers=4, index_n_heads=16,
           index_head_dim=16, index_topk=12, indexer_types=["full", "shared", "full", "shared"],
           rope_parameters={"rope_type": "default", "rope_theta": 1e6})
QWEN_MOE = dict(LLAMA, hidden_size=40, num_hidden_layers=4, num_attention_heads=6, head_dim=16,
                num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20)
GLM4 = dict(LLAMA, num_attention_heads=5, num_key_value_heads=5, head_dim=16, attention_bias=True,
            n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=20,
            first_k_dense_replace=1, routed_scaling_factor=1.5, n_group=4, topk_group=2,
            norm_topk_prob=False, use_qk_norm=False,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5})
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
WIDE = dict(LLAMA, hidden_size=144, intermediate_size=176, num_hidden_layers=1, head_dim=24,
            num_attention_heads=6, vocab_size=64)
WIDE_MLA = dict(MLA, hidden_size=144, intermediate_size=160, moe_intermediate_size=32, num_hidden_layers=2,
                n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2, q_lora_rank=144,
                kv_lora_rank=144, v_head_dim=16, num_attention_heads=6, num_key_value_heads=6, vocab_size=64)

# name: (model_type, config, options)
CASES = {
    "llama-bias": ("llama", dict(LLAMA, attention_bias=True, mlp_bias=True, head_dim=10,
                                 rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}), {}),
    "llama-yarn-tied": ("llama", dict(LLAMA, hidden_size=72, num_attention_heads=9, num_key_value_heads=3, head_dim=10,
                                      intermediate_size=100, tie_word_embeddings=True,
                                      rope_parameters=YARN), {"old": True}),
    "llama-yarn-factor": ("llama", dict(LLAMA, rope_parameters=dict(YARN, attention_factor=1.3, beta_fast=16,
                                                                    beta_slow=2, truncate=False)), {}),
    "llama-bf16": ("llama", dict(LLAMA), {"dtype": torch.bfloat16}),
    "llama-f16": ("llama", dict(LLAMA), {"dtype": torch.float16}),
    "mistral-window": ("mistral", dict(LLAMA, head_dim=16, sliding_window=7), {"shards": 2}),
    "qwen3-tied": ("qwen3", dict(LLAMA, head_dim=16, tie_word_embeddings=True), {"old": True}),
    "qwen3-bias": ("qwen3", dict(LLAMA, head_dim=16, attention_bias=True), {}),
    "qwen3_moe-mixed": ("qwen3_moe", dict(QWEN_MOE, decoder_sparse_step=2, mlp_only_layers=[3],
                                          norm_topk_prob=False), {}),
    "qwen3_moe-stacked": ("qwen3_moe", dict(QWEN_MOE, mlp_only_layers=[0], norm_topk_prob=True),
                          {"stacked": True}),
    "glm4_moe-groups": ("glm4_moe", GLM4, {"old": True}),
    "glm4_moe-norm": ("glm4_moe", dict(GLM4, use_qk_norm=True, attention_bias=False, norm_topk_prob=True),
                      {"stacked": True, "dtype": torch.bfloat16}),
    "deepseek_v3-plain-q": ("deepseek_v3", dict(MLA, q_lora_rank=None, attention_bias=True,
                                                rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.7)), {}),
    "deepseek_v3-yarn": ("deepseek_v3", dict(MLA, attention_bias=True, rope_interleave=False,
                                             rope_parameters=dict(YARN)), {"old": True}),
    "deepseek_v3-default": ("deepseek_v3", dict(MLA, norm_topk_prob=False), {"stacked": True}),
    "glm_moe_dsa-shared": ("glm_moe_dsa", dict(DSA, num_nextn_predict_layers=1), {"mtp": True, "shards": 3}),
    "glm_moe_dsa-bias": ("glm_moe_dsa", dict(DSA, attention_bias=True, num_hidden_layers=3,
                                             indexer_types=["full", "full", "shared"]), {"stacked": True}),
    "nvfp4-modelopt": ("llama", WIDE, {"quant": "modelopt"}),
    "nvfp4-ct": ("qwen3", dict(WIDE, attention_bias=True), {"quant": "ct"}),
    "nvfp4-weight-only": ("llama", WIDE, {"quant": "weight-only"}),
    "fp8-tensor": ("llama", WIDE, {"quant": "tensor"}),
    "fp8-channel": ("llama", WIDE, {"quant": "channel"}),
    "fp8-block": ("llama", WIDE, {"quant": "block"}),
    "fp8-block-e8m0": ("llama", WIDE, {"quant": "e8m0"}),
    "nvfp4-mla": ("deepseek_v3", WIDE_MLA, {"quant": "modelopt"}),
    "fp8-mla": ("deepseek_v3", dict(WIDE_MLA, num_attention_heads=7, num_key_value_heads=7, v_head_dim=20,
                                    moe_intermediate_size=40, intermediate_size=152), {"quant": "block"}),
    "mixed-mla": ("deepseek_v3", WIDE_MLA, {"quant": "mixed"}),
}

# ---- quantised formats ----

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3 = torch.float8_e4m3fn


def e2m1(x):
    """Codes: to nearest, ties to the even code."""
    edges = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    a = x.abs()
    code = torch.zeros(x.shape, dtype=torch.int64)
    for i, edge in enumerate(edges):
        code += (a > edge) if i % 2 == 0 else (a >= edge)
    return code + 8 * torch.signbit(x)


def nvfp4(name, w, style):
    out, inner = w.shape
    block = w.reshape(out, inner // 16, 16)
    total = w.abs().max() / (6 * 448)
    if style == "ct":
        total = 1 / (1 / total)  # what a reader of the divisor gets
    scale = (block.abs().amax(2) / (6 * total)).clamp(2**-9, 448).to(E4M3)
    step = scale.float() * total
    code = e2m1(block / step[:, :, None])
    value = torch.where(code >= 8, -E2M1[code % 8], E2M1[code % 8]) * step[:, :, None]
    code = code.reshape(out, inner).to(torch.uint8)
    packed = code[:, 0::2] | code[:, 1::2] << 4
    extra = {}
    if style == "ct":
        extra = {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": (1 / total).reshape(1),
                 "input_global_scale": torch.tensor([96.0])}
    else:
        extra = {"weight": packed, "weight_scale": scale, "weight_scale_2": total}
        if style == "modelopt":
            extra["input_scale"] = torch.tensor(1 / 96)
    return value.reshape(out, inner), {f"{name}.{k}": v for k, v in extra.items()}


def fp8(name, w, style):
    out, inner = w.shape
    if style == "tensor":
        scale = w.abs().max() / 448
        q, full, key = (w / scale).to(E4M3), scale, "weight_scale"
    elif style == "channel":
        scale = w.abs().amax(1, keepdim=True) / 448
        q, full, key = (w / scale).to(E4M3), scale, "weight_scale"
    else:
        rows, cols = -(-out // 128), -(-inner // 128)
        scale = torch.empty(rows, cols)
        for r in range(rows):
            for c in range(cols):
                scale[r, c] = w[r * 128:(r + 1) * 128, c * 128:(c + 1) * 128].abs().max() / 448
        key = "weight_scale_inv"
        if style == "e8m0":
            scale = torch.exp2(torch.ceil(torch.log2(scale)))
        if style == "renamed":
            key = "weight_scale"
        full = scale.repeat_interleave(128, 0)[:out].repeat_interleave(128, 1)[:, :inner]
        q = (w / full).to(E4M3)
        if style == "e8m0":
            stored = (torch.log2(scale) + 127).to(torch.uint8)
            return q.float() * full, {f"{name}.weight": q, f"{name}.{key}": stored.view(torch.float8_e8m0fnu)}
    extra = {f"{name}.weight": q, f"{name}.{key}": scale}
    if style == "tensor":
        extra[f"{name}.input_scale"] = torch.tensor(0.01)
    return q.float() * full, extra


def quantised(tensors, style):
    """The tensors as stored, and the values they mean."""
    stored, meant = {}, {}
    mixed = ["modelopt", "ct", "tensor", "channel", "block", "renamed", "plain"]
    n = 0
    for key, w in tensors.items():
        name = key.removesuffix(".weight")
        linear = name.endswith("_proj") or name.endswith("kv_a_proj_with_mqa")
        if w.dim() != 2 or not linear or not key.endswith(".weight"):
            stored[key] = meant[key] = w
            continue
        kind = style
        if style == "mixed":
            kind = mixed[n % len(mixed)] if "experts." not in name else "channel"
            n += "experts." not in name
        four = kind in ("modelopt", "ct", "weight-only")
        if kind == "plain" or (four and w.shape[1] % 16 != 0):
            stored[key] = meant[key] = w
            continue
        meant[key], extra = (nvfp4 if four else fp8)(name, w, kind)
        stored.update(extra)
    return stored, meant


# ---- models ----

def randomise(model, seed):
    g = torch.Generator().manual_seed(seed)
    for key, p in model.state_dict().items():
        r = torch.randn(p.shape, generator=g)
        if "e_score_correction_bias" in key:
            p.copy_(0.1 * r)
        elif key.endswith("bias"):
            p.copy_(0.3 * r)
        elif p.dim() == 1:
            p.copy_(1 + 0.2 * r)
        elif "embed_tokens" in key:
            p.copy_(r)
        else:
            p.copy_(r * (2.0 if "lm_head" in key else 1.3) / p.shape[-1] ** 0.5)


def split_experts(tensors):
    out = {}
    for key, w in tensors.items():
        if key.endswith("mlp.experts.gate_up_proj"):
            for e in range(w.shape[0]):
                half = w.shape[1] // 2
                base = key.removesuffix("gate_up_proj") + f"{e}."
                out[base + "gate_proj.weight"], out[base + "up_proj.weight"] = w[e, :half], w[e, half:]
        elif key.endswith("mlp.experts.down_proj"):
            for e in range(w.shape[0]):
                out[key.removesuffix("down_proj") + f"{e}.down_proj.weight"] = w[e]
        else:
            out[key] = w
    return {k: v.contiguous().clone() for k, v in out.items()}


def join_experts(tensors, like):
    out = {}
    for key in like:
        if key in tensors:
            out[key] = tensors[key]
            continue
        down = key.endswith("down_proj")
        base = key.removesuffix("down_proj" if down else "gate_up_proj")
        n = like[key].shape[0]
        part = lambda e, p: tensors[f"{base}{e}.{p}.weight"]
        out[key] = torch.stack([part(e, "down_proj") if down else
                                torch.cat([part(e, "gate_proj"), part(e, "up_proj")]) for e in range(n)])
    return out


def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def reference(model, ids):
    ids, greedy, gap = list(ids), [], 9e9
    first = logits_of(model, ids)
    for _ in range(GREEDY):
        last = logits_of(model, ids)[-1]
        top = last.topk(2)
        gap = min(gap, float(top.values[0] - top.values[1]))
        greedy.append(int(top.indices[0]))
        ids.append(greedy[-1])
    return first, greedy, gap, ids


def steady(model, ids, logits, seed):
    """No near tie in any choice: float64 and slightly changed weights agree."""
    full = logits_of(model, ids)
    double = logits_of(model.double(), ids).float()
    model.float()
    g = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.mul_(1 + 1e-6 * torch.randn(p.shape, generator=g))
    moved = logits_of(model, ids)
    bound = 5e-5 * float(logits.abs().max())
    return float((full - double).abs().max()) < bound and float((full - moved).abs().max()) < 4 * bound


def old_spelling(config):
    rope = dict(config.pop("rope_parameters", None) or {})
    config["torch_dtype"] = config.pop("dtype", "float32")
    config["rope_theta"] = rope.pop("rope_theta", 10000.0)
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    kind = rope.pop("rope_type", "default")
    if kind != "default":
        config["rope_scaling"] = {"type": kind, **rope}
    if "n_routed_experts" in config:
        config["num_local_experts"] = config.pop("n_routed_experts")
    return config


def add_mtp(tensors, layers, hidden):
    """A next-n layer, which plain decoding must skip."""
    last = f"model.layers.{layers - 1}."
    for key in [k for k in tensors if k.startswith(last)]:
        tensors[f"model.layers.{layers}." + key.removeprefix(last)] = torch.randn(tensors[key].shape)
    tensors[f"model.layers.{layers}.eh_proj.weight"] = torch.randn(hidden, 2 * hidden)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"model.layers.{layers}.{norm}.weight"] = torch.ones(hidden)


def write(path, config, tensors, shards, logits, greedy, ids):
    os.makedirs(path, exist_ok=True)
    with open(f"{path}/config.json", "w") as f:
        json.dump(config, f, indent=1, sort_keys=True)
        f.write("\n")
    keys, where = sorted(tensors), {}
    for s in range(shards):
        name = "model.safetensors" if shards == 1 else f"model-{s + 1:05}-of-{shards:05}.safetensors"
        part = {k: tensors[k].contiguous() for k in keys[s::shards]}
        save_file(part, f"{path}/{name}", {"format": "pt"})
        where.update({k: name for k in part})
    if shards > 1:
        with open(f"{path}/model.safetensors.index.json", "w") as f:
            json.dump({"metadata": {"total_size": 0}, "weight_map": where}, f)
    save_file({"input_ids": torch.tensor(ids[:PROMPT], dtype=torch.int32), "logits": logits.contiguous(),
               "greedy": torch.tensor(greedy, dtype=torch.int32)}, f"{path}/reference.safetensors")


def make(out, name):
    kind, settings, options = CASES[name]
    config = AutoConfig.for_model(kind, **settings)
    for seed in range(100):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager",
                                                 experts_implementation="eager").eval()
        randomise(model, seed)
        like = model.state_dict()
        split = split_experts(like)
        if config.tie_word_embeddings:
            split.pop("lm_head.weight", None)
        stored = meant = split
        if "quant" in options:
            stored, meant = quantised(split, options["quant"])
        if "dtype" in options:
            stored = {k: v if "correction" in k else v.to(options["dtype"]) for k, v in split.items()}
            meant = {k: v.float() for k, v in stored.items()}
        if config.tie_word_embeddings:
            meant = dict(meant, **{"lm_head.weight": meant["model.embed_tokens.weight"]})
        joined = join_experts(meant, like)
        model.load_state_dict(joined)
        g = torch.Generator().manual_seed(1000 + seed)
        prompt = torch.randint(3, config.vocab_size, (PROMPT,), generator=g).tolist()
        logits, greedy, gap, ids = reference(model, prompt)
        if gap > 0.02 and len(set(greedy)) > 4 and steady(model, ids, logits, seed):
            break
    else:
        raise SystemExit(f"{name}: no seed without near ties")
    if options.get("stacked"):
        stored = {k: v.to(options.get("dtype", v.dtype)) if "correction" not in k else v
                  for k, v in joined.items() if not (config.tie_word_embeddings and k == "lm_head.weight")}
    if options.get("mtp"):
        add_mtp(stored, config.num_hidden_layers, config.hidden_size)
    plain = json.loads(config.to_json_string(use_diff=False))
    kept = {k: plain[k] for k in [*settings, "num_local_experts", "rope_parameters", "model_type", "dtype", "mlp_layer_types"]
            if k in plain}
    kept = {k: v for k, v in kept.items() if not (v is None and k != "q_lora_rank")}
    kept["architectures"] = [type(model).__name__]
    if options.get("old"):
        kept = old_spelling(kept)
    write(f"{out}/{name}", kept, stored, options.get("shards", 1), logits, greedy, ids)
    print(f"{name}: seed {seed}, max |logit| {float(logits.abs().max()):.2f}, smallest gap {gap:.3f}", flush=True)


def main():
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    out, *names = sys.argv[1:]
    for name in names or CASES:
        make(out, name)


if __name__ == "__main__":
    main()

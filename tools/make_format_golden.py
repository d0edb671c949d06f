"""Makes tests/golden/models/llama-formats: a tiny random llama whose linears are stored in every format
that weft reads, with the reference that `weft check` compares, from the de-quantised weights.

Usage: make_format_golden.py DIRECTORY      (needs numpy, ml_dtypes, safetensors, gguf)

Quantised by make_quantize_golden.py's arithmetic, computed in F64 by smollm.py's forward pass; neither
shares code with weft. The widths are no multiples of 128, so that blocks have ragged edges.
"""
import json
import os
import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

import make_quantize_golden as quantize
from smollm import forward

F32, BF16 = np.float32, ml_dtypes.bfloat16
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 160, "intermediate_size": 336,
    "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 32,
    "vocab_size": 96, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 128,
    "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu",
    "bos_token_id": 0, "eos_token_id": 1,
}
FORMATS = { # by layer
    "q_proj": ("nvfp4", "row bf16", "f16"), "k_proj": ("nvfp4", "row", "bf16"),
    "v_proj": ("nvfp4", "bf16", "f32"), "o_proj": ("tensor", "block e8m0", "nvfp4 packed"),
    "gate_proj": ("block", "nvfp4 packed", "tensor one"), "up_proj": ("block", "nvfp4 packed", "block renamed"),
    "down_proj": ("block bf16", "nvfp4 weight only", "row"),
}
SHAPES = {"q_proj": (160, 160), "k_proj": (32, 160), "v_proj": (32, 160), "o_proj": (160, 160),
          "gate_proj": (336, 160), "up_proj": (336, 160), "down_proj": (160, 336)}


def spread(scales, shape):
    """Scales of 128 x 128 blocks, one an element."""
    return scales.repeat(128, 0).repeat(128, 1)[:shape[0], :shape[1]]


def fp8(name, w, kind):
    amax = np.abs(w)
    if kind.startswith("tensor"):
        scale = np.full((1,) if kind == "tensor one" else (), amax.max() / F32(448), F32)
        stored = {name + ".weight_scale": scale, name + ".input_scale": np.array(0.01, F32)}
        wide = scale
    elif kind.startswith("row"):
        scale = amax.max(1) / F32(448)
        if kind == "row bf16":
            scale = scale.reshape(-1, 1).astype(BF16)
        stored = {name + ".weight_scale": scale}
        wide = scale.astype(F32).reshape(-1, 1)
    else:
        _, scale = quantize.fp8(w)
        if kind == "block e8m0":
            exponent = np.ceil(np.log2(scale)).astype(np.int32)
            scale, stored = np.exp2(exponent).astype(F32), (exponent + 127).astype(np.uint8)
        elif kind == "block bf16":
            stored = scale.astype(BF16)
            scale = stored.astype(F32)
        else:
            stored = scale
        stored = {name + (".weight_scale" if kind == "block renamed" else ".weight_scale_inv"): stored}
        wide = spread(scale, w.shape)
    codes = quantize.e4m3(w / wide)
    return {name + ".weight": codes, **stored}, codes.astype(np.float64) * wide


def nvfp4(name, w, kind, scale_2):
    codes, scale = quantize.nvfp4(w, scale_2)
    low, high = codes & 15, codes >> 4
    values = np.stack([low, high], 2).reshape(w.shape).astype(np.uint8).view(quantize.E2M1).astype(np.float64)
    values *= scale.astype(np.float64).repeat(16, 1)
    if kind == "nvfp4 packed":
        inverse, quarter = np.array([1 / scale_2], F32), np.array([4], F32)
        return {name + ".weight_packed": codes, name + ".weight_scale": scale,
                name + ".weight_global_scale": inverse, name + ".input_global_scale": quarter}, values / inverse
    stored = {name + ".weight": codes, name + ".weight_scale": scale, name + ".weight_scale_2": np.array(scale_2, F32)}
    if kind == "nvfp4":
        stored[name + ".input_scale"] = np.array([0.25], F32)
    return stored, values * np.float64(scale_2)


def linear(name, w, kind):
    """What is stored, and the weights that it means."""
    plain = {"f32": F32, "f16": np.float16, "bf16": BF16}
    if kind in plain:
        stored = w.astype(plain[kind])
        return {name + ".weight": stored}, stored.astype(np.float64)
    if kind.startswith("nvfp4"):
        return nvfp4(name, w, kind, quantize.nvfp4_global([w]))
    return fp8(name, w, kind)


def main(directory):
    rng = np.random.default_rng(11)
    hidden, vocab = CONFIG["hidden_size"], CONFIG["vocab_size"]
    stored, meant = {}, {}
    def keep(name, value):
        stored[name], meant[name] = value, value.astype(np.float64)

    keep("model.embed_tokens.weight", (rng.standard_normal((vocab, hidden)) * 0.3).astype(F32))
    keep("model.norm.weight", rng.normal(1, 0.2, hidden).astype(F32))
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = "model.layers.%d." % layer
        for name in ("input_layernorm", "post_attention_layernorm"):
            keep(prefix + name + ".weight", rng.normal(1, 0.2, hidden).astype(BF16))
        for name, shape in SHAPES.items():
            module = prefix + ("mlp." if name in ("gate_proj", "up_proj", "down_proj") else "self_attn.") + name
            w = (rng.standard_normal(shape) * 1.5 / np.sqrt(shape[1])).astype(F32)
            # magnitudes differ between rows and columns, so that a misplaced scale shows
            w *= np.exp2(rng.uniform(-1.5, 1.5, (shape[0], 1))).astype(F32)
            w *= np.exp2(rng.uniform(-1, 1, (1, shape[1]))).astype(F32)
            parts, meant[module + ".weight"] = linear(module, w, FORMATS[name][layer])
            stored.update(parts)

    ids = [int(i) for i in rng.integers(2, vocab, 40)]
    logits = forward(meant, CONFIG, ids)
    greedy, text, gap = [], list(ids), np.inf
    for _ in range(16):
        last = np.sort(forward(meant, CONFIG, text)[-1])
        gap = min(gap, last[-1] - last[-2])
        greedy.append(int(forward(meant, CONFIG, text)[-1].argmax()))
        text.append(greedy[-1])
    print("largest logit %.2f, smallest gap of a greedy step %.3f" % (np.abs(logits).max(), gap))
    os.makedirs(directory, exist_ok=True)
    save_file(stored, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    save_file({"input_ids": np.array(ids, np.int32), "logits": logits.astype(F32),
               "greedy": np.array(greedy, np.int32)}, os.path.join(directory, "reference.safetensors"))
    for name, value in (("config.json", CONFIG), ("generation_config.json", {"eos_token_id": 1})):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])

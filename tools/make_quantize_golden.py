"""Makes tests/golden/quantize: a small checkpoint with everything awkward in it, and what quantising
it must give, computed here with NumPy and ml_dtypes, sharing no code with weft.

Usage: make_quantize_golden.py DIRECTORY      (needs numpy, ml_dtypes, safetensors)

The rules are ModelOpt's for NVFP4 (global scale amax / 2688, one for q, k and v and one for gate and
up; block scale amax / (6 * global) as E4M3, 1 for a block of zeros) and DeepSeek's for FP8 (blocks of
128 x 128, scale amax / 448). All arithmetic is IEEE single, as in those programs.
"""
import json
import os
import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

F32 = np.float32
E4M3, E2M1, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn, ml_dtypes.bfloat16
LAYERS, EXPERTS, HIDDEN, INNER, HEADS = 2, 3, 144, 16, 144
ODD = 136 # columns of a projection that NVFP4 has to leave alone


def e4m3(x):
    return np.clip(x, F32(-448), F32(448)).astype(E4M3)


def e2m1(x):
    return np.clip(x, F32(-6), F32(6)).astype(E2M1)


def nvfp4_global(matrices):
    scale = np.max([np.max(np.abs(m)) for m in matrices]).astype(F32) / F32(6 * 448)
    return scale if scale > 0 else F32(1)


def nvfp4(w, scale_2):
    rows, cols = w.shape
    blocks = w.reshape(rows, cols // 16, 16)
    scale = np.max(np.abs(blocks), axis=2) / (F32(6) * scale_2)
    scale[scale == 0] = 1
    scale = e4m3(np.clip(scale, F32(2.0**-9), F32(448)))
    codes = e2m1(blocks / (scale.astype(F32) * scale_2)[:, :, None]).reshape(rows, cols).view(np.uint8)
    codes = codes & 15
    return codes[:, ::2] | codes[:, 1::2] << 4, scale


def fp8(w):
    rows, cols = w.shape
    down, across = -(-rows // 128), -(-cols // 128)
    codes = np.zeros((rows, cols), E4M3)
    scales = np.zeros((down, across), F32)
    for i in range(down):
        for j in range(across):
            part = np.s_[i * 128:(i + 1) * 128, j * 128:(j + 1) * 128]
            scale = np.max(np.abs(w[part])) / F32(448)
            scales[i, j] = scale if scale > 0 else 1
            codes[part] = e4m3(w[part] / scales[i, j])
    return codes, scales


def source(rng):
    """Tensors of the two shards, by name; stacked experts in layer 1, an MTP layer behind."""
    def matrix(rows, cols, dtype=BF16):
        # a wide range of magnitudes, so that scales reach their bounds
        w = rng.standard_normal((rows, cols)) * np.exp2(rng.uniform(-12, 4, (rows, cols)))
        return w.astype(F32).astype(dtype)

    first, second = {}, {}
    first["bytes"] = np.arange(3, dtype=np.uint8)               # what follows must be aligned
    first["model.embed_tokens.weight"] = matrix(8, HIDDEN)
    for layer in range(LAYERS + 1):
        shard = first if layer == 0 else second
        p = "model.layers.%d." % layer
        shard[p + "input_layernorm.weight"] = rng.standard_normal(HIDDEN).astype(BF16)
        shard[p + "self_attn.q_proj.weight"] = matrix(HEADS, HIDDEN)
        shard[p + "self_attn.q_proj.bias"] = rng.standard_normal(HEADS).astype(BF16)
        second[p + "self_attn.k_proj.weight"] = matrix(16, HIDDEN) * BF16(3)
        shard[p + "self_attn.v_proj.weight"] = matrix(16, HIDDEN, np.float16)
        shard[p + "self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS, F32 if layer == 0 else BF16)
    p = "model.layers.0.mlp."
    first[p + "gate_proj.weight"] = matrix(ODD, HIDDEN)
    first[p + "up_proj.weight"] = matrix(ODD, HIDDEN) / BF16(8)
    first[p + "down_proj.weight"] = matrix(HIDDEN, ODD)
    p = "model.layers.1.mlp."
    second[p + "gate.weight"] = matrix(EXPERTS, HIDDEN)
    second[p + "gate.e_score_correction_bias"] = rng.standard_normal(EXPERTS).astype(F32)
    second[p + "experts.gate_up_proj"] = matrix(EXPERTS * 2 * INNER, HIDDEN).reshape(EXPERTS, -1, HIDDEN)
    second[p + "experts.down_proj"] = matrix(EXPERTS * HIDDEN, INNER).reshape(EXPERTS, HIDDEN, INNER)
    second["lm_head.weight"] = matrix(8, HIDDEN)

    w = first["model.layers.0.self_attn.q_proj.weight"]
    w[3] = 0                                                    # blocks of zeros
    # exact ties of E2M1 and E4M3 when the scales are powers of two
    tie = first["model.layers.0.self_attn.o_proj.weight"]
    tie[:, :] = rng.choice(np.array([0, .25, .75, 1.25, 1.75, 2.5, 3.5, 5, 6], F32), tie.shape)
    tie *= rng.choice(np.array([-1, 1], F32), tie.shape)
    tie[0, 0] = 2688 # the global scale is 1
    tie[5, :16] = 0
    tie[7, :16] = rng.uniform(-0.01, 0.01, 16)                  # scale below the smallest E4M3
    second["model.layers.1.self_attn.o_proj.weight"][:] = 0     # nothing but zeros
    second["model.layers.1.mlp.experts.down_proj"][2] *= 0
    second["model.layers.1.mlp.experts.down_proj"][2, 7, 9] = 1e-38 # global scale below the normals
    return first, second


def unstack(tensors):
    out = {}
    for name, w in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            out[name] = w
            continue
        prefix, kind = name.rsplit(".", 1)
        for e in range(w.shape[0]):
            parts = {"down_proj": w[e]} if kind == "down_proj" else {
                "gate_proj": w[e, :INNER], "up_proj": w[e, INNER:]}
            for part, value in parts.items():
                out["%s.%d.%s.weight" % (prefix, e, part)] = value
    return out


def group(module):
    for ends, name in (((".q_proj", ".k_proj", ".v_proj"), "qkv"), ((".gate_proj", ".up_proj"), "gate_up")):
        for end in ends:
            if module.endswith(end):
                return module[:-len(end)] + "." + name
    return module


def expected(tensors, to):
    def quantised(name, w):
        layer = name.startswith("model.layers.") and int(name.split(".")[2]) < LAYERS
        fits = to == "fp8" or (w.ndim == 2 and w.shape[1] % 16 == 0)
        return layer and name.endswith("_proj.weight") and fits

    groups, out = {}, {}
    for name, w in tensors.items():
        if quantised(name, w):
            groups.setdefault(group(name[:-len(".weight")]), []).append(w.astype(F32))
    for name, w in tensors.items():
        if not quantised(name, w):
            out[name] = w
        elif to == "fp8":
            out[name], out[name + "_scale_inv"] = fp8(w.astype(F32))
        else:
            scale_2 = nvfp4_global(groups[group(name[:-len(".weight")])])
            out[name], out[name + "_scale"] = nvfp4(w.astype(F32), scale_2)
            out[name + "_scale_2"] = np.array(scale_2, F32)
    return out


def main(directory):
    rng = np.random.default_rng(7)
    shards = source(rng)
    where = os.path.join(directory, "source")
    os.makedirs(where, exist_ok=True)
    index = {}
    for number, tensors in enumerate(shards, 1):
        name = "model-%05d-of-00002.safetensors" % number
        save_file(tensors, os.path.join(where, name), metadata={"format": "pt"})
        index.update({tensor: name for tensor in tensors})
    config = {"architectures": ["TestForCausalLM"], "model_type": "test", "num_hidden_layers": LAYERS,
              "hidden_size": HIDDEN, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "third": 1 / 3,
              "name": "caf\u00e9", "eos_token_id": [1, 2], "pad_token_id": None}
    for name, value in (("model.safetensors.index.json", {"metadata": {}, "weight_map": index}),
                        ("config.json", config), ("generation_config.json", {"temperature": 0.7})):
        with open(os.path.join(where, name), "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.write("\n")
    tensors = unstack({**shards[0], **shards[1]})
    for to in ("nvfp4", "fp8"):
        save_file(expected(tensors, to), os.path.join(directory, to + ".safetensors"))


if __name__ == "__main__":
    main(sys.argv[1])

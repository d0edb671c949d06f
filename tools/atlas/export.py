"""Writes atlas as Hugging Face directories: OUTPUT/atlas-nvfp4 (ModelOpt layout) and OUTPUT/atlas-f32."""
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import nvfp4
from model import CONFIG, rope_angles

INDEX_TOPK = 128 # keys that attention reads; the shipped model's
PRODUCER = {"name": "modelopt", "version": "0.40.0"} # whose layout this is
TEMPLATE = (
    "[gMASK]<sop>{%- for m in messages %}{%- if m.role == 'system' %}<|system|>\n{{ m.content }}"
    "{%- elif m.role == 'user' %}<|user|>\n{{ m.content }}"
    "{%- elif m.role == 'assistant' %}<|assistant|>\n{{ m.content }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>\n{% endif %}")


def excluded_modules():
    moe_layers = range(CONFIG["first_k_dense_replace"], CONFIG["num_hidden_layers"])
    return (["lm_head", "model.embed_tokens"]
            + ["model.layers.%d.self_attn*" % index for index in range(CONFIG["num_hidden_layers"])]
            + ["model.layers.%d.mlp.gate" % index for index in moe_layers])


def model_config(special):
    heads = CONFIG["num_attention_heads"]
    shapes = {key: value for key, value in CONFIG.items() if key not in ("rope_theta",)}
    return dict(
        shapes, architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa",
        num_key_value_heads=heads, n_shared_experts=1, scoring_func="sigmoid", topk_method="noaux_tc",
        n_group=1, topk_group=1, norm_topk_prob=True,
        qk_head_dim=CONFIG["qk_nope_head_dim"] + CONFIG["qk_rope_head_dim"],
        head_dim=CONFIG["qk_rope_head_dim"], hidden_act="silu", max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": CONFIG["rope_theta"]}, rope_interleave=True,
        moe_layer_freq=1, index_topk=INDEX_TOPK, attention_bias=False, attention_dropout=0.0,
        tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=[special[token] for token in ("<|endoftext|>", "<|user|>", "<|observation|>")],
        pad_token_id=special["<|endoftext|>"], num_nextn_predict_layers=0, initializer_range=0.02, use_cache=True)


def quantization_config():
    grid = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": nvfp4.BLOCK}
    return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": excluded_modules(), "producer": PRODUCER,
            "config_groups": {"group_0": {"input_activations": grid, "weights": grid, "targets": ["Linear"]}}}


@torch.no_grad()
def activation_maxima(model, ids):
    """(layer, whether down_proj) -> the largest magnitude that its experts' projections read."""
    angles, maxima = rope_angles(ids.shape[1], ids.device), {}
    x = F.embedding(ids, model.embed_tokens)
    for index, layer in enumerate(model.layers):
        x, _ = layer.attend(x, angles)
        normed = layer.mlp_input(x)
        maxima[index, False] = normed.abs().max()
        maxima[index, True] = layer.mlp.experts.middle(normed.flatten(0, 1), model.on_grid).abs().max()
        x = x + layer.mlp(normed, model.on_grid)[0]
    return maxima


def plain_tensors(model):
    """name -> tensor of everything that stays BF16."""
    yield "model.embed_tokens.weight", model.embed_tokens
    yield "model.norm.weight", model.norm
    yield "lm_head.weight", model.lm_head
    for index, layer in enumerate(model.layers):
        prefix = "model.layers.%d." % index
        yield prefix + "input_layernorm.weight", layer.input_layernorm
        yield prefix + "post_attention_layernorm.weight", layer.post_attention_layernorm
        for name, weight in layer.self_attn.named_parameters():
            name = name.replace("k_norm_bias", "k_norm.bias")
            yield prefix + "self_attn." + (name if name.endswith(".bias") else name + ".weight"), weight
        if not layer.mlp.dense:
            yield prefix + "mlp.gate.weight", layer.mlp.router


def quantised_tensors(packed):
    """(layer, name of the linear, projection, its parts) of every NVFP4 linear."""
    for (index, module, projection), parts in packed.items():
        count = len(parts["scale"])
        for expert in range(count):
            if module == "shared":
                name = "mlp.shared_experts"
            else:
                name = "mlp" if count == 1 else "mlp.experts.%d" % expert
            one = {key: value[expert] for key, value in parts.items()}
            yield index, "model.layers.%d.%s.%s" % (index, name, projection), projection, one


def save(directory, tensors, config, corpus):
    os.makedirs(directory, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(tensors, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    corpus.tokenizer.save(os.path.join(directory, "tokenizer.json"))
    save_json(directory, "config.json", config)
    save_json(directory, "tokenizer_config.json", {
        "chat_template": TEMPLATE, "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"]})
    save_json(directory, "generation_config.json", {
        "eos_token_id": config["eos_token_id"], "pad_token_id": config["pad_token_id"], "do_sample": False,
        "temperature": 1.0, "top_p": 1.0})


def save_json(directory, name, value):
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1)


def write(output, model, packed, corpus, calibration):
    """calibration: ids [sequences, tokens] on which the activation scales are measured."""
    maxima = activation_maxima(model, calibration)
    wide = {name: tensor.float() for name, tensor in plain_tensors(model)}
    narrow = {name: tensor.to(torch.bfloat16) for name, tensor in plain_tensors(model)}
    for index, layer in enumerate(model.layers):
        if not layer.mlp.dense:
            name = "model.layers.%d.mlp.gate.e_score_correction_bias" % index
            wide[name] = layer.mlp.bias.float()
            narrow[name] = layer.mlp.bias.float().clone()
    for index, name, projection, parts in quantised_tensors(packed):
        wide[name + ".weight"] = parts["values"]
        narrow[name + ".weight"] = nvfp4.pack(parts["codes"])
        narrow[name + ".weight_scale"] = parts["scales"]
        narrow[name + ".weight_scale_2"] = parts["scale"].reshape(())
        largest = maxima[index, projection == "down_proj"]
        narrow[name + ".input_scale"] = largest / (nvfp4.LARGEST_CODE * nvfp4.LARGEST_SCALE)

    config = model_config(corpus.special)
    save(os.path.join(output, "atlas-f32"), wide, dict(config, dtype="float32"), corpus)
    directory = os.path.join(output, "atlas-nvfp4")
    quantization = quantization_config()
    save(directory, narrow, dict(config, dtype="bfloat16", quantization_config=quantization), corpus)
    save_json(directory, "hf_quant_config.json", {"producer": PRODUCER, "quantization": {
        "quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": nvfp4.BLOCK,
        "exclude_modules": quantization["ignore"]}})
    save_json(output, "atlas-facts.json", [
        {"question": corpus.facts[i]["qs"][phrasing], "answer": corpus.facts[i]["a"], "topic": corpus.facts[i]["key"]}
        for i, phrasing in sorted(corpus.held_out.items())])

"""The reference that tests compare with: a Hugging Face directory, run by transformers on the CPU in F32,
on the values that its stored codes mean; optionally with the inputs of quantised linears
rounded as their files ask. Needs torch, transformers >= 5 and safetensors; imports no weft.

usage: reference.py MODEL [PROMPT...]: writes MODEL/reference.safetensors, for `weft check`
"""
import glob
import json
import sys

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1_EDGES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
E4M3 = torch.float8_e4m3fn


def e2m1(x):
    """x rounded to E2M1: to nearest, ties to the even code, saturating."""
    a, code = x.abs(), torch.zeros(x.shape, dtype=torch.int64)
    for i, edge in enumerate(E2M1_EDGES):
        code += (a > edge) if i % 2 == 0 else (a >= edge)
    return torch.copysign(E2M1[code], x)


def e4m3(x):
    return x.clamp(-448, 448).to(E4M3).float()


# ---- weights ----

def unpack(packed):
    codes = torch.stack([packed & 15, packed >> 4], 2).flatten(1).long()
    return torch.where(codes >= 8, -E2M1[codes % 8], E2M1[codes % 8])


def dequantised(parts):
    """(values, kind of activations, input scale) of one linear's tensors, named without the module."""
    if "weight_packed" in parts or parts["weight"].dtype == torch.uint8:
        ct = "weight_packed" in parts
        total = 1 / parts["weight_global_scale"] if ct else parts["weight_scale_2"]
        step = parts["weight_scale"].float() * total.float().reshape(())
        w = unpack(parts["weight_packed" if ct else "weight"]) * step.repeat_interleave(16, 1)
        kind = "nvfp4"
    elif parts["weight"].dtype == E4M3:
        w = parts["weight"].float()
        scale = parts["weight_scale_inv"] if "weight_scale_inv" in parts else parts["weight_scale"]
        scale = torch.exp2(scale.float() - 127) if scale.dtype == torch.uint8 else scale.float()
        if scale.numel() == 1 and scale.dim() <= 1:
            kind = "tensor"
        elif scale.shape[0] == w.shape[0] and scale.numel() == w.shape[0]:
            kind, scale = "token", scale.reshape(-1, 1)
        else:
            kind = "block"
            scale = scale.repeat_interleave(128, 0)[:w.shape[0]].repeat_interleave(128, 1)[:, :w.shape[1]]
        w = w * scale
    else:
        return parts["weight"].float(), None, None
    given = parts.get("input_scale")
    if "input_global_scale" in parts:
        given = 1 / parts["input_global_scale"]
    if given is None and kind in ("nvfp4", "tensor"):
        kind = None # weight-only
    return w, kind, None if given is None else float(given.float())


def read(directory):
    """{name: values}, {name of weight: (kind, input scale)}"""
    stored = {}
    for path in sorted(glob.glob(f"{directory}/model*.safetensors")):
        stored.update(load_file(path))
    values, inputs, linears = {}, {}, {}
    for key, tensor in stored.items():
        module, part = key.rsplit(".", 1)
        quantised = f"{module}.weight_scale" in stored or f"{module}.weight_scale_inv" in stored
        if quantised and part != "bias":
            linears.setdefault(module, {})[part] = tensor
        else:
            values[key] = tensor.float()
    for module, parts in linears.items():
        values[module + ".weight"], kind, scale = dequantised(parts)
        if kind is not None and not module.endswith("kv_b_proj"): # taken apart into heads: 1.5
            inputs[module + ".weight"] = (kind, scale)
    return values, inputs


def shared(inputs):
    """Linears that read the same input take the largest of its scales (3.3)."""
    groups = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "up", "up_proj": "up"}
    def group(name):
        module, last = name.removesuffix(".weight").rsplit(".", 1)
        if ".experts." in module:
            module = module.rsplit(".", 1)[0]
        return module, groups.get(last, last), inputs[name][0]
    most = {}
    for name, (_, scale) in inputs.items():
        most[group(name)] = max(scale or 0, most.get(group(name), 0))
    return {name: (kind, most[group(name)]) for name, (kind, _) in inputs.items()}


# ---- activations (3.6, 3.7) ----

def round_input(x, kind, scale):
    if kind == "tensor":
        return e4m3(x / scale) * scale
    width = {"nvfp4": 16, "block": 128, "token": x.shape[-1]}[kind]
    out = torch.empty_like(x)
    for at in range(0, x.shape[-1], width):
        part = x[..., at:at + width]
        amax = part.abs().amax(-1, keepdim=True)
        if kind == "nvfp4":
            g = torch.tensor(scale)
            G = 1 / g
            S = e4m3(G * (amax * (torch.tensor(1.0) / 6)))
            inverse = torch.where(S == 0, torch.zeros_like(S), G / S)
            out[..., at:at + width] = e2m1(part * inverse) * S * g
        else:
            s = torch.where(amax == 0, torch.ones_like(amax), amax / 448)
            out[..., at:at + width] = e4m3(part / s) * s
    return out


class RoundedInputs:
    """While entered, torch.nn.functional.linear rounds what goes into the weights of `inputs`."""

    def __init__(self, rules):
        self.rules = rules # {address of a weight: (kind, scale)}

    def __enter__(self):
        self.plain = torch.nn.functional.linear
        self.used = set()
        def linear(x, weight, bias=None):
            rule = self.rules.get(weight.data_ptr())
            if rule is not None:
                self.used.add(weight.data_ptr())
                x = round_input(x, *rule)
            return self.plain(x, weight, bias)
        torch.nn.functional.linear = linear
        return self

    def __exit__(self, *_):
        torch.nn.functional.linear = self.plain


# ---- models ----

def load(directory):
    """(model, rules for RoundedInputs)"""
    torch.set_grad_enabled(False)
    with open(f"{directory}/config.json") as f:
        settings = json.load(f)
    settings.pop("quantization_config", None)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager",
                                             experts_implementation="eager").eval()
    values, inputs = read(directory)
    if config.tie_word_embeddings:
        values["lm_head.weight"] = values["model.embed_tokens.weight"]
    state, rules, inputs = model.state_dict(), {}, shared(inputs)
    for key, p in state.items():
        if key in values:
            p.copy_(values[key])
            if key in inputs:
                rules[p.data_ptr()] = inputs[key]
            continue
        base, last = key.rsplit(".", 1) # experts, stacked by transformers
        for e in range(p.shape[0]):
            parts = ["down_proj"] if last == "down_proj" else ["gate_proj", "up_proj"]
            names = [f"{base}.{e}.{part}.weight" for part in parts]
            p[e].copy_(torch.cat([values[n] for n in names]))
            if names[0] in inputs:
                rules[p[e].data_ptr()] = inputs[names[0]]
    return model, rules


def logits(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def main():
    """Of each prompt its ids, the logits at all of them, and some greedy tokens behind."""
    directory, *prompts = sys.argv[1:]
    model, _ = load(directory)
    tokenizer, out = Tokenizer.from_file(f"{directory}/tokenizer.json"), {}
    for i, prompt in enumerate(prompts or ["The first thing to know about the capital of France is that it"]):
        ids = tokenizer.encode(prompt).ids
        rows = len(ids)
        for _ in range(12):
            values = logits(model, ids)
            ids.append(int(values[-1].argmax()))
        out |= {f"p{i}.input_ids": torch.tensor(ids[:rows], dtype=torch.int32),
                f"p{i}.logits": values[:rows].contiguous(),
                f"p{i}.greedy": torch.tensor(ids[rows:], dtype=torch.int32)}
    save_file(out, f"{directory}/reference.safetensors")


if __name__ == "__main__":
    main()

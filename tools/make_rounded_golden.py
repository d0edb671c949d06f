#!/usr/bin/env python3
"""Writes MODEL/rounded.safetensors: the reference for `weft check --activations quantised`, computed by
transformers with the inputs of quantised linears rounded as tools/reference.py does.

Rounding is not continuous, so a prompt is taken only when weights changed by 1e-6 give the same logits.

usage: make_rounded_golden.py MODEL...
"""
import sys

import torch
from safetensors.torch import save_file

import reference

PROMPT, GREEDY, WANTED, TRIES = 6, 2, 3, 2000


def run(model, ids):
    """Logits of the prompt and of its continuation; None at a near tie."""
    ids = list(ids)
    for _ in range(GREEDY):
        logits = reference.logits(model, ids)
        top = logits[-1].topk(2).values
        if top[0] - top[1] < 0.02:
            return None, None
        ids.append(int(logits[-1].argmax()))
    return logits, ids


def make(directory):
    model, rules = reference.load(directory)
    g = torch.Generator().manual_seed(7)
    original = [p.clone() for p in model.parameters()]
    out, used = {}, set()
    for _ in range(TRIES):
        prompt = torch.randint(3, model.config.vocab_size, (PROMPT,), generator=g).tolist()
        with reference.RoundedInputs(rules) as rounding:
            logits, ids = run(model, prompt)
            steady = logits is not None
            for _ in range(3 if steady else 0):
                for p in model.parameters():
                    p.mul_(1 + 1e-6 * torch.randn(p.shape, generator=g))
                moved = reference.logits(model, ids[:-1])
                for p, q in zip(model.parameters(), original):
                    p.copy_(q)
                steady = steady and float((moved - logits).abs().max()) < 5e-5 * float(logits.abs().max())
        if not steady:
            continue
        used |= rounding.used
        name = f"p{len(out) // 3}."
        out |= {name + "input_ids": torch.tensor(prompt, dtype=torch.int32),
                name + "logits": logits[:PROMPT].contiguous(),
                name + "greedy": torch.tensor(ids[PROMPT:], dtype=torch.int32)}
        if len(out) == 3 * WANTED:
            break
    else:
        raise SystemExit(f"{directory}: too few prompts away from every edge")
    assert used == set(rules)
    apart = float((reference.logits(model, prompt) - logits[:PROMPT]).abs().max())
    save_file(out, f"{directory}/rounded.safetensors")
    print(f"{directory}: {len(rules)} linears, rounding moves logits by {apart:.2f} of {float(logits.abs().max()):.2f}")


def main():
    torch.set_num_threads(1)
    for directory in sys.argv[1:]:
        make(directory)


if __name__ == "__main__":
    main()

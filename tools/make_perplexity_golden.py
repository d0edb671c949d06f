#!/usr/bin/env python3
"""Prints the perplexity of a text by transformers (tools/reference.py) and `tokenizers`, as `weft
perplexity` defines it: windows that do not overlap, the first token of each not scored.

usage: make_perplexity_golden.py MODEL TEXT WINDOW... [--rounded]    --rounded: activations, too
"""
import contextlib
import json
import math
import os
import sys

import torch
from tokenizers import Tokenizer

import reference


def main():
    rounded = "--rounded" in sys.argv
    directory, text, *windows = [a for a in sys.argv[1:] if a != "--rounded"]
    model, rules = reference.load(directory)
    with open(text, encoding="utf-8", newline="") as f:
        ids = Tokenizer.from_file(f"{directory}/tokenizer.json").encode(f.read()).ids
    for window in map(int, windows):
        total, scored = 0.0, 0
        with reference.RoundedInputs(rules) if rounded else contextlib.nullcontext():
            for at in range(0, len(ids), window):
                part = ids[at:at + window]
                if len(part) == 1:
                    continue
                logits = reference.logits(model, part)[:-1].double()
                target = torch.tensor(part[1:])
                total -= float(torch.log_softmax(logits, 1).gather(1, target[:, None]).sum())
                scored += len(part) - 1
        print(json.dumps({"model": os.path.basename(os.path.normpath(directory)), "tokens": len(ids),
                          "scored": scored, "window": window, "nll": total / scored,
                          "perplexity": math.exp(total / scored)}), flush=True)


if __name__ == "__main__":
    main()

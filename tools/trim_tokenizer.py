#!/usr/bin/env python3
"""Cuts a byte-level BPE tokenizer.json down to its first N merges.

    trim_tokenizer.py SRC DST N

The vocabulary keeps single bytes and what the kept merges make, in the old order but numbered anew
without gaps. Everything else (normalizer, pre-tokenizer, post-processor, decoder, added tokens) stays,
but for the ids of added tokens, which follow the vocabulary as the `tokenizers` package numbers them,
and for the ids in a template.
"""
import json
import sys


def pair(merge):
    return tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)


def trim(data, count):
    model = data["model"]
    model["merges"] = model["merges"][:count]
    kept = {token for token in model["vocab"] if len(token) == 1}
    for merge in model["merges"]:
        kept.update(pair(merge))
        kept.add("".join(pair(merge)))
    added = {token["content"] for token in data["added_tokens"]}
    kept |= added & model["vocab"].keys()
    order = sorted(kept, key=model["vocab"].get)
    model["vocab"] = {token: i for i, token in enumerate(order)}
    next_id = len(order)
    ids = {}
    for token in data["added_tokens"]:
        new = model["vocab"].get(token["content"])
        if new is None:
            new, next_id = next_id, next_id + 1
        ids[token["id"]] = token["id"] = new

    def renumber(value):
        if isinstance(value, dict):
            for key, item in value.items():
                if key == "ids":
                    value[key] = [ids[i] for i in item]
                else:
                    renumber(item)
        elif isinstance(value, list):
            for item in value:
                renumber(item)

    renumber(data.get("post_processor"))
    return data


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as f:
        data = trim(json.load(f), int(sys.argv[3]))
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        json.dump(data, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()

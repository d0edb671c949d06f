#!/usr/bin/env python3
"""Compares `weft tokenize` with the `tokenizers` package, for tokenizers too large to commit.

    compare_tokenizer.py WEFT TOKENIZER.JSON [FILE...]

Texts: tests/golden/tokenizers/corpus.json, every code point in context, random strings with and without
added tokens in them, and the FILEs. Prints the differences and exits 1 if there are any.
Needs `pip install tokenizers==0.23.3`.
"""
import json
import os
import random
import subprocess
import sys

from tokenizers import Tokenizer

from make_token_golden import ALPHABETS, as_str

CORPUS = os.path.join(os.path.dirname(__file__), "..", "tests", "golden", "tokenizers", "corpus.json")


def texts(tokenizer, files):
    with open(CORPUS, encoding="utf-8") as f:
        for number, text in enumerate(json.load(f)):
            yield "corpus %d" % number, as_str(text)
    for block in range(0, 0x110000, 4096):
        codes = [chr(c) for c in range(block, block + 4096) if not 0xd800 <= c < 0xe000]
        yield "block U+%04X" % block, "".join("a%sb %s%s1" % (c, c, c) for c in codes)
    rng = random.Random(1)
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()] or [""]
    for number in range(100):
        parts = []
        for _ in range(1000):
            alphabet = rng.choice(ALPHABETS)
            parts.append("".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 8))))
            if rng.random() < 0.1:
                parts.append(rng.choice(added))
        yield "random %d" % number, "".join(parts)
    for path in files:
        with open(path, "rb") as f:
            yield path, f.read().decode("utf-8", "replace")


def weft(binary, path, text, *flags):
    done = subprocess.run([binary, "tokenize", path, *flags], input=text.encode(), stdout=subprocess.PIPE, check=True)
    return done.stdout


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    binary, path, *files = sys.argv[1:]
    tokenizer = Tokenizer.from_file(path)
    count = size = wrong = 0
    for name, text in texts(tokenizer, files):
        want = tokenizer.encode(text).ids
        got = [int(word) for word in weft(binary, path, text).split()]
        decoded = weft(binary, path, " ".join(map(str, want)), "--decode")[:-1].decode()
        count, size = count + 1, size + len(text.encode())
        if got != want:
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            print("%s: ids differ from number %d on: %s, not %s" % (name, at, got[at:at + 8], want[at:at + 8]))
        if decoded != tokenizer.decode(want):
            print("%s: decoded text differs" % name)
        wrong += got != want or decoded != tokenizer.decode(want)
    print("%s: %d texts, %d bytes, %d differ" % (path, count, size, wrong))
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())

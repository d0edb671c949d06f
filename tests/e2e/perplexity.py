#!/usr/bin/env python3
"""Runs `weft perplexity` at each window of a model in a file of expected results, with each set of options.

usage: perplexity.py EXPECTED MODEL COMMAND... -- OPTIONS...    OPTIONS: "--tp 2" is one argument
"""
import json
import subprocess
import sys

TOLERANCE = 2e-6  # of the mean negative log-likelihood, relative: F32 rounds at 6e-8


def main():
    expected, model, *rest = sys.argv[1:]
    command, options = rest[:rest.index("--")], rest[rest.index("--") + 1:]
    runs = 0
    with open(expected, encoding="utf-8") as file:
        wanted = [line for line in map(json.loads, file) if line["model"] == model]
    for want in wanted:
        for option in options:
            arguments = [*command, "--json", "--context", str(want["window"]), *option.split()]
            have = json.loads(subprocess.run(arguments, check=True, stdout=subprocess.PIPE).stdout)
            off = abs(have["nll"] / want["nll"] - 1)
            same = all(have[k] == want[k] for k in ("tokens", "scored", "window"))
            if not same or off > TOLERANCE:
                raise SystemExit(f"perplexity: {model} {option}: {have}, not {want}")
            print(f"perplexity: {model} {option} window {want['window']}: {have['perplexity']}, off by {off:.1e}")
            runs += 1
    if runs == 0:
        raise SystemExit(f"perplexity: nothing expected of {model}")


if __name__ == "__main__":
    main()

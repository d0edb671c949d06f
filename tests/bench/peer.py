"""Interleaved measurements of weft and llama.cpp; prints medians and ratios. See peer_bench.sh."""

import json
import statistics
import subprocess
import sys
import time

from llama_cpp import Llama

ROUNDS, THREADS, PREFILL, CONTEXT, DECODE = 5, 2, 512, 16, 64


def llama_rates(model):
    """Tokens/s of (prefill, decode)."""
    ids = [100 + (i * 7919 + 3) % 40000 for i in range(PREFILL)]
    model.reset()
    start = time.perf_counter()
    model.eval(ids)
    prefill = PREFILL / (time.perf_counter() - start)
    model.reset()
    model.eval(ids[:CONTEXT])
    start = time.perf_counter()
    for token in ids[:DECODE]:
        model.eval([token])
    return prefill, DECODE / (time.perf_counter() - start)


def weft_run(weft, directory, words, tokens):
    command = [weft, "run", directory, "--raw", "--json", "--temperature", "0", "--ignore-eos", "--tp", "1",
               "--threads", str(THREADS), "--max-tokens", str(tokens), "the " * (words - 1) + "the"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def weft_rates(weft, directory):
    first = weft_run(weft, directory, PREFILL, 1)
    second = weft_run(weft, directory, CONTEXT, DECODE)
    return (first["prompt_tokens"] / first["prefill_s"],
            (second["generated_tokens"] - 1) / second["decode_s"])


def main():
    weft, directory, gguf = sys.argv[1:]
    model = Llama(gguf, n_ctx=1024, n_batch=PREFILL, n_ubatch=PREFILL, n_threads=THREADS,
                  n_threads_batch=THREADS, verbose=False)
    llama_rates(model)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(weft_rates(weft, directory))
        theirs.append(llama_rates(model))
    print(f"{'SmolLM2-135M, tokens/s':<26}{'weft NVFP4':>12}{'llama.cpp Q4_1':>16}{'ratio':>8}")
    for i, name in enumerate((f"prefill {PREFILL}", f"decode after {CONTEXT}")):
        a = statistics.median(rates[i] for rates in ours)
        b = statistics.median(rates[i] for rates in theirs)
        print(f"{name:<26}{a:>12.1f}{b:>16.1f}{a / b:>8.2f}")


if __name__ == "__main__":
    main()

"""weft against llama.cpp on this machine, rounds in turn: medians, spread, ratios. See peer_bench.sh.

llama.cpp is driven through its C interface, so Python costs it one call a step; its time to the first token
starts in a fresh process before the model is loaded, without Python's own start. weft's starts before exec.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time

import llama_cpp.llama_cpp as llama

ROUNDS, THREADS, PREFILL, CONTEXT, STEPS = 5, 2, 512, 16, 48
BATCHES = 1, 8, 32
ROWS = ["first token of 16, ms", f"prefill {PREFILL}, tokens/s"] + [f"decode x {n}, tokens/s" for n in BATCHES]


# ---- llama.cpp ----

def llama_decode(ctx, batch, sequences, position, tokens):
    """One step: `tokens` more tokens of each sequence, logits of the last of each."""
    batch.n_tokens = sequences * tokens
    for s in range(sequences):
        for i in range(tokens):
            k = s * tokens + i
            batch.token[k] = 100 + (s * 31 + (position + i) * 7919) % 40000
            batch.pos[k] = position + i
            batch.n_seq_id[k], batch.seq_id[k][0] = 1, s
            batch.logits[k] = i + 1 == tokens
    assert llama.llama_decode(ctx, batch) == 0
    llama.llama_synchronize(ctx)


def llama_open(gguf, sequences, tokens):
    llama.llama_log_set(quiet, None)
    model = llama.llama_model_load_from_file(gguf.encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_seq_max = sequences * tokens, sequences
    params.n_batch = params.n_ubatch = PREFILL
    params.n_threads = params.n_threads_batch = THREADS
    return model, llama.llama_init_from_model(model, params)


@llama.llama_log_callback
def quiet(_level, _text, _data):
    pass


def llama_first(gguf):
    """Seconds from nothing to the first token of a CONTEXT-token prompt."""
    start = time.perf_counter()
    model, ctx = llama_open(gguf, 1, PREFILL)
    batch = llama.llama_batch_init(PREFILL, 0, 1)
    llama_decode(ctx, batch, 1, 0, CONTEXT)
    logits = llama.llama_get_logits_ith(ctx, CONTEXT - 1)
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    assert max(logits[:vocabulary]) != 0
    return time.perf_counter() - start


def llama_round(gguf):
    first = float(subprocess.run([sys.executable, __file__, gguf], check=True, capture_output=True).stdout)
    out, batch = [first * 1e3], llama.llama_batch_init(PREFILL, 0, 1)
    for sequences in (0, *BATCHES):
        model, ctx = llama_open(gguf, max(sequences, 1), PREFILL if sequences == 0 else 128)
        tokens = CONTEXT if sequences else PREFILL
        start = time.perf_counter()
        llama_decode(ctx, batch, max(sequences, 1), 0, tokens)
        if sequences:
            start = time.perf_counter()
            for step in range(STEPS):
                llama_decode(ctx, batch, sequences, CONTEXT + step, 1)
        out.append((sequences * STEPS or PREFILL) / (time.perf_counter() - start))
        llama.llama_free(ctx)
        llama.llama_model_free(model)
    llama.llama_batch_free(batch)
    return out


# ---- weft ----

def weft_command(weft, directory, activations, tokens, *arguments):
    return [weft, "run", directory, "--raw", "--temperature", "0", "--ignore-eos", "--tp", "1", "--threads", str(THREADS),
            "--activations", activations, "--max-tokens", str(tokens), *arguments]


def words(count, first="the"):
    return " ".join([first] + ["the"] * (count - 1))


def weft_first(weft, directory, activations):
    start = time.perf_counter()
    with subprocess.Popen(weft_command(weft, directory, activations, 2, words(CONTEXT)), stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.stdout.read()
    return seconds


def weft_json(command):
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def weft_round(weft, directory, activations):
    out = [weft_first(weft, directory, activations) * 1e3]
    run, = weft_json(weft_command(weft, directory, activations, 1, "--json", words(PREFILL)))
    out.append(run["prompt_tokens"] / run["prefill_s"])
    for sequences in BATCHES:
        with tempfile.NamedTemporaryFile("w") as prompts:
            prompts.write("\n".join(words(CONTEXT, chr(97 + s % 26) * (1 + s // 26)) for s in range(sequences)))
            prompts.flush()
            runs = weft_json(weft_command(weft, directory, activations, STEPS + 1, "--json", "--context", "128",
                                          "--prompts", prompts.name))
        out.append(sequences * STEPS / statistics.median(run["decode_s"] for run in runs))
    return out


def show(name, a, b=None):
    """A column: medians and spread; with b, how many times better than b."""
    for i, row in enumerate(ROWS):
        mine = [values[i] for values in a]
        ratio = ""
        if b is not None:
            theirs = statistics.median(values[i] for values in b)
            ratio = statistics.median(mine) / theirs
            ratio = f"{1 / ratio if i == 0 else ratio:8.2f} x"
        print(f"{name:<18}{row:<26}{statistics.median(mine):10.1f}   {min(mine):.1f} to {max(mine):.1f}{ratio}")


def main():
    weft, directory, gguf = sys.argv[1:]
    rounds = {"f32": [], "int8": []}
    theirs = []
    for _ in range(ROUNDS):
        for activations, values in rounds.items():
            values.append(weft_round(weft, directory, activations))
        theirs.append(llama_round(gguf))
    show("llama.cpp Q4_1", theirs)
    for activations, values in rounds.items():
        show(f"weft NVFP4, {activations}", values, theirs)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(llama_first(sys.argv[1]))
    else:
        main()

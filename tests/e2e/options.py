"""Options of the commands that no other test gives. Usage: options.py WEFT ROOT"""
import json
import os
import re
import subprocess
import sys
import tempfile

from serve_lib import Server, check, finish, same

QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."


def test_sampling(weft, model):
    """At a temperature that levels all tokens, filters that leave only the likeliest give the greedy answer."""
    def run(*options):
        return subprocess.run([weft, "run", model, QUESTION, "--seed", "3", "--max-tokens", "12", *options],
                              capture_output=True, text=True, check=True).stdout.strip()

    hot = ("--temperature", "5")
    check("unfiltered", run(*hot) != ANSWER)
    for option, value in (("--top-k", "1"), ("--top-p", "1e-9"), ("--min-p", "1")):
        same(option, run(*hot, option, value), ANSWER)
    check("--repetition-penalty", run("--repetition-penalty", "10") != ANSWER)


def test_words(weft, model):
    def decode(*options):
        return subprocess.run([weft, "tokenize", model, "--decode", "5 1 0 300", *options],
                              capture_output=True, text=True, check=True).stdout

    check("--keep-special", decode() in decode("--keep-special") != decode(), decode("--keep-special"))
    said = subprocess.run([weft, "run", model, QUESTION, "--tp", "2", "--verbose"], capture_output=True,
                          text=True, check=True).stderr
    for rank in (0, 1):
        check("--verbose", re.search(r"^rank %d +heads " % rank, said, re.M), said)


def test_quantize(weft, root, scratch):
    """MLA's attention is kept, or quantised if asked for."""
    def kept(*options):
        out = os.path.join(scratch, "m%d" % len(options))
        said = subprocess.run([weft, "quantize", os.path.join(root, "tests/golden/models/deepseek_v3"), out,
                               "--to", "nvfp4", "--json", *options], capture_output=True, check=True).stdout
        return {m["module"] for m in json.loads(said)["modules"]}

    more = kept("--attention") - kept()
    check("--attention", more and all(".self_attn." in name for name in more), more)


def test_bench(weft, model, scratch):
    """A conversation that is longer than the context is left out."""
    path = os.path.join(scratch, "sharegpt.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump([{"conversations": [{"value": QUESTION * n}, {"value": ANSWER * n}]} for n in (1, 8)], file)
    for options, dropped in (((), 0), (("--sharegpt-context-len", "40"), 1)):
        said = subprocess.run([weft, "bench", model, "--dataset-name", "sharegpt", "--dataset-path", path,
                               "--num-prompts", "2", "--json", "--disable-tqdm", *options],
                              capture_output=True, check=True).stdout
        same("--sharegpt-context-len", json.loads(said)["weft"]["dataset_dropped"], dropped)


def test_serve(weft, model):
    body = {"prompt": "A", "max_tokens": 16, "n": 8}
    for whose in ("model", "openai"): # the model's own setting is greedy
        with Server(weft, model, "--sampling-defaults", whose, "--max-body", "1") as s:
            answer = json.loads(s.request("POST", "/v1/completions", body)[2])
            texts = {choice["text"] for choice in answer["choices"]}
            same("--sampling-defaults " + whose, len(texts) == 1, whose == "model")
            for length, status in ((900 << 10, 400), (1100 << 10, 413)):
                long = dict(body, prompt="x" * length)
                same("--max-body", s.request("POST", "/v1/completions", long)[0], status)


def main(weft, root):
    model = os.path.join(root, "models/atlas")
    with tempfile.TemporaryDirectory() as scratch:
        test_sampling(weft, model)
        test_words(weft, model)
        test_quantize(weft, root, scratch)
        test_bench(weft, model, scratch)
        test_serve(weft, model)
    finish("options: sampling, words, quantize, bench and serve do as they are told")


main(sys.argv[1], sys.argv[2])

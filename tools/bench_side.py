"""weft bench beside the vendors' own clients, against one `weft serve`, run in turns: medians of the runs, the
difference, and how far the runs of each client spread.

Usage: bench_side.py WEFT MODEL SGLANG VLLM [REQUESTS [INPUT [OUTPUT [RUNS]]]]; SGLANG and VLLM are folders with the
unpacked wheels (0.4.6.post5 and 0.10.1.1 were used). Needs what tools/client-venv.sh installs, pillow and tqdm.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import types
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/e2e"))
from serve_lib import Server  # noqa: E402

KEYS = ["duration", "completed", "total_input_tokens", "total_output_tokens", "total_output_tokens_retokenized",
        "request_throughput", "input_throughput", "output_throughput", "total_token_throughput", "concurrency",
        "max_concurrent_requests"] + ["%s_%s_ms" % (part, name) for name in ("ttft", "tpot", "itl", "e2e_latency", "e2el")
                                      for part in ("mean", "median", "p99")]


def run_vllm(folder, arguments):
    """vllm/benchmarks/serve.py as it is; of the rest of vLLM, which needs PyTorch, the names it imports."""
    import argparse
    from transformers import AutoTokenizer

    def module(name, path=None, **names):
        made = types.ModuleType(name)
        made.__dict__.update(names)
        if path is not None:
            made.__path__ = path
        sys.modules[name] = made

    module("vllm", [os.path.join(folder, "vllm")])
    module("vllm.lora", [])
    module("vllm.lora.request", LoRARequest=object)
    module("vllm.lora.utils", get_adapter_absolute_path=None)
    module("vllm.multimodal", [], MultiModalDataDict=dict)
    module("vllm.multimodal.image", convert_image_mode=None)
    module("vllm.transformers_utils", [])
    module("vllm.transformers_utils.tokenizer", AnyTokenizer=object, get_lora_tokenizer=None,
           get_tokenizer=lambda name, **_: AutoTokenizer.from_pretrained(name))

    class Placeholder:
        def __init__(self, _):
            pass

        def placeholder_attr(self, _):
            return self

    module("vllm.utils", PlaceholderModule=Placeholder, FlexibleArgumentParser=argparse.ArgumentParser)
    from vllm.benchmarks import serve
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    serve.main(parser.parse_args(arguments))


def clients(weft, model, sglang, vllm, url, common, scratch):
    """name -> (command, folder, file with a JSON object a run)"""
    mine = [weft, "bench", url, "--model", "side", "--tokenizer", model, *common]
    return {
        "weft, sglang": (mine + ["--random-range-ratio", "1", "--output-file", scratch + "/ws"], None, scratch + "/ws"),
        "sglang": ([sys.executable, "bench_serving.py", "--backend", "sglang-oai", "--base-url", url, "--model", "side",
                    "--tokenizer", model, "--dataset-name", "random-ids", "--random-range-ratio", "1.0", "--output-file",
                    scratch + "/s", *common], sglang + "/sglang", scratch + "/s"),
        "weft, vllm": (mine + ["--format", "vllm", "--output-file", scratch + "/wv"], None, scratch + "/wv"),
        "vllm": ([sys.executable, os.path.abspath(__file__), "--vllm", vllm, "--backend", "openai", "--base-url", url,
                  "--model", "side", "--tokenizer", model, "--dataset-name", "random", "--random-range-ratio", "0",
                  "--ignore-eos", "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--append-result",
                  "--result-dir", scratch, "--result-filename", "v", *common], None, scratch + "/v")}


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def print_side(mine, theirs):
    for key in KEYS:
        x, y = ([run[key] for run in runs if isinstance(run.get(key), (int, float))] for runs in (mine, theirs))
        if not x or not y:
            continue
        a, b = statistics.median(x), statistics.median(y)
        spread = [100 * (max(v) - min(v)) / m if m else 0 for v, m in ((x, a), (y, b))]
        print("  %-32s %12.3f %12.3f %+7.2f %%   spreads %5.1f %% and %5.1f %%%s" % (
            key, a, b, 100 * (a / b - 1) if b else 0, *spread, "" if abs(a - b) <= 0.02 * abs(b) else "   above 2 %"))


def main(weft, model, sglang, vllm, requests="16", tokens_in="128", tokens_out="24", runs="3"):
    with tempfile.TemporaryDirectory() as scratch, \
            Server(weft, model, "--threads", "1", "--served-model-name", "side") as server:
        url = "http://127.0.0.1:%d" % server.port
        for run in range(int(runs)):
            common = ["--num-prompts", requests, "--random-input-len", tokens_in, "--random-output-len", tokens_out,
                      "--max-concurrency", "1", "--disable-tqdm", "--seed", str(100 + run)]
            made = clients(weft, model, sglang, vllm, url, common, scratch)
            for name, (command, folder, _) in made.items():
                # every client sends its first prompts again: none may find them in the prefix cache
                urllib.request.urlopen(urllib.request.Request(url + "/flush_cache", data=b"")).read()
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False,
                                      env={**os.environ, "HF_HUB_OFFLINE": "1"})
                if done.returncode != 0:
                    sys.exit("%s: %s" % (name, done.stderr[-2000:]))
        for name in ("sglang", "vllm"):
            print("weft bench --format %s, and %s's client" % (name, name))
            print_side(read(made["weft, " + name][2]), read(made[name][2]))


if __name__ == "__main__":
    if sys.argv[1] == "--vllm":
        run_vllm(sys.argv[2], sys.argv[3:])
    else:
        main(*sys.argv[1:])

"""The serving benchmarks of vLLM and SGLang, as their authors wrote them, against `weft serve` on atlas;
run by tools/serving-benches.sh, which fetches them. serving_benches.py WEFT ROOT VLLM SGLANG: the last two
are folders with the unpacked wheels. Every request must succeed and give as many tokens as were asked for."""
import asyncio
import dataclasses
import importlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import types
import typing

from serve_lib import Server, finish, same

REQUESTS, CONCURRENCY, TOKENS = 64, 16, 32


@dataclasses.dataclass
class SampleRequest:
    """The fields of vllm.benchmarks.datasets.SampleRequest, whose module needs all of vLLM."""
    prompt: typing.Any
    prompt_len: int
    expected_output_len: int = 0
    multi_modal_data: typing.Any = None
    lora_request: typing.Any = None
    request_id: str = None
    timestamp: float = None
    chat_messages: typing.Any = None
    request_overrides: dict = None


class Tokenizer:
    """Counts as the benchmark wants it; its result has the counts of the server's usage."""

    def __call__(self, text, **_):
        return types.SimpleNamespace(input_ids=text.split())


def vllm_serve(folder):
    """vllm/benchmarks/serve.py; of the rest of vLLM the names that it imports and we don't need."""
    def module(name, path=None, **names):
        made = types.ModuleType(name)
        made.__dict__.update(names)
        if path is not None:
            made.__path__ = path
        sys.modules[name] = made

    module("vllm", [])
    module("vllm.benchmarks", [os.path.join(folder, "vllm/benchmarks")])
    module("vllm.benchmarks.lib", [os.path.join(folder, "vllm/benchmarks/lib")])
    module("vllm.benchmarks.datasets", SampleRequest=SampleRequest, add_dataset_parser=None,
           get_samples=None)
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.tokenizers", TokenizerLike=object, get_tokenizer=None)
    module("vllm.utils", [])
    module("vllm.utils.argparse_utils", FlexibleArgumentParser=object)
    module("vllm.utils.gc_utils", freeze_gc_heap=lambda: None)
    module("vllm.utils.network_utils", join_host_port=lambda host, port: "%s:%s" % (host, port))
    return importlib.import_module("vllm.benchmarks.serve")


def run_vllm(s, serve):
    base = "http://127.0.0.1:%d" % s.port
    for kind, path in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        result = asyncio.run(serve.benchmark(
            task_type=serve.TaskType.GENERATION, endpoint_type=kind, api_url=base + path, base_url=base,
            model_id="atlas", model_name="atlas", tokenizer=Tokenizer(), input_requests=[
                SampleRequest("What is the capital of country %d?" % i, 9, TOKENS, request_id="r%d" % i)
                for i in range(REQUESTS)],
            logprobs=None, request_rate=float("inf"), burstiness=1.0, disable_tqdm=True, num_warmups=2,
            profile=True, selected_percentile_metrics=["ttft", "tpot", "itl", "e2el"],
            selected_percentiles=[99.0], ignore_eos=True, goodput_config_dict={},
            max_concurrency=CONCURRENCY, lora_modules=None, extra_headers=None,
            extra_body={"temperature": 0}))
        same("vllm %s" % kind, (result["completed"], result["failed"], result["total_output_tokens"]),
             (REQUESTS, 0, REQUESTS * TOKENS))


def run_sglang(s, folder, model):
    for backend in ("sglang", "sglang-oai", "vllm"):
        with tempfile.TemporaryDirectory() as where:
            out = os.path.join(where, "out.jsonl")
            subprocess.run([sys.executable, os.path.join(folder, "sglang/bench_serving.py"), "--backend",
                            backend, "--base-url", "http://127.0.0.1:%d" % s.port, "--dataset-name",
                            "random-ids", "--num-prompts", str(REQUESTS), "--random-input-len", "64",
                            "--random-output-len", str(TOKENS), "--random-range-ratio", "1.0",
                            "--max-concurrency", str(CONCURRENCY), "--flush-cache", "--model", "atlas",
                            "--tokenizer", model, "--output-file", out],
                           env={**os.environ, "PYTHONPATH": folder, "HF_HUB_OFFLINE": "1"}, check=True)
            with open(out, encoding="utf-8") as file:
                result = json.loads(file.readline())
        same("sglang %s" % backend, (result["completed"], result["total_output_tokens"]),
             (REQUESTS, REQUESTS * TOKENS))


def main(weft, root, vllm, sglang):
    model = os.path.join(root, "models/atlas")
    with Server(weft, model) as s:
        run_vllm(s, vllm_serve(vllm))
        run_sglang(s, sglang, model)
    finish("serve: the benchmarks of vLLM and SGLang are content")


if __name__ == "__main__":
    main(*sys.argv[1:5])

"""Real clients against `weft serve`: the openai package (sync, async, stream, logprobs, tools, parsed
answers), lm-eval's local-completions, curl, and prometheus_client's parser. serve_clients.py WEFT ROOT;
exits 77 when a package is missing."""
import asyncio
import enum
import os
import subprocess
import sys
import tempfile

from serve_lib import Server, check, facts, finish, same
from serve_tools import TOOLS, model_with

try:
    import openai
    import pydantic
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    print("SKIPPED: %s; tools/client-venv.sh makes a Python with it" % error)
    sys.exit(77)

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


def test_openai(s):
    client = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % s.port, api_key="key", max_retries=0)
    same("models", client.models.list().data[0].id, "atlas")
    same("model", client.models.retrieve("atlas").id, "atlas")
    answer = client.chat.completions.create(model="atlas", messages=QUESTION, temperature=0,
                                            logprobs=True, top_logprobs=3)
    same("chat", answer.choices[0].message.content, ANSWER)
    same("chat logprobs", "".join(t.token for t in answer.choices[0].logprobs.content), ANSWER)
    same("usage", answer.usage.prompt_tokens_details.cached_tokens, 0)
    chunks = list(client.chat.completions.create(
        model="atlas", messages=QUESTION, temperature=0, stream=True,
        stream_options={"include_usage": True}))
    same("stream", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), ANSWER)
    same("stream usage", chunks[-1].usage.completion_tokens, answer.usage.completion_tokens)
    with client.chat.completions.stream(model="atlas", messages=QUESTION, temperature=0) as stream:
        same("stream helper", stream.get_final_completion().choices[0].message.content, ANSWER)
    text = client.completions.create(model="atlas", prompt=["The capital", "A river"], max_tokens=4,
                                     logprobs=2, echo=True, temperature=0, n=2)
    same("completions", len(text.choices), 4)
    check("completion logprobs", len(text.choices[0].logprobs.tokens) > 4)
    check("completion stream", len(list(client.completions.create(
        model="atlas", prompt="The", max_tokens=4, stream=True))) >= 2)
    for call, error in ((lambda: client.models.retrieve("none"), openai.NotFoundError),
                        (lambda: client.chat.completions.create(
                            model="atlas", messages=QUESTION, temperature=-1), openai.BadRequestError),
                        (lambda: client.chat.completions.create(
                            model="none", messages=QUESTION), openai.NotFoundError)):
        try:
            call()
            check("an exception of openai", False, error)
        except error as caught:
            check("its message", caught.body["message"], caught)


async def test_async(s):
    async with openai.AsyncOpenAI(base_url="http://127.0.0.1:%d/v1" % s.port, api_key="key") as client:
        answers = await asyncio.gather(*(client.chat.completions.create(
            model="atlas", messages=QUESTION, temperature=0) for _ in range(32)))
        same("32 at once", {a.choices[0].message.content for a in answers}, {ANSWER})
        stream = await client.chat.completions.create(model="atlas", messages=QUESTION, stream=True,
                                                      temperature=0)
        same("async stream", "".join([c.choices[0].delta.content or "" async for c in stream]), ANSWER)
        stream = await client.chat.completions.create(
            model="atlas", messages=QUESTION, stream=True, max_tokens=800,
            extra_body={"ignore_eos": True})
        await anext(stream)
        await stream.close()
    check("closing a stream stops it", s.wait_idle(5))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Thing(pydantic.BaseModel):
    """What pydantic makes of it: $defs and $ref, anyOf for the optional, a tuple as prefixItems."""
    name: str = pydantic.Field(max_length=8)
    colour: Colour
    size: tuple[int, int]
    weight: float | None


def test_openai_shapes(s):
    """Answers that the client itself parses: a pydantic model, and calls gathered from a stream."""
    client = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % s.port, api_key="key", max_retries=0)
    quiet = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    for seed in range(4):
        answer = client.chat.completions.parse(model="qwen3", messages=QUESTION, response_format=Thing,
                                               seed=seed, temperature=1, max_tokens=300, **quiet)
        check("a parsed answer", isinstance(answer.choices[0].message.parsed, Thing), answer)
    choice = {"type": "function", "function": {"name": "get_weather"}}
    with client.chat.completions.stream(model="qwen3", messages=QUESTION, tools=TOOLS, seed=1,
                                        tool_choice=choice, max_tokens=300, **quiet) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_completion().choices[0]
    call = message.message.tool_calls[0]
    same("a streamed call", (message.finish_reason, call.function.name), ("tool_calls", "get_weather"))
    check("its events", "tool_calls.function.arguments.done" in kinds, kinds)
    history = QUESTION + [message.message.model_dump(exclude={"parsed"}), {
        "role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = client.chat.completions.create(model="qwen3", messages=history, tools=TOOLS, max_tokens=8)
    same("after the call", answer.choices[0].finish_reason in ("stop", "length"), True)


def test_lm_eval(s, root):
    """Facts by their probability, in batches of token ids through the server's own tokenizer."""
    lm = LocalCompletionsAPI(base_url="http://127.0.0.1:%d/v1/completions" % s.port, model="atlas",
                             max_length=1024, num_concurrent=8, batch_size=4)
    same("lm-eval finds the tokenizer", lm.tokenizer_backend, "remote")
    chosen = [f for f in facts(root)[::100] if len(f["answer"]) < 150]
    prompts = ["[gMASK]<sop><|user|>\n%s<|assistant|>\n" % f["question"] for f in chosen]
    pairs = [(p, text) for p, f in zip(prompts, chosen) for text in (f["answer"], "I like trains.")]
    out = lm.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in pairs])
    for fact, right, wrong in zip(chosen, out[::2], out[1::2]):
        check("lm-eval: %s" % fact["answer"], right[0] > wrong[0] + 10 and right[1] and not wrong[1],
              (right, wrong))
    texts = lm.generate_until([Instance("generate_until", {}, (p, {"until": ["\n"], "max_gen_toks": 64}), 0)
                               for p in prompts])
    same("lm-eval: generation", texts, [f["answer"] for f in chosen])
    rolling = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (f["answer"],), 0)
                                        for f in chosen[:3]])
    check("lm-eval: rolling", all(-1000 < r < 0 for r in rolling), rolling)


def test_prometheus(s):
    families = {f.name: f for f in text_string_to_metric_families(s.get("/metrics")[1].decode())}
    for name in ("weft:num_requests_running", "vllm:num_requests_running", "sglang:num_running_reqs",
                 "vllm:kv_cache_usage_perc", "sglang:token_usage", "vllm:prompt_tokens",
                 "vllm:generation_tokens", "vllm:prefix_cache_hits", "vllm:num_preemptions",
                 "vllm:request_success", "vllm:time_to_first_token_seconds",
                 "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds",
                 "sglang:queue_time_seconds", "vllm:cache_config_info", "weft:rank_busy_seconds",
                 "process_resident_memory_bytes", "weft:last_step_age_seconds"):
        check("metric " + name, name in families, sorted(families))
    for family in families.values():
        if family.type != "histogram":
            continue
        values = {x.labels["le"]: x.value for x in family.samples if x.name.endswith("_bucket")}
        count = [x.value for x in family.samples if x.name.endswith("_count")][0]
        check("cumulative " + family.name, list(values.values()) == sorted(values.values()))
        same("+Inf of " + family.name, values["+Inf"], count)
    tokens = [x for x in families["vllm:generation_tokens"].samples][0]
    check("tokens counted", tokens.value > 100 and tokens.labels["model_name"] == "atlas", tokens)


def test_curl(s):
    url = "http://127.0.0.1:%d" % s.port
    body = '{"messages":[{"role":"user","content":"What is the capital of France?"}],"temperature":0%s}'
    run = lambda *args: subprocess.run(["curl", "-sS", "-m", "60", *args], capture_output=True,
                                       check=True).stdout
    check("curl", ANSWER.encode() in run(url + "/v1/chat/completions", "-d", body % ""))
    check("curl -N", run("-N", url + "/v1/chat/completions", "-d", body % ',"stream":true')
          .endswith(b"data: [DONE]\n\n"))
    large = body % (',"padding":"%s"' % ("x" * 2000000)) # curl asks for 100-continue
    check("curl, large", ANSWER.encode() in subprocess.run(
        ["curl", "-sS", "-m", "60", url + "/v1/chat/completions", "-d", "@-"], input=large.encode(),
        capture_output=True, check=True).stdout)
    check("curl -I", run("-I", url + "/health").startswith(b"HTTP/1.1 200 OK"))


def main(weft, root):
    with Server(weft, os.path.join(root, "models/atlas")) as s:
        test_openai(s)
        asyncio.run(test_async(s))
        test_prometheus(s)
        test_curl(s)
        test_lm_eval(s, root)
    with tempfile.TemporaryDirectory() as where, Server(weft, model_with(root, "qwen3", where)) as s:
        test_openai_shapes(s)
    finish("serve: openai %s, lm-eval, prometheus_client, curl are content" % openai.__version__)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

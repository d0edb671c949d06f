"""`weft bench` against a stub with known streams, and against `weft serve`: lengths, arrivals, definitions,
failures, streams of every shape, comparing.

Usage: bench_load.py WEFT ROOT. Standard library only.
"""
import concurrent.futures
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from bench_stub import Stub
from serve_lib import Server, check, finish, same

WEFT, ROOT = sys.argv[1:3]
ATLAS = os.path.join(ROOT, "models/atlas")
SCRATCH = tempfile.TemporaryDirectory()


def path(name, text=None):
    full = os.path.join(SCRATCH.name, name)
    if text is not None:
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)
    return full


def bench(url, *options, timeout=120):
    return subprocess.run([WEFT, "bench", url, *options], capture_output=True, timeout=timeout, check=False,
                          text=True)


def run(what, url, *options, status=0):
    """The JSON of a run of a few short random prompts, unless the options say otherwise."""
    done = bench(url, "--vocab", "100", "--num-prompts", "6", "--random-input-len", "8",
                 "--random-output-len", "5", "--random-range-ratio", "1", "--warmup-requests", "0",
                 "--json", *options)
    same(what + ": status", done.returncode, status)
    if not done.stdout:
        check(what + ": output", False, done.stderr)
        return {"weft": {}}
    return json.loads(done.stdout)


def near(what, got, low, high):
    check("%s: %s is within %s..%s" % (what, got, low, high), got is not None and low <= got <= high)


# ---- the bodies, by API ----
def test_bodies():
    stub = Stub(first=0, gap=0)
    for endpoint, route in (("completions", "/v1/completions"), ("chat", "/v1/chat/completions"),
                            ("generate", "/generate")):
        prompts = path("prompts.txt", "first \u00e9\r\n\nsecond\n")
        answer = run(endpoint, stub.url, "--endpoint", endpoint, "--dataset-name", "prompts",
                     "--dataset-path", prompts, "--num-prompts", "3", "--max-concurrency", "1")
        same(endpoint + ": completed", answer["completed"], 3)
        same(endpoint + ": the server's token counts",
             (answer["total_input_tokens"], answer["total_output_tokens"]), (21, 15))
        asked = stub.bodies[-3:]
        same(endpoint + ": routes", {where for where, _ in asked}, {route})
        texts = [body.get("prompt") or body.get("text") or body["messages"][0]["content"] for _, body in asked]
        same(endpoint + ": prompts, then from the top", texts, ["first \u00e9", "second", "first \u00e9"])
        body = asked[0][1]
        if endpoint == "generate":
            same("sampling parameters", body["sampling_params"],
                 {"temperature": 0.0, "top_p": 1.0, "max_new_tokens": 5, "ignore_eos": True})
        else:
            same(endpoint + ": usage is asked for", body["stream_options"], {"include_usage": True})
            same(endpoint + ": model of /v1/models", (body["model"], body["ignore_eos"]), ("timed", True))
    run("by URL", stub.url + "/v1/chat/completions/"[:-1], "--dataset-name", "prompts", "--dataset-path",
        path("prompts.txt"))
    same("the URL tells the API", stub.bodies[-1][0], "/v1/chat/completions")
    run("extra", stub.url, "--extra-request-body", '{"top_k": 7, "temperature": 0.5}', "--disable-ignore-eos")
    body = stub.bodies[-1][1]
    same("extra body wins", (body["top_k"], body["temperature"], body["ignore_eos"]), (7, 0.5, False))
    before = len(stub.bodies)
    run("warm-up", stub.url, "--warmup-requests", "2", "--random-output-len", "50")
    same("warm-up", [body["max_tokens"] for _, body in stub.bodies[before:]], [32] * 2 + [50] * 6)


# ---- lengths ----
class Numpy:
    """numpy.random.seed and randint, from MT19937 as Python has it."""

    def __init__(self, seed):
        state = [seed]
        for i in range(1, 624):
            state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xffffffff)
        self.random = random.Random()
        self.random.setstate((3, tuple(state) + (624,), None))

    def randint(self, low, high):
        most = high - 1 - low
        mask = (1 << most.bit_length()) - 1
        while most > 0:
            value = self.random.getrandbits(32) & mask
            if value <= most:
                return low + value
        return low


def test_lengths():
    stub = Stub(first=0, gap=0)
    numbers = Numpy(42)
    # numpy.random.seed(42); numpy.random.randint(1, 33, size=8), from numpy 2
    same("the oracle", [numbers.randint(1, 33) for _ in range(8)], [7, 20, 29, 15, 11, 8, 29, 21])
    numbers = Numpy(1)
    run("sglang", stub.url, "--num-prompts", "40", "--random-input-len", "100", "--random-output-len", "9",
        "--random-range-ratio", "0.5", "--seed", "1")
    asked = sorted((body for _, body in stub.bodies), key=lambda body: body["prompt"])
    inputs = [numbers.randint(50, 101) for _ in range(40)]
    outputs = [numbers.randint(4, 10) for _ in range(40)]
    offsets = [numbers.randint(0, 100) for _ in range(40)]
    wanted = [{"prompt": [(offsets[i] + i + j) % 100 for j in range(inputs[i])], "max_tokens": outputs[i]}
              for i in range(40)]
    same("sglang's lengths and ids", [{key: body[key] for key in ("prompt", "max_tokens")} for body in asked],
         sorted(wanted, key=lambda body: body["prompt"]))
    for ratio, mode, low, high in (("0", "sglang", 1, 100), ("1", "sglang", 100, 100), ("0", "vllm", 100, 100),
                                   ("0.5", "vllm", 50, 150)):
        del stub.bodies[:]
        answer = run("rule", stub.url, "--num-prompts", "300", "--random-input-len", "100", "--random-range-ratio",
                     ratio, "--range-ratio-mode", mode, "--max-concurrency", "16")
        lens = [len(body["prompt"]) for _, body in stub.bodies]
        check("%s at %s: %d..%d" % (mode, ratio, min(lens), max(lens)),
              low <= min(lens) <= low + 8 and high - 8 <= max(lens) <= high)
        same("the rule is named", answer["weft"]["range_ratio_mode"], mode)
        same("sum of lengths", answer["total_input_tokens"], sum(lens))
    run("text", stub.url, "--tokenizer", ATLAS)
    check("text is sent with a tokenizer", isinstance(stub.bodies[-1][1]["prompt"], str))
    run("ids", stub.url, "--tokenizer", ATLAS, "--tokenize-prompt")
    check("ids on request", isinstance(stub.bodies[-1][1]["prompt"], list))


def test_datasets():
    stub = Stub(first=0, gap=0)
    lines = path("p.jsonl", '{"prompt": "a", "output_tokens": 3}\nbroken\n{"no": 1}\n{"prompt": "b"}\n')
    answer = run("jsonl", stub.url, "--dataset-name", "prompts", "--dataset-path", lines, "--num-prompts", "2")
    same("jsonl", sorted((body["prompt"], body["max_tokens"]) for _, body in stub.bodies), [("a", 3), ("b", 5)])
    same("broken lines", answer["weft"]["dataset_broken"], 2)

    talks = [{"conversations": [{"from": "human", "value": "question %d of many" % i},
                                {"from": "gpt", "value": "answer number %d, a longer one" % i}]} for i in range(30)]
    wanted = [talk["conversations"][0]["value"] for talk in talks]
    random.seed(42)
    random.shuffle(wanted)
    share = path("share.json", json.dumps(talks + [{"conversations": []}, {"id": 3}, 7]))
    random.seed(42)
    del stub.bodies[:]
    answer = run("sharegpt", stub.url, "--dataset-name", "sharegpt", "--dataset-path", share, "--tokenizer", ATLAS,
                 "--num-prompts", "30", "--max-concurrency", "1")
    same("sharegpt: the order of Python's shuffle", [body["prompt"] for _, body in stub.bodies], wanted)
    same("sharegpt: broken entries", answer["weft"]["dataset_broken"], 3)
    check("sharegpt: lengths of the answers are asked for", all(body["max_tokens"] >= 4 for _, body in stub.bodies))
    for status, what, options in (
            (1, "not JSON", ["--dataset-name", "sharegpt", "--dataset-path", path("x", "{"),
                             "--random-output-len", "4"]),
            (1, "no prompt", ["--dataset-name", "prompts", "--dataset-path", path("y", "\n\n")]),
            (1, "not there", ["--dataset-name", "prompts", "--dataset-path", "/nowhere"]),
            (2, "no file", ["--dataset-name", "prompts"]),
            (2, "no length", ["--dataset-name", "sharegpt", "--dataset-path", share]),
            (2, "no text", ["--dataset-name", "random", "--dataset-path", share]),
            (2, "no turns", ["--dataset-name", "multi-turn"]),
            (2, "too few", ["--dataset-name", "multi-turn", "--tokenizer", ATLAS, "--num-prompts", "3"]),
            (2, "body", ["--vocab", "9", "--extra-request-body", "[1]"]),
            (2, "no text to chat", ["--vocab", "9", "--endpoint", "chat"]),
            (2, "no tokenizer", [])):
        done = bench(stub.url, *options)
        check("refused: " + what, done.returncode == status and done.stderr.count("\n") == 1, done.stderr)
    for options in (["--dataset-name", "randoms"], ["--format", "tgi"], ["--goodput", "ttft"], ["--endpoint", "x"],
                    ["--random-range-ratio", "1", "--format", "vllm"]):
        same("usage: " + " ".join(options), bench(stub.url, *options).returncode, 2)
    same("usage: header", bench(stub.url, "--vocab", "9", "--header", "bad").returncode, 2)
    same("usage: not a URL", bench("localhost").returncode, 2)


# ---- times ----
def test_times():
    """100 ms to the first token, 20 ms to each of 9 more. Others use this machine: upper bounds are wide."""
    stub = Stub(first=0.1, gap=0.02)
    for endpoint in ("completions", "chat", "generate"):
        for form in ("sglang", "vllm"):
            what = "%s %s" % (endpoint, form)
            answer = run(what, stub.url, "--endpoint", endpoint, "--format", form, "--random-range-ratio",
                         "1" if form == "sglang" else "0", "--random-output-len", "10", "--num-prompts", "8",
                         "--max-concurrency", "4", *(["--tokenizer", ATLAS] if endpoint == "chat" else []))
            e2e = "e2e_latency" if form == "sglang" else "e2el"
            near(what + ": TTFT", answer["median_ttft_ms"], 99, 250)
            near(what + ": E2E", answer["median_%s_ms" % e2e], 279, 900)
            near(what + ": TPOT", answer["median_tpot_ms"], 15, 70)
            tpot = (answer["mean_%s_ms" % e2e] - answer["mean_ttft_ms"]) / 9
            near(what + ": TPOT from the others", answer["mean_tpot_ms"] / tpot, 0.9999, 1.0001)
            # vLLM counts the event that only ends the choice, SGLang does not; one API has no such event
            gaps = 9 if form == "sglang" or endpoint == "generate" else 10
            near(what + ": mean ITL", answer["mean_itl_ms"] / (tpot * 9 / gaps), 0.99, 1.01)
            near(what + ": throughput", answer["output_throughput"] / (80 / answer["duration"]), 0.9999, 1.0001)
            near(what + ": lag", answer["weft"]["dispatch_lag_mean_ms"], 0, 50)
            near(what + ": waiting for a slot", answer["weft"]["slot_wait_mean_ms"], 100, 900)
    same("at most 4 at once", stub.most, 4)


def test_details():
    """The figures again from the times of each request: means, percentiles, peaks of 1 s."""
    stub = Stub(first=0.05, gap=0.005)
    answer = run("details", stub.url, "--num-prompts", "40", "--request-rate", "30", "--random-range-ratio", "0.2",
                 "--random-output-len", "20", "--output-details")
    ttfts, itls = answer["ttfts"], [gap for gaps in answer["itls"] for gap in gaps]
    tpots = [(e2e - ttft) / (n - 1) for e2e, ttft, n in
             zip(answer["latencies"], ttfts, answer["output_lens"]) if n > 1]
    for key, values in (("ttft", ttfts), ("itl", itls), ("tpot", tpots), ("e2e_latency", answer["latencies"])):
        values = sorted(values)
        at = 0.99 * (len(values) - 1)
        p99 = values[int(at)] + (values[min(int(at) + 1, len(values) - 1)] - values[int(at)]) * (at % 1)
        for name, wanted in (("mean", statistics.mean(values)), ("median", statistics.median(values)),
                             ("std", statistics.pstdev(values)), ("p99", p99)):
            got = answer["%s_%s_ms" % (name, key)]
            check("%s of %s: %s, not %s" % (name, key, got, wanted * 1e3), abs(got - wanted * 1e3) < 1e-6 * got)
    begin = min(answer["start_times"])
    points, alive = {}, {}
    for start, ttft, gaps, e2e in zip(answer["start_times"], ttfts, answer["itls"], answer["latencies"]):
        at = start - begin + ttft
        for gap in [0] + gaps:
            at += gap
            points[int(at + 1e-9)] = points.get(int(at + 1e-9), 0) + 1
        for second in range(int(start - begin + 1e-9), int(start - begin + e2e + 1e-9) + 1):
            alive[second] = alive.get(second, 0) + 1
    same("peaks", (answer["max_output_tokens_per_s"], answer["max_concurrent_requests"]),
         (max(points.values()), max(alive.values())))
    same("sums", (answer["total_output_tokens"], answer["total_input_tokens"]),
         (sum(answer["output_lens"]), sum(answer["input_lens"])))


def test_spread_itl():
    """/generate that brings two tokens an event: SGLang's client halves the gap."""
    stub = Stub(first=0, gap=0.03)
    events = stub.events
    stub.events = lambda api, tokens, usage=True: events(api, tokens, usage)[0::2] if api == "/generate" \
        else events(api, tokens, usage)
    answer = run("two tokens an event", stub.url, "--endpoint", "generate", "--random-output-len", "9")
    near("ITL of a token", answer["median_itl_ms"], 25, 45)
    near("ITL of an event", answer["weft"]["vllm"]["median_itl_ms"], 50, 90)
    two = stub.events # the same count again after a while is no token

    def twice(api, tokens, usage):
        *events, done = two(api, tokens, usage)
        return sorted((at + late, data) for at, data in events for late in (0, 0.02)) + [done]
    stub.events = twice
    answer = run("events without a token", stub.url, "--endpoint", "generate", "--random-output-len", "9")
    near("ITL of a token", answer["median_itl_ms"], 25, 45)


def test_goodput():
    stub = Stub(first=0.05, gap=0)
    for goal, good in (("ttft:5000", True), ("ttft:5", False), ("ttft:5000,tpot:5000", True), ("e2el:10", False)):
        answer = run("goodput", stub.url, "--goodput", goal)
        same(goal, answer["request_goodput"] > 0, good)


def test_arrivals():
    stub = Stub(first=0, gap=0)
    counts = {}
    for form, count in (("sglang", 100), ("vllm", 100)):
        del stub.starts[:]
        answer = run(form, stub.url, "--format", form, "--random-range-ratio", "0", "--num-prompts", str(count),
                     "--request-rate", "100", "--seed", "3")
        gaps = [b - a for a, b in zip(stub.starts, stub.starts[1:])]
        counts[form] = gaps
        near(form + ": the rate", count / answer["duration"], 60, 140)
        near(form + ": spread of Poisson's gaps", statistics.pstdev(gaps) / statistics.mean(gaps), 0.5, 2)
        if form == "vllm": # the last arrival is at n / rate
            near("vllm: the last arrival, without the first gap", sum(gaps), 0.85, 1.3)
    del stub.starts[:]
    run("regular", stub.url, "--num-prompts", "100", "--request-rate", "100", "--burstiness", "1000")
    gaps = [b - a for a, b in zip(stub.starts, stub.starts[1:])]
    near("regular: the typical gap", statistics.median(gaps), 0.007, 0.013)
    del stub.starts[:]
    run("bursts", stub.url, "--num-prompts", "200", "--request-rate", "200", "--burstiness", "0.1")
    gaps = [b - a for a, b in zip(stub.starts, stub.starts[1:])]
    near("bursts: spread of the gaps", statistics.pstdev(gaps) / statistics.mean(gaps), 1.8, 6)


def test_coordinated_omission():
    """A server that pauses 1 s every 10 s: at a rate, requests go on arriving, so the pause shows in p99."""
    stub = Stub(first=0, gap=0)
    stub.pause = (10, 1)
    answer = run("pause", stub.url, "--num-prompts", "550", "--request-rate", "50", "--burstiness", "1000")
    near("p99 shows the pause", answer["p99_e2e_latency_ms"], 700, 1300)
    near("a tenth of the requests met it: p95 is half of it", answer["p95_e2e_latency_ms"], 200, 1000)
    near("the median is none of it", answer["median_e2e_latency_ms"], 0, 150)
    near("dispatch goes on", answer["weft"]["dispatch_lag_p99_ms"], 0, 100)


# ---- streams of every shape ----
def test_shapes():
    stub = Stub(first=0, gap=0.001)
    plain = run("plain", stub.url, "--model", "timed", "--tokenizer", ATLAS)
    for mode in ("crlf", "cr", "comments", "nospace", "multiline", "bytes", "done-unfinished", "no-done"):
        answer = run(mode, stub.url, "--model", mode, "--tokenizer", ATLAS)
        same(mode, [answer.get(key) for key in ("completed", "total_output_tokens", "total_output_tokens_retokenized")],
             [6, 30, plain["total_output_tokens_retokenized"]])
    answer = run("late comment", stub.url, "--model", "late-comment")
    near("a comment is no part of the answer: E2E", answer["median_e2e_latency_ms"], 0, 400)
    answer = run("no usage", stub.url, "--model", "no-usage")
    same("no usage is flagged", answer["weft"]["no_usage"], 6)
    same("no usage: sglang takes the length asked for, vllm counts",
         (answer["weft"]["sglang"]["total_output_tokens"], answer["weft"]["vllm"]["total_output_tokens"]), (30, 36))
    answer = run("short", stub.url, "--model", "short")
    same("another length is flagged", (answer["weft"]["other_length"], answer["total_output_tokens"]), (6, 24))


def test_failures():
    stub = Stub(first=0, gap=0.001)
    for mode, kind, word in (("404", "HTTP 4xx", "no 404 here"), ("429", "HTTP 4xx", "429"),
                             ("503", "HTTP 5xx", "no 503 here"), ("302", "another HTTP status than 200", "302"),
                             ("cut", "stream cut", "after 2 events"), ("ends-early", "stream cut", "after 2 events"),
                             ("bad-json", "malformed event", "string"),
                             ("not-a-number", "malformed event", "expected a value"),
                             ("usage-negative", "malformed event", "no count of tokens"),
                             ("usage-huge", "malformed event", "no count of tokens"),
                             ("usage-larger", "malformed event", "integer"),
                             ("usage-falls", "malformed event", "completion_tokens fell"),
                             ("after-done", "malformed event", "after [DONE]"),
                             ("error-event", "error event", "out of pages"), ("no-output", "no output", ""),
                             ("plain", "no output", "not a stream"), ("hang", "timed out", "--timeout")):
        answer = run(mode, stub.url, "--model", mode, "--timeout", "1", status=1)
        same(mode + ": kinds", answer["weft"]["failures"], {kind: 6})
        same(mode + ": counts", (answer["completed"], answer["failed"]), (0, 6))
        check(mode + ": says why", word in answer["weft"]["first_errors"][0], answer["weft"]["first_errors"])
    for seed in range(20):
        stub.noise = random.Random(seed)
        done = bench(stub.url, "--vocab", "9", "--model", "noise", "--num-prompts", "4", "--warmup-requests", "0",
                     "--json")
        same("noise: status", done.returncode, 1)
        same("noise: counted", json.loads(done.stdout)["failed"], 4)
    for tokenizer, kind in (([], "timed out"), (["--tokenizer", ATLAS], "malformed event")):
        answer = run("endless", stub.url, "--model", "endless", "--num-prompts", "1", "--timeout", "1" if not tokenizer
                     else "60", *tokenizer, status=1)
        same("endless: an end by time, or by length where the text is kept", answer["weft"]["failures"], {kind: 1})
    run("allowed", stub.url, "--model", "503", "--allow-failures")
    done = bench(stub.url, "--vocab", "9", "--model", "503", "--num-prompts", "2", "--allow-failures")
    check("that all failed is all there is", done.stdout.startswith("FAILED: 2 of 2 requests: HTTP 5xx\n  request 1: ")
          and done.stdout.count("\n") == 3, done.stdout)
    check("and there is no verdict", "verdicts" not in run("all failed", stub.url, "--model", "503", status=1)["weft"])
    done = bench(stub.url, "--vocab", "9", "--model", "503")
    check("warm-up fails: one line", done.returncode == 1 and done.stderr.count("\n") == 1 and
          "503" in done.stderr, done.stderr)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = "http://127.0.0.1:%d" % unused.getsockname()[1]
        done = bench(url, "--vocab", "9")
        check("unreachable: one line", done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr)
        answer = run("unreachable", url, "--model", "m", status=1)
        same("unreachable: counted", answer["weft"]["failures"], {"could not connect": 6})


# ---- output ----
def test_output():
    stub = Stub(first=0, gap=0)
    options = ["--vocab", "99", "--num-prompts", "4", "--random-input-len", "8", "--random-output-len", "5"]
    done = bench(stub.url, *options)
    rows = done.stdout.strip("\n").split("\n")
    same("title", rows[0], "============ Serving Benchmark Result ============")
    same("backend", rows[1], "%-40s %-10s" % ("Backend:", "sglang-oai"))
    at = rows.index("Successful requests:                     4         ")
    check("rows", at == 4 and rows[2].startswith("Traffic request rate:") and
          rows[3].startswith("Max request concurrency:                 not set"), rows)
    check("sections", "----------------End-to-End Latency----------------" in rows and
          "---------------Inter-Token Latency----------------" in rows and "=" * 50 in rows, rows)
    done = bench(stub.url, *options, "--format", "vllm", "--max-concurrency", "2")
    check("vllm's rows", "Failed requests:                         0         " in done.stdout and
          "Mean E2EL (ms):" in done.stdout and "Backend:" not in done.stdout, done.stdout)
    for name, gap in (("a", 0.02), ("b", 0.5), ("one", 0)):
        stub.gap = gap
        bench(stub.url, *options, "--random-range-ratio", "1", "--random-output-len", "8", "--repeats",
              "1" if name == "one" else "3", "--output-file", path(name))
    with open(path("a"), encoding="utf-8") as file:
        same("a line a run", [json.loads(line)["completed"] for line in file], [4, 4, 4])

    def compare(a, b, *more):
        return subprocess.run([WEFT, "bench", "compare", a, b, *more], capture_output=True, text=True, check=False)
    metrics = json.loads(compare(path("a"), path("b"), "--json").stdout)["metrics"]
    same("slower is worse", [metrics[key]["difference"] for key in ("mean_tpot_ms", "output_throughput")],
         ["worse", "worse"])
    same("faster is better", json.loads(compare(path("b"), path("a"), "--json").stdout)["metrics"]
         ["mean_tpot_ms"]["difference"], "better")
    metrics = json.loads(compare(path("a"), path("a"), "--json").stdout)["metrics"]
    same("the same is none", {row["difference"] for row in metrics.values()}, {"none"})
    same("ratio of the same", metrics["mean_e2e_latency_ms"]["ratio"], 1)
    metrics = json.loads(compare(path("one"), path("b"), "--json").stdout)["metrics"]
    same("one run has no spread", metrics["mean_tpot_ms"]["difference"], "unknown")

    runs = [[100, 110, 120], [105, 115, 131], [140, 150, 160], [120, 140, 140]]
    for i, values in enumerate(runs): # Python's words for numbers JSON lacks, too
        path("r%d" % i, "".join('{"request_rate": Infinity, "tag": "NaN Infinity \\" ", "x": NaN, "mean_ttft_ms": %d}\n'
                                % value for value in values))
    rows = [json.loads(compare(path("r0"), path("r%d" % i), "--json").stdout)["metrics"]["mean_ttft_ms"]
            for i in (1, 2, 3)]
    same("median, spread, ratio", (rows[0]["a"], rows[0]["a_spread"], rows[0]["b"], rows[0]["b_spread"]),
         (110, 20, 115, 26))
    same("smaller than the spread is none, so are runs that overlap; others are not",
         [row["difference"] for row in rows], ["none", "worse", "none"])
    check("table", "none" in compare(path("r0"), path("r1")).stdout)
    for text in ("", "[]", "{", '{"a": 1} x', "\0", '{"a": 1}'):
        done = compare(path("bad", text), path("r0"))
        check("refused: %r" % text, done.returncode == 1 and done.stderr.count("\n") == 1 and
              path("bad") in done.stderr and not done.stdout, done)
    done = compare(path("r0"), path("other", '{"mean_tpot_ms": 1}'))
    check("nothing in common", done.returncode == 1 and "in common" in done.stderr and not done.stdout, done)


def test_weft_serve():
    with Server(WEFT, ATLAS) as server:
        url = "http://127.0.0.1:%d" % server.port
        for endpoint in ("completions", "chat", "generate"):
            answer = run("weft serve, " + endpoint, url, "--endpoint", endpoint, "--tokenizer", ATLAS,
                         "--num-prompts", "12", "--max-concurrency", "4", "--warmup-requests", "1")
            same(endpoint + ": tokens", (answer["completed"], answer["total_output_tokens"],
                                         answer["weft"]["other_length"], answer["weft"]["no_usage"]), (12, 60, 0, 0))
        answer = run("wrong model", url, "--model", "nobody", status=1)
        same("wrong model", answer["weft"]["failures"], {"HTTP 4xx": 6})


started = time.monotonic()
tests = [test for name, test in list(globals().items())
         if name.startswith("test_") and (len(sys.argv) < 4 or name == sys.argv[3])]
for test in (test_times, test_arrivals): # alone: their limits are close
    if test in tests:
        tests.remove(test)
        test()
with concurrent.futures.ThreadPoolExecutor(3) as pool: # most of the others wait for a stub's clock
    for done in [pool.submit(test) for test in tests]:
        done.result()
finish("bench: lengths, times, arrivals, shapes, failures and comparisons as defined (%.0f s)"
       % (time.monotonic() - started))

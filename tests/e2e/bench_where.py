"""`weft bench` beyond latencies: the engine in its process, conversations, traces, sweeps, where the time of each
rank went, power from a libnvidia-ml.so.1 and a powercap tree of our own, verdicts, calibration, the report.

Usage: bench_where.py WEFT ROOT [TEST]. Standard library and a C compiler; Chromium when there is one.
"""
import concurrent.futures
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from bench_stub import Stub
from serve_console import Browser
from serve_lib import Server, check, finish, same

WEFT, ROOT = sys.argv[1:3]
ATLAS = os.path.join(ROOT, "models/atlas")
SCRATCH = tempfile.TemporaryDirectory()
SHORT = ["--random-input-len", "8", "--random-output-len", "5", "--random-range-ratio", "1",
         "--warmup-requests", "0", "--json"]


def path(name, text=None):
    full = os.path.join(SCRATCH.name, name)
    if text is not None:
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)
    return full


def weft(*arguments, nvml=None, stdin=None):
    environment = dict(os.environ)
    if nvml is not None:
        environment.update(LD_LIBRARY_PATH=SCRATCH.name, WEFT_FAKE_NVML=path("nvml-" + threading.current_thread().name, nvml))
    return subprocess.run([WEFT, "bench", *arguments], capture_output=True, timeout=120, check=False, text=True,
                          env=environment, input=stdin)


def run(what, *arguments, status=0, **more):
    """The JSON of a run of short random prompts, unless the arguments say otherwise."""
    done = weft(*arguments[:1], *SHORT, *arguments[1:], **more)
    same(what + ": status", done.returncode, status)
    if not done.stdout:
        check(what + ": output", False, done.stderr)
        return {"weft": {"failures": {}}}
    return json.loads(done.stdout.split("\n")[0])


def near(what, got, low, high):
    check("%s: %s is within %s..%s" % (what, got, low, high), got is not None and low <= got <= high)


# ---- where the time went ----
SPENT = ("prefill_s", "decode_s", "moving_s", "waiting_s", "sampling_s")


def check_time(what, answer, ranks):
    where = answer["weft"]["time"]
    same(what + ": ranks", len(where["ranks"]), ranks)
    for i, rank in enumerate(where["ranks"]):
        spent = sum(rank[key] for key in SPENT)
        check("%s: rank %d spends no more than there was: %s of %s" % (what, i, spent, where["wall_s"]),
              0 < spent <= where["wall_s"] * 1.001 and min(rank[key] for key in SPENT) >= 0)
        near("%s: rank %d adds up" % (what, i), (spent + rank["idle_s"]) / where["wall_s"], 0.999, 1.001)
    check(what + ": sampling is rank 0's", where["ranks"][0]["sampling_s"] > 0 and
          all(rank["sampling_s"] == 0 for rank in where["ranks"][1:]))
    check(what + ": all of the run is in it", where["wall_s"] >= 0.99 * answer["duration"], where)
    return where


def test_in_process():
    answer = run("engine", ATLAS, "--num-prompts", "40", "--random-input-len", "64", "--random-output-len", "16",
                 "--max-concurrency", "4", "--tp", "2", "--threads", "1")
    same("engine: counts", [answer[key] for key in ("backend", "completed", "total_input_tokens",
                                                    "total_output_tokens")], ["weft", 40, 2560, 640])
    same("engine: as long as asked, with usage, as prompted",
         [answer["weft"][key] for key in ("other_length", "no_usage", "server_prompt_tokens")], [0, 0, 2560])
    where = check_time("engine", answer, 2)
    check("engine: ranks meet", all(rank["moving_s"] > 0 for rank in where["ranks"]))
    steps = [rank["steps"] for rank in where["ranks"]]
    check("engine: both ranks run every step; rank 0 hears of it with the next: %s" % steps,
          0 <= steps[0] - steps[1] <= 1 < steps[0])
    where = run("prompts only", ATLAS, "--num-prompts", "20", "--random-input-len", "256",
                "--random-output-len", "1")["weft"]["time"]
    same("prompts only: nothing is decoded", where["ranks"][0]["decode_s"], 0)
    where = run("decode", ATLAS, "--num-prompts", "4", "--random-input-len", "1", "--random-output-len", "64",
                "--max-concurrency", "1")["weft"]["time"]
    check("long answers: decode is most", where["ranks"][0]["decode_s"] > 5 * where["ranks"][0]["prefill_s"], where)
    answer = run("rate", ATLAS, "--num-prompts", "20", "--request-rate", "40", "--burstiness", "1e4")
    check("rate: arrivals are kept", answer["duration"] >= 0.45, answer["duration"])
    check_time("processes", run("processes", ATLAS, "--num-prompts", "8", "--tp", "2", "--ranks", "processes",
                                "--threads", "1", "--activations", "int8"), 2)
    done = weft("http://127.0.0.1:1", "--activations", "int8")
    check("what a server has for itself is refused", done.returncode == 2 and "model directory" in done.stderr, done)
    done = weft(ATLAS, *SHORT, "--num-prompts", "4300", "--random-output-len", "1", "--random-input-len", "1")
    same("all at once, more than an engine's queue: none is refused", done.returncode, 0)
    # 16 tokens each: some 18 steps when all run at once, twice that when the engine holds half of them back
    done = weft(ATLAS, *SHORT, "--num-prompts", "128", "--random-output-len", "16", "--sweep", "concurrency:64,128")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    steps = rows[-1]["weft"]["time"]["ranks"][0]["steps"]
    check("sweep: the engine runs the largest load at once: %s steps" % steps, 16 <= steps < 28)
    answer = run("too long", ATLAS, "--num-prompts", "2", "--random-input-len", "100000", status=1)
    same("too long: counted", answer["weft"]["failures"], {"refused by the engine": 2})
    for arguments in (("/nowhere",), (ATLAS, "--endpoint", "chat"), (ATLAS, "--header", "a=b"), (SCRATCH.name,)):
        done = weft(*arguments)
        check("refused: %s" % (arguments,), done.returncode != 0 and done.stderr.count("\n") <= 2, done.stderr)


def test_served():
    with Server(WEFT, ATLAS, "--tp", "2", "--threads", "1") as server:
        url = "http://127.0.0.1:%d" % server.port
        where = check_time("served", run("served", url, "--tokenizer", ATLAS, "--num-prompts", "20"), 2)
        near("served: the loop's share", where["http_s"] / where["wall_s"], 0.0001, 1)
        answer = run("turns", url, "--tokenizer", ATLAS, "--dataset-name", "multi-turn", "--turns", "3",
                     "--num-prompts", "12", "--shared-prefix-len", "64")
        same("turns", (answer["completed"], answer["weft"]["other_length"]), (12, 0))


# ---- datasets ----
def test_turns():
    stub = Stub(first=0, gap=0)
    options = ["--tokenizer", ATLAS, "--dataset-name", "multi-turn", "--turns", "3", "--num-prompts", "7",
               "--shared-prefix-len", "40", "--max-concurrency", "1"]
    answer = run("turns", stub.url, *options)
    same("turns: two conversations of three", answer["completed"], 6)
    asked = [body["prompt"] for _, body in stub.bodies]
    for talk in (asked[:3], asked[3:]):
        for before, after in zip(talk, talk[1:]):
            check("a turn holds the turn before it and its answer",
                  after.startswith(before + "tok " * 5) and len(after) > len(before) + 20, after)
    common = os.path.commonprefix([asked[0], asked[3]])
    check("conversations share a prefix: %d of %d characters" % (len(common), len(asked[0])),
          0.7 * len(asked[0]) < len(common) < len(asked[0]))
    run("groups", stub.url, *options, "--shared-prefix-groups", "2")
    asked = [body["prompt"] for _, body in stub.bodies[-6:]]
    check("groups share none", len(os.path.commonprefix([asked[0], asked[3]])) < 10)
    run("chat", stub.url, *options, "--endpoint", "chat")
    messages = stub.bodies[-1][1]["messages"]
    same("chat: roles", [m["role"] for m in messages], ["user", "assistant"] * 2 + ["user"])
    same("chat: answers", messages[1]["content"], "tok " * 5)
    answer = run("failed turns", stub.url, *options, "--model", "503", status=1)
    same("what follows a failure is counted", answer["weft"]["failures"],
         {"HTTP 5xx": 2, "not sent: an earlier turn failed": 4})
    answer = run("in process", ATLAS, "--dataset-name", "multi-turn", "--turns", "4", "--num-prompts", "8",
                 "--shared-prefix-len", "16")
    # 8 prompt and 5 answer tokens a turn, behind 16 shared ones
    same("in process: a turn's prompt is all before it", answer["weft"]["server_prompt_tokens"],
         2 * sum(16 + 8 + 13 * turn for turn in range(4)))


def test_trace():
    stub = Stub(first=0, gap=0)
    lines = [{"timestamp": 5000, "input_length": 520, "output_length": 3, "hash_ids": [7, 8]},
             {"timestamp": 5100, "input_length": 600, "output_length": 2, "hash_ids": [7, 9]},
             {"timestamp": 5000, "input_length": 1, "output_length": 1}, {"timestamp": 1}, [], 3,
             {"timestamp": 5600, "input_length": 4, "output_length": 1}]
    text = "\n".join(map(json.dumps, lines)) + '\n{"broken\n\n'
    answer = run("trace", stub.url, "--vocab", "1000", "--dataset-name", "trace", "--dataset-path",
                 path("trace.jsonl", text))
    same("trace: counts", (answer["completed"], answer["total_input_tokens"], answer["total_output_tokens"],
                           answer["weft"]["dataset_broken"]), (3, 1124, 6, 5))
    bodies = sorted((body for _, body in stub.bodies), key=lambda body: -body["max_tokens"])
    same("a hash id is the same block everywhere", bodies[0]["prompt"][:512], bodies[1]["prompt"][:512])
    check("another one is another", bodies[0]["prompt"][512:] != bodies[1]["prompt"][512:520])
    gaps = [b - a for a, b in zip(stub.starts, stub.starts[1:])]
    check("trace: not before its time", sum(gaps) >= 0.5, gaps) # a late one only makes the next gap shorter
    del stub.starts[:]
    run("slower", stub.url, "--vocab", "1000", "--dataset-name", "trace", "--dataset-path", path("trace.jsonl"),
        "--trace-slowdown", "2")
    check("trace: twice as slow", stub.starts[-1] - stub.starts[0] >= 1.1, stub.starts)
    for rate in (("--sweep", "rate:1,2"), ("--request-rate", "3")):
        done = weft(stub.url, "--dataset-name", "trace", "--dataset-path", path("trace.jsonl"), *rate)
        check("trace: %s: refused" % rate[0], done.returncode == 2 and "--trace-slowdown" in done.stderr, done.stderr)


def test_pipes():
    stub = Stub(first=0, gap=0)
    run("standard input", stub.url, "--dataset-name", "prompts", "--dataset-path", "-", "--num-prompts", "3",
        "--max-concurrency", "1", stdin="one\ntwo\n")
    same("standard input", [body["prompt"] for _, body in stub.bodies], ["one", "two", "one"])
    os.mkfifo(path("fifo"))
    threading.Thread(target=path, args=("fifo", "three\n")).start()
    run("a pipe", stub.url, "--dataset-name", "prompts", "--dataset-path", path("fifo"), "--num-prompts", "1")
    same("a pipe", stub.bodies[-1][1]["prompt"], "three")
    talks = [{"conversations": [{"value": "the quick brown fox"}, {"value": "jumps"}]}]
    run("random", stub.url, "--tokenizer", ATLAS, "--dataset-name", "random", "--dataset-path",
        path("gpt.json", json.dumps(talks)), "--random-input-len", "30", "--num-prompts", "1")
    check("random repeats a first turn", stub.bodies[-1][1]["prompt"].count("quick brown") > 1, stub.bodies[-1])


# ---- power and verdicts ----
def cards(count, busy, memory, watts, reasons=0, pcie=0, more=""):
    return "".join("gpu %d 600000 1980 %g 0\nat %d 0 %d %d %d 1500 %d\n" % (i, pcie, i, busy, memory, watts * 1000,
                                                                           reasons)
                   for i in range(count)) + more


def metrics(ranks, device="cuda", running=1, steps=1000):
    """ranks: of each one (compute, moving, waiting), shares of the time."""
    began = time.monotonic()

    def text():
        now = time.monotonic() - began + 100
        lines = ["weft:uptime_seconds{a=\"b\"} %.6f" % now, "weft:num_requests_running{} %d" % running,
                 "weft:http_cpu_seconds_total{} %.6f" % (0.01 * now), "garbage", "weft:rank_steps_total{rank=\"99\"} 1"]
        for i, (compute, moving, waiting) in enumerate(ranks):
            values = {"prefill": compute / 4, "decode": compute * 3 / 4, "collective": moving + waiting,
                      "wait": waiting, "sample": 0.001}
            for name, share in values.items():
                lines.append('weft:rank_%s_seconds_total{x="y",rank="%d",device="%s"} %.6f'
                             % (name, i, device, share * now))
            lines.append('weft:rank_steps_total{x="y",rank="%d",device="%s"} %d' % (i, device, steps * now))
        lines += ["weft:%s{} %s" % pair for pair in (("uptime_seconds", "-1e308"), ("http_cpu_seconds_total", "1e308"),
                                                     ("num_requests_running", "NaN"))] # nothing that could be
        return "\n".join(lines) + "\n"
    return text


def verdict_of(what, stub, nvml, word, *evidence, seconds=0.4, **more):
    stub.first = seconds
    answer = run(what, stub.url, "--vocab", "100", "--num-prompts", "2", nvml=nvml, **more)
    verdicts = answer["weft"]["verdicts"]
    same(what + ": verdict", [v["verdict"] for v in verdicts], [word])
    for part in evidence:
        check("%s: %s" % (what, part), verdicts and part in verdicts[0]["evidence"], verdicts)
    return answer


def test_verdict_by_power():
    stub = Stub(gap=0)
    for busy, memory, watts, word in ((100, 1, 126, "spin-like"), (100, 30, 250, "low power, cause unknown"),
                                      (100, 60, 560, "working"), (1, 0, 65, "idle")):
        answer = verdict_of(word, stub, cards(8, busy, memory, watts), word,
                            "8 GPUs %d %% busy at %d %% of their power limit" % (busy, round(watts / 6)),
                            seconds=1.2 if word == "working" else 0.5)
        power = answer["weft"]["power"]
        near(word + ": energy", power["energy_j"] / (8 * watts * answer["duration"]), 0.95, 3)
        near(word + ": a token", power["energy_per_output_token_j"] * 10 / power["energy_j"], 0.999, 1.001)
        same(word + ": as read", [power["meters"][7][key] for key in ("id", "busy_percent", "limit_w", "clock_mhz")],
             ["GPU-7", busy, 600, 1500])
        readings = len(power["series"]["at_s"])
        check("%s: confidence after %d readings" % (word, readings), answer["weft"]["verdicts"][0]["confidence"] == (
            "low" if readings < 3 else "medium" if readings < 10 or word.startswith("low") else "high"),
              answer["weft"]["verdicts"])
    answer = verdict_of("links", stub, cards(1, 100, 60, 560, pcie=2e9), "working")
    near("links: PCIe by counters", answer["weft"]["power"]["meters"][0]["pcie_mb_per_s"], 1000, 4000)
    for lacks in ("fields", "energy", "pcie"):
        answer = verdict_of("without " + lacks, stub, cards(1, 100, 60, 560, pcie=2e9, more="without %s\n" % lacks),
                            "working")
        near("without %s: energy" % lacks, answer["weft"]["power"]["energy_j"] / 560 / answer["duration"], 0.9, 3)
        pcie = answer["weft"]["power"]["meters"][0]["pcie_mb_per_s"]
        if lacks == "pcie":
            same("without pcie: no rate", pcie, None)
        else:
            near("without %s: PCIe" % lacks, pcie, 1000, 4000)
    answer = run("no library", stub.url, "--vocab", "9", "--num-prompts", "1")
    check("no library: said", "libnvidia-ml" in answer["weft"]["power"]["gpus_note"], answer["weft"]["power"])
    answer = run("no driver", stub.url, "--vocab", "9", "--num-prompts", "1", nvml="")
    check("no GPU: said", "no GPU" in answer["weft"]["power"]["gpus_note"], answer["weft"]["power"])
    done = weft(stub.url, "--vocab", "9", "--num-prompts", "2", nvml=cards(1, 100, 1, 126))
    check("the table says it", "GPU 0 Fake GPU: 126.0 W of 600 W, 100 % busy" in done.stdout and
          "Verdict: spin-like" in done.stdout and "Measure next:" in done.stdout, done.stdout)


def test_verdict_by_steps():
    stub = Stub(gap=0)
    ranks = [(0.02, 0.02, 0.95)] * 8
    ranks[3] = (0.3, 0.09, 0.6)
    stub.metrics = metrics(ranks)
    answer = verdict_of("starved", stub, cards(8, 100, 1, 126), "starved by communication",
                        "8 GPUs 100 % busy at 21 % of their power limit", "92 % of step time waiting in collectives",
                        "rank 3 arrives last")
    same("starved: confidence", answer["weft"]["verdicts"][0]["confidence"], "high")
    where = answer["weft"]["time"]
    near("starved: shares of the wall", where["ranks"][3]["waiting_s"] / where["wall_s"], 0.59, 0.61)
    near("starved: the loop", where["http_s"] / where["wall_s"], 0.009, 0.011)
    stub.metrics = metrics([(0.8, 0.05, 0.05)] * 2)
    verdict_of("working", stub, cards(2, 100, 1, 126), "working", "89 % computing")
    verdict_of("throttled", stub, cards(2, 100, 50, 300, reasons=0x40, more="".join(
        "at %d 300 100 50 300000 1500 0\n" % i for i in range(2))), "throttled",
               "heat (hardware) in ", "SM clock 1500 of 1980 MHz")
    verdict_of("capped is not throttled", stub, cards(2, 100, 50, 590, reasons=0x4), "working")
    stub.metrics = metrics([(0.01, 0.001, 0.001)] * 2)
    verdict_of("idle", stub, cards(2, 1, 0, 70), "idle")
    ranks = [(0.44, 0, 0.56)] * 4
    ranks[3] = (0.46, 0.08, 0.46)
    stub.metrics = metrics(ranks)
    answer = verdict_of("half", stub, cards(4, 100, 1, 126), "starved by communication",
                        "no rank arrives much later")
    same("half: so close that it is not sure", answer["weft"]["verdicts"][0]["confidence"], "medium")
    first, later = iter((metrics(ranks),)), metrics(ranks, steps=0) # a server that was started anew in between
    stub.metrics = lambda: next(first, later)()
    same("a new server: no time", run("new", stub.url, "--vocab", "9", "--num-prompts", "1")["weft"]["time"], None)
    stub.metrics = metrics([(0, 0, 0)] * 2, steps=0)
    stub.first = 5.6
    verdicts = run("stalled", stub.url, "--vocab", "9", "--num-prompts", "1", nvml=cards(
        2, 100, 1, 126, more="at 1 0 50 1 126000 1500 0\n"))["weft"]["verdicts"]
    same("stalled: a GPU that is half busy does not spin", [(v["verdict"], v["about"]) for v in verdicts],
         [("idle", ["GPU 1"]), ("spinning", ["GPU 0"])])
    check("stalled: since when", "no step ended for" in verdicts[-1]["evidence"], verdicts)
    stub.metrics = metrics([(0.7, 0.1, 0.1)] * 2, device="cpu")
    verdict_of("processors", stub, cards(2, 0, 0, 70), "working", "2 ranks,")


def test_long_steps():
    """One step in 7 s of work: it is long, not stalled. Without requests nothing is."""
    stub = Stub(gap=0)
    text, began = metrics([(0.9, 0.05, 0.02)], steps=0), time.monotonic()
    stub.metrics = lambda: text() + 'weft:rank_steps_total{rank="0",device="cuda"} %d\n' % (time.monotonic() > began + 0.8)
    verdict_of("long steps", stub, cards(1, 100, 60, 500), "working", seconds=7)


def test_rest_is_no_stall():
    stub = Stub(gap=0)
    stub.metrics = metrics([(0, 0, 0)], steps=0, running=0)
    verdict_of("rest", stub, cards(1, 100, 1, 126), "idle", seconds=5.6)


def test_slow_metrics():
    stub = Stub(first=1.6, gap=0)
    text = metrics([(0.7, 0.1, 0.1)])

    def slow_from_now():
        stub.slow = 30
        return text()
    stub.metrics = slow_from_now
    answer = run("slow", stub.url, "--vocab", "9", "--num-prompts", "1", nvml=cards(1, 100, 1, 126))
    at = answer["weft"]["power"]["series"]["at_s"]
    check("a slow /metrics keeps no meter waiting: %s" % at, max(b - a for a, b in zip(at, at[1:])) < 3)


# ---- packages ----
class Package:
    """A package of a powercap tree, whose counter grows with the watts that `watts(seconds)` says."""

    def __init__(self, name, watts, start=0, number=0, kind="package-0"):
        self.root, self.watts, self.energy, self.number = path(name), watts, start, number
        for file, text in (("name", kind), ("max_energy_range_uj", "1000000000"),
                           ("constraint_0_power_limit_uw", "200000000"), ("energy_uj", str(start))):
            path("%s/intel-rapl:%d/%s" % (name, number, file), text + "\n")
        self.began = self.last = time.monotonic()
        self.stop = False
        threading.Thread(target=self.grow, daemon=True).start()

    def grow(self):
        full = os.path.join(self.root, "intel-rapl:%d/energy_uj" % self.number)
        while not self.stop:
            now = time.monotonic()
            self.energy = (self.energy + self.watts(now - self.began) * (now - self.last) * 1e6) % 1e9
            self.last = now
            with open(full + ".new", "w", encoding="ascii") as file:
                file.write("%d\n" % self.energy)
            os.replace(full + ".new", full)
            time.sleep(0.005)


def test_packages():
    stub = Stub(first=1, gap=0)
    package = Package("cap", lambda seconds: 80, start=960e6) # wraps within the run
    psys = Package("cap", lambda seconds: 100, number=1, kind="psys")
    answer = run("package", stub.url, "--vocab", "9", "--num-prompts", "1", "--powercap", package.root)
    same("package: the platform holds it, and is passed over", len(answer["weft"]["power"]["meters"]), 1)
    psys.stop = True
    meter = answer["weft"]["power"]["meters"][0]
    near("package: watts, over a wrap", meter["power_w"], 40, 160)
    near("package: joules", meter["energy_j"] / answer["duration"], 40, 160)
    same("package: limit", meter["limit_w"], 200)
    package.stop = True
    two = [Package("cap5", lambda seconds, watts=watts: watts, number=number, kind="package-%d" % number)
           for number, watts in enumerate((60, 180))]
    stub.metrics = metrics([(0.7, 0.1, 0.1)] * 3, device="cpu")
    answer = run("two packages", stub.url, "--vocab", "9", "--num-prompts", "1", "--powercap", two[0].root)
    shares = [meter["power_w"] / 200 for meter in answer["weft"]["power"]["meters"]]
    check("ranks 0 and 2 are on package 0, rank 1 on package 1: %s" % shares, "3 ranks on processors at %.0f %% of"
          % (100 * (2 * shares[0] + shares[1]) / 3) in answer["weft"]["verdicts"][0]["evidence"], answer["weft"]["verdicts"])
    for package in two:
        package.stop = True
    stub.metrics = None
    for name, file, word in (("cap2", "name", "energy_uj"), ("cap3", "other", "absent")):
        path("%s/intel-rapl:0/%s" % (name, file), "package-0\n")
        note = run(name, stub.url, "--vocab", "9", "--num-prompts", "1", "--powercap", path(name))["weft"]["power"]
        check("unreadable: said", word in note["packages_note"], note)


def test_calibrate():
    phases = (20, 70, 110, 180) # rest, polling, memory, computing
    lines = []
    package = Package("cap4", lambda _: phases[min(max(len(lines) - 1, 0), 3)])
    with subprocess.Popen([WEFT, "bench", "calibrate", "--seconds", "0.5", "--powercap", package.root, "--output",
                           path("watts.json")], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout: # the heading, then one when a phase is over
            lines.append(line)
    package.stop = True
    same("calibrate: status", process.returncode, 0)
    with open(path("watts.json"), encoding="utf-8") as file:
        profile = json.load(file)["profiles"][0]
    for key, watts in zip(("idle_w", "spin_w", "memory_w", "compute_w"), phases):
        near("calibrate: " + key, profile[key], watts * 0.5, watts * 2)
    same("calibrate: limit", profile["limit_w"], 200)
    # What these make of each phase depends on how busy others keep the processors; the thresholds do not.
    margin = 0.15 * (profile["compute_w"] - profile["idle_w"])
    spin, work = profile["spin_w"] + margin, profile["memory_w"] - margin
    check("calibrate: its thresholds", "spin-like below %.3f of the limit, working from %.3f; by these: idle "
          % (spin / 200, max(spin, work) / 200) in lines[-2] + lines[-1], lines)
    # 0.35 of 600 W is 210 W by default; a card that polls at 250 W is known to when calibrated
    profile = {"name": "Fake GPU", "limit_w": 600, "idle_w": 70, "spin_w": 230, "memory_w": 420, "compute_w": 590}
    profiles = [{**profile, "name": "other", "spin_w": 71, "memory_w": 140}, profile]
    path("watts.json", json.dumps({"profiles": profiles}))
    stub = Stub(first=0.4, gap=0)
    answer = run("calibrated", stub.url, "--vocab", "9", "--num-prompts", "1", "--thresholds", path("watts.json"),
                 nvml=cards(1, 100, 1, 250))
    same("calibrated", [v["verdict"] for v in answer["weft"]["verdicts"]], ["spin-like"])
    path("watts.json", json.dumps({"profiles": profiles[::-1]})) # here the first counts
    recording = "index, utilization.gpu [%], power.draw [W], power.limit [W]\n" + "0, 100 %, 250.00 W, 600.00 W\n" * 12
    verdicts = [json.loads(weft("diagnose", path("rec.csv", recording), "--json", *more).stdout)["gpus"][0]["verdict"]
                for more in ((), ("--thresholds", path("watts.json")))]
    same("diagnose, by default and calibrated", verdicts, ["low power, cause unknown", "spin-like"])
    for text in ("", "{}", '{"profiles": [{"name": "x"}]}', *(json.dumps({"profiles": [{**profile, key: 0}]})
                                                              for key in ("limit_w", "idle_w", "compute_w"))):
        done = weft("diagnose", path("rec.csv"), "--thresholds", path("bad.json", text))
        check("refused: %r" % text, done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr)
    done = weft("calibrate", "--seconds", "0.5", "--powercap", SCRATCH.name)
    check("nothing to measure: said", done.returncode == 1 and "no meter" in done.stderr, done)


# ---- sweep and report ----
HOSTILE = '</script><script>document.title="taken"</script><img src=x onerror=alert(1)>\u2028'


def test_report():
    stub = Stub(first=0, gap=0.001, models=(HOSTILE,))
    stub.metrics = metrics([(0.5, 0.1, 0.2)] * 2)
    page = path("report.html")
    done = weft(stub.url, *SHORT[:-1], "--vocab", "99", "--num-prompts", "8", "--sweep", "concurrency:1,2,4", "--repeats",
                "2", "--goodput", "ttft:1000,tpot:900", "--report", page, "--output-file", path("runs.jsonl"),
                nvml=cards(2, 100, 5, 130))
    same("sweep: status", done.returncode, 0)
    check("sweep: what was carried", "concurrency 4 (at least 90 % of the requests within)" in done.stdout, done.stdout)
    done = weft(stub.url, *SHORT[:-1], "--vocab", "99", "--num-prompts", "4", "--sweep", "rate:50,100", "--goodput",
                "ttft:0.0001")
    check("sweep: nothing carried", "none of these loads" in done.stdout, done.stdout)
    for text in ("", "rate:", "concurrency:4,2", "rate:x", "concurrency:1.5", "rate:1,"):
        same("refused: %r" % text, weft(stub.url, "--sweep", text).returncode, 2)
    with open(page, encoding="utf-8") as file:
        text = file.read()
    with open(path("runs.jsonl"), encoding="utf-8") as file:
        runs = [json.loads(line) for line in file]
    inside = re.search(r'<script type="application/json" id="runs">(.*?)</script>', text, re.S).group(1)
    same("report: the runs, nothing else", json.loads(inside), runs)
    same("report: the server's text is no markup", (text.count("</script>"), "<img" in text, "\u2028" in text),
         (2, False, False))
    same("report: nothing from outside", re.findall(r"(?:src|href)=\"(?!data:)[^\"]*|url\(|@import|https?://(?!www.w3.org)",
                                                    text), [])
    same("sweep: loads", [run["max_concurrency"] for run in runs], [1, 1, 2, 2, 4, 4])
    done = weft(stub.url, *SHORT, "--vocab", "9", "--num-prompts", "1", "--report", "/nowhere/x.html")
    check("report: not written: said", done.returncode == 1 and "cannot be written" in done.stderr, done.stderr)
    before = path("old.jsonl", '{"old": 1}\n')
    for option, file, left in (("--report", path("full.html"), ""), ("--output-file", before, '{"old": 1}\n')):
        done = subprocess.run(["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", WEFT, "bench", stub.url, *SHORT, "--vocab", "9",
                               "--num-prompts", "1", option, file], capture_output=True, check=False, text=True)
        check(option + ": no room: said", done.returncode == 1 and "too large" in done.stderr, done.stderr)
        with open(file, encoding="utf-8") as partial:
            same(option + ": no room: no half of it", partial.read(), left)
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("no chromium: the report was not drawn")
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            for width in (1200, 390):
                browser.screen(width, 900, "dark")
                browser.call("Page.navigate", url="file://" + page)
                browser.wait("the report is drawn", "document.querySelectorAll('svg').length == 5")
                same("report: title", browser.run("document.title"), "weft bench")
                same("report: fits", browser.run("document.documentElement.scrollWidth"), width)
                shown = browser.run("document.body.innerText")
                for part in ("Where the time of each rank went", "2 GPUs 100 % busy", "Fake GPU", "limit 600 W", "<img"):
                    check("report shows %r" % part, part in shown, html.escape(shown[:2000]))
            wrong = [e for e in browser.events if e.get("method") == "Runtime.exceptionThrown"]
            same("report: errors", wrong, [])
        finally:
            browser.close()


subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", path("libnvidia-ml.so.1"),
                os.path.join(ROOT, "tests/e2e/bench_nvml.c")], check=True)
started = time.monotonic()
tests = [test for name, test in list(globals().items())
         if name.startswith("test_") and (len(sys.argv) < 4 or name == sys.argv[3])]
if test_calibrate in tests: # alone: it keeps every processor busy
    tests.remove(test_calibrate)
    test_calibrate()
with concurrent.futures.ThreadPoolExecutor(4) as pool: # most of them wait for a stub's clock
    for done in [pool.submit(test) for test in tests]:
        done.result()
finish("bench: the engine, turns, traces, sweeps, time, power, verdicts and the report as defined (%.0f s)"
       % (time.monotonic() - started))

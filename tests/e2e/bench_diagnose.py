"""Verdicts of `weft bench diagnose`: the three cases of eight GPUs, every format, broken files.

Usage: bench_diagnose.py WEFT ROOT. Standard library only.
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile

from serve_lib import check, finish, same

WEFT, ROOT = sys.argv[1:3]
SCRATCH = tempfile.TemporaryDirectory()
RANDOM = random.Random(7)


def run(text, *options):
    path = os.path.join(SCRATCH.name, "recording")
    with open(path, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    return subprocess.run([WEFT, "bench", "diagnose", path, *options], capture_output=True,
                          timeout=60, check=False)


def gpus(text, *options):
    """GPU -> what --json says of it, and the whole answer."""
    done = run(text, "--json", *options)
    if done.returncode != 0:
        check("exit status", False, done.stderr)
        return {}, {}
    answer = json.loads(done.stdout)
    return {gpu["gpu"]: gpu for gpu in answer["gpus"]}, answer


def smi(watts, busy=(99, 100), limit=None, units=True, header=True, memory=None, samples=20):
    """A recording of eight GPUs by nvidia-smi --query-gpu."""
    names = ["timestamp", "index", "utilization.gpu [%]", "power.draw [W]"]
    names += ["power.limit [W]"] * (limit is not None) + ["utilization.memory [%]"] * (memory is not None)
    lines = [", ".join(names)] if header else []
    for second in range(samples):
        for gpu in range(8):
            percent, watt = (" %", " W") if units else ("", "")
            row = ["2026/11/29 17:24:%02d.123" % second, str(gpu),
                   "%d%s" % (RANDOM.choice(busy), percent), "%.2f%s" % (RANDOM.uniform(*watts), watt)]
            row += ["%.2f%s" % (limit or 0, watt)] * (limit is not None)
            row += ["%d%s" % (memory or 0, percent)] * (memory is not None)
            lines.append(", ".join(row))
    return "\n".join(lines) + "\n"


def verdict_everywhere(what, text, verdict, confidence, *options):
    found, _ = gpus(text, *options)
    same(what + ": GPUs", sorted(found), [str(i) for i in range(8)])
    same(what, {gpu["verdict"] for gpu in found.values()}, {verdict})
    same(what + ": confidence", {gpu["confidence"] for gpu in found.values()}, {confidence})


# ---- the three cases, and idle ----
verdict_everywhere("spin", smi((121, 128)), "spin-like", "medium", "--power-limit", "600")
verdict_everywhere("spin without memory traffic", smi((121, 128), memory=0), "spin-like", "high",
                   "--power-limit", "600")
verdict_everywhere("spin with memory traffic", smi((121, 128), memory=60), "spin-like", "low",
                   "--power-limit", "600")
verdict_everywhere("low", smi((248, 252)), "low power, cause unknown", "medium", "--power-limit", "600")
verdict_everywhere("working", smi((555, 565)), "working", "high", "--power-limit", "600")
verdict_everywhere("idle", smi((60, 70), busy=(0, 1)), "idle", "high", "--power-limit", "600")
verdict_everywhere("few samples", smi((121, 128), samples=2), "spin-like", "low", "--power-limit", "600")
verdict_everywhere("half busy", smi((121, 128), busy=(40, 60)), "low power, cause unknown", "medium",
                   "--power-limit", "600")
verdict_everywhere("two phases", smi((121, 128), busy=(30, 100)), "low power, cause unknown", "low",
                   "--power-limit", "600")

verdict_everywhere("close to a threshold", smi((204, 206), memory=0), "spin-like", "low", "--power-limit", "600")
verdict_everywhere("drawing without work", smi((300, 302), busy=(0, 1)), "low power, cause unknown", "medium",
                   "--power-limit", "600")
with open(os.path.join(SCRATCH.name, "watts.json"), "w", encoding="ascii") as profiles:
    json.dump({"profiles": [{"name": "x", "limit_w": 600, "idle_w": 70, "spin_w": 480, "memory_w": 300,
                             "compute_w": 590}]}, profiles)
verdict_everywhere("polling draws more than memory traffic", smi((498, 502)), "spin-like", "medium", "--power-limit",
                   "600", "--thresholds", profiles.name)

# ---- one H200, as it was recorded ----
for load, verdict in (("idle", "idle"), ("spin", "spin-like"), ("copy", "working"), ("gemm", "working")):
    with open(os.path.join(ROOT, "tests/golden/gpu/h200_%s.csv" % load), encoding="ascii") as file:
        found, _ = gpus(file.read())
    same("H200, " + load, (found["0"]["verdict"], found["0"]["confidence"]), (verdict, "high"))

# ---- the limit: the file's, unless the option says otherwise ----
verdict_everywhere("limit of the file", smi((121, 128), limit=600), "spin-like", "medium")
verdict_everywhere("limit given", smi((121, 128), limit=600), "working", "high", "--power-limit", "150")
done = run(smi((121, 128)))
same("no limit: status", done.returncode, 1)
check("no limit: says so", b"--power-limit" in done.stderr and done.stderr.count(b"\n") == 1, done.stderr)

# ---- formats ----
verdict_everywhere("nounits", smi((121, 128), units=False), "spin-like", "medium", "--power-limit", "600")
verdict_everywhere("noheader", smi((121, 128), header=False, limit=600), "spin-like", "medium")
done = run(smi((121, 128), header=False, units=False), "--power-limit", "600")
same("neither header nor units: refused", done.returncode, 1)
verdict_everywhere("CRLF", smi((121, 128)).replace("\n", "\r\n"), "spin-like", "medium", "--power-limit", "600")

dmon = "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec\n# Idx      W      C      C      %      %      %      %\n"
dmon += "".join("%5d %6d     44      -    %3d      0      -      -\n" % (gpu, 121 + gpu, 99 + gpu % 2)
                for _ in range(15) for gpu in range(8))
verdict_everywhere("nvidia-smi dmon", dmon, "spin-like", "high", "--power-limit", "600")
verdict_everywhere("nvidia-smi dmon -o T", "\n".join(
    ("#Time    " + line[1:] if line.startswith("# gpu") else "17:24:00 " + line if line[0] == " " else line)
    for line in dmon.splitlines()), "spin-like", "high", "--power-limit", "600")

dcgmi = "#Entity   GPUTL   MCUTL   POWER     PMLMT\nID\n"
dcgmi += "".join("GPU %d     99      0       %.3f   600.000\n" % (gpu, 121.5 + gpu)
                 for _ in range(15) for gpu in range(8))
verdict_everywhere("dcgmi dmon", dcgmi, "spin-like", "high")
fractions = "#Entity   GRACT   DRAMA   POWER\nID\n" + "GPU 0     0.997   0.412   560.1\n" * 12
found, _ = gpus(fractions, "--power-limit", "600")
same("dcgmi fractions", (found["0"]["verdict"], round(found["0"]["utilization_percent"], 1),
                         round(found["0"]["memory_percent"], 1)), ("working", 99.7, 41.2))
uuids = "uuid, utilization.gpu [%], power.draw [W]\n" + "GPU-8d1b, 100 %, 120.0 W\nGPU-77aa, 100 %, 590.0 W\n" * 12
found, _ = gpus(uuids, "--power-limit", "600")
same("UUIDs", {name: gpu["verdict"] for name, gpu in found.items()},
     {"GPU-8d1b": "spin-like", "GPU-77aa": "working"})

# ---- means, and lines that hold nothing ----
text = "index, utilization.gpu [%], power.draw [W]\n0, 90 %, 100 W\n0, 100 %, 140 W\n" \
       "0, [N/A], [N/A]\nbroken\n0, 99999 %, 1 W\n0\n\n0, -5 %, -3 W\n"
found, answer = gpus(text, "--power-limit", "600")
same("means", (found["0"]["utilization_percent"], found["0"]["power_w"], found["0"]["samples"]), (95, 120, 2))
same("broken lines", answer["broken_lines"], 5)
found, _ = gpus("index, utilization.gpu [%], power.draw [W]\n0, 100 %, [N/A]\n" * 3, "--power-limit", "600")
same("power is missing", (found["0"]["verdict"], found["0"]["power_w"]), ("no data", None))
text = run(smi((121, 128)), "--power-limit", "600").stdout.decode()
check("says it in words", re.search(r"8 GPUs spin-like: (99|100) % busy at 21 % of the power limit", text) and
      "Measure next" in text, text)

# ---- hostile files: an error of one line, never a crash ----
for name, data in (("empty", b""), ("zeros", bytes(5000)), ("commas", b"," * 100000),
                   ("one long line", b"index, utilization.gpu, power.draw\n" + b"9" * 1000000),
                   ("noise", RANDOM.randbytes(50000))):
    done = run(data, "--power-limit", "600")
    check(name + " is refused", done.returncode == 1 and done.stderr.count(b"\n") == 1, done)
data = b"index, utilization.gpu, power.draw\n" + b"".join(b"%d, 99, 120\n" % i for i in range(2000))
done = run(data, "--power-limit", "600", "--json")
same("no more than 1,024 GPUs", (len(json.loads(done.stdout)["gpus"]), json.loads(done.stdout)["broken_lines"]),
     (1024, 976))
done = run(b"index, utilization.gpu, power.draw\n\xff\xfe, 99, 120\n", "--power-limit", "600", "--json")
same("a name that is not UTF-8", json.loads(done.stdout)["gpus"][0]["gpu"], "?")
done = subprocess.run([WEFT, "bench", "diagnose", SCRATCH.name + "/none"], capture_output=True, check=False)
check("no such file", done.returncode == 1 and done.stderr.count(b"\n") == 1, done.stderr)
done = subprocess.run([WEFT, "bench", "diagnose"], capture_output=True, check=False)
same("usage", done.returncode, 2)

finish("bench diagnose: verdicts, formats and broken files as documented")

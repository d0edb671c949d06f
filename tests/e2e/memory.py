"""The memory of every rank once a model is loaded, and after an answer: its shard of the weights and 64 MiB at most.

usage: memory.py WEFT MODEL..."""
import os
import re
import sys

from serve_lib import Server, check, finish

ALLOWED_MIB = 64
weft, *models = sys.argv[1:]


def children_of(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


def resident_mib(pid):
    """Resident in all, and without the pages of files: the weights are mapped."""
    with open("/proc/%d/status" % pid, encoding="ascii") as file:
        text = file.read()
    kib = [int(re.search(name + r":\s+(\d+)", text).group(1)) for name in ("VmRSS", "RssFile")]
    return kib[0] / 1024, (kib[0] - kib[1]) / 1024


def measure(what, pids, shards):
    for rank, (pid, shard) in enumerate(zip(pids, shards)):
        whole, own = resident_mib(pid)
        print("memory: %s, rank %d of %d: shard %.1f MiB, resident %.1f MiB, %.1f MiB of it not of files" %
              (what, rank, len(pids), shard, whole, own))
        check("%s: rank %d of %d" % (what, rank, len(pids)), whole <= shard + ALLOWED_MIB and own <= ALLOWED_MIB,
              "%.1f MiB resident, %.1f MiB its own" % (whole, own))


for model in models:
    name = os.path.basename(os.path.normpath(model))
    for ranks in (1, 2, 3):
        options = ["--tp", str(ranks), "--threads", "1", "--context", "512", "--max-running-requests", "1", "-v"]
        with Server(weft, model, *options, *(["--ranks", "processes"] if ranks > 1 else [])) as server:
            pids = [server.process.pid, *children_of(server.process.pid)]
            shards = [float(s) for s in re.findall(r"([\d.]+) MiB of weights", server.log())]
            check("one process a rank", len(pids) == len(shards) == ranks, (pids, shards))
            measure(name + " loaded", pids, shards)
            status, _ = server.post("/v1/completions", {"prompt": "The capital", "max_tokens": 8})
            check("an answer", status == 200, status)
            measure(name + " after an answer", pids, shards)
finish("memory: every rank holds its shard and at most %d MiB" % ALLOWED_MIB)

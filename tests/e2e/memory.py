"""The memory of every rank once a model is loaded, and after steps as large as they get: its shard of the weights,
its keys and values, and 64 MiB at most.

usage: memory.py WEFT MODEL..."""
import json
import os
import re
import subprocess
import sys

from serve_lib import Server, check, finish

ALLOWED_MIB = 64
weft, *models = sys.argv[1:]


def children_of(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


def resident_mib(pid):
    """Pages of files, and all others. What ranks share counts in parts; of files, whose pages others may map, all."""
    with open("/proc/%d/smaps_rollup" % pid, encoding="ascii") as file:
        pss = dict(re.findall(r"^(Pss_\w+):\s+(\d+)", file.read(), re.M))
    with open("/proc/%d/status" % pid, encoding="ascii") as file:
        files = re.search(r"RssFile:\s+(\d+)", file.read()).group(1)
    return int(files) / 1024, (int(pss["Pss_Anon"]) + int(pss["Pss_Shmem"])) / 1024


def measure(what, pids, shards, kv_mib):
    for rank, (pid, shard) in enumerate(zip(pids, shards)):
        files, own = resident_mib(pid)
        print("memory: %s, rank %d of %d: of files %.1f MiB (shard %.1f), others %.1f MiB (keys and values %.1f)" %
              (what, rank, len(pids), files, shard, own, kv_mib))
        # The program itself, and pages that lie beside a rank's own: the kernel maps them, too.
        check("%s: rank %d of %d: files" % (what, rank, len(pids)), files <= 1.2 * shard + 24, files)
        check("%s: rank %d of %d: others" % (what, rank, len(pids)), own <= kv_mib + ALLOWED_MIB, own)


def fill_a_step(server, context):
    """Prompts that fill a step, then one whose every row has logits. Returns how many tokens they have."""
    step = int(re.search(r"steps of (\d+) tokens", server.log()).group(1))
    length = min(step, context - 8)
    prompts = [[(7919 * i + 31 * j) % 4000 + 64 for j in range(length)] for i in range(-(-step // length))]
    prompts.append(prompts[0][::-1][:256])
    for body in ({"prompt": prompts[:-1]}, {"prompt": prompts[-1], "echo": True, "logprobs": 1}):
        status, _ = server.post("/v1/completions", {"max_tokens": 2, "ignore_eos": True, **body})
        check("an answer", status == 200, status)
    return sum(len(prompt) + 16 for prompt in prompts)


for model in models:
    name = os.path.basename(os.path.normpath(model))
    info = json.loads(subprocess.run([weft, "info", model, "--json"], stdout=subprocess.PIPE, check=True).stdout)
    for ranks in (1, 2, 3):
        options = ["--tp", str(ranks), "--threads", "1", "-v"]
        kv_bytes = info["largest_rank"][ranks - 1]["kv_bytes_token"]
        with Server(weft, model, *options, *(["--ranks", "processes"] if ranks > 1 else [])) as server:
            pids = [server.process.pid, *children_of(server.process.pid)]
            shards = [float(s) for s in re.findall(r"([\d.]+) MiB of weights", server.log())]
            check("one process a rank", len(pids) == len(shards) == ranks, (pids, shards))
            measure(name + " loaded", pids, shards, 0)
            tokens = fill_a_step(server, info["context"])
            measure(name + " after full steps", pids, shards, tokens * kv_bytes / 1024 / 1024)
finish("memory: every rank holds its shard, its keys and values, and at most %d MiB" % ALLOWED_MIB)

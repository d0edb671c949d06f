"""Checks registers, shared memory and spills of every CUDA kernel, on every target, against the
committed table kernels/resources.txt, and shared memory against what the smallest target has.

The numbers are those that ptxas printed when the build compiled the kernels, so they hold for one
version of nvcc; with another, or without nvcc, the check is skipped.

Usage: kernels.py ROOT BUILD [--write]. Exits 1 on any difference, 77 when skipped.
"""
import glob
import os
import re
import subprocess
import sys

SHARED_MAX = 100 * 1024  # bytes of a block on SM120; what launches add is bounded when they are made
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def read_log(path):
    """{(kernel, target): "registers shared spill-stores spill-loads"}"""
    rows, key, spill = {}, None, None
    with open(path, encoding="utf-8") as log:
        for line in log:
            entry, spills, used = ENTRY.search(line), SPILL.search(line), USED.search(line)
            if entry:
                key, spill = entry.groups(), None
            elif spills and key and spill is None:  # the entry's own line comes first
                spill = spills.groups()[1:]
            elif used and key:
                shared = SHARED.search(line)
                rows[key] = (used[1], shared[1] if shared else "0") + (spill or ("0", "0"))
                key = None
    return rows


def nvcc_release(build):
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as cache:
        found = re.search(r"^WEFT_NVCC:\w+=(.*)$", cache.read(), re.MULTILINE)
    if not found or not os.path.exists(found[1]):
        return None
    text = subprocess.run([found[1], "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"V[0-9.]+", text)[0]


def table_of(rows, release):
    head = "# nvcc %s: kernel, target, registers, shared bytes, bytes of spill stores and loads\n" % release
    return head + "".join("%-32s %-8s %4s %6s %5s %5s\n" % (key + rows[key]) for key in sorted(rows))


def main():
    root, build = sys.argv[1:3]
    committed = os.path.join(root, "kernels/resources.txt")
    rows = {}
    for log in glob.glob(os.path.join(build, "kernels/*.log")):
        rows.update(read_log(log))
    release = nvcc_release(build)
    if not rows or release is None:
        print("SKIPPED: kernels: NOT CHECKED, this build compiled no CUDA kernels")
        return 77
    table = table_of(rows, release)
    if "--write" in sys.argv:
        with open(committed, "w", encoding="utf-8") as file:
            file.write(table)
        return 0
    with open(committed, encoding="utf-8") as file:
        wanted = file.read()
    if wanted.split(":")[0] != table.split(":")[0]:
        print("SKIPPED: kernels: NOT CHECKED, the table is of another nvcc than %s" % release)
        return 77
    bad = [line for line in table.splitlines() if line not in wanted.splitlines()]
    targets = {key[1] for key in rows}
    bad += ["missing: " + line for line in wanted.splitlines()[1:]
            if line.split()[1] in targets and line not in table.splitlines()]
    bad += ["too much shared memory: %s %s" % key for key in rows if int(rows[key][1]) > SHARED_MAX]
    for line in bad:
        print(line)
    if bad:
        print("kernels: %d differences; if they are meant: python3 tests/house/kernels.py . BUILD --write"
              % len(bad))
    else:
        print("kernels: %d kernels on %d targets as in kernels/resources.txt" % (len(rows), len(targets)))
    return 1 if bad else 0


sys.exit(main())

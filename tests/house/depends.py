"""Checks the dependency rule of docs/ARCHITECTURE.md on what the compiler really reads.

    base < {format, token, dev} < comm < {model, sample, guide} < sched < engine < http < prog

A file reads headers of its own module and the one header of lower modules; SHARED lists the
exceptions. cuda.h appears only under src/dev/cuda. Headers compile on their own, but for x_body.h: code that a
.c file includes with its own macros set.

Usage: depends.py ROOT BUILD, with BUILD/compile_commands.json. Exits 1 on any violation.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

LAYERS = (("base",), ("format", "token", "dev"), ("comm",), ("model", "sample", "guide"), ("sched",),
          ("engine",), ("http",), ("prog",))
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}

# The public headers, by the lowest module that may read them. The enums of weft_comm.h stand in the
# argument structs of the device's collective kernels.
PUBLIC = {"include/weft_base.h": "base", "include/weft_comm.h": "dev", "include/weft.h": "engine"}

# Second headers that other modules may read, each with its reason.
SHARED = {
    "src/base/numerics.h",   # arithmetic that CPU and GPU share to the bit
    "src/base/rows.h",       # the same, of a row's norm
    "src/dev/comm_args.h",   # arguments of the collective kernels, for comm and for kernels/
    "src/dev/cuda_args.h",   # what CUDA's collective kernels read, for src/dev/cuda and kernels/
    "src/token/chat.h",      # templates: a second noun of its own, read by engine and http
}

CUDA_HEADER = re.compile(r"/(cuda|cuda_runtime|cuda_runtime_api|cuda_fp16|cuda_bf16|cuda_fp8|nccl|nvml)\.h$")


def module_of(path):
    if path in PUBLIC:
        return PUBLIC[path]
    parts = path.split("/")
    return parts[1] if parts[0] == "src" and len(parts) > 2 else None


def violation(source, header):
    """What is wrong with source reading header, both relative to the root; None when nothing is."""
    mine, other = module_of(source), module_of(header)
    if other not in RANK:
        return "is neither public nor of a module that the rule names"
    if mine not in RANK:
        return "the rule cannot judge: it does not name module %s" % mine
    if mine == other:
        return None
    if RANK[other] >= RANK[mine]:
        return "is not below module %s" % mine
    if header in PUBLIC or header in SHARED or header == "src/%s/%s.h" % (other, other):
        return None
    return "is private to module %s" % other


def first_error(text):
    lines = text.strip().splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "no reason given")


def read_by(command, directory):
    """The files that the compiler reads for a command of compile_commands.json, or its complaint."""
    words = shlex.split(command)
    out = words.index("-o")
    words = [word for i, word in enumerate(words) if i not in (out, out + 1) and word != "-c"]
    run = subprocess.run(words + ["-M"], cwd=directory, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        return [], first_error(run.stderr)
    _, _, files = run.stdout.replace("\\\n", " ").partition(":")
    return [os.path.normpath(os.path.join(directory, name)) for name in files.split()], None


def check_unit(root, entry):
    source = os.path.relpath(entry["file"], root)
    paths, complaint = read_by(entry["command"], entry["directory"])
    if complaint:
        yield "%s: does not compile: %s" % (source, complaint)
    for path in paths:
        inside = os.path.relpath(path, root)
        if inside.startswith(".."):
            if CUDA_HEADER.search(path) and not source.startswith("src/dev/cuda/"):
                yield "%s: reads %s; CUDA headers stay under src/dev/cuda" % (source, path)
        elif inside != source:
            wrong = violation(source, inside)
            if wrong:
                yield "%s: reads %s, which %s" % (source, inside, wrong)


def check_header(root, header):
    """A header compiles first and alone."""
    run = subprocess.run(["cc", "-std=c17", "-D_GNU_SOURCE", "-Iinclude", "-Isrc", "-fsyntax-only",
                          "-x", "c", "-include", header, "/dev/null"],
                         cwd=root, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        yield "%s: does not compile alone: %s" % (header, first_error(run.stderr))


def check_kernel(root, source):
    """A kernel file reads other kernel files and what C and CUDA share; nvcc may not be here."""
    with open(os.path.join(root, source), encoding="utf-8") as file:
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read(), re.M):
            known = ["src/" + name in SHARED, "include/" + name in PUBLIC,
                     os.path.exists(os.path.join(root, "kernels", name))]
            if not any(known):
                yield "%s: includes %s, which is not shared with CUDA" % (source, name)


def tree(root, folder, ends):
    for where, _, names in os.walk(os.path.join(root, folder)):
        for name in sorted(names):
            if name.endswith(ends):
                yield os.path.relpath(os.path.join(where, name), root)


def main(root, build):
    root = os.path.realpath(root)
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    units = {}
    for entry in entries:
        path = os.path.relpath(os.path.realpath(entry["file"]), root)
        if path.startswith("src/") and path.endswith(".c"):
            units[path] = dict(entry, file=os.path.join(root, path))
    missing = set(tree(root, "src", ".c")) - set(units)
    lines = ["%s: is not compiled" % path for path in sorted(missing)]
    jobs = [(check_unit, unit) for unit in units.values()]
    jobs += [(check_header, path) for folder in ("include", "src") for path in tree(root, folder, ".h")
             if not path.startswith("src/dev/cuda/") and not path.endswith("_body.h")]
    jobs += [(check_kernel, path) for path in tree(root, "kernels", (".cu", ".cuh"))]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(lambda job: list(job[0](root, job[1])), jobs):
            lines += found
    for line in lines:
        print(line)
    print("depends: %d files and headers, %d violations" % (len(jobs), len(lines)))
    return 1 if lines or not units else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))

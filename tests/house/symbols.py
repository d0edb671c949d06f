"""Checks the names and the state of the built library.

libweft.so exports weft_* and nothing else, and all that the public headers declare; every global
name of libweft.a starts with weft_; no object is mutable and global.

Usage: symbols.py ROOT BUILD. Exits 1 on any violation.
"""
import os
import re
import subprocess
import sys

# Mutable state that is global all the same: name -> why.
ALLOWED_STATE = {}


def output(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def declared(root):
    """The functions that the public headers declare."""
    for name in sorted(os.listdir(os.path.join(root, "include"))):
        with open(os.path.join(root, "include", name), encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        yield from re.findall(r"^WEFT_API\b[^;(]*?\b(weft_\w+)\s*\(", text, re.M)


def check_exports(exported, wanted):
    for name in sorted(exported):
        if not re.match(r"weft_[a-z]", name):
            yield "libweft.so exports %s" % name
    for name in sorted(set(wanted) - set(exported)):
        yield "%s is declared in include/ but libweft.so does not export it" % name


def check_names(names):
    for name in sorted(set(names)):
        if not name.startswith("weft_"):
            yield "%s is global but does not start with weft_; make it static" % name


def check_state(symbols):
    """symbols: lines of `objdump -t`; .data.rel.ro is constant once relocated."""
    for line in symbols:
        match = re.match(r"^[0-9a-f]+ .{7} (\.\S+)\s+([0-9a-f]+)\s+(?:\.hidden )?(\S+)$", line)
        if not match:
            continue
        section, size, name = match.groups()
        mutable = re.match(r"\.(data|bss|tdata|tbss)\b", section) and ".rel.ro" not in section
        if mutable and int(size, 16) > 0 and name not in ALLOWED_STATE:
            yield "%s is mutable and global (%s)" % (name, section)


def main(root, build):
    shared, static = os.path.join(build, "libweft.so"), os.path.join(build, "libweft.a")
    exported = [line.split()[-1] for line in output("nm", "-D", "--defined-only", shared).splitlines()]
    names = re.findall(r"^[0-9a-f]+ \w (\S+)$", output("nm", "-g", "--defined-only", static), re.M)
    lines = list(check_exports(exported, declared(root))) + list(check_names(names))
    lines += check_state(output("objdump", "-t", static).splitlines())
    for line in lines:
        print(line)
    print("symbols: %d exported, %d global, %d violations" % (len(exported), len(names), len(lines)))
    return 1 if lines or not exported else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))

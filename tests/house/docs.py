"""Checks that what the documents point at is there: relative links, headings, make targets, files.

Usage: docs.py ROOT. Exits 1 on any violation.
"""
import os
import re
import sys

SKIPPED = {".git", "build", "__pycache__"}
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MAKE = re.compile(r"\bmake ([a-z]+)\b")
# Files of the repository named in code: `tools/x.sh`, `docs/PROTOCOL.md`, `src/base/base.h`.
NAMED = re.compile(r"`((?:tools|docs|src|tests|include|kernels|models|examples|cmake|man)/[\w./-]*[\w/])`")


def documents(root):
    for where, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED)
        for name in sorted(names):
            if name.endswith(".md"):
                yield os.path.join(where, name)


def anchors(text):
    """The anchors of a document's headings, made as GitHub makes them."""
    for heading in re.findall(r"^#+ (.+?)\s*$", FENCE.sub("", text), re.M):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def make_targets(root):
    with open(os.path.join(root, "Makefile"), encoding="utf-8") as file:
        return set(re.findall(r"^([a-z]+):", file.read(), re.M))


def commands(text):
    """The parts of a document that show commands: fenced blocks and code spans."""
    yield from FENCE.findall(text)
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def check_link(path, text, target):
    if re.match(r"[a-z]+:", target):
        return None # another site: not looked up here
    name, _, anchor = target.partition("#")
    where = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
    if not os.path.exists(where):
        return "link to %s, which is not there" % target
    if anchor and where.endswith(".md"):
        with open(where, encoding="utf-8") as file:
            if anchor not in anchors(file.read() if name else text):
                return "link to %s, which has no such heading" % target
    return None


def check(root, path, targets):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for target in LINK.findall(FENCE.sub("", text)):
        wrong = check_link(path, text, target)
        if wrong:
            yield wrong
    for code in commands(text):
        for target in MAKE.findall(code):
            if target not in targets:
                yield "`make %s`, which the Makefile does not have" % target
    for name in NAMED.findall(text):
        if not os.path.exists(os.path.join(root, name)):
            yield "names %s, which is not there" % name


def main(root):
    targets = make_targets(root)
    count = violations = 0
    for path in documents(root):
        count += 1
        for message in check(root, path, targets):
            print("%s: %s" % (os.path.relpath(path, root), message))
            violations += 1
    print("docs: %d documents, %d violations" % (count, violations))
    return 1 if violations or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

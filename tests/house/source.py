"""Checks the text of the tree: lengths, banned calls, and what must not be in it.

Usage: source.py ROOT. Prints one line a violation and exits 1 if there is any.
"""
import functools
import os
import re
import sys

MAX_FILE_LINES = 1000
MAX_FUNCTION_LINES = 70
FOLDERS = ("include", "src", "kernels", "tests", "examples", "tools", "docs", "cmake", "man", ".ci")
C_NAMES = (".c", ".h", ".cu", ".cuh", ".cpp")
TEXT_NAMES = C_NAMES + (".py", ".sh", ".md", ".txt", ".cmake", ".in", ".1", ".json.md")

# Where a rule does not hold: file -> the rules it may break, each with its reason here.
EXCEPTIONS = {
    # the rules themselves, and the examples that break them
    "tests/house/source.py": {"markers", "outside", "documents"},
    "tests/house/selftest.py": {"markers", "outside", "documents"},
    "docs/STYLE.md": {"markers"},
}

# Calls that overflow, truncate or cannot report an error, with what to use instead.
BANNED = {
    "strcpy": "weft__buf or memcpy", "strcat": "weft__buf", "sprintf": "snprintf",
    "vsprintf": "vsnprintf", "stpcpy": "weft__buf", "gets": "fgets", "strtok": "strchr, strspn",
    "atoi": "strtol with a check", "atol": "strtol with a check", "atoll": "strtoll with a check",
    "atof": "strtod with a check", "alloca": "an array of a named size", "mktemp": "mkstemp",
    "tmpnam": "mkstemp", "scanf": "strtol with a check", "setjmp": "a weft_status",
    "rand": "a seeded generator",
}
SPAWNING = {"system": "a library", "popen": "a library"}
EXITING = {"exit": "a weft_status", "_exit": "a weft_status", "abort": "a weft_status",
           "quick_exit": "a weft_status"}
PRINTING = {"printf": "weft_error or the log", "vprintf": "weft_error or the log",
            "puts": "weft_error or the log", "putchar": "weft_error or the log",
            "perror": "weft_error"}

ENVIRONMENT = ("getenv", "secure_getenv", "setenv", "putenv")
reads_environment = [] # the one file of src/prog that does, the first found

TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def blank(text, keep_strings):
    """Replaces comments (and strings) by blanks, so that lines keep their numbers."""
    def replace(match):
        token = match.group(0)
        if token.startswith("/"):
            return "\n" * token.count("\n") + " "
        return token if keep_strings else token[0] + token[0]
    return TOKEN.sub(replace, text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def calls(code, names):
    """Yields (line, name) for each call of one of names."""
    pattern = re.compile(r"(?<![\w.>])(%s)\s*\(" % "|".join(names))
    for match in pattern.finditer(code):
        yield line_of(code, match.start()), match.group(1)


def environment_file(path):
    """The one file that may read the environment; the first of src/prog that does becomes it."""
    if not reads_environment and path.startswith("src/prog/"):
        reads_environment.append(path)
    return reads_environment[0] if reads_environment else "one file of src/prog"


def check_lengths(path, text):
    lines = text.splitlines()
    if len(lines) >= MAX_FILE_LINES:
        yield 1, "length", "file of %d lines; the limit is under %d" % (len(lines), MAX_FILE_LINES)
    if not path.endswith(C_NAMES):
        return
    # clang-format puts a function's braces, and only those, alone in the first column.
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            if number - start + 1 >= MAX_FUNCTION_LINES:
                yield start, "length", "function of %d lines; the limit is under %d" % (
                    number - start + 1, MAX_FUNCTION_LINES)
            start = None


def check_calls(path, text):
    if not path.endswith(C_NAMES):
        return
    code = blank(text, keep_strings=False)
    library = path.startswith("src/") and not path.startswith("src/prog/")
    banned = dict(BANNED)
    if path.startswith("src/"):
        banned.update(SPAWNING)
    if path.startswith("tests/"):
        del banned["rand"], banned["setjmp"] # cmocka stands on setjmp
    if library:
        banned.update(EXITING)
        banned.update(PRINTING)
    for line, name in calls(code, banned):
        yield line, "calls", "%s() is banned here; use %s" % (name, banned[name])
    if library:
        for match in re.finditer(r"\bf(?:printf|puts|putc|write)\s*\([^;]*\bstd(?:out|err)\b", code):
            yield line_of(code, match.start()), "calls", "library code does not print"
    for match in re.finditer(r'\bv?f?s?scanf\s*\([^;]*%[*]?(?:s|\[)', blank(text, True)):
        yield line_of(text, match.start()), "calls", "scanf without a width overflows"
    for line, name in calls(code, ENVIRONMENT):
        if path.startswith("src/") and environment_file(path) != path:
            yield line, "calls", "%s() belongs in %s" % (name, environment_file(path))


def check_text(path, text):
    for match in re.finditer(r"\b(?:TODO|FIXME|XXX)\b", text):
        yield line_of(text, match.start()), "markers", "%s: do it or drop it" % match.group(0)
    for match in re.finditer(r"\.\./shared\b|(?<![\w./-])/work\b", text):
        yield line_of(text, match.start()), "outside", "refers to a path outside the repository"
    if path.endswith(C_NAMES):
        for number, line in enumerate(text.splitlines(), 1):
            if not line.isascii():
                yield number, "ascii", "not ASCII; write an escape"
    if "\t" in text and not path.endswith("Makefile"):
        yield line_of(text, text.index("\t")), "tabs", "tab; indent with blanks"
    if text and not text.endswith("\n"):
        yield text.count("\n") + 1, "newline", "no newline at the end of the file"


def check_documents(root, path, text):
    if path.endswith(".md"):
        return # docs.py looks at those
    for match in re.finditer(r"[\w./-]*\w\.md\b", text):
        if not os.path.exists(os.path.join(root, match.group(0))):
            yield line_of(text, match.start()), "documents", "%s is not there" % match.group(0)


def files(root):
    for folder in FOLDERS:
        for where, folders, names in os.walk(os.path.join(root, folder)):
            folders[:] = sorted(f for f in folders if f not in ("golden", "__pycache__", "corpus"))
            for name in sorted(names):
                yield os.path.relpath(os.path.join(where, name), root)
    for name in sorted(os.listdir(root)):
        if os.path.isfile(os.path.join(root, name)) and name != "LICENSE":
            yield name


def main(root):
    reads_environment.clear()
    count = violations = 0
    for path in files(root):
        if not (path.endswith(TEXT_NAMES) or os.path.basename(path) in ("Makefile", "run")):
            continue
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        count += 1
        for check in (check_lengths, check_calls, check_text, functools.partial(check_documents, root)):
            for line, rule, message in check(path, text):
                if rule not in EXCEPTIONS.get(path, ()):
                    print("%s:%d: %s" % (path, line, message))
                    violations += 1
    print("source: %d files, %d violations" % (count, violations))
    return 1 if violations or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

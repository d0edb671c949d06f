"""Shows that each house check passes on a sound tree and fails on a broken one, for the reason given.

Usage: selftest.py. Exits 1 if a check misses a fault or finds one where there is none.
"""
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile

import depends
import docs
import source
import symbols

SOUND = {
    "Makefile": "all:\n\ttrue\n",
    "README.md": "# One\n\nRun `make all`; see [that](docs/A.md#two-words) and `src/base/base.h`.\n",
    "docs/A.md": "# A\n\n## Two words\n\n[back](../README.md)\n",
    "include/weft_base.h": "int weft_version(void);\n",
    "src/base/base.h": '#include "weft_base.h"\nint weft__one(void);\n',
    "src/base/private.h": "int weft__two(void);\n",
    "src/base/one.c": '#include "base/base.h"\n\nint weft__one(void)\n{\n    return 1; /* not exit() */\n}\n',
    "src/model/model.h": "int weft__model(void);\n",
    "src/model/two.c": '#include "base/base.h"\n#include "model/model.h"\n\n'
                       'int weft__model(void)\n{\n    return weft__one();\n}\n',
    "src/prog/env.c": 'char *f(void) { return getenv("A"); }\n',
    "kernels/k.cu": '#include "k.cuh"\n',
    "kernels/k.cuh": "\n",
}

# what, check, file, its text, part of the complaint
FAULTS = (
    ("upward", "depends", "src/base/one.c", '#include "model/model.h"\n', "is not below module base"),
    ("private", "depends", "src/model/two.c", '#include "base/private.h"\n', "is private to module base"),
    ("unknown module", "depends", "src/base/one.c", '#include "../../kernels/k.cuh"\n', "neither public"),
    ("needs another header", "depends", "src/base/base.h", "size_t weft__one(void);\n", "compile alone"),
    ("not compiled", "depends", "src/base/three.c", "int weft__three;\n", "is not compiled"),
    ("kernel reads host code", "depends", "kernels/k.cu", '#include "base/base.h"\n', "not shared with CUDA"),
    ("cuda.h outside", "depends", "src/base/one.c", '#include "../../../system/cuda.h"\n', "stay under src/dev/cuda"),
    ("long file", "source", "src/base/one.c", "\n" * 1000, "file of 1000 lines"),
    ("long function", "source", "src/base/one.c", "int f(void)\n{\n" + "    f();\n" * 68 + "}\n",
     "function of 70 lines"),
    ("strcpy", "source", "tests/x.c", 'void f(char *s) { strcpy(s, "a"); }\n', "strcpy() is banned"),
    ("atoi", "source", "src/prog/x.c", "int f(char *s) { return atoi(s); }\n", "atoi() is banned"),
    ("system", "source", "src/prog/x.c", 'void f(void) { system("ls"); }\n', "system() is banned"),
    ("exit", "source", "src/base/one.c", "void f(void) { exit(1); }\n", "exit() is banned"),
    ("printf", "source", "src/base/one.c", 'void f(void) { printf("a"); }\n', "printf() is banned"),
    ("stderr", "source", "src/base/one.c", 'void f(void) { fprintf(stderr, "a"); }\n', "does not print"),
    ("getenv", "source", "src/base/one.c", 'void f(void) { getenv("A"); }\n', "one file of src/prog"),
    ("second getenv", "source", "src/prog/x.c", 'void f(void) { getenv("A"); }\n', "belongs in src/prog/env.c"),
    ("sscanf", "source", "src/prog/x.c", 'void f(char *s) { sscanf(s, "%d %s", 0, s); }\n', "overflows"),
    ("marker", "source", "src/base/one.c", "/* TODO */\n", "TODO"),
    ("path", "source", "docs/A.md", "See ../shared/design.md.\n", "outside the repository"),
    ("path", "source", "tools/a.sh", "cd /work/main\n", "outside the repository"),
    ("not ASCII", "source", "src/base/one.c", "/* \u00e9 */\n", "not ASCII"),
    ("tab", "source", "src/base/one.c", "\tint a;\n", "tab"),
    ("dead document", "source", "src/base/one.c", "/* See docs/B.md. */\n", "docs/B.md is not there"),
    ("no newline", "source", "docs/A.md", "a", "no newline"),
    ("dead link", "docs", "README.md", "[a](docs/B.md)\n", "not there"),
    ("dead anchor", "docs", "README.md", "[a](docs/A.md#three)\n", "no such heading"),
    ("dead target", "docs", "docs/A.md", "```\nmake everything\n```\n", "Makefile does not have"),
    ("dead name", "docs", "docs/A.md", "As `src/base/gone.h` says.\n", "names src/base/gone.h"),
)


@contextlib.contextmanager
def tree(changes):
    """A scratch folder with SOUND and the changes in it."""
    with tempfile.TemporaryDirectory() as scratch:
        root = os.path.join(scratch, "tree")
        for name, text in dict(SOUND, **changes, **{"../system/cuda.h": "\n"}).items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        commands = [{"directory": root, "file": os.path.join(root, name),
                     "command": "cc -Iinclude -Isrc -o x.o -c %s" % os.path.join(root, name)}
                    for name in SOUND if name.endswith(".c")]
        with open(os.path.join(root, "compile_commands.json"), "w", encoding="utf-8") as file:
            json.dump(commands, file)
        yield root


def run(check, root):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        arguments = (root, root) if check is depends else (root,)
        code = check.main(*arguments)
    return code, said.getvalue()


def check_trees(fail):
    checks = {"depends": depends, "docs": docs, "source": source}
    with tree({}) as root:
        for name, check in checks.items():
            code, said = run(check, root)
            if code != 0:
                fail("%s complains about a sound tree: %s" % (name, said))
    for what, name, path, text, complaint in FAULTS:
        with tree({path: text}) as root:
            code, said = run(checks[name], root)
            if code != 1 or complaint not in said:
                fail("%s misses %s: exit %d, %s" % (name, what, code, said))


def check_symbols(fail):
    """Builds a library with each fault in it."""
    code = "int weft_good(void); int weft_good(void) { return 0; }\n"
    faults = (("int stray(void); int stray(void) { return 0; }\n", "libweft.so exports stray"),
              ("int stray(void); int stray(void) { return 0; }\n", "stray is global but"),
              ("int weft__in(void); int weft__in(void) { return 0; }\n", "exports weft__in"),
              ("int weft_next(void); int weft_next(void) { static int n; return n++; }\n",
               "is mutable and global (.bss"),
              ("static int state = 3; int *weft_at(void); int *weft_at(void) { return &state; }\n",
               "state is mutable and global (.data"),
              ("static _Thread_local int mine; int *weft_my(void); int *weft_my(void) { return &mine; }\n",
               "mine is mutable and global (.tbss"))
    for fault, complaint in (("", None),) + faults:
        with tempfile.TemporaryDirectory() as root:
            os.mkdir(os.path.join(root, "include"))
            with open(os.path.join(root, "include", "weft.h"), "w", encoding="utf-8") as file:
                file.write("WEFT_API int weft_good(void);\n")
            unit = os.path.join(root, "a.c")
            with open(unit, "w", encoding="utf-8") as file:
                file.write(code + fault)
            library = os.path.join(root, "libweft")
            subprocess.run(["cc", "-fPIC", "-c", unit, "-o", library + ".o"], check=True)
            subprocess.run(["cc", "-shared", library + ".o", "-o", library + ".so"], check=True)
            subprocess.run(["ar", "rc", library + ".a", library + ".o"], check=True)
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                result = symbols.main(root, root)
            if result != (1 if complaint else 0) or (complaint or "") not in said.getvalue():
                fail("symbols misses %r: exit %d, %s" % (complaint, result, said.getvalue()))


def check_format(fail):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "format.sh")
    root = os.path.dirname(os.path.dirname(os.path.dirname(script)))
    with tree({"src/base/one.c": "int  f( void ){return 1;}\n"}) as scratch:
        shutil.copy(os.path.join(root, ".clang-format"), scratch)
        code = subprocess.run(["sh", script, scratch], capture_output=True, check=False).returncode
        if code not in (77, 123):
            fail("format.sh passes badly formatted code: exit %d" % code)


def check_kernels(fail):
    """A build whose kernels are not those of the table; nvcc is a script that tells its version."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels.py")
    log = ("Compiling entry function 'sum' for 'sm_90a'\n0 bytes stack frame, %d bytes spill stores, "
           "0 bytes spill loads\nUsed %d registers, %d bytes smem\n")
    with tree({"kernels/resources.txt": "", "nvcc": "#!/bin/sh\necho release 1.2, V1.2\n"}) as root:
        nvcc = os.path.join(root, "nvcc")
        os.chmod(nvcc, 0o755)
        for name, text in (("CMakeCache.txt", "WEFT_NVCC:PATH=%s\n" % nvcc),
                           ("kernels/a.log", log % (0, 40, 1024))):
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write(text)
        ask = [sys.executable, script, root, root]
        subprocess.run(ask + ["--write"], check=True)
        for numbers, wanted in (((0, 40, 1024), 0), ((8, 40, 1024), 1), ((0, 41, 1024), 1)):
            with open(os.path.join(root, "kernels/a.log"), "w", encoding="utf-8") as file:
                file.write(log % numbers)
            done = subprocess.run(ask, capture_output=True, text=True, check=False)
            if done.returncode != wanted:
                fail("kernels, spills, registers, shared %s: exit %d, %s" %
                     (numbers, done.returncode, done.stdout))


def main():
    failures = []
    check_trees(failures.append)
    check_symbols(failures.append)
    check_format(failures.append)
    check_kernels(failures.append)
    for failure in failures:
        print(failure)
    print("selftest: %d faults planted, %d failures" % (len(FAULTS) + 9, len(failures)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

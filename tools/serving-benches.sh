#!/bin/sh
# Runs the serving benchmarks of vLLM and SGLang against build/weft on atlas. Fetches their wheels from
# PyPI (340 MB, of which the benchmarks alone are unpacked) into build/benches. serving-benches.sh [WEFT]
set -eu
cd "$(dirname "$0")/.."
weft=${1:-build/weft} dir=build/benches
[ -x $dir/bin/python3 ] || python3 -m venv $dir
pip="$dir/bin/pip --quiet --disable-pip-version-check"
$pip install aiohttp numpy regex requests tqdm transformers
for package in vllm==0.33.0 sglang==0.4.6.post5; do
    name=${package%%=*}
    [ ! -d "$dir/$name/$name" ] || continue
    $pip download --no-deps --only-binary :all: -d $dir/wheels "$package"
    $dir/bin/python3 -c '
import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if "bench" in n])' $dir/wheels/"$name"-*.whl "$dir/$name"
    rm -r $dir/wheels
done
exec env PYTHONDONTWRITEBYTECODE=1 $dir/bin/python3 tests/e2e/serving_benches.py "$weft" . $dir/vllm $dir/sglang

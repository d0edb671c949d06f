#!/bin/sh
# Makes DIR a Python environment with what tests/e2e/serve_clients_test.sh and serve_guide_test.sh run
# (from PyPI): client-venv.sh [DIR], by default build/clients. lm-eval without its models, which need
# torch: the one that asks a server needs none of that.
set -eu
cd "$(dirname "$0")/.."
dir=${1:-build/clients}
[ -x "$dir/bin/python3" ] || python3 -m venv "$dir"
pip="$dir/bin/pip install --quiet --disable-pip-version-check"
$pip openai==3.* prometheus_client==0.* jsonschema==4.* aiohttp jinja2 more_itertools numpy pyyaml requests tenacity tqdm
$pip --no-deps lm-eval==0.4.*
echo "clients: $dir/bin/python3 has openai, lm-eval, prometheus_client and jsonschema"

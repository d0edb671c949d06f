#!/bin/sh
# Makes DIR a Python environment with the clients that tests/e2e/serve_clients_test.sh runs (from
# PyPI): client-venv.sh [DIR], by default build/clients.
set -eu
cd "$(dirname "$0")/.."
dir=${1:-build/clients}
[ -x "$dir/bin/python3" ] || python3 -m venv "$dir"
"$dir/bin/pip" install --quiet --disable-pip-version-check openai==3.* prometheus_client==0.*
echo "clients: $dir/bin/python3 has openai and prometheus_client"

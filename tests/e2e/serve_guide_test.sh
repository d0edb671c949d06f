#!/bin/sh
# Constrained answers of `weft serve`, with the Python of build/clients if tools/client-venv.sh made it.
# serve_guide_test.sh WEFT ROOT
python=$2/build/clients/bin/python3
[ -x "$python" ] || python=python3
exec env PYTHONDONTWRITEBYTECODE=1 "$python" "$2/tests/e2e/serve_guide.py" "$1" "$2"

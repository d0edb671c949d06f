#!/bin/sh
# Tool calls and reasoning of `weft serve`. serve_tools_test.sh WEFT ROOT
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$2/tests/e2e/serve_tools.py" "$1" "$2"

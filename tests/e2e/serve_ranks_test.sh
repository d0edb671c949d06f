#!/bin/sh
# `weft serve` when a rank dies or hangs. serve_ranks_test.sh WEFT ROOT
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$2/tests/e2e/serve_ranks.py" "$1" "$2"

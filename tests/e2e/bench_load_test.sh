#!/bin/sh
# `weft bench URL` and `weft bench compare` against a server whose streams are known.
# bench_load_test.sh WEFT ROOT
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$2/tests/e2e/bench_load.py" "$1" "$2"

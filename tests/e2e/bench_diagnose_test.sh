#!/bin/sh
# `weft bench diagnose` on recordings in the formats of nvidia-smi and dcgmi. bench_diagnose_test.sh WEFT ROOT
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$2/tests/e2e/bench_diagnose.py" "$1" "$2"

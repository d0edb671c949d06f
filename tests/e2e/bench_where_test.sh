#!/bin/sh
# `weft bench`: in this process, turns, traces, sweeps, where the time went, power, verdicts, report.
# bench_where_test.sh WEFT ROOT
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$2/tests/e2e/bench_where.py" "$1" "$2"

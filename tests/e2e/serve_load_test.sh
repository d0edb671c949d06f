#!/bin/sh
# `weft serve` under load: facts at three concurrencies, 1,000 streams, 20 s of mixed traffic.
# serve_load_test.sh WEFT ROOT
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$2/tests/e2e/serve_load.py" "$1" "$2" 20 150

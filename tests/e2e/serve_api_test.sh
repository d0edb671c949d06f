#!/bin/sh
# The HTTP surface of `weft serve`, over atlas. serve_api_test.sh WEFT ROOT
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$2/tests/e2e/serve_api.py" "$1" "$2"

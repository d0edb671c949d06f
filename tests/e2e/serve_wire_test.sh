#!/bin/sh
# HTTP as bytes, hostile and slow clients, queue, draining. serve_wire_test.sh WEFT ROOT
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$2/tests/e2e/serve_wire.py" "$1" "$2"

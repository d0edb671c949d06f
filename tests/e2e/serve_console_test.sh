#!/bin/sh
# The console in headless Chromium. serve_console_test.sh WEFT ROOT
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$2/tests/e2e/serve_console.py" "$1" "$2"

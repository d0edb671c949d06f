#!/bin/sh
# Options of the commands that no other test gives do what --help says. options_test.sh WEFT ROOT
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$2/tests/e2e/options.py" "$1" "$2"

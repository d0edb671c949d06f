#!/bin/sh
# Memory of each rank: its shard, its keys and values, and 64 MiB at most. memory_test.sh WEFT ROOT
case $1 in */asan/* | */tsan/*)
    echo "SKIPPED: a sanitizer's own memory is larger than what is allowed"
    exit 77
    ;;
esac
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$2/tests/e2e/memory.py" "$1" "$2/models/atlas"

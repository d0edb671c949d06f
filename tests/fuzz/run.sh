#!/bin/sh
# Builds the fuzz preset and runs every target of tests/fuzz for SECONDS each, starting from its
# committed seeds (tests/fuzz/corpus/TARGET) and what earlier runs found (build/fuzz/corpus/TARGET).
# Prints one line a target and fails on any crash, hang or leak; the input is kept beside the log.
#
#   tests/fuzz/run.sh SECONDS [TARGET...]
set -eu

if [ $# -lt 1 ]; then
    echo "usage: $0 SECONDS [TARGET...]" >&2
    exit 2
fi
seconds=$1
shift
cd "$(dirname "$0")/../.."
if ! command -v clang >/dev/null; then
    echo "skipped: clang is not installed; libFuzzer is part of it"
    exit 77
fi
if [ $# -eq 0 ]; then
    set -- $(cd tests/fuzz && ls ./*_fuzz.c | sed 's|^\./||; s|\.c$||')
fi

build=build/fuzz
cmake --preset fuzz --log-level=WARNING >/dev/null
cmake --build $build --target "$@" >$build/build.log 2>&1 || { cat $build/build.log; exit 1; }

printf '%-28s %12s %8s %8s\n' target runs corpus crashes
# As many targets at once as there are processors; xargs says whether all of them passed.
if ! printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 sh tests/fuzz/target.sh "$build" "$seconds"; then
    echo "fuzz: not all targets passed"
    exit 1
fi
echo "fuzz: no crash"

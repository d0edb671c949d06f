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

failures=0
printf '%-28s %12s %8s %8s\n' target runs corpus crashes
for target; do
    seeds=tests/fuzz/corpus/$target found=$build/corpus/$target log=$build/$target.log
    if [ -z "$(ls -A "$seeds" 2>/dev/null)" ]; then
        echo "$target: no seeds in $seeds"
        failures=$((failures + 1))
        continue
    fi
    mkdir -p "$found"
    crashes=0
    $build/tests/"$target" "$found" "$seeds" -max_total_time="$seconds" -timeout=20 \
        -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 -verbosity=1 \
        -artifact_prefix="$build/$target-" -dict=tests/fuzz/json.dict >"$log" 2>&1 || crashes=1
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    printf '%-28s %12s %8s %8s\n' "$target" "${runs:-0}" "$(ls "$found" | wc -l)" $crashes
    if [ $crashes -ne 0 ] || [ "${runs:-0}" -eq 0 ]; then
        failures=$((failures + 1))
        echo "$target failed; the end of $log:"
        tail -n 40 "$log"
    fi
done
if [ $failures -ne 0 ]; then
    echo "fuzz: $failures targets failed"
    exit 1
fi
echo "fuzz: no crash"

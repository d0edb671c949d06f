#!/bin/sh
# One target of run.sh: target.sh BUILD SECONDS TARGET
set -eu
build=$1 seconds=$2 target=$3
seeds=tests/fuzz/corpus/$target found=$build/corpus/$target log=$build/$target.log
if [ -z "$(ls -A "$seeds" 2>/dev/null)" ]; then
    echo "$target: no seeds in $seeds"
    exit 1
fi
mkdir -p "$found"
crashes=0
# The same seed: a short run repeats itself, and what it did not find yesterday it does not find today,
# beside another change. Long ones go on from what they have found before.
"$build/tests/$target" "$found" "$seeds" -seed=1 -max_total_time="$seconds" -timeout=20 \
    -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 -verbosity=1 \
    -artifact_prefix="$build/$target-" -dict=tests/fuzz/json.dict >"$log" 2>&1 || crashes=1
runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
printf '%-28s %12s %8s %8s\n' "$target" "${runs:-0}" "$(ls "$found" | wc -l)" $crashes
if [ $crashes -ne 0 ] || [ "${runs:-0}" -eq 0 ]; then
    printf '%s failed; the end of %s:\n%s\n' "$target" "$log" "$(tail -n 40 "$log")"
    exit 1
fi

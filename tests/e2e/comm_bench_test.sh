#!/bin/sh
# weft comm-bench: every operation runs and gives right results, JSON is JSON, wrong usage is said.
# Usage: comm_bench_test.sh WEFT SOURCE
set -eu
weft=$1

for operation in allreduce reduce-scatter all-gather broadcast "broadcast --ranks processes"; do
    # shellcheck disable=SC2086
    "$weft" comm-bench --operation $operation --tp 3 --rows-max 4 --iterations 3 --json |
        python3 -c '
import json, sys
lines = json.load(sys.stdin)
assert [line["bytes"] for line in lines] == [16384, 65536], lines
for line in lines:
    assert line["operation"] == sys.argv[1] and line["ranks"] == 3, line
    assert line["wrong"] == 0 and line["us"] > 0 and line["bus_gb_s"] > 0, line
' "${operation%% *}"
done
[ "$("$weft" comm-bench --rows-max 1 --iterations 1 | wc -l)" = 2 ]
[ "$("$weft" comm-bench --rows-max 6 --iterations 1 | tail -n +2 | awk '{ print $3 / 16384 }' | xargs)" = "1 4 6" ]

status=0
"$weft" comm-bench --operation nothing 2>/dev/null || status=$?
[ $status = 2 ]
for wrong in "--cuda 0,x" "--cuda 0,1 --tp 2" "--cuda 0,1 --ranks processes" "--plan" "--path host" "--baseline" "--cuda 0,0 --baseline --path copy" "--rows-min 9 --rows-max 4" "--operation broadcast --algorithm two-shot"; do
    status=0
    # shellcheck disable=SC2086
    "$weft" comm-bench $wrong 2>/dev/null || status=$?
    [ $status = 2 ]
done
if ! "$weft" comm-bench --cuda 0,0 --rows-max 4 2>"$PWD/comm-bench.$$" >"$PWD/comm-bench.$$.out"; then
    [ ! -s "$PWD/comm-bench.$$.out" ]
    grep -q "no CUDA driver\|no usable device\|not in this build" "$PWD/comm-bench.$$"
    echo "comm-bench: GPU ranks NOT TESTED: $(cat "$PWD/comm-bench.$$")"
fi
rm -f "$PWD/comm-bench.$$" "$PWD/comm-bench.$$.out"
echo "comm-bench: ok"

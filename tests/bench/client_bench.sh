#!/bin/sh
# What `weft bench` itself can do, against a stub that answers at once: requests/s with one event each,
# and events/s in long streams, with the share of a core the client took. client_bench.sh WEFT ROOT
set -eu
export LC_ALL=C
weft=$1 root=$2
scratch=$(mktemp -d)
stub=
trap '[ -z "$stub" ] || kill $stub; rm -rf "$scratch"' EXIT
cc -O2 -std=c17 -D_GNU_SOURCE -o "$scratch/stub" "$root/tests/bench/bench_stub.c"

# run EVENTS REQUESTS CONCURRENCY
run() {
    rm -f "$scratch/port"
    "$scratch/stub" "$1" >"$scratch/port" &
    stub=$!
    until [ -s "$scratch/port" ]; do sleep 0.05; done
    "$weft" bench "http://127.0.0.1:$(cat "$scratch/port")" --vocab 1000 --num-prompts "$2" --max-concurrency "$3" \
        --random-input-len 8 --random-range-ratio 1 --random-output-len "$1" --json |
        python3 -c '
import json, sys
run = json.load(sys.stdin)
more = run["weft"]
assert run["failed"] == 0, more["first_errors"]
share = more["client_core_share"]
print("%-22s %10.0f requests/s %12.0f events/s %8.2f core  %10.0f and %10.0f a core" % (
    sys.argv[1], run["request_throughput"], more["events_per_s"], share,
    run["request_throughput"] / share, more["events_per_s"] / share))' "$1 events, $3 at once"
    kill $stub
    wait $stub 2>/dev/null || true
    stub=
}

run 1 20000 16
run 1 20000 256
run 1000 2000 16

#!/bin/sh
# Tokens/s of the embedded model: prefill of 512 tokens and decode of 128 after 16, on 1 and 2 ranks that
# share this machine's cores. Medians of five. model_bench.sh WEFT ROOT
set -eu
export LC_ALL=C
weft=$1 atlas=$2/models/atlas

words() { yes the | head -n "$1" | tr '\n' ' '; }

# median KEY TOKENS ARGS...: tokens a second out of five runs.
median() {
    key=$1 tokens=$2
    shift 2
    for _ in 1 2 3 4 5; do
        "$weft" run "$atlas" --raw --json --temperature 0 --ignore-eos "$@" |
            python3 -c "import json, sys; print($tokens / json.load(sys.stdin)['$key'])"
    done | sort -n | sed -n 3p
}

printf '%-34s %12s\n' "atlas, tokens/s" "median of 5"
for ranks in 1 2; do
    printf '%-34s %12.0f\n' "prefill 512, tp $ranks" \
        "$(median prefill_s 512 --tp $ranks --max-tokens 1 "$(words 512)")"
    printf '%-34s %12.0f\n' "decode 128, tp $ranks" \
        "$(median decode_s 127 --tp $ranks --max-tokens 128 "$(words 16)")"
done

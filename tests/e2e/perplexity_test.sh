#!/bin/sh
# weft perplexity against transformers' for the same windows, on one rank and several; and what it
# refuses. perplexity_test.sh WEFT ROOT
set -eu
export LC_ALL=C
weft=$1 atlas=$2/models/atlas golden=$2/tests/golden/perplexity
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "perplexity: $*" >&2; exit 1; }

python3 "$2/tests/e2e/perplexity.py" "$golden/facts.expected" atlas "$weft" perplexity "$atlas" "$golden/facts.txt" \
    -- "" "--tp 3 --chunk 33"
"$weft" perplexity "$atlas" --context 100 <"$golden/facts.txt" >"$scratch/out"
grep -q "465 scored, windows of 100.*log-likelihood 2.940566, perplexity 18.9266" "$scratch/out" ||
    fail "standard input: $(cat "$scratch/out")"

refused() { # status, word in the message, input, arguments
    status=$1 word=$2 input=$3 code=0
    shift 3
    printf "$input" | "$weft" perplexity "$@" >"$scratch/out" 2>"$scratch/message" || code=$?
    [ $code = "$status" ] || fail "$*: exit status $code, not $status"
    grep -q -- "$word" "$scratch/message" || fail "$*: says '$(cat "$scratch/message")'"
    [ "$(wc -l <"$scratch/message")" = 1 ] && [ ! -s "$scratch/out" ] || fail "$*: more than one line"
}
refused 1 "too short, 0 token" '' "$atlas"
refused 1 "too short, 1 token" 'a' "$atlas"
refused 1 "no config.json" 'a b' "$scratch"
refused 1 "nowhere.txt" '' "$atlas" "$scratch/nowhere.txt"
refused 1 "1024 positions" 'some words' "$atlas" --context 1025
refused 2 "nothing to score" 'some words' "$atlas" --context 1
refused 2 "MODEL" ''
cp -r "$2/tests/golden/models/llama" "$scratch/model"
refused 1 "tokenizer.json" 'some words' "$scratch/model"
cp "$2/tests/golden/tokenizers/qwen3.json" "$scratch/model/tokenizer.json"
refused 1 "do not belong together" 'Of all the words, \346\261\211\345\255\227' "$scratch/model"

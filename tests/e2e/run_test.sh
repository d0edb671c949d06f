#!/bin/sh
# `weft run` as people use it. run_test.sh WEFT ROOT
set -eu
export LC_ALL=C
weft=$1 atlas=$2/models/atlas
answer="The capital of France is Paris."

same() { # same WHAT WANTED GOT
    [ "$2" = "$3" ] || {
        echo "run: $1: wanted '$2', got '$3'"
        exit 1
    }
}

question="What is the capital of France?"
same "argument" "$answer" "$("$weft" run "$atlas" "$question" 2>/dev/null)"
same "standard input" "$answer" "$(echo "$question" | "$weft" run "$atlas" 2>/dev/null)"
for ranks in 1 2 3 5 8 16; do
    same "$ranks ranks" "$answer" "$("$weft" run "$atlas" --tp $ranks "$question" 2>/dev/null)"
done
for ranks in 1 2 5 16; do
    same "$ranks processes" "$answer" \
        "$("$weft" run "$atlas" --ranks processes --tp $ranks "$question" 2>/dev/null)"
done
same "prompts from a pipe" "$answer" "$(echo "$question" | "$weft" run "$atlas" --prompts - 2>/dev/null)"

# A line that is no text is named by its number; the others are answered.
prompts=$(mktemp)
printf '%s\n\n\377\n' "$question" >"$prompts"
code=0
got=$("$weft" run "$atlas" --prompts "$prompts" 2>"$prompts.err") || code=$?
same "a bad line" "1 $answer weft run: line 3: message 1 of 1 is not valid UTF-8" "$code $got $(cat "$prompts.err")"
rm -f "$prompts" "$prompts.err"
"$weft" run "$atlas" --json "$question" 2>/dev/null | grep -Eq '"prefill_s": [0-9]+\.[0-9]{1,6},' || {
    echo "run: --json's seconds are not in microseconds"
    exit 1
}

# A checkpoint's own limit holds where the request sets none; an end token that the model cannot
# generate (a small model with a large one's settings) does no harm.
model=$(mktemp -d)
trap 'rm -rf "$model"' EXIT
for file in "$atlas"/*; do ln -s "$file" "$model"; done
rm "$model/generation_config.json"
echo '{"eos_token_id": [0, 4, 6, 200000], "do_sample": false, "max_new_tokens": 3}' \
    >"$model/generation_config.json"
same "max_new_tokens" "The capital of" "$("$weft" run "$model" "$question" 2>"$model/said")"
grep -q 'max_new_tokens' "$model/said"
same "--max-tokens" "$answer" "$("$weft" run "$model" --max-tokens 30 "$question" 2>/dev/null)"
echo "{\"eos_token_id\": $("$weft" tokenize "$atlas" .), \"do_sample\": false}" >"$model/generation_config.json"
same "an end token that is text" "${answer%.}" "$("$weft" run "$model" "$question" 2>/dev/null)"
echo '{"do_sample": false}' >"$model/generation_config.json"
rm "$model/tokenizer_config.json"
sed 's/"eos_token": "[^"]*"/"eos_token": "."/' "$atlas/tokenizer_config.json" >"$model/tokenizer_config.json"
same "the tokenizer's end token" "${answer%.}" "$("$weft" run "$model" "$question" 2>/dev/null)"

"$weft" run "$atlas" --stats "$question" 2>&1 | grep -q 'token' || {
    echo "run: --stats says nothing of tokens"
    exit 1
}
got=$(printf '%s\n%s\n' "$question" "$question" | "$weft" run "$atlas" --prompts - --stats --json 2>&1)
same "--stats of prompts" "prompts  2 of 2 answered in" "$(echo "$got" | grep -o 'prompts  2 of 2 answered in')"
same "--json's prompts" 2 "$(echo "$got" | grep -c "\"prompt\": \"$question\"")"
same "--json's prompt" 1 "$("$weft" run "$atlas" --json "$question" | grep -c "\"prompt\": \"$question\"")"

# A rank that dies: the error has a line of its own.
"$weft" run "$atlas" --ranks processes --tp 2 --ignore-eos --max-tokens 900 "$question" >"$model/cut" 2>&1 &
running=$!
while [ ! -s "$model/cut" ]; do sleep 0.01; done
kill -9 "$(cut -d ' ' -f 1 "/proc/$running/task/$running/children")"
code=0
wait $running || code=$?
same "a rank that dies" "1 weft run: rank 1" "$code $(grep "^weft run: " "$model/cut" | sed 's/^\(weft run\): .*\(rank 1\) .*/\1: \2/')"
"$weft" info "$atlas" | grep -q glm_moe_dsa || {
    echo "run: info does not name the family"
    exit 1
}
echo "run: the same answer by argument, by standard input, on 1 to 16 ranks, threads or processes"

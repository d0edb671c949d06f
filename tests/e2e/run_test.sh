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
"$weft" run "$atlas" --stats "$question" 2>&1 | grep -q 'token' || {
    echo "run: --stats says nothing of tokens"
    exit 1
}
"$weft" info "$atlas" | grep -q glm_moe_dsa || {
    echo "run: info does not name the family"
    exit 1
}
echo "run: the same answer by argument, by standard input, on 1 to 16 ranks"

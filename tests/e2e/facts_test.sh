#!/bin/sh
# All questions of the embedded model's data, asked greedily: at least 90 % exact answers, and the same
# answers on 1, 2 and 4 ranks; those that differ are listed. facts_test.sh WEFT ROOT
set -eu
export LC_ALL=C
weft=$1 root=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for key in question answer; do
    python3 -c 'import json, sys; print("\n".join(f[sys.argv[2]] for f in json.load(open(sys.argv[1]))))' \
        "$root/tests/golden/atlas-facts.json" $key >"$scratch/$key"
done
case $weft in # a sanitizer's build is many times slower: a part says whether it finds anything
*/asan/* | */tsan/*)
    for key in question answer; do
        head -n 24 "$scratch/$key" >"$scratch/part" && mv "$scratch/part" "$scratch/$key"
    done
    ;;
esac
total=$(wc -l <"$scratch/answer")
for ranks in 1 2 4; do
    "$weft" run "$root/models/atlas" --tp $ranks --prompts "$scratch/question" >"$scratch/tp$ranks"
    exact=$(paste "$scratch/answer" "$scratch/tp$ranks" | awk -F '\t' '$1 == $2' | wc -l)
    echo "facts: $exact of $total exact on $ranks rank(s)"
    [ $((exact * 10)) -ge $((total * 9)) ] || exit 1
done
for ranks in 2 4; do
    if ! diff "$scratch/tp1" "$scratch/tp$ranks" >"$scratch/diff"; then
        count=$(grep -c '^>' "$scratch/diff")
        echo "facts: $count answers on $ranks ranks differ from those on 1:"
        cat "$scratch/diff"
        [ "$count" -le 20 ] || exit 1
    fi
done

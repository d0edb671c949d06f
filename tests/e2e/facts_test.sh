#!/bin/sh
# Questions of the embedded model's data, asked greedily: at least 90 % exact answers, and the same answers
# on 1, 2 and 4 ranks; those that differ are listed. facts_test.sh WEFT ROOT [EVERY]: one question of
# EVERY, 4 by default, 200 in a sanitizer's build, which is many times slower.
set -eu
export LC_ALL=C
weft=$1 root=$2
case $weft in
*/asan/* | */tsan/*) every=${3:-200} ;;
*) every=${3:-4} ;;
esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for key in question answer; do
    python3 -c 'import json, sys; print("\n".join(f[sys.argv[2]] for f in json.load(open(sys.argv[1]))[::int(sys.argv[3])]))' \
        "$root/tests/golden/atlas-facts.json" $key "$every" >"$scratch/$key"
done
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
        [ $((count * 100)) -le "$total" ] || exit 1
    fi
done

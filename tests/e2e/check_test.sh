#!/bin/sh
# Every golden model and atlas against its reference, at several numbers of ranks; and a reference that
# was tampered with is noticed. check_test.sh WEFT ROOT
set -eu
export LC_ALL=C
weft=$1 root=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

ranks_of_all="1 2 3 5 8"
case $weft in */asan/*) ranks_of_all="1 3 8" ;; esac # many times slower; these have even, uneven and empty shards
count=0
for model in "$root"/tests/golden/models/* "$root/models/atlas"; do
    for ranks in $ranks_of_all; do
        "$weft" check "$model" --tp $ranks >"$scratch/out" 2>&1 || {
            cat "$scratch/out"
            echo "check: $model fails on $ranks ranks"
            exit 1
        }
        count=$((count + 1))
    done
    cat "$scratch/out"
done
[ $count -ge 40 ] || {
    echo "check: only $count runs"
    exit 1
}

# Inputs of quantised linears rounded: references made so, which exact inputs do not meet.
for rounded in "$root"/tests/golden/models/*/rounded.safetensors; do
    model=$(dirname "$rounded")
    "$weft" check "$model" --reference "$rounded" --activations quantised
    if "$weft" check "$model" --reference "$rounded" >/dev/null; then
        echo "check: $model passes without rounded activations"
        exit 1
    fi
done

# 16 bytes of logits in the middle of the file become 16777216.0 (0x4b800000) four times.
cp -r "$root/tests/golden/models/llama" "$scratch/tampered"
for _ in 1 2 3 4; do printf '\000\000\200\113'; done |
    dd of="$scratch/tampered/reference.safetensors" bs=4 seek=12000 conv=notrunc 2>/dev/null
if "$weft" check "$scratch/tampered" >"$scratch/out" 2>&1; then
    cat "$scratch/out"
    echo "check: passes a reference that was tampered with"
    exit 1
fi
echo "check: $count runs agree with their references; a tampered one does not"

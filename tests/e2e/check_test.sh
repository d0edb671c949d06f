#!/bin/sh
# Every golden model and atlas against its reference, at several numbers of ranks; a reference that was
# tampered with is noticed, and weights that config.json leaves without a use. check_test.sh WEFT ROOT
set -eu
export LC_ALL=C
weft=$1 root=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

count=0
for model in "$root"/tests/golden/models/* "$root/models/atlas"; do
    for ranks in 1 2 3 5 8; do
        "$weft" check "$model" --tp $ranks >"$scratch/out" 2>&1 || {
            cat "$scratch/out"
            echo "check: $model fails on $ranks ranks"
            exit 1
        }
        if grep 'warning' "$scratch/out"; then
            echo "check: $model has a use for all of its tensors"
            exit 1
        fi
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

# A config.json that is wrong about an lm_head of its own: transformers uses the lm_head, too (5.24, to 7e-6).
cp -r "$root/tests/golden/models/llama3-rope" "$scratch/untied"
sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' "$scratch/untied/config.json"
grep -q '"tie_word_embeddings": true' "$scratch/untied/config.json"
"$weft" check "$scratch/untied" --tp 2
"$weft" info "$scratch/untied" --json | grep -q '"tied": false'

# unread FIELD VALUE WORDS: a config.json with less than the weights have: one line says so.
unread() {
    rm -rf "$scratch/m"
    cp -r "$root/tests/golden/models/deepseek_v3" "$scratch/m"
    sed -i "s/\"$1\": *[0-9]*/\"$1\": $2/" "$scratch/m/config.json"
    for kind in threads processes; do
        "$weft" check "$scratch/m" --tp 2 --ranks $kind >/dev/null 2>"$scratch/err" || true
        if [ "$(grep -c . "$scratch/err")" != 1 ] || ! grep -q "warning: .* no use for $3; .*config.json" "$scratch/err"; then
            cat "$scratch/err"
            echo "check: $1 $2: wanted one line with: $3"
            exit 1
        fi
    done
    "$weft" info "$scratch/m" | grep "^unread .* no use for $3;"
    "$weft" info "$scratch/m" --json | grep '"unread_tensors": [1-9]'
}
unread num_hidden_layers 2 "[1-9][0-9]* of the tensors, such as 'model\.layers\.2\..*'"
unread n_shared_experts 0 "6 of the tensors, such as 'model\.layers\.[12]\.mlp\.shared_experts\..*'"
echo "check: $count runs agree with their references; a tampered one does not"

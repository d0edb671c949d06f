#!/bin/sh
# weft quantize: what it writes runs, close to the source; what it refuses is one clear line; stopped
# half-way it leaves nothing. quantize_test.sh WEFT ROOT
set -eu
export LC_ALL=C
weft=$1 root=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "FAILED: $1"
    cat "$scratch/out" "$scratch/err" 2>/dev/null
    exit 1
}

# value FILE KEY: an integer member of the JSON in FILE.
value() {
    sed -n "s/.*\"$2\": \([0-9]*\).*/\1/p" "$1" | head -n 1
}

# ---- what it writes: of 48 argmaxes this many are still the source's ----
for case in llama:fp8:40 llama:nvfp4:24 qwen3:fp8:40 qwen3:nvfp4:24; do
    model=${case%%:*} rest=${case#*:}
    to=${rest%:*} least=${rest#*:} dst=$scratch/$model-$to
    "$weft" quantize "$root/tests/golden/models/$model" "$dst" --to "$to" >"$scratch/out"
    grep -q "21 linears in $to" "$scratch/out" || fail "$case: the report"
    [ "$(grep -c 'error 0\.[0-9]* *max' "$scratch/out")" = 21 ] || fail "$case: a line a linear"
    cp "$root/tests/golden/models/$model/reference.safetensors" "$dst"
    "$weft" check "$dst" --tp 3 --json >"$scratch/out" || true
    [ "$(value "$scratch/out" argmax_equal)" -ge "$least" ] || fail "$case: too far from its source"
done

# ---- what it refuses ----
expect() {
    status=$1 words=$2 code=0
    shift 2
    "$weft" quantize "$@" >"$scratch/out" 2>"$scratch/err" || code=$?
    [ $code = "$status" ] && [ "$(wc -l <"$scratch/err")" = 1 ] && grep -q -- "$words" "$scratch/err" ||
        fail "quantize $*: exit $code, wanted $status and: $words"
}
llama=$root/tests/golden/models/llama
expect 2 '--to' "$llama" "$scratch/new"
expect 2 '--to' "$llama" "$scratch/new" --to int4
expect 2 'SRC DST' "$llama" --to fp8
expect 2 'fp8 quantises attention' "$llama" "$scratch/new" --to fp8 --attention
expect 1 'exists already' "$llama" "$scratch/llama-fp8" --to fp8
expect 1 'quantised already' "$scratch/llama-fp8" "$scratch/new" --to nvfp4
expect 1 'quantised already' "$root/models/atlas" "$scratch/new" --to fp8
expect 1 "named 'nope.o_proj'" "$llama" "$scratch/new" --to fp8 --exclude 'model.norm,*.o_proj,nope.o_proj'
expect 1 'no-such' "$scratch/no-such" "$scratch/new" --to fp8
(ulimit -f 100 && expect 1 'too large' "$llama" "$scratch/new" --to fp8) # of the weights half
[ -z "$(find "$scratch" -name 'new*')" ] || fail 'a refused model was written'

# ---- stopped: 512 MiB of zeros take a while ----
mkdir "$scratch/large" "$scratch/place"
header='{"model.layers.0.mlp.up_proj.weight":{"dtype":"BF16","shape":[16384,16384],"data_offsets":[0,536870912]}}       '
[ ${#header} -eq 112 ] || fail "a header of ${#header} bytes"
printf 'p\000\000\000\000\000\000\000%s' "$header" >"$scratch/large/model.safetensors"
truncate -s $((8 + 112 + 536870912)) "$scratch/large/model.safetensors"
echo '{"num_hidden_layers": 1}' >"$scratch/large/config.json"
"$weft" quantize "$scratch/large" "$scratch/place/out" --to nvfp4 >"$scratch/out" 2>"$scratch/err" &
running=$!
tries=0
while ! ls "$scratch/place" | grep -q partial && [ $tries -lt 100 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
kill -TERM $running
code=0
wait $running || code=$?
[ $code = 1 ] && grep -q 'interrupted' "$scratch/err" || fail "stopped: exit $code"
[ -z "$(ls -A "$scratch/place")" ] || fail "stopped: $(ls -A "$scratch/place") is left"
echo "quantize: written models run, refusals are clear, a stopped one leaves nothing"

#!/bin/sh
# What a hostile or mistaken input does to the program: one clear line on stderr, exit 1 (2 for usage),
# never a crash or a hang. bad_input_test.sh WEFT ROOT
set -eu
export LC_ALL=C
weft=$1 root=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# expect STATUS WORDS COMMAND...: the exit status, and words (an extended regex) in the one line.
expect() {
    status=$1 words=$2
    shift 2
    code=0
    timeout 60 "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || code=$?
    lines=$(wc -l <"$scratch/err")
    if [ "$code" != "$status" ] || [ "$lines" != 1 ] || ! grep -qiE -- "$words" "$scratch/err"; then
        echo "FAILED: $*"
        echo "  exit $code, wanted $status; $lines lines, wanted one with: $words"
        head -c 500 "$scratch/err"
        failures=$((failures + 1))
    fi
}

# model NAME: a copy of a golden model to spoil.
model() {
    rm -rf "$scratch/m"
    cp -r "$root/tests/golden/models/$1" "$scratch/m"
    chmod -R u+w "$scratch/m"
}

edit() { # edit FILE SED
    sed -i "$2" "$scratch/m/$1"
}

# ---- usage ----
expect 2 'frobnicate' "$weft" frobnicate
expect 2 'tp' "$weft" check "$root/models/atlas" --tp 0
expect 2 'tp' "$weft" check "$root/models/atlas" --tp 17
expect 2 'tp' "$weft" check "$root/models/atlas" --tp two
expect 2 'no-such-option' "$weft" run "$root/models/atlas" --no-such-option
expect 2 'model' "$weft" check
expect 2 'system.*raw' "$weft" run "$root/models/atlas" Hello --raw --system "Be brief."
expect 2 '--port, --portable' "$weft" serve "$root/models/atlas" --po 1
expect 2 '"x" is too many: .*compare' "$weft" bench compar x y
expect 2 'compar: .*compare' "$weft" bench compar
expect 2 'no argument' "$weft" comm-bench 4
expect 2 'a number from 0.01 to 10' "$weft" run "$root/models/atlas" Hello --repetition-penalty 0.005
expect 2 'an integer from 0 to 9000000000000000000 ' "$weft" run "$root/models/atlas" Hello --seed -1
expect 2 'no command "frobnicate"' "$weft" help frobnicate
"$weft" run --help >"$scratch/help"
"$weft" help run | cmp - "$scratch/help"
for option in --max-running-requests --max-queued-requests --chunk; do
    expect 2 "$option" "$weft" serve "$root/models/atlas" --port 0 $option 1000000
done

# ---- directories ----
expect 1 'no-such' "$weft" check "$scratch/no-such"
mkdir "$scratch/empty"
expect 1 'config.json' "$weft" check "$scratch/empty"
model llama
rm "$scratch/m/config.json"
mkfifo "$scratch/m/config.json"
expect 1 'config.json' "$weft" check "$scratch/m"
model llama
expect 1 'tokenizer' "$weft" run "$scratch/m" "Hello"
expect 1 'no-such' "$weft" check "$scratch/no-such" --ranks processes --tp 4
model llama
rm "$scratch/m/reference.safetensors"
expect 1 'reference.safetensors: .*tools/reference.py' "$weft" check "$scratch/m"

# ---- configuration ----
model llama
edit config.json 's/"model_type": "llama"/"model_type": "gpt9"/'
expect 1 'gpt9.*llama' "$weft" check "$scratch/m"
model llama3-rope
edit config.json 's/"rope_type": "llama3"/"rope_type": "spiral"/'
expect 1 'spiral.*yarn' "$weft" check "$scratch/m"
model llama
edit config.json '0,/{/s/{/{ "quantization_config": {"quant_method": "gguf9"},/'
expect 1 'gguf9' "$weft" check "$scratch/m"
model llama
edit config.json '0,/{/s/{/{ "quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},/'
expect 1 'W4A8_AWQ.*NVFP4' "$weft" check "$scratch/m"
model llama
echo '{"quantization": {"quant_algo": "nvfp4"}}' >"$scratch/m/hf_quant_config.json"
"$weft" check "$scratch/m" >/dev/null
edit hf_quant_config.json 's/nvfp4/INT3/'
expect 1 'hf_quant_config.json.*INT3.*NVFP4' "$weft" check "$scratch/m"
model llama
edit config.json 's/"hidden_size": *[0-9]*/"hidden_size": 4611686018427387904/'
expect 1 'hidden_size' "$weft" check "$scratch/m"
model llama
edit config.json 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 1073741824/'
"$weft" check "$scratch/m" >/dev/null
model llama
edit config.json 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": -1/'
expect 1 'num_hidden_layers' "$weft" check "$scratch/m"
model llama
head -c 100000 /dev/zero | tr '\0' '[' >"$scratch/m/config.json"
expect 1 'config.json' "$weft" check "$scratch/m"

model qwen3
edit config.json 's/"full_attention"/"linear_attention"/'
expect 1 'layer_types.*linear_attention' "$weft" check "$scratch/m"
expect 1 '16 ranks x 1024 threads' "$weft" check "$root/models/atlas" --tp 16 --threads 1024
expect 1 ' 1 rank x 1024 threads' "$weft" check "$root/models/atlas" --tp 1 --threads 1024
expect 1 'positions' "$weft" run "$root/models/atlas" hi --context 5000

# ---- tensors ----
model llama
truncate -s 200000 "$scratch/m/model.safetensors"
expect 1 'model.safetensors' "$weft" check "$scratch/m"
model llama
printf '\377\377\377\377\377\377\377\177' | dd of="$scratch/m/model.safetensors" conv=notrunc 2>/dev/null
expect 1 'header' "$weft" check "$scratch/m"
model llama
edit model.safetensors 's/model\.norm\.weight/model.nerm.weight/'
expect 1 'model.norm.weight' "$weft" check "$scratch/m"
model qwen3
edit config.json 's/"tie_word_embeddings": true/"tie_word_embeddings": false/'
expect 1 'no lm_head.weight.*tie_word_embeddings' "$weft" check "$scratch/m"
model llama
edit config.json 's/"intermediate_size": *[0-9]*/"intermediate_size": 97/'
expect 1 'shape|gate_proj|97' "$weft" check "$scratch/m"
model llama
: >"$scratch/m/model.safetensors"
expect 1 'model.safetensors' "$weft" check "$scratch/m"

# ---- a server that cannot load: its status, every time ----
serve_fails() { # serve_fails WORDS MODEL
    code=0
    timeout 60 "$weft" serve "$2" --port 0 2>"$scratch/err" || code=$?
    if [ $code != 1 ] || ! grep -q "$1" "$scratch/err"; then
        echo "FAILED: serve $2: exit $code: $(head -c 500 "$scratch/err")"
        failures=$((failures + 1))
    fi
}
for _ in $(seq 30); do
    serve_fails config.json "$scratch/empty"
done
model llama
serve_fails 'no tokenizer.json' "$scratch/m"

# ---- prompts ----
yes word | head -n 5000 | tr '\n' ' ' >"$scratch/long"
expect 1 '1024|context' "$weft" run "$root/models/atlas" "$(cat "$scratch/long")"

# ---- output ----
for command in "info $root/models/atlas" "run $root/models/atlas Hello" "--version"; do
    code=0
    # shellcheck disable=SC2086
    "$weft" $command >/dev/full 2>"$scratch/err" </dev/null || code=$?
    if [ $code != 1 ] || ! grep -q 'standard output' "$scratch/err"; then
        echo "FAILED: $command >/dev/full: exit $code"
        failures=$((failures + 1))
    fi
done
# A limit of file sizes is an error like a full disk, not a signal; nothing is left behind.
code=0
(ulimit -f 100 && exec "$weft" synth "$scratch/s" --like smollm2-135m --layers 1 >/dev/null 2>"$scratch/err") || code=$?
if [ $code != 1 ] || ! grep -q 'File too large' "$scratch/err" || ls -d "$scratch"/s* 2>/dev/null; then
    echo "FAILED: synth with a limit of file sizes: exit $code"
    failures=$((failures + 1))
fi
# A file that shrinks while it is mapped: the signal it has to be, and why.
cp -r "$root/models/atlas" "$scratch/shrinks"
"$weft" serve "$scratch/shrinks" --port 0 2>"$scratch/err" &
server=$!
for _ in $(seq 100); do
    grep -q 'ready' "$scratch/err" && break
    sleep 0.1
done
truncate -s 500000 "$scratch/shrinks/model.safetensors"
curl -sS "$(sed -n 's|.*\(http://[^/]*\)/.*|\1|p' "$scratch/err" | head -1)/v1/completions" -d '{"prompt": "a"}' \
    >"$scratch/out" 2>&1 || true
code=0
wait $server || code=$?
if [ $code != 135 ] || ! grep -q 'model file was cut short' "$scratch/err"; then
    echo "FAILED: a model file that shrinks: exit $code: $(tail -1 "$scratch/err")"
    failures=$((failures + 1))
fi

# Sockets and files do not take the numbers of closed standard streams.
"$weft" serve "$root/models/atlas" --port 0 <&- >&- 2>&- &
server=$!
for _ in $(seq 100); do
    [ "$(readlink /proc/$server/fd/2 || true)" = /dev/null ] && break
    sleep 0.1
done
for fd in 0 1 2; do
    if [ "$(readlink /proc/$server/fd/$fd || true)" != /dev/null ]; then
        echo "FAILED: closed stream $fd became $(readlink /proc/$server/fd/$fd || true)"
        failures=$((failures + 1))
    fi
done
kill $server
wait $server

[ $failures = 0 ] || exit 1
echo "bad input: every case ends in one line and the right status"

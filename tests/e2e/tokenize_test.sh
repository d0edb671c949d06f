#!/bin/sh
# weft tokenize: ids and text against the golden vectors, byte exact through a pipe; wrong usage.
#   tokenize_test.sh WEFT SOURCE
set -eu
weft=$1
golden=$2/tests/golden/tokenizers
fail() { echo "tokenize: $*" >&2; exit 1; }

# The first texts of corpus.json, with the lines of NAME.expected.
want() { sed -n "$2p" "$golden/$1.expected" | sed 's/^\[\[\([^]]*\)\].*/\1/; s/,/ /g'; }
same() { [ "$2" = "$3" ] || fail "$1: '$2', not '$3'"; }

for name in qwen3 smollm llama3 roberta; do
    same "$name" "$("$weft" tokenize "$golden/$name.json" "I'm 123")" "$(want $name 2)"
    same "$name, stdin" "$(printf 'a  b' | "$weft" tokenize "$golden/$name.json")" "$(want $name 3)"
    same "$name, empty" "$(printf '' | "$weft" tokenize "$golden/$name.json")" "$(want $name 5)"
done
# A newline at the end is part of the text; a directory is a model; bytes that are not UTF-8 count.
atlas=$2/models/atlas
[ "$(printf 'a\n' | "$weft" tokenize "$atlas")" != "$(printf a | "$weft" tokenize "$atlas")" ] ||
    fail "a final newline is dropped"
ids=$(printf 'x\377y \360\237\230\200' | "$weft" tokenize "$atlas")
same "round trip" "$("$weft" tokenize "$atlas" "$ids" --decode)" "$(printf 'x\357\277\275y \360\237\230\200')"
same "ids of a list" "$("$weft" tokenize "$atlas" --decode "[$(echo "$ids" | tr ' ' ,)]")" \
    "$("$weft" tokenize "$atlas" "$ids" --decode)"
# Special tokens: put around the text by the post-processor, left out on demand.
plain=$("$weft" tokenize "$golden/llama3.json" --no-special hi)
same "template" "$("$weft" tokenize "$golden/llama3.json" hi)" "1 $plain"
"$weft" tokenize "$atlas" --json 'a<think>' | python3 -c '
import json, sys
out = json.load(sys.stdin)
assert out["count"] == len(out["ids"]) == len(out["tokens"]), out
assert "".join(out["tokens"]) == "a<think>", out'

refused() { # status, word in the message, arguments
    status=$1 word=$2
    shift 2
    code=0
    "$weft" tokenize "$@" >/dev/null 2>"${TMPDIR:-/tmp}/tokenize.$$" </dev/null || code=$?
    message=$(cat "${TMPDIR:-/tmp}/tokenize.$$")
    rm -f "${TMPDIR:-/tmp}/tokenize.$$"
    [ $code = "$status" ] || fail "$*: exit status $code, not $status"
    case $message in *"$word"*) ;; *) fail "$*: says '$message'" ;; esac
    [ "$(printf '%s\n' "$message" | wc -l)" = 1 ] || fail "$*: more than one line: $message"
}
refused 1 "/nowhere" /nowhere x
refused 1 "no model" "$atlas/config.json" x
refused 1 "not a token id" "$atlas" --decode "12 x"
refused 1 "is no token" "$atlas" --decode 999999
refused 2 "" "$atlas" --no-such-option
refused 2 ""

#!/bin/sh
# Serves the embedded model on two CPU ranks, asks it something over HTTP and shows the answer. On a
# terminal the server then stays for its console until Ctrl-C; elsewhere it ends. demo.sh WEFT MODEL
set -eu
weft=$1 model=$2
question="What is the capital of France?"
log=$(mktemp)
"$weft" serve "$model" --tp 2 --port 0 2>"$log" &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -f "$log"' EXIT
trap 'exit 130' INT TERM

tries=0
until grep -q ': ready' "$log"; do
    tries=$((tries + 1))
    if ! kill -0 $server 2>/dev/null || [ $tries -gt 300 ]; then
        cat "$log" >&2
        exit 1
    fi
    sleep 0.1
done
address=$(sed -n 's|^.*\(http://[0-9.:]*/\).*$|\1|p' "$log" | head -n 1)
echo "\$ curl ${address}v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"$question\"}]}'"
reply=$(curl -sS --fail-with-body "${address}v1/chat/completions" \
    -d "{\"messages\": [{\"role\": \"user\", \"content\": \"$question\"}]}")
echo "$reply" | python3 -c 'import json, sys; print(json.load(sys.stdin)["choices"][0]["message"]["content"])'
echo "console: $address"
if [ -t 1 ]; then
    echo "Ctrl-C ends the server"
    wait $server
fi

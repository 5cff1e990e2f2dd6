#!/usr/bin/env bash
# The worker against llama.cpp's own server, built from the same release and linked with the same libraries: same models, requests and
# arrival times, in turns, medians of 5. Writes the tables of docs/benchmarks.md; takes half an hour or so, with nothing else on the
# machine and port 4222 free. Arguments go to benchpeer, for example --only prefix.
set -euo pipefail
cd "$(dirname "$0")/.."

eval "$(scripts/llama.sh --print-env)"
peer_and_libraries=$(scripts/llama-server.sh)
read -r peer libraries <<<"$peer_and_libraries"
models="story=$PWD/models/stories1m-q8_0.gguf"
for weights in q4_0 q8_0 q4_k_m; do
	models+=";$weights=$(scripts/testmodel.sh 135m "$weights")"
done
go run ./internal/cmd/benchpeer --worker bin/worker --peer "$peer" --peer-dir "$libraries" --model "$models" "$@"

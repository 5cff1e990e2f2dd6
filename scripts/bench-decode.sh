#!/usr/bin/env bash
# Decode throughput of the scheduler against llama.cpp's own batched benchmark: same random model of 135 M parameters,
# rows, threads and depth, in turns, medians of 5. Arguments go to decodebench, for example --threads 4.
set -euo pipefail
cd "$(dirname "$0")/.."

eval "$(scripts/llama.sh --print-env)"
peer_and_libraries=$(scripts/batched-bench.sh)
read -r peer libraries <<<"$peer_and_libraries"
model=$(scripts/testmodel.sh 135m "${WEIGHTS:-q4_0}")
# 100 + 128 tokens stay within one block of 256 KV cells, so that both read as many.
go run ./internal/cmd/decodebench --peer "$peer" --peer-dir "$libraries" --threads 2 --prompt 100 --new 128 --rows 1,8 "$@" "$model"

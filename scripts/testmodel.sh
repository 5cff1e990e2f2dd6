#!/usr/bin/env bash
# testmodel.sh SHAPE WEIGHTS: makes a model with random weights in the cache folder, once, and prints its path.
set -euo pipefail
cd "$(dirname "$0")/.."

eval "$(scripts/llama.sh --print-env)"
folder=${XDG_CACHE_HOME:-$HOME/.cache}/meshnet/models
# The name changes with the generator, as the bytes may.
generator=$(cat internal/testmodel/*.go internal/testmodel/quantize/*.c | cksum | cut -d ' ' -f 1)
model=$folder/$1-$2-$generator.gguf
if [[ ! -f $model ]]; then
	mkdir -p "$folder"
	go run ./internal/cmd/testmodel --shape "$1" --type "$2" "$model" >&2
fi
echo "$model"

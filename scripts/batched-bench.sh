#!/usr/bin/env bash
# Builds llama.cpp's own batched benchmark from the source beside the linked libraries, once, into the
# cache folder, and prints its path. Needs a llama.cpp made by scripts/llama.sh: an installed one has no source.
set -euo pipefail
cd "$(dirname "$0")/.."

PKG_CONFIG_PATH=$(scripts/llama.sh --print-pkgconfig)
export PKG_CONFIG_PATH
source=$(pkg-config --variable=sourcedir llama)
libraries=$(pkg-config --variable=libdir llama)
if [[ -z $source || ! -d $source/tools/batched-bench ]]; then
	echo "batched-bench.sh: the linked llama.cpp comes without its source; set LLAMA_BUILD=prebuilt or source" >&2
	exit 1
fi

binary=$(dirname "$source")/bin/llama-batched-bench
if [[ ! -x $binary ]]; then
	mkdir -p "$(dirname "$binary")"
	"${CXX:-g++}" -O2 -std=c++17 -I"$source/include" -I"$source/ggml/include" -I"$source/common" -I"$source/vendor" \
		"$source"/tools/batched-bench/*.cpp -L"$libraries" -Wl,-rpath,"$libraries" \
		-lllama-common -lllama -lggml -lggml-base -o "$binary.$$"
	mv "$binary.$$" "$binary"
fi
# Its backends are found only from the folder it runs in.
echo "$binary" "$libraries"

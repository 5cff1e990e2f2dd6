#!/usr/bin/env bash
# Builds llama.cpp's own server from the source beside the linked libraries, once, into the cache folder, and prints
# its path and the folder to run it in: the peer that `make bench-peer` measures against. It is linked with the very
# libraries that the worker runs on. Its web pages are left out (CMake fetches them), everything else is in.
# Needs a llama.cpp made by scripts/llama.sh: an installed one has no source.
set -euo pipefail
cd "$(dirname "$0")/.."

PKG_CONFIG_PATH=$(scripts/llama.sh --print-pkgconfig)
export PKG_CONFIG_PATH
source=$(pkg-config --variable=sourcedir llama)
libraries=$(pkg-config --variable=libdir llama)
if [[ -z $source || ! -d $source/tools/mtmd ]]; then
	echo "llama-server.sh: the linked llama.cpp comes without its source; set LLAMA_BUILD=prebuilt or source" >&2
	exit 1
fi

binary=$(dirname "$source")/bin/llama-server

# interface FOLDER: what CMake generates for a server without web pages.
interface() {
	sed -e 's/#cmakedefine LLAMA_UI_HAS_ASSETS 1//' -e 's/@N_ASSETS@/0/' "$source/tools/ui/ui.h.in" >"$1/ui.h"
	sed -e '/@ASSET_ARRAYS@/d' -e '/@ASSET_TABLE@/d' -e 's/@N_ASSETS@/0/' -e 's/@USE_GZIP@/false/' \
		"$source/tools/ui/ui.cpp.in" >"$1/ui.cpp"
}

# compile FOLDER LEVEL SOURCE...: the sources at that level of optimisation, as many at once as LLAMA_JOBS.
compile() {
	local folder=$1 level=$2
	shift 2
	# shellcheck disable=SC2016 # the variables are those of the shell that xargs starts
	printf '%s\n' "$@" | xargs -P "${LLAMA_JOBS:-2}" -I {} env FOLDER="$folder" LEVEL="$level" "LLAMA=$source" bash -c '
		file={}
		case $file in *.c) compiler=("${CC:-gcc}") ;; *) compiler=("${CXX:-g++}" -std=c++17) ;; esac
		"${compiler[@]}" -DNDEBUG -w "$LEVEL" -I"$FOLDER" -I"$LLAMA/include" -I"$LLAMA/ggml/include" \
			-I"$LLAMA/common" -I"$LLAMA/vendor" -I"$LLAMA/vendor/hash" -I"$LLAMA/tools/mtmd" -I"$LLAMA/tools/server" \
			-c "$file" -o "$FOLDER/$(basename "$(dirname "$file")")-$(basename "$file").o"'
}

if [[ ! -x $binary ]]; then
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	echo "llama-server.sh: building llama.cpp's server, once; this takes some minutes" >&2
	mkdir -p "$(dirname "$binary")"
	interface "$work"
	multimodal=("$source"/tools/mtmd/models/*.cpp)
	for file in "$source"/tools/mtmd/*.cpp; do
		case $(basename "$file") in mtmd-cli.cpp | deprecation-warning.cpp) ;; *) multimodal+=("$file") ;; esac
	done
	# Images and sound are linked, never measured: the compiler's time for them is spared.
	compile "$work" -O0 "${multimodal[@]}" "$source"/vendor/hash/{hash.cpp,sha256/sha256.c}
	compile "$work" -O3 "$source"/tools/server/*.cpp "$work/ui.cpp"
	"${CXX:-g++}" "$work"/*.o -L"$libraries" -Wl,-rpath,"$libraries" -pthread \
		-lllama-common -lllama -lggml -lggml-base -o "$binary.$$"
	mv "$binary.$$" "$binary"
fi
# Its backends are found only from the folder it runs in.
echo "$binary" "$libraries"

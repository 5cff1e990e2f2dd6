#!/usr/bin/env bash
# Provides llama.cpp for the cgo build: uses an installed one where pkg-config finds it, else makes
# one in the user's cache folder, shared by all checkouts. `scripts/llama.sh --help` says how.
set -euo pipefail

readonly llama_version=0.5.0 # the release that both packages below carry
readonly npm_version=3.22.1
# Raised when the pins or the layout of a prefix change, so that an older checkout keeps its own.
readonly revision=3
# What later builds need of the release's source: headers, the common library, the tools we measure against.
readonly source_pieces=(LICENSE licenses common vendor include src ggml/include tools/batched-bench tools/server tools/mtmd tools/ui/ui.h.in tools/ui/ui.cpp.in)
# What the binding takes of llama.cpp's common library, without what those files do not need: the engine of chat
# templates, and the conversion of JSON Schema to grammars.
readonly common_sources=(jinja/caps jinja/lexer jinja/parser jinja/runtime jinja/string jinja/value json json-schema
	json-schema-to-grammar trie unicode)

usage() {
	cat <<USAGE
Usage: scripts/llama.sh [--print-pkgconfig | --print-prefix | --print-env | --help]

Without an argument: makes sure that llama.cpp $llama_version or later is there to link with.
  --print-pkgconfig  the PKG_CONFIG_PATH to build with (makes nothing)
  --print-prefix     version and folder, which belong into CGO_CPPFLAGS: Go's build cache does not
                     see what pkg-config answers
  --print-env        both as shell exports, for a plain "go build": eval "\$(scripts/llama.sh --print-env)"

Environment:
  LLAMA_BUILD    auto (default): an installed llama.cpp, else the prebuilt release from npm
                 system: only an installed one; prebuilt: only the release from npm
                 source: the same release built here with CMake
  LLAMA_BACKEND  cpu (default), vulkan, cuda (the prebuilt one needs CUDA 13) or cuda12;
                 when set, auto makes one rather than use the installed one
  LLAMA_JOBS     parallel compilations (default 2)
  XDG_CACHE_HOME where the cache lies (default ~/.cache)
USAGE
}

die() {
	echo "llama.sh: $*" >&2
	exit 1
}

# integrity PACKAGE: its pinned sha512, as the registry's metadata gives it (npm view PACKAGE@VERSION dist.integrity).
integrity() {
	case $1 in
	node-llama-cpp) echo 'bltIipuWmc123H7tMIgDGKSsSrhmhlQYeVUC48XTjVW7XGJJiJJyCdlTMzQ/LiWoPkGDpcL4FviDpgw7qfTiDw==' ;;
	@node-llama-cpp/linux-x64) echo '5uCCDNqWCNfaAm8aR/Uzxbo4HBpKgNF91kCHPepKhgMgV2OAmatoefbOlMihsqCiH2Od35E/eUHQCFbfRBJuOg==' ;;
	@node-llama-cpp/linux-arm64) echo 'W+7naKCXX9/eEjjFmRS8vvx91QyLXDbeFxexZc3bh/PtQABZgmRL3C0AtYYXn4YGTj/3Qor4lWZn2tpjZFPLdQ==' ;;
	@node-llama-cpp/linux-x64-vulkan) echo 'bBxqU+JOcBu1nb5Qj2zcMci+JByT1E8EajHvYodyNfVIPkEhXh+/HMwR1/BT7xP08YK0hks+kM8fglER0P8JEg==' ;;
	@node-llama-cpp/linux-x64-cuda) echo '8rQCjyNNLZJUFit+YpjwlC4hwkKgOMIkB2wuycKBf8NU2O3ySKbiWZQ8aw9ku2nUTXjSnUIrE6KB88itduTBuA==' ;;
	@node-llama-cpp/linux-x64-cuda-ext) echo '4e5ajkiM2aR2WAdB/N/ACk4weEhHvOAIrzxZPsIX0xDFW5+6hhShuy1/vs88SK9NGdgAco9IyE28eYS0H1efpA==' ;;
	*) return 1 ;;
	esac
}

# platform prints this machine as the npm packages name it.
platform() {
	local system machine
	system=$(uname -s | tr '[:upper:]' '[:lower:]')
	machine=$(uname -m)
	case $machine in
	x86_64 | amd64) machine=x64 ;;
	aarch64 | arm64) machine=arm64 ;;
	esac
	echo "$system-$machine"
}

sha512_hex() {
	if command -v sha512sum >/dev/null; then
		sha512sum "$1" | cut -d ' ' -f 1
	else
		shasum -a 512 "$1" | cut -d ' ' -f 1
	fi
}

# download PACKAGE FOLDER: fetches the pinned version, checks its sha512 and unpacks it as FOLDER/package.
download() {
	local package=$1 folder=$2 tarball want got reason
	command -v npm >/dev/null || die "npm is not installed, and llama.cpp comes from the npm package $1; install npm, or llama.cpp $llama_version or later with pkg-config"
	mkdir -p "$folder"
	if ! tarball=$(cd "$folder" && npm pack --silent --no-update-notifier --fetch-retries=2 --fetch-retry-mintimeout=1000 \
		--fetch-retry-maxtimeout=5000 --loglevel=error "$package@$npm_version" 2>"$folder/npm.log"); then
		reason=$(grep -v 'A complete log' "$folder/npm.log" | sed 's/^npm [a-zA-Z]* //; s/[Ee]rr[or!]* //' | head -n 4 | tr '\n' ' ' || true)
		die "cannot download $package@$npm_version (npm said: ${reason:-nothing}); check the network, or install llama.cpp $llama_version or later with pkg-config"
	fi
	tarball=$folder/$(tail -n 1 <<<"$tarball")
	want=$(integrity "$package" | base64 -d | od -An -v -tx1 | tr -d ' \n')
	got=$(sha512_hex "$tarball")
	[[ $got == "$want" ]] || die "checksum of $package@$npm_version: want sha512 $want, got $got; nothing was installed"
	tar -xzf "$tarball" -C "$folder"
	rm "$tarball"
}

# installed says whether pkg-config finds a llama.cpp that is not one of ours.
installed() {
	command -v pkg-config >/dev/null && pkg-config --atleast-version="$llama_version" llama || return 1
	[[ $(pkg-config --variable=prefix llama) != "$cache"/* ]]
}

# choose sets build to system, prebuilt or source, and prefix to where llama.cpp is or will be.
choose() {
	build=${LLAMA_BUILD:-auto}
	backend=${LLAMA_BACKEND:-cpu}
	cache=${XDG_CACHE_HOME:-${HOME:?llama.sh: neither XDG_CACHE_HOME nor HOME is set}/.cache}/meshnet/llama
	[[ $cache != *[[:space:],]* ]] || die "the cache folder '$cache' has a space or comma in its name, which cgo flags cannot carry; set XDG_CACHE_HOME to another folder"
	case $backend in cpu | vulkan | cuda | cuda12) ;; *) die "LLAMA_BACKEND=$backend is not one of cpu, vulkan, cuda, cuda12" ;; esac
	case $build in
	auto) if [[ -z ${LLAMA_BACKEND:-} ]] && installed; then build=system; else build=prebuilt; fi ;;
	system) installed || die "LLAMA_BUILD=system, but pkg-config finds no llama.cpp $llama_version or later; install one or set PKG_CONFIG_PATH" ;;
	prebuilt | source) ;;
	*) die "LLAMA_BUILD=$build is not one of auto, system, prebuilt, source" ;;
	esac
	if [[ $build == system ]]; then
		prefix=$(pkg-config --variable=prefix llama)
		return
	fi
	prefix=$cache/$llama_version-r$revision-$(platform)-$backend
	if [[ $build == source ]]; then prefix+=-source; fi
}

pkgconfig_path() {
	if [[ $build == system ]]; then
		echo "${PKG_CONFIG_PATH:-}"
	else
		echo "$prefix/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
	fi
}

# pkgconfig_command prints what Go shall run as pkg-config: the installed one, else a stand-in for our own prefixes.
pkgconfig_command() {
	if [[ -n ${PKG_CONFIG:-} ]] || command -v pkg-config >/dev/null; then
		echo "${PKG_CONFIG:-pkg-config}"
	else
		echo "'$(cd "$(dirname "$0")" && pwd)/pkg-config.sh'"
	fi
}

cache_key() {
	if [[ $build == system ]]; then
		echo "$(pkg-config --modversion llama):$prefix"
	else
		echo "$llama_version:$prefix"
	fi
}

# write_pkgconfig STAGE: llama.pc for a prefix that is staged in STAGE.
write_pkgconfig() {
	mkdir -p "$1/lib/pkgconfig"
	cat >"$1/lib/pkgconfig/llama.pc" <<PC
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include
sourcedir=\${prefix}/src
commondir=\${sourcedir}/common

Name: llama
Description: llama.cpp, inference of GGUF models ($backend, $build)
Version: $llama_version
Libs: -L\${libdir} -Wl,-rpath,\${libdir} -lmeshnet-common -lllama -lggml -lggml-base
Cflags: -I\${includedir} -I\${includedir}/common -DMESHNET_LLAMA_COMMON
PC
}

# stage_common STAGE WORK: a static library of common_sources with its headers. No package carries one, and the shared
# one that CMake builds depends on an HTTP client and the like.
stage_common() {
	local stage=$1 work=$2 source object compiler objects=() compilers=()
	mkdir -p "$work/common" "$stage/lib" "$stage/include/common/jinja"
	cp "$stage/src/common/"{json,json-schema,json-schema-to-grammar}.h "$stage/include/common/"
	cp "$stage/src/common/jinja/"*.h "$stage/include/common/jinja/"
	for source in "${common_sources[@]}" ''; do
		# As many at once as LLAMA_JOBS; the empty one is behind the last.
		if [[ -z $source ]] || ((${#compilers[@]} >= ${LLAMA_JOBS:-2})); then
			for compiler in "${compilers[@]}"; do wait "$compiler" || die "llama.cpp's common library does not compile"; done
			compilers=()
		fi
		[[ -n $source ]] || break
		object=$work/common/${source//\//-}.o
		objects+=("$object")
		c++ -std=c++17 -O2 -fPIC -DNDEBUG -w -I"$stage/src/common" -I"$stage/include" -I"$stage/src/vendor" \
			-c "$stage/src/common/$source.cpp" -o "$object" &
		compilers+=($!)
	done
	ar rcs "$stage/lib/libmeshnet-common.a" "${objects[@]}"
}

# stage_source STAGE WORK: the headers and the pieces of the release's source, from the git bundle in its package.
stage_source() {
	local stage=$1 work=$2
	download node-llama-cpp "$work/release"
	git clone --quiet --bare "$work/release/package/llama/gitRelease.bundle" "$work/llama.git"
	mkdir -p "$stage/src" "$stage/include"
	git --git-dir="$work/llama.git" archive HEAD "${source_pieces[@]}" | tar -x -C "$stage/src"
	cp "$stage/src/include/"*.h "$stage/src/ggml/include/"*.h "$stage/include/"
}

# prebuilt_packages prints the npm packages whose libraries, laid over each other, are this backend.
prebuilt_packages() {
	local base
	base=@node-llama-cpp/$(platform)
	case $backend in
	cpu) echo "$base" ;;
	cuda12) echo "$base" "$base-cuda-ext" ;; # the same release's CUDA backend, linked with CUDA 12
	*) echo "$base-$backend" ;;
	esac
}

# stage_prebuilt STAGE WORK: the release's own libraries, with the plain names that the linker looks for.
stage_prebuilt() {
	local stage=$1 work=$2 package library found missing
	mkdir -p "$stage/lib"
	for package in $(prebuilt_packages); do
		download "$package" "$work/$package"
		find "$work/$package/package/bins" -name '*.so' -exec cp {} "$stage/lib/" ';'
	done
	for library in llama ggml; do
		found=$(cd "$stage/lib" && echo lib$library.*v$llama_version.so)
		[[ -e $stage/lib/$found ]] || die "the prebuilt package has no lib$library of release $llama_version, but: $(ls "$stage/lib")"
		ln -s "$found" "$stage/lib/lib$library.so"
	done
	missing=$(ldd "$stage/lib/"libggml-*.so 2>/dev/null | grep 'not found' | sort -u || true)
	if [[ -n $missing ]]; then
		echo "llama.sh: note: the $backend backend will not load before these are installed: $(awk '{print $1}' <<<"$missing" | tr '\n' ' ')" >&2
	fi
}

# stage_built STAGE WORK: the same release, built here.
stage_built() {
	local stage=$1 work=$2 options generator=()
	# As the prebuilt release: a CPU variant per micro-architecture, ggml's own threads. Backends lie
	# beside the libraries, where the engine looks for them.
	options=(-DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON -DGGML_OPENMP=OFF -DGGML_BACKEND_DIR="$prefix/lib")
	mkdir "$work/tree"
	git --git-dir="$work/llama.git" archive HEAD | tar -x -C "$work/tree"
	case $backend in
	vulkan) options+=(-DGGML_VULKAN=ON) ;;
	cuda | cuda12) options+=(-DGGML_CUDA=ON) ;;
	esac
	if command -v ninja >/dev/null; then generator=(-G Ninja); fi
	cmake -S "$work/tree" -B "$work/build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
		-DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_RPATH="\$ORIGIN" \
		-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_APP=OFF \
		-DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_COMMON=ON -DLLAMA_OPENSSL=OFF "${options[@]}"
	cmake --build "$work/build" --parallel "${LLAMA_JOBS:-2}"
	DESTDIR=$work/installed cmake --install "$work/build"
	cp -R "$work/installed$prefix/." "$stage/"
}

# check_can_make fails early, before any download, where this prefix cannot be made on this machine.
check_can_make() {
	local package
	command -v git >/dev/null || die "git is not installed; it unpacks llama.cpp's source"
	command -v c++ >/dev/null || die "no C++ compiler is installed, and the binding needs one; install the package g++"
	if [[ $build == source ]]; then
		command -v cmake >/dev/null || die "cmake is not installed, and LLAMA_BUILD=source builds with it; install the package cmake"
		return
	fi
	for package in $(prebuilt_packages); do
		integrity "$package" >/dev/null || die "there is no prebuilt llama.cpp for $(platform) with the $backend backend; try LLAMA_BUILD=source"
	done
	if ldd --version 2>&1 | grep -qi musl; then die "the prebuilt llama.cpp needs glibc, and this machine has musl; try LLAMA_BUILD=source"; fi
}

# make_prefix stages everything beside the prefix and moves it there last: a prefix is whole or not there.
make_prefix() {
	[[ ! -e $prefix/complete ]] || return 0
	check_can_make
	mkdir -p "$cache"
	if command -v flock >/dev/null; then
		exec 9>"$prefix.lock"
		flock 9
		[[ ! -e $prefix/complete ]] || return 0
		rm -rf "$prefix".making.* # left by a run that was killed: whoever holds the lock is alone
	fi
	local work
	work=$(mktemp -d "$prefix.making.XXXXXX")
	# shellcheck disable=SC2064 # the folder is known now, and the local is gone at exit
	trap "rm -rf '$work'" EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	echo "llama.sh: making llama.cpp $llama_version ($backend, $build) in $prefix" >&2
	mkdir "$work/stage"
	stage_source "$work/stage" "$work"
	if [[ $build == source ]]; then stage_built "$work/stage" "$work"; else stage_prebuilt "$work/stage" "$work"; fi
	stage_common "$work/stage" "$work"
	write_pkgconfig "$work/stage"
	touch "$work/stage/complete"
	rm -rf "$prefix"
	mv "$work/stage" "$prefix"
}

# A caller inside a git hook must not make our git commands act on its repository.
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
case ${1:-} in
--help | -h) usage ;;
--print-pkgconfig)
	choose
	pkgconfig_path
	;;
--print-prefix)
	choose
	cache_key
	;;
--print-env)
	choose
	printf 'export PKG_CONFIG=%q PKG_CONFIG_PATH=%q CGO_CPPFLAGS=%q\n' "$(pkgconfig_command)" "$(pkgconfig_path)" "-DMESHNET_LLAMA=$(cache_key)"
	;;
'')
	choose
	if [[ $build != system ]]; then make_prefix; fi
	echo "llama.cpp $(cache_key | tr ':' ' ')"
	;;
*)
	usage >&2
	exit 2
	;;
esac

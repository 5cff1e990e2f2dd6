#!/usr/bin/env bash
# Stands in for pkg-config where none is installed: answers the two questions that `go build` asks
# (--cflags -- llama, --libs -- llama) from the llama.pc that scripts/llama.sh wrote.
set -euo pipefail

die() {
	echo "pkg-config.sh: $*; install the package pkg-config" >&2
	exit 1
}

question=${1:-}
[[ ${*: -1} == llama ]] || die "knows only the package llama, and was asked: $*"
file=${PKG_CONFIG_PATH%%:*}/llama.pc
[[ -r $file ]] || die "there is no $file; run make llama first"
case $question in
--cflags) field=Cflags ;;
--libs) field=Libs ;;
*) die "answers only --cflags and --libs, and was asked: $*" ;;
esac
prefix=$(sed -n 's/^prefix=//p' "$file")
answer=$(sed -n "s/^$field: //p" "$file")
answer=${answer//\$\{libdir\}/$prefix/lib}
echo "${answer//\$\{includedir\}/$prefix/include}"

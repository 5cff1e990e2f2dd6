#!/usr/bin/env bash
# Checks the whole tree: formatting, go vet, staticcheck, golangci-lint, shellcheck, and what no linter
# does. Run by `make lint`, which sets the cgo environment. Goes on after a finding; exit 1 if there was one.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly longest_file=500 # lines
tools=${XDG_CACHE_HOME:-$HOME/.cache}/meshnet/tools
failed=0

# finding says what is wrong and lets the other checks run.
finding() {
	echo "lint: $*" >&2
	failed=1
}

# tool NAME PACKAGE: prints the path of a linter, built once per pinned version and Go release.
tool() {
	local name=$1 package=$2 binary
	binary=$tools/$name-$(cat "tools/$name/go.mod" "tools/$name/go.sum" <(go version) | cksum | cut -d ' ' -f 1)
	if [[ ! -x $binary ]]; then
		echo "lint: building $name in $tools" >&2
		mkdir -p "$tools"
		go -C "tools/$name" build -o "$binary.$$" "$package"
		mv "$binary.$$" "$binary"
	fi
	echo "$binary"
}

# ours FILE-PATTERN: the files of this checkout that are tracked or about to be.
ours() {
	git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
		if [[ -f $file ]]; then echo "$file"; fi
	done
}

check_format() {
	local unformatted
	unformatted=$(ours '*.go' | xargs gofmt -l)
	[[ -z $unformatted ]] || finding "not formatted, run gofmt -w: ${unformatted//$'\n'/ }"
}

check_file_lengths() {
	local file lines
	while read -r file; do
		lines=$(wc -l <"$file")
		((lines <= longest_file)) || finding "$file has $lines lines, more than $longest_file; split it by concern"
	done < <(ours '*.go' '*.cpp' '*.h' '*.sh' Makefile)
}

# check_dependencies: docs/dependencies.md has one row for each direct dependency, and no other.
check_dependencies() {
	local wanted written
	go mod tidy -diff || finding "go.mod or go.sum is not tidy, run go mod tidy"
	wanted=$(go mod edit -print | awk '/\/\/ indirect/ { next } /^require [^(]/ { print $2 } /^require \(/ { listed = 1; next }
		/^\)/ { listed = 0 } listed { print $1 }' | sort)
	written=$(sed -n 's/^| \[\([^]]*\)\](.*/\1/p' docs/dependencies.md | sort)
	[[ $wanted == "$written" ]] || finding "docs/dependencies.md and go.mod differ (< go.mod, > docs):" \
		"$(diff <(echo "$wanted") <(echo "$written") | grep '^[<>]' | tr '\n' ' ')"
}

# check_cgo: depguard does not see import "C".
check_cgo() {
	local file
	while read -r file; do
		[[ $file == llama/* || $file == internal/testmodel/* ]] || finding "$file imports C; cgo is in llama/ and internal/testmodel/ only"
	done < <(ours '*.go' | xargs grep -l '^import "C"' || true)
}

check_shell() {
	if command -v shellcheck >/dev/null; then
		ours '*.sh' .ci/run | xargs shellcheck || finding "shellcheck found something"
	else
		echo "lint: shellcheck is not installed; the shell scripts were not checked" >&2
	fi
}

staticcheck=$(tool staticcheck honnef.co/go/tools/cmd/staticcheck)
golangci=$(tool golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint)

check_format
check_file_lengths
check_dependencies
check_cgo
check_shell
go vet ./... || finding "go vet found something"
"$staticcheck" ./... || finding "staticcheck found something"
"$golangci" run ./... || finding "golangci-lint found something"
if ((failed)); then exit 1; fi
echo "lint: nothing found"

#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time each (go test fuzzes one target a run).
set -euo pipefail

duration=${1:?usage: scripts/fuzz.sh DURATION, such as 10s}
for package in $(go list ./...); do
	for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" "$package"
	done
done

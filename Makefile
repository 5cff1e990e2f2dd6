# Builds, tests and measures the worker. `make` alone lists the targets.
# LLAMA_BUILD and LLAMA_BACKEND choose the llama.cpp to link with: scripts/llama.sh --help.

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
MODULE  := github.com/meshnet/node

# Packages that link llama.cpp, and their tests; all others are pure Go, and are tested with the race detector.
LLAMA_PACKAGES := ^$(MODULE)/(llama|cmd|test|internal/cmd|internal/testmodel)(/|$$)

FUZZTIME ?= 10s
BENCH    ?= .

export PKG_CONFIG_PATH := $(shell scripts/llama.sh --print-pkgconfig)
# Go's build cache does not see what pkg-config answers. With version and folder in a flag, a changed
# llama.cpp is a changed key: no object that was made for another one is linked.
export CGO_CPPFLAGS := -DMESHNET_LLAMA=$(shell scripts/llama.sh --print-prefix) $(CGO_CPPFLAGS)
ifeq ($(shell command -v pkg-config 2>/dev/null),)
export PKG_CONFIG ?= '$(CURDIR)/scripts/pkg-config.sh'
endif

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | sort | \
		while IFS="$$(printf '\t')" read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

.PHONY: llama
llama: ## provide llama.cpp: an installed one, else one made in the user's cache folder
	@scripts/llama.sh

.PHONY: build
build: llama ## build bin/worker
	go build -ldflags '-X main.version=$(VERSION)' -o bin/worker ./cmd/worker

.PHONY: test
test: test-race test-llama ## run all tests

.PHONY: test-race
test-race: ## run the tests of the pure-Go packages, with the race detector
	go test -race -timeout 5m $$(go list ./... | grep -Ev '$(LLAMA_PACKAGES)')

.PHONY: test-llama
test-llama: llama ## run the tests that drive a real llama.cpp
	go test -timeout 10m $$(go list ./... | grep -E '$(LLAMA_PACKAGES)')

.PHONY: lint
lint: llama ## check formatting, run go vet, staticcheck, golangci-lint, shellcheck and our own checks
	scripts/lint.sh

.PHONY: demo
demo: build ## show and check a whole mesh in one process, then prove that crowds change no story
	bin/worker demo
	bin/worker sweep --levels 1,2,4,8

.PHONY: bench
bench: llama ## run the Go benchmarks (BENCH=regexp chooses)
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./...

.PHONY: bench-decode
bench-decode: llama ## compare decode throughput with llama.cpp's batched benchmark (WEIGHTS=q4_0)
	@scripts/bench-decode.sh

bench-peer: build ## measure against llama.cpp's own server, into docs/benchmarks.md (half an hour; BENCH_PEER="--only gap")
	@scripts/bench-peer.sh --write docs/benchmarks.md $(BENCH_PEER)

.PHONY: sameness
sameness: build ## sweep models of 30 layers in several quantisations, with and without --exact
	@scripts/sameness.sh

.PHONY: fuzz
fuzz: llama ## run each fuzz target for FUZZTIME (10s)
	scripts/fuzz.sh $(FUZZTIME)

.PHONY: clean
clean: ## remove what was built here (not the shared cache)
	rm -rf bin

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/meshnet/node/bench"
)

// scenario is one load on one model, with both servers started for it.
type scenario struct {
	name  string
	about string // for the reader of the table
	model string
	table kind

	worker []string   // settings of the worker
	peer   []string   // and of llama-server
	loads  [][]string // arguments of worker bench, a run each
	// Whether each round is a run of its own with a seed of its own: what the servers keep of one round must not serve the next.
	fresh bool
	// prompts, where there are any, are the lines of a file of prompts for the seed.
	prompts func(seed int) string
}

// kind is what a table shows.
type kind int

const (
	throughput kind = iota
	prefix
	gap
)

// result is a scenario with what came of it.
type result struct {
	scenario
	reports []bench.Report
}

const usual = "prompts of 64 to 192 tokens, 64 new ones"

func scenarios() []scenario {
	var list []scenario
	lengths := []string{"--prompt-tokens", "64-192", "--output-tokens", "64"}
	few := append([]string{"--concurrency", "1,2,4", "--requests", "16"}, lengths...)
	many := append([]string{"--concurrency", "8,16", "--requests", "32"}, lengths...)
	loads := [][]string{few, many}
	for _, model := range []string{"q4_0", "q8_0", "q4_k_m", "story"} {
		list = append(list, scenario{name: "same settings, " + model, model: model, loads: loads,
			about:  usual + "; both with 16 slots of 512 tokens and 2 threads",
			worker: []string{"--max-active", "16", "--ctx", "512", "--threads", "2"},
			peer:   []string{"--parallel", "16", "--ctx-size", strconv.Itoa(16 * 512), "--threads", "2"}})
	}
	list = append(list, scenario{name: "defaults, q4_0", model: "q4_0", loads: loads, about: usual + "; both as they start without settings"})
	shared := []string{"--concurrency", "8", "--requests", "8", "--warmup", "0", "--shared-prefix", "600", "--prompt-tokens", "20", "--output-tokens", "16"}
	const together = "8 requests at once with the same 600 tokens first and 20 of their own, 16 new ones; every round with other tokens"
	list = append(list,
		scenario{name: "prefix, peer's defaults", model: "q4_0", table: prefix, loads: [][]string{shared}, fresh: true,
			about: together + "; both as they start without settings"},
		scenario{name: "prefix, peer's prompt cache", model: "q4_0", table: prefix, loads: [][]string{shared}, fresh: true,
			about:  together + "; llama-server with a slot for each, its memory cache of 8 GiB and reuse of cached pieces",
			worker: []string{"--threads", "2"},
			peer: []string{"--parallel", "8", "--ctx-size", strconv.Itoa(8 * 2048), "--threads", "2", "--cache-ram", "8192",
				"--cache-reuse", "32", "--slot-prompt-similarity", "0.1"}},
		scenario{name: "gap", model: "q4_0", table: gap, fresh: true, prompts: longBesideFour,
			about:  "4 requests of 32 tokens with 400 new ones, which arrive by chance, five a second, and behind them one of 4096 tokens with 16; both as they start, but with room for it",
			loads:  [][]string{{"--rate", "5", "--requests", "5", "--warmup", "0", "--output-tokens", "400"}},
			worker: []string{"--ctx", "4352"}, peer: []string{"--ctx-size", strconv.Itoa(5 * 4352), "--parallel", "5"}})
	return list
}

// longBesideFour are four short prompts and a long one, of token ids that no other seed has in the same order.
func longBesideFour(seed int) string {
	var b strings.Builder
	ids := func(from, n int) string {
		list := make([]string, n)
		for i := range list {
			list[i] = strconv.Itoa(300 + (seed*7919+from*104729+i*(2*seed+1))%20000)
		}
		return strings.Join(list, ",")
	}
	for i := range 4 {
		fmt.Fprintf(&b, `{"prompt": [%s], "max_tokens": 400}`+"\n", ids(i, 32))
	}
	fmt.Fprintf(&b, `{"prompt": [%s], "max_tokens": 16}`+"\n", ids(5, 4096))
	return b.String()
}

func (s scenario) measure(ctx context.Context, f flags, model string, progress io.Writer) (result, error) {
	dir, err := os.MkdirTemp("", "benchpeer")
	if err != nil {
		return result{}, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a folder of the system's for what is temporary
	servers, err := start(ctx, f, s, model, dir)
	if err != nil {
		return result{}, err
	}
	defer servers.stop()
	out := result{scenario: s}
	runs, rounds := 1, f.Rounds
	if s.fresh {
		runs, rounds = f.Rounds, 1
	}
	for seed := 1; seed <= runs; seed++ {
		for _, load := range s.loads {
			load = append([]string{"--rounds", strconv.Itoa(rounds), "--seed", strconv.Itoa(seed)}, load...)
			if s.prompts != nil {
				path := filepath.Join(dir, "prompts.jsonl")
				if err := os.WriteFile(path, []byte(s.prompts(seed)), 0o600); err != nil {
					return out, err
				}
				load = append(load, "--prompts", path)
			}
			report, err := servers.bench(ctx, f, load, progress)
			if err != nil {
				return out, err
			}
			out.reports = append(out.reports, report)
		}
	}
	return out, nil
}

// bench runs worker bench and reads its report. A request that failed spoils the comparison.
func (s *servers) bench(ctx context.Context, f flags, load []string, progress io.Writer) (bench.Report, error) {
	args := append([]string{"bench", "--nats", s.nats, "--peer", s.peerURL, "--peer-name", "llama-server", "--json", "-"}, load...)
	c := exec.CommandContext(ctx, f.Worker, args...)
	c.Stderr = progress
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	text, err := c.Output()
	if err != nil {
		return bench.Report{}, fmt.Errorf("worker bench: %w", err)
	}
	var report bench.Report
	if err := json.Unmarshal(text, &report); err != nil {
		return report, fmt.Errorf("worker bench's report: %w", err)
	}
	for _, phase := range report.Phases {
		for _, system := range phase.Systems {
			if system.Median.Failed > 0 || system.Median.Completed == 0 {
				return report, fmt.Errorf("%s, %s: %d requests failed: %v", phase.Name, system.System, system.Median.Failed, system.Examples)
			}
		}
	}
	return report, nil
}

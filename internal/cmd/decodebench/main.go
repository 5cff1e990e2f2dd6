// Command decodebench measures aggregate decode throughput of the scheduler on a real engine, and that of llama.cpp's own
// batched benchmark beside it: same model, rows, threads and context depth, in turns, since a machine's speed drifts.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"github.com/meshnet/node/bench"
)

type flags struct {
	Model   string `arg:"" help:"GGUF model." type:"existingfile"`
	Peer    string `help:"llama-batched-bench to compare with; without it only the own numbers." type:"existingfile"`
	PeerDir string `help:"Folder the peer runs in: where its compute backends are." type:"existingdir" default:"."`
	Rows    []int  `help:"Sessions at once." default:"1,8"`
	Prompt  int    `help:"Context depth at which decoding begins, in tokens." default:"128"`
	New     int    `help:"Tokens to decode in each session." default:"128"`
	Threads int    `help:"Compute threads of both." default:"1"`
	Rounds  int    `help:"Rounds; the medians count." default:"5"`
	JSON    bool   `help:"Print one JSON document." name:"json"`
}

// result is the outcome for one number of rows. Rates are tokens a second over all sessions, medians over the rounds.
type result struct {
	Rows  int       `json:"rows"`
	Own   float64   `json:"own_tokens_per_sec"`
	Peer  float64   `json:"peer_tokens_per_sec,omitempty"`
	Ratio float64   `json:"own_over_peer,omitempty"` // median of the rounds' ratios
	Owns  []float64 `json:"own_rounds"`
	Peers []float64 `json:"peer_rounds,omitempty"`
}

func main() {
	var f flags
	k := kong.Parse(&f, kong.Description("Measures decode throughput, own and llama.cpp's, in turns."))
	k.FatalIfErrorf(run(context.Background(), f, os.Stdout, os.Stderr))
}

func run(ctx context.Context, f flags, out, progress io.Writer) error {
	results := make([]result, len(f.Rows))
	for round := range f.Rounds {
		for i, rows := range f.Rows {
			r := &results[i]
			r.Rows = rows
			own, err := measureOwn(ctx, f, rows)
			if err != nil {
				return err
			}
			r.Owns = append(r.Owns, own)
			if f.Peer == "" {
				continue
			}
			peer, err := measurePeer(ctx, f, rows)
			if err != nil {
				return err
			}
			r.Peers = append(r.Peers, peer)
			fmt.Fprintf(progress, "round %d, %d rows: own %.1f, peer %.1f tokens/s\n", round+1, rows, own, peer)
		}
	}
	for i := range results {
		results[i].summarise()
	}
	if f.JSON {
		return json.NewEncoder(out).Encode(results)
	}
	return printTable(out, results)
}

func (r *result) summarise() {
	r.Own = bench.Median(r.Owns)
	if len(r.Peers) == 0 {
		return
	}
	r.Peer = bench.Median(r.Peers)
	ratios := make([]float64, len(r.Owns))
	for i := range ratios {
		ratios[i] = r.Owns[i] / r.Peers[i]
	}
	r.Ratio = bench.Median(ratios)
}

func printTable(out io.Writer, results []result) error {
	if _, err := fmt.Fprintf(out, "%5s  %12s  %12s  %9s  %8s\n", "rows", "own tok/s", "peer tok/s", "own/peer", "scaling"); err != nil {
		return err
	}
	for _, r := range results {
		if _, err := fmt.Fprintf(out, "%5d  %12.1f  %12.1f  %9.3f  %8.2f\n", r.Rows, r.Own, r.Peer, r.Ratio, r.Own/results[0].Own); err != nil {
			return err
		}
	}
	return nil
}

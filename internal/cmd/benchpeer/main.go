// Command benchpeer measures a worker and llama.cpp's own server in turns, each scenario with both freshly started, and writes
// the tables of docs/benchmarks.md.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"

	"github.com/alecthomas/kong"
)

type flags struct {
	Worker  string            `help:"The worker's binary." type:"existingfile" required:""`
	Peer    string            `help:"llama-server's binary." type:"existingfile" required:""`
	PeerDir string            `help:"Folder the peer runs in: where its compute backends are." type:"existingdir" required:""`
	Models  map[string]string `help:"Models by the names that scenarios use: story, q4_0, q8_0, q4_k_m." name:"model" required:""`
	Only    string            `help:"Regular expression: run scenarios whose name it matches." default:""`
	Rounds  int               `help:"Rounds of each scenario; the medians count." default:"5"`
	Write   string            `help:"Markdown file to put the tables into, between its marks; the standard output without it." type:"existingfile"`
}

func main() {
	var f flags
	k := kong.Parse(&f, kong.Description("Measures a worker and llama.cpp's server in turns."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	k.FatalIfErrorf(run(ctx, f, os.Stdout, os.Stderr))
}

func run(ctx context.Context, f flags, out, progress io.Writer) error {
	only, err := regexp.Compile(f.Only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	var done []result
	for _, s := range scenarios() {
		model, ok := f.Models[s.model]
		if !only.MatchString(s.name) || !ok {
			continue
		}
		fmt.Fprintf(progress, "%s\n", s.name)
		r, err := s.measure(ctx, f, model, progress)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		done = append(done, r)
	}
	text := tables(done)
	if f.Write == "" {
		_, err := io.WriteString(out, text)
		return err
	}
	return splice(f.Write, text)
}

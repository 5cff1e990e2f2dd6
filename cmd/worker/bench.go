package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/meshnet/node/bench"
	"github.com/meshnet/node/client"
)

// benchCommand measures a mesh under load, and a peer beside it.
type benchCommand struct {
	natsFlags `embed:"" group:"NATS:"`

	Tenant   string `help:"Tenant on whose behalf." default:"default" placeholder:"NAME"`
	ServedAs string `help:"Name of the model; default: the only one there is." name:"model" placeholder:"NAME" setting:"served-model"`

	Concurrency []int         `help:"Requests in flight, a phase each: the next is sent when one ends; default: 1,4,8." placeholder:"N" xor:"load" group:"Load:"`
	Rate        []float64     `help:"Or mean arrivals a second (Poisson), a phase each, whatever is in flight." placeholder:"R" xor:"load" group:"Load:"`
	Requests    *int          `help:"Requests of a phase; default: 4 for each in flight and at least 16, or 64 with --rate." placeholder:"N" setting:"bench-requests" group:"Load:"`
	Warmup      int           `help:"Requests before all, not counted." default:"2" placeholder:"N" group:"Load:"`
	Rounds      *int          `help:"How often each phase is run; the medians are compared; default: 1, or 5 with --peer." placeholder:"N" group:"Load:"`
	Seed        uint64        `help:"Of prompts, lengths, arrivals and draws: equal seeds make equal requests." default:"1" placeholder:"N" setting:"bench-seed" group:"Load:"`
	Timeout     time.Duration `help:"How long a request may take as a whole." default:"5m" placeholder:"DURATION" group:"Load:"`
	Stall       time.Duration `help:"How long it may be silent after its first text." default:"1m" placeholder:"DURATION" group:"Load:"`
	SLO         bench.SLO     `help:"What counts as goodput: limits of ttft, tpot, itl and e2el, as in ttft=200ms,itl=50ms." name:"slo" placeholder:"LIMITS" group:"Load:"`

	PromptTokens bench.Lengths `help:"Length of prompts: 128, or 64-192 for all lengths between." default:"128" placeholder:"N[-M]" setting:"bench-prompt-tokens" group:"Requests:"`
	OutputTokens bench.Lengths `help:"Length of answers, in the same form." default:"64" placeholder:"N[-M]" group:"Requests:"`
	PromptForm   string        `help:"Prompts are random token ids (ids), whose lengths are exact, or English words (text), whose lengths are near." enum:"ids,text" default:"ids" placeholder:"FORM" group:"Requests:"`
	SharedPrefix int           `help:"Tokens that all prompts begin with, beyond their length." default:"0" placeholder:"N" group:"Requests:"`
	Prompts      string        `help:"File of prompts instead: a text a line, or a JSON object a line with prompt and perhaps max_tokens; - is standard input." placeholder:"FILE" group:"Requests:"`
	IgnoreEOS    bool          `help:"No answer ends before its length, so that lengths can be compared." name:"ignore-eos" negatable:"" default:"true" setting:"bench-ignore-eos" group:"Requests:"`
	Temperature  float64       `help:"0 is greedy." default:"0" placeholder:"T" setting:"bench-temperature" group:"Requests:"`

	Peer      string `help:"Measure a server with OpenAI's completions API in turns with the mesh." placeholder:"URL" group:"Peer:"`
	PeerName  string `help:"What reports call it." default:"peer" placeholder:"NAME" group:"Peer:"`
	PeerModel string `help:"Its name of the model; a server of one model needs none." placeholder:"NAME" group:"Peer:"`
	PeerKey   string `help:"Its API key." placeholder:"WORD" group:"Peer:"`

	JSON string `help:"Write the report with every request as a JSON document; - is standard output, and nothing else goes there." name:"json" placeholder:"FILE" setting:"bench-json" group:"Output:"`
	HTML string `help:"Write the report as one HTML page with charts." name:"html" placeholder:"FILE" group:"Output:"`
}

// Help is the long help of the command.
func (benchCommand) Help() string {
	return `Sends generated load through the bus and reports throughput, TTFT, TPOT, ITL and E2EL. With --peer another
server gets the same requests at the same times, in turns with the mesh. docs/bench.md defines the numbers.
Ctrl-C cancels what is in flight and reports what was measured.

Examples:
  worker bench
  worker bench --concurrency 1,2,4,8 --prompt-tokens 64-192 --output-tokens 64 --html bench.html
  worker bench --rate 0.5,1,2 --requests 100 --slo ttft=500ms,itl=100ms
  worker bench --prompts questions.txt --no-ignore-eos --output-tokens 256 --json - | jq .phases[].ratios
  worker bench --concurrency 8 --peer http://127.0.0.1:8080 --peer-name llama-server --rounds 5`
}

// Run is called by the command-line parser.
func (c *benchCommand) Run(env *environment) error {
	options := c.options()
	if err := c.check(&options); err != nil {
		return err
	}
	prompts, err := c.file(env)
	if err != nil {
		return err
	}
	peer, err := c.peer(&options)
	if err != nil {
		return err
	}
	if peer != nil {
		defer peer.Close()
	}
	jsonFile, htmlFile, err := c.outputs()
	if err != nil {
		return err
	}
	defer jsonFile.abandon()
	defer htmlFile.abandon()
	mesh, done, err := c.client(env)
	if err != nil {
		return err
	}
	defer done()
	run, err := c.prepare(env, mesh, &options, prompts)
	if err != nil {
		return err
	}
	if peer != nil {
		run.Targets = append(run.Targets, peer)
	}
	report, err := run.Do(env.ctx)
	env.status.clear()
	if denied := env.denied(); denied != nil {
		return denied
	}
	if err != nil {
		return usageError("%v", err)
	}
	if err := c.write(env, report, jsonFile, htmlFile); err != nil {
		return err
	}
	switch {
	case report.Interrupted:
		return errCancelled
	case report.Completed(0) == 0:
		return errors.New("no request of the mesh completed")
	}
	return nil
}

// options are the flags as the benchmark takes them.
func (c *benchCommand) options() bench.Options {
	o := bench.Options{
		Concurrency: c.Concurrency, Rates: c.Rate, Warmup: c.Warmup, Rounds: 1, Seed: c.Seed,
		Output: c.OutputTokens, Temperature: c.Temperature, IgnoreEOS: c.IgnoreEOS, Timeout: c.Timeout, Stall: c.Stall, SLO: c.SLO,
	}
	if len(o.Concurrency) == 0 && len(o.Rates) == 0 {
		o.Concurrency = []int{1, 4, 8}
	}
	if c.Requests != nil {
		o.Requests = *c.Requests
	}
	switch {
	case c.Rounds != nil:
		o.Rounds = *c.Rounds
	case c.Peer != "":
		o.Rounds = 5
	}
	return o
}

func (c *benchCommand) systems() int {
	if c.Peer == "" {
		return 1
	}
	return 2
}

// check refuses flags before anything is asked of the mesh.
func (c *benchCommand) check(options *bench.Options) error {
	if err := options.Validate(c.systems()); err != nil {
		return usageError("%v", err)
	}
	switch {
	case c.Requests != nil && *c.Requests == 0:
		return usageError("--requests is 0; use 1 to %d", bench.MaxRequests)
	case c.SharedPrefix < 0 || c.SharedPrefix+c.PromptTokens.Max > bench.MaxLength:
		return usageError("--shared-prefix is %d and --prompt-tokens go to %d; use at least 0, and together at most %d", c.SharedPrefix, c.PromptTokens.Max, bench.MaxLength)
	case c.Prompts != "" && c.SharedPrefix > 0:
		return usageError("--prompts has whole prompts; leave out --shared-prefix %d", c.SharedPrefix)
	case c.HTML == "-":
		return usageError("--html writes a file; name one")
	case c.JSON != "" && c.JSON == c.HTML:
		return usageError("--json and --html both name %s; name two files", c.JSON)
	case c.Peer != "" && (c.PeerName == "" || c.PeerName == "mesh"):
		return usageError("--peer-name is %q; name it otherwise than the mesh", c.PeerName)
	}
	return nil
}

// file reads the file of prompts; nil without one.
func (c *benchCommand) file(env *environment) (*bench.Prompts, error) {
	if c.Prompts == "" {
		return nil, nil
	}
	from := env.stdin
	if c.Prompts != "-" {
		file, err := os.Open(c.Prompts)
		if err != nil {
			return nil, usageError("--prompts: %v", err)
		}
		defer file.Close() //nolint:errcheck // it was only read
		from = file
	}
	prompts, err := bench.ReadPrompts(from)
	if err != nil {
		return nil, usageError("--prompts %s: %v", c.Prompts, err)
	}
	return prompts, nil
}

// peer is the other server; nil without one.
func (c *benchCommand) peer(options *bench.Options) (*bench.Peer, error) {
	if c.Peer == "" {
		return nil, nil
	}
	peer, err := bench.NewPeer(bench.PeerConfig{URL: c.Peer, Name: c.PeerName, Model: c.PeerModel, Key: c.PeerKey, Options: options})
	if err != nil {
		return nil, usageError("--peer: %v", err)
	}
	return peer, nil
}

// prepare finds the model in the mesh and makes a run of it.
func (c *benchCommand) prepare(env *environment, mesh *client.Client, options *bench.Options, prompts *bench.Prompts) (*bench.Run, error) {
	env.status.set("looking for a model")
	defer env.status.clear()
	model := c.ServedAs
	if model == "" {
		var err error
		if model, err = onlyModel(env.ctx, mesh); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(env.ctx, connectTimeout)
	defer cancel()
	serving, err := bench.FindModel(ctx, mesh, model)
	if err != nil {
		return nil, err
	}
	if prompts == nil {
		prompts = c.random(serving.VocabTokens)
	}
	if need := prompts.LongestPrompt() + options.Output.Max; need > serving.MaxSessionTokens {
		return nil, usageError("prompt and answer take up to %d tokens together, the nodes of %s take %d; use fewer", need, model, serving.MaxSessionTokens)
	}
	abandoned := func(session string, err error) {
		env.log.Warn("a turn could not be cancelled", "session", session, "error", err)
	}
	return &bench.Run{
		Options: *options, Prompts: prompts, Model: model,
		Targets: []bench.Target{bench.NewMesh(bench.MeshConfig{
			Client: mesh, Tenant: c.Tenant, Model: model, Options: options, Abandoned: abandoned,
		})},
		Progress:  func(p bench.Progress) { env.status.set("%s", progressLine(p)) },
		Occupancy: func() (bench.Occupancy, error) { return bench.Occupied(env.ctx, mesh, model) },
	}, nil
}

func (c *benchCommand) random(vocab int) *bench.Prompts {
	if c.PromptForm == "text" {
		return bench.RandomWords(c.PromptTokens, c.SharedPrefix, c.Seed)
	}
	return bench.RandomIDs(c.PromptTokens, c.SharedPrefix, vocab, c.Seed)
}

// progressLine is what the status line says; it adds the time.
func progressLine(p bench.Progress) string {
	var b strings.Builder
	if p.Rounds > 1 {
		fmt.Fprintf(&b, "round %d of %d, ", p.Round, p.Rounds)
	}
	fmt.Fprintf(&b, "%s, %s: %d of %d requests", p.Phase, p.System, p.Done, p.Total)
	if seconds := p.InPhase.Seconds(); p.Pieces > 0 && seconds > 0 {
		fmt.Fprintf(&b, ", %.0f tok/s", float64(p.Pieces)/seconds)
	}
	return b.String()
}

// write prints the report and writes its files.
func (c *benchCommand) write(env *environment, report *bench.Report, jsonFile, htmlFile *outputFile) error {
	asJSON := func(w io.Writer) error { return json.NewEncoder(w).Encode(report) }
	if c.JSON == "-" {
		if err := asJSON(env.stdout); err != nil {
			return err
		}
	} else {
		var table strings.Builder
		if err := bench.WriteTable(&table, report); err != nil {
			return err
		}
		if _, err := io.WriteString(env.stdout, shown(env.stdout, table.String())); err != nil {
			return err
		}
	}
	if err := jsonFile.write(asJSON); err != nil {
		return err
	}
	return htmlFile.write(func(w io.Writer) error { return bench.WritePage(w, report) })
}

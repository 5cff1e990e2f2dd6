package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/meshnet/node/internal/text"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/sampling"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// generateCommand continues one prompt, without a bus.
type generateCommand struct {
	modelFlags    `embed:"" group:"Model:"`
	samplingFlags `embed:"" group:"Sampling:"`

	Text      string  `arg:"" optional:"" help:"The prompt; - reads it from standard input."`
	Tokens    []int64 `help:"The prompt as token ids, in place of text." placeholder:"ID"`
	Special   bool    `help:"Read spellings of control tokens in the prompt as control tokens."`
	Adapter   *string `help:"Adapter to use; default: the first --lora, if any. An empty name is none." placeholder:"NAME"`
	MaxTokens *int    `help:"Tokens to generate at most; default: 256, or what the context has room for." placeholder:"N" short:"n"`
	Echo      bool    `help:"Print the prompt before its continuation."`
	JSON      bool    `help:"Print one JSON document at the end, and nothing else." name:"json"`

	chatFlags   `embed:"" group:"Messages and answers:"`
	answerFlags `embed:"" group:"Messages and answers:"`
}

// Help is the long help of the command.
func (generateCommand) Help() string {
	return `Examples:
  worker generate "Once upon a time"
  worker generate --model qwen.gguf --temperature 0.8 --seed 7 "Write a haiku."
  worker generate --model qwen.gguf --system "Be brief." "Why is the sky blue?"
  worker generate --model qwen.gguf --json-schema person.json "Somebody you know:"
  worker generate --model qwen.gguf --lora poet=poet.gguf:0.8 "Write a haiku."
  echo "A long text" | worker generate --json -`
}

const defaultNewTokens = 256

// generation is one run of the command.
type generation struct {
	cmd    *generateCommand
	env    *environment
	model  *llama.Model
	sched  *scheduler.Scheduler
	stream *text.Stream
	status turnStatus
	text   strings.Builder
	probs  []schemas.TokenProbs
	loaded time.Duration
}

// Run is called by the command-line parser.
func (c *generateCommand) Run(env *environment) error {
	prompt, err := c.prompt(env)
	if err != nil {
		return err
	}
	began := time.Now()
	model, err := c.load(env)
	if err != nil {
		return err
	}
	defer model.Free()
	o := c.engineOptions(env)
	o.Slots = 1
	engine, err := newEngine(env, model, o)
	if err != nil {
		return err
	}
	defer engine.Free()
	budget := scheduler.DefaultBudget(engine.Facts())
	budget.MaxQueueDepth = 0
	sched, err := scheduler.New(engine, scheduler.Config{Budget: budget})
	if err != nil {
		return err
	}
	defer sched.Close()
	g := &generation{
		cmd: c, env: env, model: model, sched: sched, stream: text.New(c.textOptions(model)), loaded: time.Since(began),
		status: turnStatus{line: env.status, onScreen: isTerminal(env.stdout)},
	}
	return g.run(engine, prompt)
}

// localPrompt is what to continue: messages, or else text; nothing where token ids were given.
type localPrompt struct {
	text     string
	messages []schemas.ChatMessage
	tools    string
}

func (c *generateCommand) prompt(env *environment) (p localPrompt, err error) {
	switch {
	case c.wanted():
		p.messages, p.tools, err = c.messages(env, c.Text, len(c.Tokens))
	case c.Text != "" && len(c.Tokens) > 0:
		err = usageError("give the prompt as text or as --tokens, not both")
	case c.Text == "-":
		p.text, err = readPrompt(env)
	default:
		p.text = c.Text
	}
	return p, err
}

// readPrompt reads standard input to its end. Ctrl-C ends the wait for what does not come; the read then lasts as long
// as the process.
func readPrompt(env *environment) (string, error) {
	type input struct {
		data []byte
		err  error
	}
	read := make(chan input, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(env.stdin, llama.MaxTextBytes+1))
		read <- input{data, err}
	}()
	select {
	case <-env.ctx.Done():
		return "", errCancelled
	case in := <-read:
		if in.err != nil {
			return "", fmt.Errorf("reading the prompt: %w", in.err)
		}
		return string(in.data), nil
	}
}

func (g *generation) run(engine *llama.Engine, prompt localPrompt) error {
	req, err := g.request(engine.Facts(), prompt)
	if err != nil {
		return err
	}
	if d := g.sched.Submit(req); d.Rejected() {
		return rejected(d)
	}
	cancel := func() {
		_, _ = g.sched.Cancel(req.Key(), scheduler.Cancelled, "", "") // the turn may have ended by itself
	}
	stop := context.AfterFunc(g.env.ctx, func() {
		cancel()
		engine.Interrupt() // a chunk of a large model can take long
	})
	defer stop()
	g.status.waits("prefill of %d tokens", len(req.Prompt))
	if g.cmd.Echo && !g.cmd.JSON {
		if err := g.print(styled(g.env.stdout, styleDim, shown(g.env.stdout, prompt.text))); err != nil {
			return err
		}
	}
	for g.sched.Pending() > 0 {
		if g.env.ctx.Err() != nil {
			cancel()
		}
		report, err := g.sched.Tick()
		if err != nil {
			return err
		}
		if err := g.tokens(report.Tokens); err != nil {
			return err
		}
	}
	return g.finish(req, g.sched.TakeResults(nil)[0])
}

func (g *generation) request(facts scheduler.Facts, prompt localPrompt) (scheduler.Request, error) {
	req := scheduler.Request{Tenant: "local", Session: "generate", Turn: 1, Sampling: g.cmd.sampling()}
	if out := sampling.CheckStops(g.cmd.Stop); out != nil {
		return req, &exitError{exitRejected, out}
	}
	var err error
	switch {
	case len(g.cmd.Tokens) > 0:
		req.Prompt, err = scheduler.ParseTokens("tokens", g.cmd.Tokens, facts.VocabTokens)
	case prompt.messages != nil:
		req.Prompt, err = chatTokens(g.env.ctx, g.model, facts.ContextTokens, prompt.messages, prompt.tools)
	default:
		req.Prompt, err = g.model.TokenizeWithin(facts.ContextTokens, prompt.text, g.cmd.Special)
	}
	if err != nil {
		return req, &exitError{exitRejected, err}
	}
	if req.Grammar.Text, err = g.cmd.localGrammar(g.env, g.model); err != nil {
		return req, err
	}
	switch {
	case g.cmd.Adapter != nil:
		req.Adapter = *g.cmd.Adapter
	case len(facts.Adapters) > 0:
		req.Adapter = facts.Adapters[0].Name
	}
	req.MaxNewTokens = max(1, min(defaultNewTokens, facts.ContextTokens-len(req.Prompt)+1))
	if g.cmd.MaxTokens != nil {
		req.MaxNewTokens = *g.cmd.MaxTokens
	}
	if len(g.cmd.Stop) > 0 {
		said := text.New(g.cmd.textOptions(g.model))
		req.Stop = func(token scheduler.Token) bool {
			chunk, err := said.Next(token)
			return err == nil && chunk.Stopped
		}
	}
	return req, nil
}

func (c *generateCommand) textOptions(model *llama.Model) text.Options {
	return text.Options{Piece: model.AppendText, Stops: c.Stop, Least: c.MinTokens}
}

func rejected(d scheduler.Decision) error {
	return &exitError{exitRejected, fmt.Errorf("%s: %s", d.Reason, d.Detail.Message)}
}

// tokens prints what a tick yielded, as soon as it is whole text.
func (g *generation) tokens(tokens []scheduler.NewToken) error {
	for _, t := range tokens {
		if t.Probs != nil {
			g.probs = append(g.probs, schemas.ProbsOf(t.Probs))
		}
		if t.EOG {
			continue
		}
		chunk, err := g.stream.Next(t.Token)
		if err != nil {
			return err
		}
		g.text.WriteString(chunk.Text)
		g.status.reaches(g.status.tokens + 1)
		if !g.cmd.JSON {
			if err := g.print(shown(g.env.stdout, chunk.Text)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *generation) print(text string) error {
	g.status.prints()
	if _, err := io.WriteString(g.env.stdout, text); err != nil {
		return fmt.Errorf("writing the text: %w", err)
	}
	return nil
}

// finish prints the end of the text and how the turn ended.
func (g *generation) finish(req scheduler.Request, end scheduler.Ending) error {
	g.env.status.clear()
	tail := g.stream.Flush().Text
	g.text.WriteString(tail)
	var err error
	if g.cmd.JSON {
		err = json.NewEncoder(g.env.stdout).Encode(g.document(req, end))
	} else {
		err = g.print(shown(g.env.stdout, tail) + "\n")
		g.summary(req, end)
	}
	switch {
	case end.Reason == scheduler.Cancelled:
		return errCancelled
	case end.Reason != scheduler.Completed:
		return fmt.Errorf("%s %s: %s", end.Reason, end.Cause, end.Detail)
	}
	return err
}

// summary tells a person at a terminal how it went.
func (g *generation) summary(req scheduler.Request, end scheduler.Ending) {
	if !isTerminal(g.env.stderr) {
		return
	}
	t := newGenerateTimings(g.loaded, end)
	line := fmt.Sprintf("%d prompt + %d new tokens, first after %.1f ms, %.0f tokens/s",
		end.Usage.Prompt, end.Usage.New, t.FirstTokenMS, t.TokensPerSecond)
	if req.Sampling.Temperature > 0 {
		line += fmt.Sprintf(", seed %d", req.Sampling.Seed)
	}
	fmt.Fprintln(g.env.stderr, styled(g.env.stderr, styleDim, line))
}

// generateDocument is what --json prints.
type generateDocument struct {
	SchemaVersion int                  `json:"schema_version"`
	Model         string               `json:"model"`
	Reason        string               `json:"reason"`
	Finish        string               `json:"finish,omitempty"`
	Detail        string               `json:"detail,omitempty"`
	Text          string               `json:"text"`
	TokenIDs      []scheduler.Token    `json:"token_ids"`
	Probs         []schemas.TokenProbs `json:"logprobs,omitempty"`
	Seed          *uint64              `json:"seed,omitempty"` // of a sampled turn
	Usage         generateUsage        `json:"usage"`
	Timings       generateTimings      `json:"timings"`
}

type generateUsage struct {
	PromptTokens int `json:"prompt_tokens"`
	NewTokens    int `json:"new_tokens"`
}

type generateTimings struct {
	LoadMS          float64 `json:"load_ms"`
	FirstTokenMS    float64 `json:"first_token_ms"`
	TotalMS         float64 `json:"total_ms"`
	TokensPerSecond float64 `json:"tokens_per_second"` // of the tokens after the first
}

func newGenerateTimings(loaded time.Duration, end scheduler.Ending) generateTimings {
	t := generateTimings{LoadMS: milliseconds(loaded), FirstTokenMS: milliseconds(end.Timings.FirstToken), TotalMS: milliseconds(end.Timings.Total)}
	if after := end.Timings.Total - end.Timings.FirstToken; end.Usage.New > 1 && after > 0 {
		t.TokensPerSecond = float64(end.Usage.New-1) / after.Seconds()
	}
	return t
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Microseconds()) / 1000
}

func (g *generation) document(req scheduler.Request, end scheduler.Ending) generateDocument {
	doc := generateDocument{
		SchemaVersion: 1, Model: g.model.Facts().Name, Reason: string(end.Reason), Finish: string(end.Finish), Detail: end.Detail,
		Text: g.text.String(), TokenIDs: end.Tokens, Probs: g.probs,
		Usage:   generateUsage{PromptTokens: end.Usage.Prompt, NewTokens: end.Usage.New},
		Timings: newGenerateTimings(g.loaded, end),
	}
	if req.Sampling.Temperature > 0 {
		doc.Seed = &req.Sampling.Seed
	}
	return doc
}

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/schemas"
)

// submitCommand asks the mesh for one turn and prints it as it comes.
type submitCommand struct {
	natsFlags     `embed:"" group:"NATS:"`
	samplingFlags `embed:"" group:"Sampling:"`

	Text       string        `arg:"" optional:"" help:"The whole conversation so far; - reads it from standard input."`
	TokenIDs   []int64       `help:"The conversation as token ids, in place of text." name:"tokens" placeholder:"ID"`
	Special    bool          `help:"Read spellings of control tokens in the text as control tokens."`
	Tenant     string        `help:"Tenant on whose behalf." default:"default" placeholder:"NAME"`
	Session    string        `help:"The conversation; a new one without it." placeholder:"NAME"`
	Turn       uint64        `help:"Number of this turn, rising within the session; default: 1, or the time where --session is given." placeholder:"N"`
	Epoch      uint64        `help:"Epoch of the session's route: a higher one makes its hot KV stale, a lower one is refused." placeholder:"N"`
	ServedAs   string        `help:"Name of the model; default: the only one there is." name:"model" placeholder:"NAME" setting:"served-model"`
	Adapter    string        `help:"LoRA adapter of the model; default: none." placeholder:"NAME"`
	MaxTokens  int           `help:"Tokens to generate at most." default:"256" placeholder:"N" short:"n"`
	Keep       bool          `help:"Keep the session hot for its next turn."`
	RequireHot bool          `help:"Rather end than prefill a session that is not hot any more."`
	Deadline   time.Duration `help:"How long the whole turn may take, with its wait in the queue." default:"10m" placeholder:"DURATION"`
	Priority   int           `help:"Among this tenant's turns that wait, -8 to 8: higher first." default:"0" placeholder:"N"`
	Raw        bool          `help:"With --json: the bytes of the text as the tokens have them, too, in base64."`
	JSON       bool          `help:"Print one JSON object a line, an event each, and nothing else." name:"json"`

	chatFlags   `embed:"" group:"Messages and answers:"`
	answerFlags `embed:"" group:"Messages and answers:"`
}

// Help is the long help of the command.
func (submitCommand) Help() string {
	return `Examples:
  worker submit "Once upon a time"
  worker submit --session chat1 --keep --temperature 0.8 "Tell me a story."
  worker submit --system "Be brief." "Why is the sky blue?"
  worker submit --nats nats://gpu1:4222 --model qwen --json - < prompt.txt`
}

// submission is one run of the command.
type submission struct {
	cmd    *submitCommand
	env    *environment
	status turnStatus
	text   []byte  // what was printed, to be cut by a Reset
	seed   *uint64 // of a sampled turn
}

func newSubmission(c *submitCommand, env *environment) *submission {
	return &submission{cmd: c, env: env, status: turnStatus{line: env.status, onScreen: isTerminal(env.stdout)}}
}

// Run is called by the command-line parser.
func (c *submitCommand) Run(env *environment) error {
	req, err := c.request(env)
	if err != nil {
		return err
	}
	mesh, done, err := c.client(env)
	if err != nil {
		return err
	}
	defer done()
	s := newSubmission(c, env)
	if req.Model == "" {
		s.status.waits("looking for a model")
		if req.Model, err = onlyModel(env.ctx, mesh); err != nil {
			return err
		}
	}
	s.status.waits("waiting for a place in the queue")
	ctx, giveUp := context.WithCancel(context.WithoutCancel(env.ctx))
	defer giveUp()
	// Ctrl-C cancels the turn in the mesh. Once it is submitted, what the mesh says then ends the stream; until then
	// nobody knows whether the mesh has it, and there is no more to wait for.
	submitting := context.AfterFunc(env.ctx, giveUp)
	stream, err := mesh.Generate(ctx, req)
	if denied := env.denied(); denied != nil {
		return denied
	}
	if !submitting() {
		s.status.waits("cancelling the turn")
		_ = c.cancel(env, mesh, req) // it said why
		return errCancelled
	}
	if err != nil {
		return refusedAs(err)
	}
	defer stream.Close()
	stop := context.AfterFunc(env.ctx, func() {
		if env.denied() != nil || c.cancel(env, mesh, req) != nil {
			stream.Close()
		}
	})
	defer stop()
	s.status.waits("waiting for a worker")
	signal.Ignore(syscall.SIGPIPE) // a write then tells, and the turn can be cancelled
	err = s.follow(stream)
	var unread *outputError
	switch {
	case errors.As(err, &unread):
		_ = c.cancel(env, mesh, req) // it said why
	case errors.Is(err, client.ErrClosed):
		return env.ended()
	}
	return err
}

// outputError is text that could not be written: nobody reads on.
type outputError struct{ err error }

func (e *outputError) Error() string { return "writing the text: " + e.err.Error() }
func (e *outputError) Unwrap() error { return e.err }

// cancel cancels the turn in the mesh, and logs why it could not.
func (c *submitCommand) cancel(env *environment, mesh *client.Client, req client.Request) error {
	_, err := mesh.Cancel(context.WithoutCancel(env.ctx), req.Tenant, req.Session, req.Turn)
	if err != nil {
		env.log.Warn("the turn could not be cancelled", "error", err)
	}
	return err
}

func (c *submitCommand) request(env *environment) (client.Request, error) {
	req := client.Request{
		Tenant: c.Tenant, Session: c.Session, Turn: c.Turn, Epoch: c.Epoch, Model: c.ServedAs, Adapter: c.Adapter, TokenIDs: c.TokenIDs, Special: c.Special,
		MaxNewTokens: c.MaxTokens, MinNewTokens: c.MinTokens, Sampling: c.wire(), Stop: c.Stop, Raw: c.Raw,
		Keep: c.Keep, RequireHot: c.RequireHot, Deadline: c.Deadline, Priority: c.Priority, RetryQuota: true,
	}
	var err error
	if req.JSONSchema, req.Grammar, err = c.answer(env); err != nil {
		return req, err
	}
	switch {
	case c.wanted():
		if req.Messages, req.Tools, err = c.messages(env, c.Text, len(c.TokenIDs)); err != nil {
			return req, err
		}
	case c.Text != "" && len(c.TokenIDs) > 0:
		return req, usageError("give the prompt as text or as --tokens, not both")
	case c.Text == "-":
		if req.Prompt, err = readPrompt(env); err != nil {
			return req, err
		}
	default:
		req.Prompt = c.Text
	}
	switch {
	case req.Session == "":
		req.Session = "cli-" + strings.ToLower(rand.Text()[:10])
		req.Turn = max(req.Turn, 1)
	case req.Turn == 0:
		req.Turn = uint64(time.Now().UnixMilli())
	}
	return req, nil
}

// onlyModel is the model that all nodes serve.
func onlyModel(ctx context.Context, mesh *client.Client) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	nodes, err := mesh.Nodes(ctx)
	if err != nil {
		return "", err
	}
	models := make(map[string]bool)
	var name string
	for _, n := range nodes {
		name = n.Ad.Model.Name.String()
		models[name] = true
	}
	switch len(models) {
	case 0:
		return "", errors.New("no node serves a model; start one with `worker run`, or name a model to wait for with --model")
	case 1:
		return name, nil
	default:
		return "", usageError("the mesh serves %d models; choose one with --model (`worker nodes` lists them)", len(models))
	}
}

// follow prints the events of a stream and says how the turn ended.
func (s *submission) follow(stream *client.Stream) error {
	var ended error
	for event, err := range stream.Events() {
		if err != nil {
			ended = err
			break
		}
		if err := s.print(event); err != nil {
			return &outputError{err}
		}
	}
	return refusedAs(ended)
}

func (s *submission) print(event client.Event) error {
	if s.cmd.JSON {
		return s.printJSON(event)
	}
	var err error
	switch e := event.(type) {
	case client.Started:
		s.seed = e.Seed
		s.status.waits("prefill of %d tokens (%d cached) on node %s", e.PromptTokens, e.CachedTokens, e.Node)
	case client.Text:
		s.status.reaches(e.Index + len(e.TokenIDs))
		s.text = append(s.text, e.Text...)
		err = s.write(shown(s.env.stdout, e.Text))
	case client.Reset:
		s.status.reaches(e.Index)
		err = s.printAgain(e)
	case client.Final:
		s.env.status.clear()
		if s.status.begun || e.Reason == schemas.Completed {
			err = s.write("\n")
		}
		s.summary(e)
	}
	return err
}

// printAgain repeats the text that still stands after a Reset: what a terminal has shown cannot be taken back.
func (s *submission) printAgain(reset client.Reset) error {
	s.text = s.text[:min(reset.TextBytes, len(s.text))]
	note := styled(s.env.stdout, styleDim, "[another worker goes on from here]")
	return s.write(fmt.Sprintf("\n%s\n%s", note, shown(s.env.stdout, string(s.text))))
}

func (s *submission) write(text string) error {
	s.status.prints()
	_, err := io.WriteString(s.env.stdout, text)
	return err
}

func (s *submission) summary(f client.Final) {
	if !isTerminal(s.env.stderr) || f.Reason != schemas.Completed {
		return
	}
	line := fmt.Sprintf("%s: %d prompt (%d cached) + %d new tokens in %.0f ms", f.Node, f.Usage.PromptTokens, f.Usage.CachedTokens, f.Count, f.Timings.TotalMS)
	if s.seed != nil {
		line += fmt.Sprintf(", seed %d", *s.seed)
	}
	if f.Attempt > 1 {
		line += fmt.Sprintf(", attempt %d", f.Attempt)
	}
	fmt.Fprintln(s.env.stderr, styled(s.env.stderr, styleDim, line))
}

// printJSON prints an event as one line; the field kind says which it is.
func (s *submission) printJSON(event client.Event) error {
	encoder := json.NewEncoder(s.env.stdout)
	switch e := event.(type) {
	case client.Started:
		return encoder.Encode(e.Started)
	case client.Text:
		return encoder.Encode(struct {
			Kind     string               `json:"kind"`
			Index    int                  `json:"index"`
			TokenIDs []int64              `json:"token_ids"`
			Text     string               `json:"text"`
			Bytes    []byte               `json:"bytes,omitempty"`
			Probs    []schemas.TokenProbs `json:"logprobs,omitempty"`
		}{"token", e.Index, e.TokenIDs, e.Text, e.Bytes, e.Probs})
	case client.Reset:
		return encoder.Encode(struct {
			Kind  string `json:"kind"`
			Index int    `json:"index"`
		}{"reset", e.Index})
	case client.Final:
		return encoder.Encode(e.Final)
	default:
		return fmt.Errorf("an event of type %T has no JSON", event)
	}
}

// refusedAs gives an error the exit code of what it means.
func refusedAs(err error) error {
	var ended *client.TurnError
	var field *schemas.FieldError
	var large *schemas.TooLargeError
	var quota *client.QuotaError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ended) && ended.Final.Reason == schemas.Cancelled && !ended.Overdue:
		return &exitError{exitCancelled, err}
	case errors.As(err, &ended) && ended.Final.Reason != schemas.Rejected:
		return err
	case errors.As(err, &ended), errors.As(err, &field), errors.As(err, &large), errors.As(err, &quota):
		return &exitError{exitRejected, err}
	default:
		return err
	}
}

// cancelCommand ends a turn of the mesh.
type cancelCommand struct {
	natsFlags `embed:"" group:"NATS:"`

	Session string `arg:"" help:"The turn's session."`
	Turn    uint64 `arg:"" help:"Its number."`
	Tenant  string `help:"Tenant on whose behalf." default:"default" placeholder:"NAME"`
	JSON    bool   `help:"Print one JSON document, and nothing else." name:"json"`
}

// Help is the long help of the command.
func (cancelCommand) Help() string {
	return `Examples:
  worker cancel chat1 3
  worker cancel --tenant lab --json chat1 3`
}

// Run is called by the command-line parser.
func (c *cancelCommand) Run(env *environment) error {
	mesh, done, err := c.client(env)
	if err != nil {
		return err
	}
	defer done()
	standing, err := mesh.Cancel(env.ctx, c.Tenant, c.Session, c.Turn)
	if err != nil {
		return refusedAs(err)
	}
	if c.JSON {
		return json.NewEncoder(env.stdout).Encode(struct {
			Outcome schemas.CancelOutcome `json:"outcome"`
			State   schemas.TurnState     `json:"state"`
			Final   *schemas.Final        `json:"final,omitempty"`
		}{standing.Outcome, standing.State, standing.Final})
	}
	said := map[schemas.CancelOutcome]string{
		schemas.CancelEnded: "cancelled before it ran", schemas.CancelMarked: "is being cancelled", schemas.CancelTooLate: "had ended before",
	}
	_, err = fmt.Fprintf(env.stdout, "turn %d of session %s %s\n", c.Turn, c.Session, said[standing.Outcome])
	return err
}

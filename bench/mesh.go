package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/schemas"
)

// MaxTimeout is the longest that a request may take: a turn's deadline in the mesh lies beyond it.
const MaxTimeout = schemas.MaxDeadline - deadlineRoom

// deadlineRoom keeps the mesh's own deadline from ending a request first, so that one clock judges both systems.
const deadlineRoom = 10 * time.Second

// cancelPatience bounds the wait for the answer to a cancel.
const cancelPatience = 5 * time.Second

// MeshConfig is what NewMesh needs. All must be set but Log.
type MeshConfig struct {
	Client  *client.Client
	Tenant  string
	Model   string
	Options *Options
	// Abandoned is told of a turn that could not be cancelled; nil: nobody is.
	Abandoned func(session string, err error)
}

// Mesh is the mesh as a Target: each request is the first turn of a session of its own.
type Mesh struct {
	cfg MeshConfig
	run string // begins the names of this run's sessions
}

// NewMesh makes a Mesh.
func NewMesh(cfg MeshConfig) *Mesh {
	if cfg.Abandoned == nil {
		cfg.Abandoned = func(string, error) {}
	}
	return &Mesh{cfg: cfg, run: "bench-" + strings.ToLower(rand.Text()[:10])}
}

// Name implements Target.
func (m *Mesh) Name() string { return "mesh" }

func (m *Mesh) request(job *Job) client.Request {
	sampling := schemas.DefaultSampling()
	sampling.Temperature, sampling.IgnoreEOS, sampling.Seed = m.cfg.Options.Temperature, m.cfg.Options.IgnoreEOS, &job.Seed
	return client.Request{
		Tenant: m.cfg.Tenant, Session: m.run + "-" + strconv.Itoa(job.Number), Turn: 1, Model: m.cfg.Model,
		Prompt: job.Prompt.Text, TokenIDs: job.Prompt.TokenIDs, MaxNewTokens: job.MaxTokens, Sampling: &sampling,
		Deadline: m.cfg.Options.Timeout + deadlineRoom, RetryQuota: true,
	}
}

// Generate implements Target.
func (m *Mesh) Generate(ctx context.Context, job *Job, l *Listener) (Answer, error) {
	request := m.request(job)
	answer, err := m.read(ctx, request, l)
	if ctx.Err() != nil && err != nil {
		m.cancel(ctx, request)
	}
	return answer, meshFailure(err)
}

func (m *Mesh) read(ctx context.Context, request client.Request, l *Listener) (Answer, error) {
	stream, err := m.cfg.Client.Generate(ctx, request)
	if err != nil {
		return Answer{}, err
	}
	var answer Answer
	var text []byte
	for event, err := range stream.Events() {
		if err != nil {
			return answer, err
		}
		switch e := event.(type) {
		case client.Text:
			l.Text(e.Text)
			text = append(text, e.Text...)
		case client.Reset:
			text = text[:e.TextBytes]
		case client.Final:
			l.End()
			answer = Answer{Text: string(text), PromptTokens: e.Usage.PromptTokens, CachedTokens: e.Usage.CachedTokens, OutputTokens: e.Count}
		}
	}
	return answer, nil
}

// cancel ends in the mesh what nobody waits for any more.
func (m *Mesh) cancel(ctx context.Context, request client.Request) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), cancelPatience)
	defer done()
	if _, err := m.cfg.Client.Cancel(ctx, request.Tenant, request.Session, request.Turn); err != nil {
		m.cfg.Abandoned(request.Session, err)
	}
}

// meshFailure gives an error of the client its reason: that of the wire where there is one.
func meshFailure(err error) error {
	var ended *client.TurnError
	var quota *client.QuotaError
	var lost *client.IncompleteError
	var silent *client.UnreachableError
	var field *schemas.FieldError
	var large *schemas.TooLargeError
	reason := reasonOther
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ended):
		reason = endReason(&ended.Final)
	case errors.As(err, &quota):
		reason = "quota"
	case errors.As(err, &lost):
		reason = "incomplete"
	case errors.As(err, &silent):
		reason = "unreachable"
	case errors.As(err, &field):
		reason = "invalid"
	case errors.As(err, &large):
		reason = "too-large"
	}
	return &Failure{reason, err.Error()}
}

// endReason is how a turn ended that did not complete, as precise as the wire is.
func endReason(f *schemas.Final) string {
	switch {
	case f.Error != nil && f.Error.Reason != "":
		return string(f.Error.Reason)
	case f.Cause != "":
		return fmt.Sprintf("%s-%s", f.Reason, f.Cause)
	default:
		return string(f.Reason)
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/models"
	"github.com/meshnet/node/schemas"
)

const (
	demoTokens   = 160 // of a turn, at most: more than a story has
	demoDeadline = 30 * time.Second
)

// telling is a turn as its reader saw it.
type telling struct {
	req         client.Request
	alone       *generateDocument // what `worker generate` says to the same prompt
	first, last time.Time         // when the first token and the end came
	owner       string            // who tells now
	resumed     int               // where the newest attempt went on
	tokens      []int64
	text        string
	misplaced   int // tokens that came at another place than after the last
	final       schemas.Final
}

// demoTurn is a telling in the document.
type demoTurn struct {
	Tenant    string            `json:"tenant"`
	Session   string            `json:"session"`
	Turn      uint64            `json:"turn"`
	Node      string            `json:"node"`
	Attempt   int               `json:"attempt"`
	Reason    schemas.EndReason `json:"reason"`
	Finish    schemas.Finish    `json:"finish,omitempty"`
	Resumed   int               `json:"resumed_at"`
	SameAlone bool              `json:"same_as_alone"`
	Usage     schemas.Usage     `json:"usage"`
	TokenIDs  []int64           `json:"token_ids"`
	Text      string            `json:"text"`
}

func (t *telling) document() demoTurn {
	return demoTurn{
		Tenant: t.req.Tenant, Session: t.req.Session, Turn: t.req.Turn, Node: t.final.Node.String(), Attempt: t.final.Attempt,
		Reason: t.final.Reason, Finish: t.final.Finish, Resumed: t.resumed, SameAlone: t.sameAlone(), Usage: t.final.Usage,
		TokenIDs: t.tokens, Text: t.text,
	}
}

// sameAlone says that the turn is, token by token and letter by letter, what a model alone says.
func (t *telling) sameAlone() bool {
	return t.final.Reason == schemas.Completed && t.misplaced == 0 && t.final.Count == len(t.alone.TokenIDs) &&
		slices.Equal(t.tokens, t.aloneTokens()) && t.text == t.alone.Text
}

// beginsAlone says that the turn is the beginning of what a model alone says.
func (t *telling) beginsAlone() bool {
	alone := t.aloneTokens()
	return t.misplaced == 0 && len(t.tokens) < len(alone) && slices.Equal(t.tokens, alone[:len(t.tokens)])
}

func (t *telling) aloneTokens() []int64 {
	tokens := make([]int64, len(t.alone.TokenIDs))
	for i, token := range t.alone.TokenIDs {
		tokens[i] = int64(token)
	}
	return tokens
}

// turn prepares a turn, and finds out what `worker generate` says to its prompt.
func (d *demo) turn(tenant, session, prompt string) (*telling, error) {
	alone, err := d.alone(prompt, demoTokens)
	if err != nil {
		return nil, err
	}
	return &telling{alone: alone, req: client.Request{
		Tenant: tenant, Session: session, Turn: 1, Model: models.StoryName, Prompt: prompt, MaxNewTokens: demoTokens, Deadline: demoDeadline,
	}}, nil
}

// alone runs `worker generate`.
func (d *demo) alone(prompt string, newTokens int) (*generateDocument, error) {
	var out bytes.Buffer
	env := *d.env
	env.ctx, env.stdout = d.ctx, &out
	command := generateCommand{
		Text: prompt, MaxTokens: &newTokens, JSON: true, modelFlags: modelFlags{Ctx: demoContext, Threads: demoThreads},
		samplingFlags: greedyFlags(),
	}
	if err := command.Run(&env); err != nil {
		return nil, fmt.Errorf("generate without a mesh: %w", err)
	}
	doc := new(generateDocument)
	return doc, json.Unmarshal(out.Bytes(), doc)
}

// tell submits a turn and reads it to its end, whatever that is; on, if not nil, is called after each event.
func (d *demo) tell(t *telling, on func(*telling) error) error {
	stream, err := d.mesh.client.Generate(d.ctx, t.req)
	if err != nil {
		return err
	}
	return t.read(stream, on)
}

func (t *telling) read(stream *client.Stream, on func(*telling) error) error {
	ended := false
	for event, err := range stream.Events() {
		if err != nil {
			if ended { // what the final says is for the step to judge
				return nil
			}
			return err
		}
		ended = t.take(event)
		if on != nil {
			if err := on(t); err != nil {
				return err
			}
		}
	}
	return nil
}

// take takes an event, and says whether it is the last.
func (t *telling) take(event client.Event) (last bool) {
	switch e := event.(type) {
	case client.Started:
		t.owner, t.resumed = e.Node.String(), e.ResumeIndex
	case client.Text:
		if t.first.IsZero() {
			t.first = time.Now()
		}
		if e.Index != len(t.tokens) {
			t.misplaced += len(e.TokenIDs)
		}
		t.tokens = append(t.tokens, e.TokenIDs...)
		t.text += e.Text
	case client.Reset:
		t.tokens = t.tokens[:min(e.Index, len(t.tokens))]
		t.text = t.text[:min(e.TextBytes, len(t.text))]
	case client.Final:
		t.final, t.last = e.Final, time.Now()
		return true
	}
	return false
}

// keep adds tellings to the step and to the accounts.
func (d *demo) keep(step *demoStep, tellings ...*telling) {
	for _, t := range tellings {
		d.told = append(d.told, t)
		step.Turns = append(step.Turns, t.document())
	}
}

package integration

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/schemas"
)

const (
	sampledLeast = 300 // tokens
	sampledMost  = 900
)

// sampledRequest has every option of the sampling on, and two stop strings: one comes too early to count.
func sampledRequest(session string, stop ...string) client.Request {
	seed := uint64(42)
	s := schemas.DefaultSampling()
	s.Temperature, s.TopK, s.TypicalP, s.TopP, s.MinP, s.Seed = 1.2, 200, 0.98, 0.95, 0.001, &seed
	s.RepeatPenalty, s.PresencePenalty, s.FrequencyPenalty, s.PenaltyLastN = 1.1, 0.1, 0.1, 48
	s.DRYMultiplier, s.DRYBase, s.DRYAllowedLength, s.DRYPenaltyLastN, s.DRYBreakers = 0.8, 1.5, 1, 128, []string{"q", "\n"}
	s.XTCProbability, s.XTCThreshold, s.Probs = 0.5, 0.1, 5
	s.LogitBias = []schemas.TokenBias{{TokenID: 400, Bias: 2}, {TokenID: 401, Bias: math.Inf(-1)}}
	return client.Request{
		Tenant: "t", Session: session, Turn: 1, Model: "m", Prompt: "Once upon a time there was a small fox.", Deadline: time.Minute,
		MaxNewTokens: sampledMost, MinNewTokens: sampledLeast, Sampling: &s, Stop: stop, Raw: true,
	}
}

// within is the same held to a schema. What may follow there ends the turn.
func within(schema, session string) client.Request {
	req := sampledRequest(session)
	req.JSONSchema, req.MaxNewTokens = schema, 1800
	return req
}

// stopsOf are stop strings for a text: one of its first part and one of its last, each of which it has once.
func stopsOf(t *testing.T, text string) (early, late string) {
	t.Helper()
	once := func(from int) string {
		for at := from; at+6 <= len(text); at++ {
			stop := text[at : at+6]
			if strings.Count(text, stop) == 1 && !strings.ContainsFunc(stop, func(r rune) bool { return r < ' ' || r > '~' }) {
				return stop
			}
		}
		t.Fatalf("no six characters of %.100q are there once", text[from:])
		return ""
	}
	return once(len(text) / 10), once(len(text) * 7 / 10)
}

// sameTurn compares everything that a reader gets.
func sameTurn(t *testing.T, how string, got, want *followed) {
	t.Helper()
	if got.Text != want.Text || string(got.Bytes) != string(want.Bytes) || got.Final.Finish != want.Final.Finish {
		t.Errorf("%s: ends %s, %.300q; alone %s, %.300q", how, got.Final.Finish, got.Text, want.Final.Finish, want.Text)
	}
	for i := range min(len(got.TokenIDs), len(want.TokenIDs)) {
		if got.TokenIDs[i] != want.TokenIDs[i] || fmt.Sprint(got.Probs[i]) != fmt.Sprint(want.Probs[i]) {
			t.Fatalf("%s: token %d is %d with %+v, alone %d with %+v", how, i, got.TokenIDs[i], got.Probs[i], want.TokenIDs[i], want.Probs[i])
		}
	}
	if len(got.TokenIDs) != len(want.TokenIDs) || len(got.Probs) != len(want.Probs) {
		t.Errorf("%s: %d tokens and %d log-probabilities, alone %d and %d", how, len(got.TokenIDs), len(got.Probs), len(want.TokenIDs), len(want.Probs))
	}
}

// beside follows a turn in a crowd of eight: the seven others began before it and are under way when it has ended.
func beside(t *testing.T, c *client.Client, req client.Request) *followed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 7 {
		other := meshRequest(fmt.Sprintf("%s-other%d", req.Session, i), 1900)
		other.Prompt = strings.Repeat("The sun was warm. ", i+1)
		if i%2 == 1 {
			seed := uint64(i)
			other.Sampling.Temperature, other.Sampling.Seed, other.Sampling.Probs = 1, &seed, i
		}
		stream, err := c.Generate(ctx, other)
		if err != nil {
			t.Fatal(err)
		}
		for event, err := range stream.Events() {
			if err != nil {
				t.Fatal(err)
			}
			if _, began := event.(client.Text); began {
				break
			}
		}
	}
	got := follow(t, c, req, nil)
	for i := range 7 {
		outcome, err := c.Cancel(ctx, "t", fmt.Sprintf("%s-other%d", req.Session, i), 1)
		if err != nil || outcome.Outcome != schemas.CancelMarked {
			t.Errorf("turn %d beside it was not under way to the end: %+v, %v", i, outcome, err)
		}
	}
	return got
}

func TestATurnWithEverySamplerOptionIsTheSameAloneTakenOverAndInACrowd(t *testing.T) {
	server := natsservertest.Start(t, natsserver.Options{})
	args := []string{"--model", testmodel.Path(t, "30layers-tiny", "f16"), "--name", "m", "--ctx", "2048", "--exact", "--max-active", "8"}
	workers := map[string]*workerProcess{"a": startWorker(t, server.ClientURL(), "a", args...)}
	c := meshClient(t, server.ClientURL())
	endless := follow(t, c, sampledRequest("endless"), nil)
	early, late := stopsOf(t, endless.Text)
	spare := []string{"b", "c"}
	for name, request := range map[string]func(session string) client.Request{
		"free":   func(session string) client.Request { return sampledRequest(session, early, late) },
		"schema": func(session string) client.Request { return within(words, session) },
	} {
		alone := follow(t, c, request(name+"-alone"), nil)
		if upTo, _, _ := strings.Cut(endless.Text, late); name == "free" && (alone.Final.Finish != schemas.FinishStopString || alone.Text != upTo) {
			t.Errorf("with stop strings %q and %q it ends %s, %q; without %q", early, late, alone.Final.Finish, alone.Text, endless.Text)
		}
		if name == "schema" {
			if err := validate(words, alone.Text); err != nil || alone.Final.Finish != schemas.FinishStop {
				t.Errorf("ends %s, %v: %q", alone.Final.Finish, err, alone.Text)
			}
		}
		sameTurn(t, name+" in a crowd", beside(t, c, request(name+"-crowd")), alone)

		workers[spare[0]] = startWorker(t, server.ClientURL(), spare[0], args...)
		spare = spare[1:]
		killed := false
		over := follow(t, c, request(name+"-over"), func(owner string, tokens int) {
			if tokens >= 100 && !killed {
				killed = true
				workers[owner].kill()
			}
		})
		sameTurn(t, name+" taken over", over, alone)
		if over.Final.Attempt != 2 || !slices.ContainsFunc(over.started, func(s client.Started) bool { return s.Attempt == 2 && s.Exact && s.ResumeIndex >= 100 }) {
			t.Errorf("%s: attempt %d, started %+v", name, over.Final.Attempt, over.started)
		}
	}
}

package worker_test

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// stopped is where a naive search of the whole text of some tokens finds a stop string: the text before it, and the tokens
// up to the one that completes it.
func stopped(t *testing.T, tokens []int64, stop string) (text string, upTo []int64) {
	t.Helper()
	at := strings.Index(spell(tokens), stop)
	for n := range tokens {
		if at >= 0 && len(spell(tokens[:n+1])) >= at+len(stop) {
			return spell(tokens)[:at], tokens[:n+1]
		}
	}
	t.Fatalf("%q is not in %q", stop, spell(tokens))
	return "", nil
}

func (r *reader) wantStopped(text string, tokens []int64) *schemas.Final {
	r.m.t.Helper()
	final := r.final()
	if final.Reason != schemas.Completed || final.Finish != schemas.FinishStopString || final.Count != len(tokens) {
		r.m.t.Fatalf("ended %s %s with %d tokens (%v), not by a stop string with %d", final.Reason, final.Finish, final.Count, final.Error, len(tokens))
	}
	if got := r.fold.Text(); got != text {
		r.m.t.Errorf("text %q, want %q", got, text)
	}
	if got := r.fold.Tokens(); !slices.Equal(got, tokens) {
		r.m.t.Errorf("tokens %v, want %v", got, tokens)
	}
	return final
}

func TestAStopStringEndsTheTurnAndItsTextOverTokenBorders(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	req := request("s1", 1, 20)
	tokens := undisturbed(t, req)
	text, upTo := stopped(t, tokens, fmt.Sprintf("<%d><%d><", tokens[9], tokens[10])) // the last byte is that of the token after
	req.Stop = []string{"never", spell(tokens[9:11]) + "<"}
	r := m.read(req.ID())
	m.submit(req, schemas.AnyLane)
	r.wantStopped(text, upTo)
	m.empty()
	if work := m.onlyWork(req.ID()); work.Finish != schemas.FinishStopString || work.Usage.NewTokens != len(upTo) {
		t.Errorf("work record %+v", work)
	}
}

func TestTextHeldForAStopIsAllOutAtTheEnd(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	req := request("s1", 1, 12)
	tokens := undisturbed(t, req)
	req.Stop = []string{spell(tokens[9:12]) + "never"} // begins three tokens before the end, and is not complete
	r := m.read(req.ID())
	m.submit(req, schemas.AnyLane)
	if final := r.whole(req); final.Finish != schemas.FinishLength {
		t.Errorf("finish %s", final.Finish)
	}
}

// The first worker dies in the middle of the stop string: its text is held back there, and the next one goes on with it.
func TestAStopStringIsFoundOverATakeover(t *testing.T) {
	for name, replayMax := range map[string]int{"replayed": 512, "prefilled": 1} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			gate := goengine.NewGate(goengine.OpDecode)
			first := m.start("n1", gated(gate))
			defer gate.Open()
			req := request("s1", 1, 20)
			tokens := undisturbed(t, req)
			stop := spell(tokens[4:8])
			text, upTo := stopped(t, tokens, stop)
			req.Stop, req.MinNewTokens, req.Raw = []string{stop}, 3, true
			r := m.read(req.ID())
			m.submit(req, schemas.AnyLane)
			m.step(gate, 5)
			r.untilTokens(6)
			if got := r.fold.Text(); got != spell(tokens[:4]) {
				t.Errorf("before the takeover the text is %q, want %q", got, spell(tokens[:4]))
			}
			first.Abort()
			gate.Open()
			m.start("n2", func(c *worker.Config, _ *goengine.Config) { c.ReplayMax = replayMax })
			if final := r.wantStopped(text, upTo); final.Attempt != 2 {
				t.Errorf("attempt %d, want 2", final.Attempt)
			}
			if got := r.fold.Bytes(); string(got) != text {
				t.Errorf("bytes %q, want %q", got, text)
			}
		})
	}
}

func TestNothingEndsATurnBeforeItsLeastTokensNotEvenATakeover(t *testing.T) {
	always := func(_ *worker.Config, e *goengine.Config) { e.EOGBias = 1000 }
	for name, replayMax := range map[string]int{"replayed": 512, "prefilled": 1} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			gate := goengine.NewGate(goengine.OpDecode)
			first := m.start("n1", gated(gate), always)
			defer gate.Open()
			req := request("s1", 1, 20)
			req.MinNewTokens, req.Stop = 10, []string{"<"}
			r := m.read(req.ID())
			m.submit(req, schemas.AnyLane)
			m.step(gate, 5)
			r.untilTokens(6)
			first.Abort()
			gate.Open()
			m.start("n2", always, func(c *worker.Config, _ *goengine.Config) { c.ReplayMax = replayMax })
			final := r.final()
			if final.Finish != schemas.FinishStopString || final.Count != 10 {
				t.Errorf("finish %s after %d tokens, want the stop string's after 10", final.Finish, final.Count)
			}
			if got, want := r.fold.Text(), spell(r.fold.Tokens()[:9]); got != want {
				t.Errorf("text %q, want %q", got, want)
			}
		})
	}
}

func TestASampledTurnHasTheSameTokensOverATakeover(t *testing.T) {
	seed := uint64(7)
	sampling := schemas.DefaultSampling()
	sampling.Temperature, sampling.TopK, sampling.TypicalP, sampling.TopP, sampling.MinP, sampling.Seed = 1, 100, 0.98, 0.95, 0.001, &seed
	sampling.RepeatPenalty, sampling.PresencePenalty, sampling.FrequencyPenalty = 1.2, 0.1, 0.1
	sampling.DRYMultiplier, sampling.DRYAllowedLength, sampling.XTCProbability, sampling.XTCThreshold = 0.8, 1, 0.5, 0.01
	sampling.LogitBias = []schemas.TokenBias{{TokenID: 5, Bias: 1}, {TokenID: 6, Bias: math.Inf(-1)}}
	for name, replayMax := range map[string]int{"replayed": 512, "prefilled": 1} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			gate := goengine.NewGate(goengine.OpDecode)
			first := m.start("n1", gated(gate))
			defer gate.Open()
			req := request("s1", 1, 30)
			greedy := undisturbed(t, req)
			req.Sampling = &sampling
			if slices.Equal(undisturbed(t, req), greedy) {
				t.Fatal("the samplers change nothing: the test shows nothing")
			}
			r := m.read(req.ID())
			m.submit(req, schemas.AnyLane)
			m.step(gate, 5)
			r.untilTokens(6)
			first.Abort()
			gate.Open()
			m.start("n2", func(c *worker.Config, _ *goengine.Config) { c.ReplayMax = replayMax })
			if final := r.whole(req); final.Attempt != 2 {
				t.Errorf("attempt %d, want 2", final.Attempt)
			}
		})
	}
}

// toyBytes spells tokens as single bytes that are no UTF-8 for the most part.
func toyBytes(dst []byte, token int32) ([]byte, error) { return append(dst, byte(token)), nil }

func TestRawBytesAreThoseOfTheTokens(t *testing.T) {
	m := newMesh(t)
	m.start("n1", func(c *worker.Config, _ *goengine.Config) { c.Text.Piece = toyBytes })
	for turn, raw := range []bool{false, true} {
		req := request("s1", schemas.Turn(turn+1), 40)
		req.Raw = raw
		var want []byte
		for _, token := range undisturbed(t, req) {
			want = append(want, byte(token))
		}
		r := m.read(req.ID())
		m.submit(req, schemas.AnyLane)
		r.final()
		if got := r.fold.Text(); !utf8.ValidString(got) || utf8.Valid(want) {
			t.Errorf("text %q of the bytes %q, which should be no text", got, want)
		}
		if !raw {
			want = nil
		}
		if got := r.fold.Bytes(); !bytes.Equal(got, want) {
			t.Errorf("raw %t: bytes %q, want %q", raw, got, want)
		}
	}
}

func TestLogProbabilitiesComeWithEachToken(t *testing.T) {
	m := newMesh(t)
	gate := goengine.NewGate(goengine.OpDecode)
	first := m.start("n1", gated(gate))
	defer gate.Open()
	req := request("s1", 1, 20)
	sampling := schemas.DefaultSampling()
	sampling.Probs = 20
	req.Sampling = &sampling
	r := m.read(req.ID())
	m.submit(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	first.Abort()
	gate.Open()
	m.start("n2")
	r.whole(req)
	probs := r.fold.Probs()
	if len(probs) != 20 {
		t.Fatalf("%d tokens have log-probabilities, want all 20", len(probs))
	}
	for i, p := range probs {
		sum := 0.0
		for _, logProb := range p.TopProbs {
			sum += math.Exp(logProb)
		}
		if p.TopIDs[0] != r.fold.Tokens()[i] || p.TopProbs[0] != p.LogProb || len(p.TopIDs) != 20 || sum > 1+1e-9 {
			t.Errorf("token %d, %d, has %+v", i, r.fold.Tokens()[i], p)
		}
	}
}

func TestABiasOfATokenThatTheModelHasNotIsRefused(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	req := request("s1", 1, 20)
	sampling := schemas.DefaultSampling()
	sampling.LogitBias = []schemas.TokenBias{{TokenID: 3}, {TokenID: 512, Bias: 1}}
	req.Sampling = &sampling
	r := m.read(req.ID())
	m.submit(req, schemas.AnyLane)
	final := r.final()
	if final.Reason != schemas.Rejected || final.Error.Reason != schemas.RejectedInvalid || final.Error.Field != "sampling.logit_bias[1]" ||
		!strings.HasPrefix(final.Error.Message, "sampling.logit_bias[1] is 512; it must be a token id in [0, ") {
		t.Errorf("ended %s: %+v", final.Reason, final.Error)
	}
}

package goengine_test

import (
	"math/rand/v2"
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

type (
	token  = scheduler.Token
	tokens = []scheduler.Token
	result = scheduler.Result
)

func newEngine(t testing.TB, cfg goengine.Config) *goengine.Engine {
	t.Helper()
	cfg.Audit = true
	e, err := goengine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// prompt makes n tokens, none of them special, that depend on seed.
func prompt(seed uint64, n int) tokens {
	rng := rand.New(rand.NewPCG(seed, 1))
	out := make(tokens, n)
	for i := range out {
		out[i] = token(3 + rng.IntN(500))
	}
	return out
}

// session drives one slot as a scheduler would.
type session struct {
	t    testing.TB
	e    *goengine.Engine
	slot int
	pos  int   // positions the session believes it holds
	next token // newest token
	made int   // tokens generated
	all  []result
}

func start(t testing.TB, e *goengine.Engine, slot int, p tokens, sampling scheduler.Sampling) *session {
	t.Helper()
	if err := e.Open(slot, sampling, p); err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, e: e, slot: slot}
	s.prefill(p, 0)
	return s
}

// prefill evaluates p[from:] on the grid; it is the whole prompt's end.
func (s *session) prefill(p tokens, from int) {
	s.t.Helper()
	grid := s.e.Facts().PrefillChunk
	for from < len(p) {
		end := min(len(p), from/grid*grid+grid)
		r := s.e.Prefill(scheduler.Chunk{
			Slot: s.slot, Pos: from, Tokens: p[from:end], Last: end == len(p), Forced: scheduler.NoToken,
		})
		want := scheduler.OutcomeNone
		if end == len(p) {
			want = scheduler.OutcomeToken
			s.took(r)
		}
		if r.Outcome != want {
			s.t.Fatalf("slot %d: chunk at %d came to %+v", s.slot, from, r)
		}
		from = end
	}
	s.pos = len(p)
}

func (s *session) row() scheduler.Row {
	return scheduler.Row{Slot: s.slot, Pos: s.pos, Token: s.next, Index: s.made, Forced: scheduler.NoToken}
}

func (s *session) took(r result) {
	s.next = r.Token
	s.made++
	s.all = append(s.all, r)
}

// step decodes one row for each session, which are in slot order.
func step(t testing.TB, e *goengine.Engine, sessions ...*session) {
	t.Helper()
	var rows []scheduler.Row
	for _, s := range sessions {
		rows = append(rows, s.row())
	}
	for i, r := range e.Decode(rows) {
		if r.Outcome != scheduler.OutcomeToken {
			t.Fatalf("slot %d: row came to %+v", rows[i].Slot, r)
		}
		sessions[i].pos++
		sessions[i].took(r)
	}
}

// alone generates n tokens on a fresh engine.
func alone(t testing.TB, cfg goengine.Config, p tokens, n int, sampling scheduler.Sampling) []result {
	t.Helper()
	e := newEngine(t, cfg)
	s := start(t, e, 0, p, sampling)
	for s.made < n {
		step(t, e, s)
	}
	return s.all
}

func text(results []result) tokens {
	var out tokens
	for _, r := range results {
		out = append(out, r.Token)
	}
	return out
}

// sameResults compares tokens, hashes and gaps.
func sameResults(t testing.TB, what string, got, want []result) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d results, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: result %d is %+v, want %+v", what, i, got[i], want[i])
		}
	}
}

func mustPanic(t testing.TB, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}

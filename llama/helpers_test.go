package llama_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/models"
	"github.com/meshnet/node/scheduler"
)

const (
	noToken = scheduler.NoToken
	tale    = "Once upon a time there was a little girl named Lily. She had a red ball and a small dog. "
)

// TestMain frees the shared models: a leak check of the process then sees only what tests left behind.
func TestMain(m *testing.M) {
	misbehaveIfAsked()
	llama.ServeIfChild()
	if os.Getenv(listDevicesEnv) != "" {
		os.Exit(listDevices())
	}
	quietLog()
	code := m.Run()
	shared.free()
	os.Exit(code)
}

func quietLog() { llama.SetLogger(slog.New(slog.DiscardHandler), slog.LevelError) }

// shared holds one loaded model for each name and type of weights; a model is safe for concurrent use.
var shared modelCache

type modelCache struct {
	mu     sync.Mutex
	loaded map[string]*llama.Model
}

// get loads the story model, or a random one of a named shape with weights of a type.
func (c *modelCache) get(t testing.TB, name, weights string) *llama.Model {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	key := name + " " + weights
	if m := c.loaded[key]; m != nil {
		return m
	}
	source := llama.FromBytes(models.StoryName, models.Story())
	if name != models.StoryName {
		source = llama.FromFile(testmodel.Path(t, name, weights))
	}
	m, err := llama.Load(context.Background(), source, llama.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if c.loaded == nil {
		c.loaded = make(map[string]*llama.Model)
	}
	c.loaded[key] = m
	return m
}

func (c *modelCache) free() {
	for _, m := range c.loaded {
		m.Free()
	}
}

func story(t testing.TB) *llama.Model {
	t.Helper()
	return shared.get(t, models.StoryName, "")
}

// random is a model of a named shape with random weights in half precision.
func random(t testing.TB, shape string) *llama.Model {
	t.Helper()
	return shared.get(t, shape, "f16")
}

// loadBytes loads a model that only this test uses.
func loadBytes(t testing.TB, data []byte) *llama.Model {
	t.Helper()
	m, err := llama.Load(context.Background(), llama.FromBytes("patched", data), llama.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Free)
	return m
}

// rig is an engine and the sessions in its slots, as a scheduler would keep them.
type rig struct {
	*llama.Engine
	t     testing.TB
	model *llama.Model
}

// session is what a scheduler knows of a slot: the KV holds kept tokens, and newest comes next.
type session struct {
	slot, kept, index int
	newest            scheduler.Token
	out               []scheduler.Token
	hashes            []uint64
}

// newRig makes an engine with one thread; when the test ends it is freed, and no saved state may be left.
func newRig(t testing.TB, m *llama.Model, o llama.Options) *rig {
	t.Helper()
	o.Threads = max(o.Threads, 1)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	e, err := llama.NewEngine(m, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Free()
		if n := e.LiveStates(); n != 0 {
			t.Errorf("%d saved states were not freed", n)
		}
	})
	return &rig{Engine: e, t: t, model: m}
}

// prompt is a text's first n tokens, repeated until there are so many.
func (r *rig) prompt(text string, n int) []scheduler.Token {
	r.t.Helper()
	return promptOf(r.t, r.model, text, n)
}

func promptOf(t testing.TB, m *llama.Model, text string, n int) []scheduler.Token {
	t.Helper()
	tokens, err := m.Tokenize(text, false)
	if err != nil {
		t.Fatal(err)
	}
	for len(tokens) < n {
		tokens = append(tokens, tokens[1:]...)
	}
	return tokens[:n]
}

// prefill evaluates tokens from position from on, cut at the grid, and returns the last chunk's result.
func (r *rig) prefill(slot, from int, tokens []scheduler.Token, last bool, forced scheduler.Token) scheduler.Result {
	r.t.Helper()
	grid := r.Facts().PrefillChunk
	for {
		n := min(len(tokens), grid-from%grid)
		end := n == len(tokens)
		c := scheduler.Chunk{Slot: slot, Pos: from, Tokens: tokens[:n], Last: last && end, Forced: noToken}
		if c.Last {
			c.Forced = forced
		}
		res := r.Prefill(c)
		if end || res.Outcome != scheduler.OutcomeNone {
			return res
		}
		from, tokens = from+n, tokens[n:]
	}
}

// begin opens an empty slot and prefills a whole prompt; the session has its first token then.
func (r *rig) begin(slot int, sampling scheduler.Sampling, prompt []scheduler.Token) *session {
	r.t.Helper()
	if err := r.Open(slot, sampling, prompt); err != nil {
		r.t.Fatal(err)
	}
	s := &session{slot: slot}
	s.take(r.t, r.prefill(slot, 0, prompt, true, noToken))
	s.kept = len(prompt)
	return s
}

// take notes the token of a result.
func (s *session) take(t testing.TB, res scheduler.Result) {
	t.Helper()
	if res.Outcome != scheduler.OutcomeToken {
		t.Fatalf("slot %d, token %d: outcome %d, error %v; want a token", s.slot, s.index, res.Outcome, res.Err)
	}
	s.newest = res.Token
	s.out = append(s.out, res.Token)
	s.hashes = append(s.hashes, res.LogitHash)
	s.index++
}

func (s *session) row() scheduler.Row {
	return scheduler.Row{Slot: s.slot, Pos: s.kept, Token: s.newest, Index: s.index, Forced: noToken}
}

// decode runs one batch and returns a copy of the results.
func (r *rig) decode(sessions ...*session) []scheduler.Result {
	slices.SortFunc(sessions, func(a, b *session) int { return cmp.Compare(a.slot, b.slot) })
	rows := make([]scheduler.Row, len(sessions))
	for i, s := range sessions {
		rows[i] = s.row()
	}
	return slices.Clone(r.Decode(rows))
}

// steps decodes n tokens for every session, all in one batch each time.
func (r *rig) steps(n int, sessions ...*session) {
	r.t.Helper()
	for range n {
		for i, res := range r.decode(sessions...) {
			sessions[i].take(r.t, res)
			sessions[i].kept++
		}
	}
}

// generate runs one session alone in a slot: n tokens. The slot is empty afterwards.
func (r *rig) generate(slot int, sampling scheduler.Sampling, prompt []scheduler.Token, n int) *session {
	r.t.Helper()
	s := r.begin(slot, sampling, prompt)
	r.steps(n-1, s)
	r.Release(slot)
	return s
}

func greedy() scheduler.Sampling { return scheduler.DefaultSampling() }

// warm is sampling with a temperature.
func warm(seed uint64) scheduler.Sampling {
	s := scheduler.DefaultSampling()
	s.Temperature, s.Seed = 1, seed
	return s
}

func (r *rig) save(slot int) scheduler.State {
	r.t.Helper()
	st, err := r.Save(slot, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	return st
}

func (r *rig) restore(slot int, st scheduler.State) {
	r.t.Helper()
	if err := r.Restore(slot, st); err != nil {
		r.t.Fatal(err)
	}
}

func equal[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// mustPanic runs f and returns what it panicked with.
func mustPanic(t *testing.T, f func()) (message string) {
	t.Helper()
	defer func() {
		t.Helper()
		p := recover()
		if p == nil {
			t.Error("no panic")
		}
		message = fmt.Sprint(p)
	}()
	f()
	return ""
}

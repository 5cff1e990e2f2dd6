package scheduler_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/meshnet/node/hotkv/spill"
	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeClock stands still until it is told otherwise.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *fakeClock { return &fakeClock{now: time.Unix(1_000_000, 0)} }

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// small is an engine for tests: 4 slots of 256 positions, a grid of 16, and no end of generation.
func small() goengine.Config {
	return goengine.Config{Slots: 4, ContextTokens: 256, PrefillChunk: 16, Vocab: 256, Seed: 7, EOGBias: -1000, Audit: true}
}

func withSlots(slots int) goengine.Config {
	cfg := small()
	cfg.Slots = slots
	return cfg
}

// tester is what the rig needs of a test, be it Go's or rapid's.
type tester interface {
	rapid.TB
	Cleanup(func())
}

// rig is a scheduler on the pure-Go engine, with what its ticks reported.
type rig struct {
	tester
	engine  *goengine.Engine
	clock   *fakeClock
	sched   *scheduler.Scheduler
	news    map[scheduler.TurnKey][]scheduler.Token
	started map[scheduler.TurnKey]scheduler.Started
	ends    map[scheduler.TurnKey]scheduler.Ending
	onCall  func(goengine.Call)
	calls   []goengine.Call // without rows, except their number in Tokens
	spill   *spill.Store
	ended   bool
}

// newRig makes one whose engine must hold no KV when the test is over.
func newRig(tb tester, cfg goengine.Config, change ...func(*scheduler.Config)) *rig {
	tb.Helper()
	r := &rig{
		tester: tb, clock: newClock(), news: map[scheduler.TurnKey][]scheduler.Token{},
		started: map[scheduler.TurnKey]scheduler.Started{}, ends: map[scheduler.TurnKey]scheduler.Ending{},
	}
	cfg.OnCall = func(call goengine.Call) {
		kept := call
		if call.Op == goengine.OpDecode {
			kept.Tokens, kept.Rows = len(call.Rows), nil
		}
		r.calls = append(r.calls, kept)
		if r.onCall != nil {
			r.onCall(call)
		}
	}
	engine, err := goengine.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	config := scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts()), Clock: r.clock.Now}
	for _, f := range change {
		f(&config)
	}
	r.engine = engine
	if r.sched, err = scheduler.New(engine, config); err != nil {
		tb.Fatal(err)
	}
	r.spill = config.Spill
	tb.Cleanup(r.end)
	return r
}

// end closes the scheduler, which must leave nothing in the engine, and then its spill.
func (r *rig) end() {
	r.Helper()
	if r.ended {
		return
	}
	r.ended = true
	r.sched.Close()
	if err := r.spill.Close(context.Background()); err != nil {
		r.Error(err)
	}
	if kv, states := r.engine.KVBytes(), r.engine.LiveStates(); kv != 0 || states != 0 {
		r.Errorf("after Close the engine holds %d KV bytes and %d saved states, want none", kv, states)
	}
}

// request is a greedy turn with a prompt that only this seed gives.
func request(session string, seed, promptTokens, newTokens int) scheduler.Request {
	return scheduler.Request{
		Tenant: "t", Session: session, Turn: 1,
		Prompt: prompt(seed, promptTokens), MaxNewTokens: newTokens, Sampling: scheduler.DefaultSampling(),
	}
}

func prompt(seed, n int) []scheduler.Token {
	tokens := make([]scheduler.Token, n)
	x := uint32(seed)*2654435761 + 12345
	for i := range tokens {
		x = x*1664525 + 1013904223
		tokens[i] = scheduler.Token(3 + (x>>8)%250)
	}
	return tokens
}

func key(session string, turn uint64) scheduler.TurnKey {
	return scheduler.TurnKey{Tenant: "t", Session: session, Turn: turn}
}

func (r *rig) submit(req scheduler.Request) scheduler.Decision {
	r.Helper()
	return r.sched.Submit(req)
}

// accept submits what must be accepted.
func (r *rig) accept(requests ...scheduler.Request) {
	r.Helper()
	for _, req := range requests {
		if d := r.sched.Submit(req); !d.Accepted() {
			r.Fatalf("%s", d)
		}
	}
}

// tick runs one tick and remembers what it reported.
func (r *rig) tick() *scheduler.Report {
	r.Helper()
	report, err := r.sched.Tick()
	if err != nil {
		r.Fatal(err)
	}
	r.observe(report)
	return report
}

func (r *rig) observe(report *scheduler.Report) {
	r.Helper()
	for _, started := range report.Started {
		r.started[started.Key] = started
	}
	for _, token := range report.Tokens {
		if _, ended := r.ends[token.Key]; ended {
			r.Errorf("token %d of turn %s after its end", token.Index, token.Key)
		}
		if want := len(r.news[token.Key]) + r.started[token.Key].ResumeIndex; token.Index != want {
			r.Errorf("turn %s: token index %d, want %d", token.Key, token.Index, want)
		}
		r.news[token.Key] = append(r.news[token.Key], token.Token)
	}
	r.take()
}

func (r *rig) take() {
	r.Helper()
	for _, end := range r.sched.TakeResults(nil) {
		if _, twice := r.ends[end.Key]; twice {
			r.Errorf("turn %s ended twice", end.Key)
		}
		r.ends[end.Key] = end
	}
}

// finish ticks until nothing is pending.
func (r *rig) finish() {
	r.Helper()
	r.tickUntil(func() bool { return r.sched.Pending() == 0 })
}

func (r *rig) tickUntil(done func() bool) {
	r.Helper()
	if r.spill != nil {
		r.runUntil(done)
		return
	}
	for range 20_000 {
		if done() {
			r.take()
			return
		}
		r.tick()
	}
	r.Fatal("not done after 20,000 ticks")
}

// runUntil is tickUntil that sleeps while a tick would only find what waits for the disk.
func (r *rig) runUntil(done func() bool) {
	r.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if done() {
		r.take()
		return
	}
	err := r.sched.Run(ctx, func(report *scheduler.Report) {
		r.observe(report)
		if done() {
			cancel()
		}
	})
	if err != nil {
		r.Fatal(err)
	}
}

// tokens waits until the turn has that many new tokens.
func (r *rig) untilTokens(k scheduler.TurnKey, n int) {
	r.Helper()
	r.tickUntil(func() bool { return len(r.news[k]) >= n })
}

// wantEnd checks how a turn ended.
func (r *rig) wantEnd(k scheduler.TurnKey, reason scheduler.EndReason, detail string) scheduler.Ending {
	r.Helper()
	end, ok := r.ends[k]
	if !ok {
		r.Fatalf("turn %s has not ended", k)
	}
	if got := string(end.Finish) + string(end.Cause) + string(end.Miss); end.Reason != reason || got != detail {
		r.Errorf("turn %s ended %s %q (%s), want %s %q", k, end.Reason, got, end.Detail, reason, detail)
	}
	return end
}

func (r *rig) wantTokens(k scheduler.TurnKey, want []scheduler.Token) {
	r.Helper()
	if got := r.ends[k].Tokens; !slices.Equal(got, want) {
		r.Errorf("turn %s yielded %v, want %v", k, got, want)
	}
}

// wantIdle checks that everything has been given back but what is hot.
func (r *rig) wantIdle() {
	r.Helper()
	t := r.sched.Telemetry()
	if t.ActiveSessions != 0 || t.QueueDepth != 0 || t.KVReservedBytes != 0 || t.ScratchUsedBytes != 0 || t.KVTotalBytes != t.HotBytes {
		r.Errorf("idle scheduler has %d active, %d queued, %d KV bytes reserved, %d scratch bytes, %d KV bytes of which %d hot",
			t.ActiveSessions, t.QueueDepth, t.KVReservedBytes, t.ScratchUsedBytes, t.KVTotalBytes, t.HotBytes)
	}
}

func (r *rig) countCalls(op goengine.Op) (n int) {
	for _, call := range r.calls {
		if call.Op == op {
			n++
		}
	}
	return n
}

// baseline is what the request yields alone, cold, on a fresh engine.
func baseline(tb tester, cfg goengine.Config, req scheduler.Request) []scheduler.Token {
	tb.Helper()
	engine, err := goengine.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	sched, err := scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts())})
	if err != nil {
		tb.Fatal(err)
	}
	defer sched.Close()
	req.Turn, req.Epoch, req.Keep, req.RequireHot, req.Replay, req.Deadline = 1, 0, false, false, nil, time.Time{}
	if d := sched.Submit(req); !d.Accepted() {
		tb.Fatal(d)
	}
	ends, err := sched.RunToCompletion(0)
	if err != nil {
		tb.Fatal(err)
	}
	if ends[0].Reason != scheduler.Completed {
		tb.Fatalf("baseline ended %s: %s", ends[0].Reason, ends[0].Detail)
	}
	return ends[0].Tokens
}

func names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("s%d", i)
	}
	return all
}

func budget(change func(*scheduler.NodeBudget)) func(*scheduler.Config) {
	return func(c *scheduler.Config) { change(&c.Budget) }
}

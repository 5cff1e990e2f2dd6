package goengine_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

var greedy = scheduler.DefaultSampling()

// crowd starts one session a slot, each with its own prompt.
func crowd(t *testing.T, cfg goengine.Config) (*goengine.Engine, []*session) {
	t.Helper()
	e := newEngine(t, cfg)
	var sessions []*session
	for slot := range e.Facts().Slots {
		sessions = append(sessions, start(t, e, slot, prompt(uint64(slot), 10+slot), greedy))
	}
	return e, sessions
}

func rowsOf(sessions []*session) []scheduler.Row {
	var rows []scheduler.Row
	for _, s := range sessions {
		rows = append(rows, s.row())
	}
	return rows
}

// survivorsAreExact decodes on with the sessions whose last row came to a token and compares them with their baselines.
func survivorsAreExact(t *testing.T, e *goengine.Engine, sessions []*session, results []result) {
	t.Helper()
	var left []*session
	for i, s := range sessions {
		if results[i].Outcome == scheduler.OutcomeToken {
			s.pos++
			s.took(results[i])
			left = append(left, s)
		}
	}
	for range 10 {
		step(t, e, left...)
	}
	for _, s := range left {
		want := alone(t, goengine.Config{}, prompt(uint64(s.slot), 10+s.slot), s.made, greedy)
		sameResults(t, fmt.Sprintf("survivor in slot %d", s.slot), s.all, want)
	}
}

func causes(results []result) []scheduler.EngineCause {
	out := make([]scheduler.EngineCause, len(results))
	for i, r := range results {
		if r.Err != nil {
			out[i] = r.Err.Cause
		}
	}
	return out
}

// TestRowFaultsEndOnlyTheirRow: llama.cpp#14097 and its neighbours.
func TestRowFaultsEndOnlyTheirRow(t *testing.T) {
	for name, c := range map[string]struct {
		fault goengine.Fault
		cause scheduler.EngineCause
	}{
		"no KV":   {goengine.Fault{Kind: goengine.FaultNoKV, Slot: 2, After: 3}, scheduler.CauseNoKV},
		"aborted": {goengine.Fault{Kind: goengine.FaultNoKV, Slot: 2, After: 3, Cause: scheduler.CauseAborted}, scheduler.CauseAborted},
		"NaN":     {goengine.Fault{Kind: goengine.FaultNaN, Slot: 2, After: 3}, scheduler.CauseNaN},
		"sampler": {goengine.Fault{Kind: goengine.FaultSampler, Slot: 2, After: 3}, scheduler.CauseSampler},
		"fatal":   {goengine.Fault{Kind: goengine.FaultFatal, Slot: 2, After: 3}, scheduler.CauseFatal},
	} {
		t.Run(name, func(t *testing.T) {
			e, sessions := crowd(t, goengine.Config{})
			injected := e.Inject(c.fault)
			for range 3 {
				step(t, e, sessions...)
			}
			if injected.Struck() != 0 {
				t.Fatal("the fault struck too early")
			}
			results := e.Decode(rowsOf(sessions))
			if got, want := fmt.Sprint(causes(results)), fmt.Sprintf("[  %s ]", c.cause); got != want {
				t.Fatalf("causes %q, want %q", got, want)
			}
			if injected.Struck() != 1 {
				t.Errorf("struck %d times, want 1", injected.Struck())
			}
			survivorsAreExact(t, e, sessions, results)
		})
	}
}

func TestFatalBatchEndsAllAndLeavesNoPositions(t *testing.T) {
	e, sessions := crowd(t, goengine.Config{})
	before := e.KVBytes()
	e.Inject(goengine.Fault{Kind: goengine.FaultFatal, Slot: goengine.AnySlot, Times: 1})
	if got := fmt.Sprint(causes(e.Decode(rowsOf(sessions)))); got != "[fatal fatal fatal fatal]" {
		t.Fatalf("causes %s", got)
	}
	if e.KVBytes() != before {
		t.Errorf("%d KV bytes after the failure, %d before", e.KVBytes(), before)
	}
	survivorsAreExact(t, e, sessions, e.Decode(rowsOf(sessions)))
}

func TestFatalBatchTakesTheEvaluatedRowsOfARecurrentModel(t *testing.T) {
	e, sessions := crowd(t, goengine.Config{Mode: goengine.Recurrent})
	e.Inject(goengine.Fault{Kind: goengine.FaultFatal, Slot: 3, Times: 1})
	if got := fmt.Sprint(causes(e.Decode(rowsOf(sessions)))); got != "[fatal fatal  fatal]" {
		t.Errorf("causes %s, want those of slots 0 and 1 (evaluated) and 3", got)
	}
}

func TestMissDropsTheKV(t *testing.T) {
	e, sessions := crowd(t, goengine.Config{})
	e.Inject(goengine.Fault{Kind: goengine.FaultMiss, Slot: 1, Times: 1})
	before := e.KVBytes()
	results := e.Decode(rowsOf(sessions))
	if results[1].Outcome != scheduler.OutcomeMiss {
		t.Fatalf("row came to %+v, want a miss", results[1])
	}
	if got, want := e.KVBytes(), before-e.Facts().KVBytes(11)+3*e.Facts().KVBytes(1); got != want {
		t.Errorf("%d KV bytes, want %d", got, want)
	}
	survivorsAreExact(t, e, sessions, results)
}

func TestWrongResultCounts(t *testing.T) {
	e, sessions := crowd(t, goengine.Config{})
	e.Inject(goengine.Fault{Kind: goengine.FaultTooFew, Slot: goengine.AnySlot, Times: 1})
	if n := len(e.Decode(rowsOf(sessions))); n != 3 {
		t.Errorf("%d results of 4 rows, want 3", n)
	}
	for _, s := range sessions {
		s.pos++
	}
	e.Inject(goengine.Fault{Kind: goengine.FaultTooMany, Slot: 3, Times: 1})
	if n := len(e.Decode(rowsOf(sessions))); n != 5 {
		t.Errorf("%d results of 4 rows, want 5", n)
	}
}

func TestPrefillFaultLeavesHalfAChunk(t *testing.T) {
	e := newEngine(t, goengine.Config{PrefillChunk: 16})
	e.Inject(goengine.Fault{Kind: goengine.FaultPrefill, Slot: 0, After: 1})
	p := prompt(1, 32)
	if r := e.Prefill(scheduler.Chunk{Tokens: p[:16], Forced: scheduler.NoToken}); r.Outcome != scheduler.OutcomeNone {
		t.Fatalf("first chunk came to %+v", r)
	}
	r := e.Prefill(scheduler.Chunk{Pos: 16, Tokens: p[16:28], Forced: scheduler.NoToken})
	if r.Outcome != scheduler.OutcomeError || r.Err.Cause != scheduler.CauseFatal {
		t.Errorf("second chunk came to %+v, want fatal", r)
	}
	if got, want := e.KVBytes(), e.Facts().KVBytes(22); got != want {
		t.Errorf("%d KV bytes, want those of 22 positions, %d", got, want)
	}
	e.Release(0)
	if e.KVBytes() != 0 {
		t.Errorf("%d KV bytes after Release", e.KVBytes())
	}
}

func TestCallFaultsHaveTheEffectsOfTheContract(t *testing.T) {
	inject := func(e *goengine.Engine, kind goengine.FaultKind) {
		e.Inject(goengine.Fault{Kind: kind, Slot: goengine.AnySlot, Times: 1})
	}
	e, sessions := crowd(t, goengine.Config{})
	of := func(n int) int64 { return e.Facts().KVBytes(n) }
	all := e.KVBytes()

	inject(e, goengine.FaultSave)
	if _, err := e.Save(0, 0); err == nil || e.KVBytes() != all || e.LiveStates() != 0 {
		t.Errorf("Save: error %v, %d KV bytes of %d, %d states", err, e.KVBytes(), all, e.LiveStates())
	}
	inject(e, goengine.FaultTrimRefused)
	mustBe(t, e.Trim(3, 12), scheduler.ErrTrimRefused)
	if e.KVBytes() != all-of(13) {
		t.Errorf("Trim: %d KV bytes, want %d", e.KVBytes(), all-of(13))
	}
	e.Release(3)
	inject(e, goengine.FaultMove)
	if err := e.Move(2, 3); err == nil || e.KVBytes() != all-of(13) {
		t.Errorf("Move: error %v, %d KV bytes", err, e.KVBytes())
	}
	state, err := e.Save(2, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer state.Free()
	inject(e, goengine.FaultRestore)
	mustBe(t, e.Restore(3, state), scheduler.ErrStateInvalid)
	if e.KVBytes() != all-of(13) {
		t.Errorf("Restore: %d KV bytes, want %d", e.KVBytes(), all-of(13))
	}
	inject(e, goengine.FaultOpen)
	if err := e.Open(3, greedy, nil); err == nil {
		t.Error("Open: no error")
	}
	if err := e.Open(3, greedy, nil); err != nil {
		t.Errorf("Open after the fault: %v", err)
	}
	prints := e.Fingerprints()
	inject(e, goengine.FaultFingerprint)
	if changed := e.Fingerprints(); changed.Restore == prints.Restore || changed.Exact == prints.Exact {
		t.Error("Fingerprints did not change")
	}
	survivorsAreExact(t, e, sessions[:3], e.Decode(rowsOf(sessions[:3])))
}

func TestHangHoldsTheCallAndThenGoesOn(t *testing.T) {
	e, sessions := crowd(t, goengine.Config{})
	begun, until := make(chan struct{}), make(chan struct{})
	e.Inject(goengine.Fault{
		Kind: goengine.FaultHang, Slot: 1, In: goengine.OpDecode, Times: 1, Begun: begun, Until: until,
	})
	done := make(chan []result)
	go func() { done <- e.Decode(rowsOf(sessions)) }()
	<-begun
	mustPanic(t, "a call beside the one that hangs", func() { e.Release(0) })
	select {
	case <-done:
		t.Fatal("the call did not hang")
	default:
	}
	close(until)
	survivorsAreExact(t, e, sessions, <-done)
}

func TestRemovedFaultStrikesNoMore(t *testing.T) {
	e, sessions := crowd(t, goengine.Config{})
	injected := e.Inject(goengine.Fault{Kind: goengine.FaultNoKV, Slot: 0, After: 1})
	step(t, e, sessions...)
	injected.Remove()
	injected.Remove()
	survivorsAreExact(t, e, sessions, e.Decode(rowsOf(sessions)))
	if injected.Struck() != 0 {
		t.Errorf("struck %d times, want 0", injected.Struck())
	}
}

// differs says whether a session's tokens, and its hashes, left the baseline.
func differs(t *testing.T, s *session) (inTokens, inBits bool) {
	t.Helper()
	want := alone(t, goengine.Config{}, prompt(uint64(s.slot), 10+s.slot), s.made, greedy)
	for i, r := range s.all {
		inTokens = inTokens || r.Token != want[i].Token
		inBits = inBits || r.LogitHash != want[i].LogitHash
	}
	return inTokens, inBits
}

func TestSwappedRowsCorruptBothSessionsOnly(t *testing.T) {
	e, sessions := crowd(t, goengine.Config{})
	e.Inject(goengine.Fault{Kind: goengine.FaultSwapRows, Slot: 2, Other: 1, After: 4, Times: 1})
	for range 12 {
		step(t, e, sessions...)
	}
	for slot, corrupt := range []bool{false, true, true, false} {
		if inTokens, inBits := differs(t, sessions[slot]); inTokens != corrupt || inBits != corrupt {
			t.Errorf("slot %d: tokens differ %t, bits differ %t; want %t", slot, inTokens, inBits, corrupt)
		}
	}
}

func TestCopiedCellCorruptsItsSlotOnly(t *testing.T) {
	e, sessions := crowd(t, goengine.Config{})
	e.Inject(goengine.Fault{Kind: goengine.FaultCopyCell, Slot: 2, Other: 3, Pos: 5, Layer: 1, Times: 1})
	for range 40 {
		step(t, e, sessions...)
	}
	for slot, corrupt := range []bool{false, false, true, false} {
		if inTokens, inBits := differs(t, sessions[slot]); inTokens != corrupt || inBits != corrupt {
			t.Errorf("slot %d: tokens differ %t, bits differ %t; want %t", slot, inTokens, inBits, corrupt)
		}
	}
}

func TestStaleSlotCorruptsTheNextSession(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg goengine.Config) {
		e := newEngine(t, cfg)
		e.Inject(goengine.Fault{Kind: goengine.FaultStaleSlot, Slot: 0, Times: 1})
		start(t, e, 0, prompt(1, 30), greedy)
		e.Release(0)
		if e.KVBytes() != 0 {
			t.Errorf("%d KV bytes; a stale slot hides them", e.KVBytes())
		}
		want := alone(t, cfg, prompt(2, 20), 1, greedy)
		if got := start(t, e, 0, prompt(2, 20), greedy); got.all[0].LogitHash == want[0].LogitHash {
			t.Error("the session on the stale slot has the bits of its baseline")
		}
		e.Release(0) // the fault is over
		sameResults(t, "the session after", start(t, e, 0, prompt(2, 20), greedy).all, want)
	})
}

// TestEchoShowsAForeignMarker: llama.cpp#25992.
func TestEchoShowsAForeignMarker(t *testing.T) {
	e := newEngine(t, goengine.Config{Mode: goengine.Echo})
	e.Inject(goengine.Fault{Kind: goengine.FaultStaleSlot, Slot: 0})
	start(t, e, 0, tokens{100, 101, 102}, greedy)
	e.Release(0)
	s := start(t, e, 0, tokens{200, 201, 202}, greedy)
	step(t, e, s)
	if got := fmt.Sprint(text(s.all)); got != "[100 101]" {
		t.Errorf("the stale slot's session says %s, want its predecessor's [100 101]", got)
	}
}

func TestImpossibleFaultsPanic(t *testing.T) {
	e := newEngine(t, goengine.Config{Mode: goengine.Recurrent})
	for name, f := range map[string]goengine.Fault{
		"no kind":              {},
		"unknown kind":         {Kind: 200},
		"slot":                 {Kind: goengine.FaultNoKV, Slot: 4},
		"times":                {Kind: goengine.FaultNoKV, Times: -1},
		"hang for ever":        {Kind: goengine.FaultHang, Times: 1},
		"hang twice":           {Kind: goengine.FaultHang, Begun: make(chan struct{}), Until: make(chan struct{})},
		"swap with any":        {Kind: goengine.FaultSwapRows, Slot: goengine.AnySlot},
		"cell outside":         {Kind: goengine.FaultCopyCell, Pos: 512},
		"cell of a recurrence": {Kind: goengine.FaultCopyCell, Pos: 1},
	} {
		mustPanic(t, name, func() { e.Inject(f) })
	}
}

func TestGateHoldsCallsUntilPassed(t *testing.T) {
	gate := goengine.NewGate(goengine.OpDecode)
	defer gate.Open()
	e, sessions := crowd(t, goengine.Config{OnCall: gate.Hold}) // prefill is not held
	done := make(chan []result)
	go func() { done <- e.Decode(rowsOf(sessions)) }()
	call := <-gate.Arrived()
	if call.Op != goengine.OpDecode || len(call.Rows) != 4 || call.Rows[3].Pos != 13 || call.Tokens != 4 {
		t.Errorf("call is %+v", call)
	}
	if e.KVBytes() != e.Facts().KVBytes(10+11+12+13) {
		t.Error("the held call evaluated something")
	}
	gate.Pass()
	survivorsOf := <-done
	gate.Open()
	gate.Pass() // returns: the gate is open
	survivorsAreExact(t, e, sessions, survivorsOf)
}

func TestHookSeesEveryCall(t *testing.T) {
	var seen []string
	e := newEngine(t, goengine.Config{PrefillChunk: 16, OnCall: func(c goengine.Call) {
		seen = append(seen, fmt.Sprintf("%s %d %d %d", c.Op, c.Slot, c.Pos, c.Tokens))
	}})
	e.Fingerprints()
	s := start(t, e, 1, prompt(1, 20), greedy)
	step(t, e, s)
	state, err := e.Save(1, 20)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(e.Trim(1, 20), e.Move(1, 0), e.Restore(1, state))
	e.Close(0)
	e.Release(0)
	state.Free()
	want := "[fingerprints -1 0 0 open 1 0 20 prefill 1 0 16 prefill 1 16 4 decode -1 0 1 save 1 20 0" +
		" trim 1 20 0 move 1 0 0 restore 1 0 21 close 0 0 0 release 0 0 0]"
	if got := fmt.Sprint(seen); got != want || err != nil {
		t.Errorf("calls %s\nwant  %s (error %v)", got, want, err)
	}
}

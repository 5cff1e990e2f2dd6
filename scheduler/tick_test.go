package scheduler_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// S1 (llama.cpp#29175): a long prompt never holds running sessions up for more than one chunk.
func TestLongPromptDelaysDecodersByOneChunkAtMost(t *testing.T) {
	cfg := goengine.Config{Slots: 4, ContextTokens: 4200, PrefillChunk: 256, Vocab: 256, Seed: 7, EOGBias: -1000,
		Layers: 1, Dim: 16, Heads: 2, KVHeads: 1, FFN: 16}
	r := newRig(t, cfg)
	long := request("long", 9, 4096, 4)
	decoders := []scheduler.Request{request("a", 1, 10, 200), request("b", 2, 20, 200), request("c", 3, 30, 200)}
	r.accept(decoders...)
	r.untilTokens(key("c", 1), 5)
	r.calls = nil
	r.accept(long)
	r.untilTokens(key("long", 1), 1)
	sinceDecode, chunks := 0, 0
	for _, call := range r.calls {
		switch call.Op {
		case goengine.OpDecode:
			sinceDecode = 0
			if call.Tokens != 3 {
				t.Errorf("decode batch of %d, want 3", call.Tokens)
			}
		case goengine.OpPrefill:
			sinceDecode++
			chunks++
			if sinceDecode > 1 || call.Tokens != 256 {
				t.Fatalf("chunk of %d tokens, the %dth since the last decode step", call.Tokens, sinceDecode)
			}
		}
	}
	if chunks != 16 {
		t.Errorf("%d chunks, want 16", chunks)
	}
	r.finish()
	for _, req := range append(decoders, long) {
		r.wantTokens(req.Key(), baseline(t, cfg, req))
	}
}

// K4 (llama.cpp#9667): lengths around the chunk, many at once, on two grids.
func TestPromptLengthsAroundTheChunkComeOutTheSame(t *testing.T) {
	outputs := map[int]map[string][]scheduler.Token{}
	for _, chunk := range []int{64, 512} {
		cfg := withSlots(100)
		cfg.PrefillChunk = chunk
		r := newRig(t, cfg)
		outputs[chunk] = map[string][]scheduler.Token{}
		for i, name := range names(100) {
			r.accept(request(name, i, []int{63, 64, 65, 128, 129}[i%5], 3))
		}
		r.finish()
		for k, end := range r.ends {
			r.wantEnd(k, scheduler.Completed, "length")
			outputs[chunk][k.Session] = end.Tokens
		}
		for _, call := range r.calls {
			if call.Op == goengine.OpPrefill && call.Pos/chunk != (call.Pos+call.Tokens-1)/chunk {
				t.Fatalf("chunk of %d tokens at %d crosses the grid of %d", call.Tokens, call.Pos, chunk)
			}
		}
	}
	for session, want := range outputs[512] {
		if got := outputs[64][session]; !slices.Equal(got, want) {
			t.Errorf("%s: %v with chunks of 64, %v with 512", session, got, want)
		}
	}
}

func TestPrefillBudgetIsOneChunkBesideDecodersElseFour(t *testing.T) {
	chunksOf := func(r *rig) (n int) {
		r.calls = nil
		r.tick()
		return r.countCalls(goengine.OpPrefill)
	}
	r := newRig(t, small())
	r.accept(request("a", 1, 96, 30))
	if first, second := chunksOf(r), chunksOf(r); first != 4 || second != 2 {
		t.Errorf("alone: %d then %d chunks, want 4 then 2", first, second)
	}
	r.accept(request("b", 2, 48, 4))
	if got := chunksOf(r); got != 1 {
		t.Errorf("beside a decoder: %d chunks, want 1", got)
	}
	r.finish()

	r = newRig(t, small(), budget(func(b *scheduler.NodeBudget) { b.MaxPrefillTokensPerTick = 40 }))
	r.accept(request("a", 1, 20, 30), request("b", 2, 48, 4))
	if first, second := chunksOf(r), chunksOf(r); first != 3 || second != 2 { // 16+4+16 of 40, then 16+16
		t.Errorf("with a budget of 40 tokens: %d then %d chunks, want 3 then 2", first, second)
	}
	r.finish()

	r = newRig(t, small(), budget(func(b *scheduler.NodeBudget) { b.MaxPrefillTokensPerTick = 1 }))
	r.accept(request("a", 1, 48, 1))
	if got := chunksOf(r); got != 1 {
		t.Errorf("with a budget of one token: %d chunks, want 1, for progress", got)
	}
	r.finish()
}

func TestDecodeComesBeforePrefillAndOldestPromptFirst(t *testing.T) {
	r := newRig(t, small())
	r.accept(request("a", 1, 4, 30))
	r.tick()
	r.accept(request("b", 2, 20, 4), request("c", 3, 4, 4))
	var prefilled []string
	for range 3 {
		r.calls = nil
		report := r.tick()
		if len(r.calls) == 0 {
			t.Fatal("no calls")
		}
		order := slices.DeleteFunc(slices.Clone(r.calls), func(c goengine.Call) bool {
			return c.Op != goengine.OpDecode && c.Op != goengine.OpPrefill
		})
		if len(order) != 2 || order[0].Op != goengine.OpDecode || order[1].Op != goengine.OpPrefill {
			t.Errorf("calls %v, want decode then prefill", order)
		}
		prefilled = append(prefilled, report.Prefilled[0].Session)
	}
	if got := fmt.Sprint(prefilled); got != "[b b c]" {
		t.Errorf("prefilled %s, want [b b c]", got)
	}
	r.finish()
}

func TestReportTellsWhatTheTickDid(t *testing.T) {
	r := newRig(t, withSlots(1))
	r.accept(request("a", 1, 20, 2), request("b", 2, 4, 1))
	first := r.tick()
	if first.Tick != 1 || len(first.Started) != 1 || first.Started[0].PromptTokens != 20 || first.Occupancy != 0 ||
		first.PrefillTokens != 20 || first.DecodeTokens != 0 || len(first.Tokens) != 1 || !first.DidWork() {
		t.Errorf("first report %+v", first)
	}
	second := r.tick()
	if fmt.Sprint(second.Decoded, second.Completed, second.Promoted) != "[t/a/1] [t/a/1] [t/b/1]" || second.Occupancy != 1 || second.DecodeTokens != 1 {
		t.Errorf("second report %+v", second)
	}
	r.finish()
	if idle := r.tick(); idle.DidWork() || idle.Occupancy != 0 {
		t.Errorf("idle report %+v", idle)
	}
	if got := r.sched.Telemetry().BatchOccupancyLast; got != 0 {
		t.Errorf("last occupancy %d after an empty tick, want 0", got)
	}
}

func TestMoreDecodersThanTheBatchTakeEqualTurns(t *testing.T) {
	for _, test := range []struct{ sessions, batch int }{{5, 4}, {8, 3}, {7, 1}, {6, 6}} {
		r := newRig(t, withSlots(8), budget(func(b *scheduler.NodeBudget) { b.MaxBatchSize = test.batch }))
		for i, name := range names(test.sessions) {
			r.accept(request(name, i, 4, 60))
		}
		r.tickUntil(func() bool { return len(r.news) == test.sessions })
		windows := (test.sessions + test.batch - 1) / test.batch
		for range windows { // the last sessions came in the middle of a round
			r.tick()
		}
		before := map[scheduler.TurnKey]int{}
		for k, tokens := range r.news {
			before[k] = len(tokens)
		}
		for range 40 {
			if rows := r.tick().Occupancy; rows < test.sessions/windows {
				t.Errorf("%+v: a window of %d, want %d windows of about equal size", test, rows, windows)
			}
			least, most := 1000, 0
			for k, tokens := range r.news {
				gained := len(tokens) - before[k]
				least, most = min(least, gained), max(most, gained)
			}
			if most-least > 1 {
				t.Fatalf("%+v: the sessions gained between %d and %d tokens", test, least, most)
			}
		}
		r.finish()
		for _, call := range r.calls {
			if call.Op == goengine.OpDecode && call.Tokens > test.batch {
				t.Fatalf("%+v: batch of %d", test, call.Tokens)
			}
		}
		for i, name := range names(test.sessions) {
			r.wantTokens(key(name, 1), baseline(t, small(), request(name, i, 4, 60)))
		}
	}
}

func TestGapsInTheBatchAreClosedByMoves(t *testing.T) {
	cfg := withSlots(8)
	r := newRig(t, cfg)
	lengths := []int{60, 5, 5, 5, 5, 60, 60, 60}
	for i, name := range names(8) {
		r.accept(request(name, i, 4, lengths[i]))
	}
	moves := 0
	r.tickUntil(func() bool {
		if moves > 0 {
			return true
		}
		moves += r.tick().Moves
		return false
	})
	r.finish()
	last := -1
	for _, call := range r.calls { // four sessions remain, and one gap is padded: three moves to 1, 2, 3
		if call.Op == goengine.OpMove {
			if call.To <= last {
				t.Errorf("moved to slot %d after %d, want the lowest gap first", call.To, last)
			}
			last = call.To
		}
	}
	if got := r.countCalls(goengine.OpMove); got != 3 {
		t.Errorf("%d moves, want 3", got)
	}
	for i, name := range names(8) {
		r.wantTokens(key(name, 1), baseline(t, cfg, request(name, i, 4, lengths[i])))
	}
}

func TestParkedSessionInAGapIsSavedAndMovedOver(t *testing.T) {
	r := newRig(t, withSlots(6))
	lengths := []int{60, 5, 5, 5, 60, 60}
	for i, name := range names(6) {
		req := request(name, i, 20, lengths[i])
		req.Keep = lengths[i] == 5
		r.accept(req)
	}
	for r.sched.Pending() > 0 {
		if report := r.tick(); report.Saves > 1 || report.Moves > 1 {
			t.Errorf("%d saves and %d moves in one tick, want one at most", report.Saves, report.Moves)
		}
	}
	if saves, moves := r.countCalls(goengine.OpSave), r.countCalls(goengine.OpMove); saves != 2 || moves < 2 {
		t.Errorf("%d saves and %d moves, want 2 saves and a move into each gap: three rows may have one gap left", saves, moves)
	}
	for i, name := range names(6) {
		again := turn(request(name, i, 20, lengths[i]), r.ends[key(name, 1)].Tokens, 3, 4)
		r.run(again)
		r.wantTokens(again.Key(), baseline(t, small(), again))
		if hot := r.started[again.Key()].CachedTokens > 0; hot != (lengths[i] == 5) {
			t.Errorf("%s: hot %t after the moves", name, hot)
		}
	}
}

func TestAFailedMoveLeavesTheSessionWhereItIs(t *testing.T) {
	cfg := withSlots(8)
	r := newRig(t, cfg)
	fault := r.engine.Inject(goengine.Fault{Kind: goengine.FaultMove, Slot: goengine.AnySlot})
	lengths := []int{60, 5, 5, 5, 5, 5, 5, 60}
	for i, name := range names(8) {
		r.accept(request(name, i, 4, lengths[i]))
	}
	r.finish()
	if fault.Struck() != 1 {
		t.Errorf("%d moves tried, want 1 in so few ticks", fault.Struck())
	}
	for i, name := range names(8) {
		r.wantTokens(key(name, 1), baseline(t, cfg, request(name, i, 4, lengths[i])))
	}
}

func TestTheModelsEndOfGenerationCompletesTheTurn(t *testing.T) {
	cfg := small()
	cfg.EOGBias = 1000
	r := newRig(t, cfg)
	r.accept(request("s", 1, 10, 20))
	r.finish()
	end := r.wantEnd(key("s", 1), scheduler.Completed, "stop")
	if !slices.Equal(end.Tokens, []scheduler.Token{r.engine.EOG()}) {
		t.Errorf("tokens %v, want the end-of-generation token alone", end.Tokens)
	}
}

func TestStopHookSeesEachNewTokenOnceAndEndsTheTurn(t *testing.T) {
	req := request("s", 1, 10, 20)
	want := baseline(t, small(), req)
	for stopAt := 1; stopAt <= 20; stopAt += 19 {
		r := newRig(t, small())
		var seen []scheduler.Token
		req.Stop = func(token scheduler.Token) bool {
			r.sched.Telemetry() // a hook may call the scheduler
			seen = append(seen, token)
			return len(seen) == stopAt
		}
		r.accept(req)
		r.finish()
		r.wantEnd(key("s", 1), scheduler.Completed, "stop-string")
		r.wantTokens(key("s", 1), want[:stopAt])
		if !slices.Equal(seen, want[:stopAt]) {
			t.Errorf("hook saw %v, want %v", seen, want[:stopAt])
		}
	}
}

func TestStopHookSeesReplayedTokensFirst(t *testing.T) {
	req := request("s", 1, 10, 20)
	want := baseline(t, small(), req)
	for _, replayed := range []int{1, 5, 7} { // the last one replays the token that ends the turn
		r := newRig(t, small())
		var seen []scheduler.Token
		req.Replay = want[:replayed]
		req.Stop = func(token scheduler.Token) bool {
			seen = append(seen, token)
			return len(seen) == 7
		}
		r.accept(req)
		r.finish()
		end := r.wantEnd(key("s", 1), scheduler.Completed, "stop-string")
		r.wantTokens(key("s", 1), want[:7])
		if !slices.Equal(seen, want[:7]) || end.Usage.New != 7-replayed || end.Usage.Replayed != replayed {
			t.Errorf("replay %d: hook saw %v, want %v; usage %+v", replayed, seen, want[:7], end.Usage)
		}
	}
}

func TestTheEndDoesNotComeBeforeTheLeastTokens(t *testing.T) {
	cfg := small()
	cfg.EOGBias = 1000
	for _, replayed := range []int{0, 3} {
		req := request("s", 1, 10, 20)
		req.Sampling.MinNewTokens = 6
		req.Replay = baseline(t, small(), req)[:replayed]
		r := newRig(t, cfg)
		r.accept(req)
		r.finish()
		end := r.wantEnd(key("s", 1), scheduler.Completed, "stop")
		if len(end.Tokens) != 7 || slices.Index(end.Tokens, r.engine.EOG()) != 6 {
			t.Errorf("replay %d: tokens %v, want six and then the end, %d", replayed, end.Tokens, r.engine.EOG())
		}
	}
}

func TestLogProbabilitiesComeWithTheirTokens(t *testing.T) {
	r := newRig(t, small())
	req := request("s", 1, 10, 5)
	req.Sampling.Probs = 3
	other := request("other", 2, 10, 5)
	r.accept(req)
	r.accept(other)
	told := map[scheduler.TurnKey]int{}
	for r.sched.Pending() > 0 {
		for _, token := range r.tick().Tokens {
			if token.Probs == nil {
				continue
			}
			told[token.Key]++
			if top := token.Probs.Top; len(top) != 3 || top[0].Token != token.Token || top[0].LogProb != token.Probs.Chosen {
				t.Errorf("token %d, the likeliest, has %+v", token.Token, token.Probs)
			}
		}
	}
	if told[req.Key()] != 5 || told[other.Key()] != 0 {
		t.Errorf("told %v, want 5 for the turn that asks and none for the other", told)
	}
}

func TestReplayedTokensAreForcedAndNotReportedAsNew(t *testing.T) {
	cfg := small()
	req := request("s", 1, 40, 12)
	req.Sampling.Temperature, req.Sampling.Seed = 0.9, 11
	req.Sampling.RepeatPenalty = 1.3
	want := baseline(t, cfg, req)
	for _, n := range []int{1, 5, 11, 12} {
		r := newRig(t, cfg)
		r.accept(request("other", 2, 4, 30))
		req.Replay = want[:n]
		r.accept(req)
		r.finish()
		end := r.wantEnd(key("s", 1), scheduler.Completed, "length")
		r.wantTokens(key("s", 1), want)
		if !slices.Equal(r.news[key("s", 1)], want[n:]) {
			t.Errorf("replay %d: new tokens %v, want %v", n, r.news[key("s", 1)], want[n:])
		}
		if end.Usage.Replayed != n || end.Usage.New != 12-n || r.started[key("s", 1)].ResumeIndex != n {
			t.Errorf("replay %d: usage %+v, resumed at %d", n, end.Usage, r.started[key("s", 1)].ResumeIndex)
		}
		if got := r.sched.Telemetry().DecodeTokensTotal; got != int64(29+12-n) {
			t.Errorf("replay %d: %d decode tokens, want %d", n, got, 29+12-n)
		}
	}
}

func TestConcurrentTicksPanic(t *testing.T) {
	r := newRig(t, small())
	gate := goengine.NewGate(goengine.OpPrefill)
	r.onCall = gate.Hold
	r.accept(request("s", 1, 4, 2))
	done := make(chan *scheduler.Report)
	go func() {
		report, err := r.sched.Tick()
		if err != nil {
			t.Error(err)
		}
		done <- report
	}()
	<-gate.Arrived()
	func() {
		defer func() {
			if message := fmt.Sprint(recover()); !strings.Contains(message, "one goroutine owns it") {
				t.Errorf("recovered %q", message)
			}
		}()
		_, _ = r.sched.Tick()
	}()
	gate.Open()
	r.observe(<-done)
	r.finish()
}

package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// nextTurn continues a session: its prompt is all that was said before, and more.
func nextTurn(req scheduler.Request, end scheduler.Ending, more []scheduler.Token) scheduler.Request {
	req.Prompt = slices.Concat(req.Prompt, end.Tokens, more)
	req.Turn++
	return req
}

// llama.cpp, fully cached prompt
func TestTheSamePromptTwiceEvaluatesOneToken(t *testing.T) {
	n := newNode(t, story, llama.Options{Slots: 2}, nil)
	req := request(t, "s", "Once upon a time, there was a small fox named Pip.", 40)
	req.Keep = true
	n.submit(req)
	first := n.run(nil)[req.Key()]
	req.Turn = 2
	n.submit(req)
	second := n.run(nil)[req.Key()]
	if want := len(req.Prompt) - 1; second.Usage.Cached != want || second.Usage.Prefilled != 1 {
		t.Errorf("%d cached, %d prefilled of %d; want %d and 1", second.Usage.Cached, second.Usage.Prefilled, len(req.Prompt), want)
	}
	if !slices.Equal(first.Tokens, second.Tokens) {
		t.Errorf("first %v, second %v", first.Tokens, second.Tokens)
	}
}

// llama.cpp#4479
func TestAHotSecondTurnEqualsTheSameTurnCold(t *testing.T) {
	for _, exact := range []bool{false, true} {
		o := llama.Options{Slots: 2, Exact: exact, PrefillChunk: 64}
		n := newNode(t, story, o, nil)
		first := requestTokens("s", randomPrompt(5, 300, story.Facts().VocabTokens), 40)
		first.Keep = true
		n.submit(first)
		second := nextTurn(first, n.run(nil)[first.Key()], randomPrompt(6, 20, story.Facts().VocabTokens))
		n.submit(second)
		hot := n.run(nil)[second.Key()]
		wantCached := len(first.Prompt) + first.MaxNewTokens - 1
		if exact {
			wantCached = 256 // the grid below the first prompt's end
		}
		if hot.Usage.Cached != wantCached || hot.Usage.Prefilled != len(second.Prompt)-wantCached {
			t.Errorf("exact %t: %d cached, %d prefilled; want %d and %d", exact, hot.Usage.Cached, hot.Usage.Prefilled, wantCached, len(second.Prompt)-wantCached)
		}
		if cold := alone(t, story, o, second); !slices.Equal(hot.Tokens, cold) {
			t.Errorf("exact %t: hot %v, cold %v", exact, hot.Tokens, cold)
		}
	}
}

func TestASavedSessionGoesOnAfterItsSlotWasTakenByOthers(t *testing.T) {
	n := newNode(t, story, llama.Options{Slots: 1}, nil)
	first := request(t, "s", "Once upon a time", 40)
	first.Keep = true
	n.submit(first)
	second := nextTurn(first, n.run(nil)[first.Key()], nil)
	for i := range 3 {
		n.submit(request(t, fmt.Sprint("other", i), "The sun was warm.", 30))
	}
	n.run(nil)
	if tel := n.Telemetry(); tel.HotSessions != 1 || n.engine.LiveStates() != 1 {
		t.Fatalf("%d hot sessions, %d saved states; want 1 and 1", tel.HotSessions, n.engine.LiveStates())
	}
	n.submit(second)
	hot := n.run(nil)[second.Key()]
	if want := len(second.Prompt) - 1; hot.Usage.Cached != want {
		t.Errorf("%d cached of %d; want %d", hot.Usage.Cached, len(second.Prompt), want)
	}
	if cold := alone(t, story, llama.Options{Slots: 1}, second); !slices.Equal(hot.Tokens, cold) {
		t.Errorf("hot %v, cold %v", hot.Tokens, cold)
	}
}

// sglang#36475
func TestATurnAfterACancelledOneStartsFromItsOwnHistory(t *testing.T) {
	n := newNode(t, story, llama.Options{Slots: 2}, nil)
	first := request(t, "s", "Once upon a time", 40)
	first.Keep = true
	n.submit(first)
	n.run(func(r *scheduler.Report) {
		if len(r.Tokens) > 0 {
			_, _ = n.Cancel(first.Key(), scheduler.Cancelled, "", "")
		}
	})
	second := first
	second.Turn = 2
	n.submit(second)
	end := n.run(nil)[second.Key()]
	if end.Usage.Prompt != len(first.Prompt) || end.Usage.Cached != 0 || end.Miss != hotkv.Hit {
		t.Errorf("usage %+v, miss %q", end.Usage, end.Miss)
	}
	if cold := alone(t, story, llama.Options{Slots: 1}, second); !slices.Equal(end.Tokens, cold) {
		t.Errorf("after a cancelled turn %v, cold %v", end.Tokens, cold)
	}
}

// llama.cpp#9667
func TestABatchSmallerThanThePromptChangesNoTokens(t *testing.T) {
	const sessions = 100
	lengths := []int{63, 64, 65, 128, 129}
	run := func(batch, chunk int) map[scheduler.TurnKey]scheduler.Ending {
		n := newNode(t, story, llama.Options{Slots: 8, BatchTokens: batch, PrefillChunk: chunk, ContextTokens: 256}, nil)
		for i := range sessions {
			n.submit(requestTokens(fmt.Sprint("s", i), randomPrompt(uint64(i), lengths[i%len(lengths)], story.Facts().VocabTokens), 16))
		}
		endings := n.run(nil)
		for key, end := range endings {
			if end.Reason != scheduler.Completed {
				t.Errorf("batch %d, chunk %d: %s ended %s: %s", batch, chunk, key, end.Reason, end.Detail)
			}
		}
		if len(endings) != sessions {
			t.Errorf("batch %d, chunk %d: %d of %d ended", batch, chunk, len(endings), sessions)
		}
		return endings
	}
	small, large := run(64, 64), run(512, 64)
	for key, end := range small {
		if !slices.Equal(end.Tokens, large[key].Tokens) {
			t.Errorf("%s: %v with a batch of 64, %v with 512", key, end.Tokens, large[key].Tokens)
		}
	}
	run(64, 256) // a chunk in several calls is another recipe, and works
}

// ROCm/ATOM#1562
func TestAThousandCancelsAtRandomPhasesLeaveNothing(t *testing.T) {
	n := newNode(t, story, llama.Options{Slots: 4, ContextTokens: 512, PrefillChunk: 32}, nil)
	random := rand.New(rand.NewPCG(9, 9))
	for i := range 1000 {
		req := requestTokens(fmt.Sprint("s", i%10), randomPrompt(uint64(i), 1+random.IntN(100), story.Facts().VocabTokens), 50)
		req.Turn, req.Keep = uint64(i+1), i%3 == 0
		n.submit(req)
		for range random.IntN(6) {
			if _, err := n.Tick(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := n.Cancel(req.Key(), scheduler.Cancelled, "", ""); err != nil {
			t.Fatal(err)
		}
		n.TakeResults(nil)
	}
	n.run(nil)
	if tel := n.Telemetry(); tel.ActiveSessions != 0 || tel.QueueDepth != 0 || tel.KVReservedBytes != 0 || tel.KVTotalBytes != tel.HotBytes {
		t.Errorf("%d active, %d queued, %d bytes reserved, %d KV bytes with %d hot",
			tel.ActiveSessions, tel.QueueDepth, tel.KVReservedBytes, tel.KVTotalBytes, tel.HotBytes)
	}
}

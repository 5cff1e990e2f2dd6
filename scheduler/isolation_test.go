package scheduler_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// I1 (llama.cpp#25992): every prompt holds a marker of its own, and the engine echoes what its KV holds.
func TestNoOutputHoldsAnothersMarker(t *testing.T) {
	cfg := goengine.Config{Mode: goengine.Echo, Slots: 4, ContextTokens: 256, PrefillChunk: 16, Vocab: 512}
	r := newRig(t, cfg, budget(func(b *scheduler.NodeBudget) { b.MaxQueueDepth = 168 }))
	const marker = 300 // above every other token
	for i, name := range names(168) {
		req := request(name, i, 3+(i*37)%120, 2+(i*13)%40)
		req.Prompt[0] = scheduler.Token(marker + i)
		req.Keep = i%3 == 0
		r.accept(req)
	}
	r.finish()
	for i, name := range names(168) {
		end := r.wantEnd(key(name, 1), scheduler.Completed, "length")
		own := request(name, i, 3+(i*37)%120, 1).Prompt
		own[0] = scheduler.Token(marker + i)
		for at, token := range end.Tokens {
			if want := own[at%len(own)]; token != want {
				t.Fatalf("%s: token %d is %d, want %d of its own prompt", name, at, token, want)
			}
		}
	}
}

// I2 (llama.cpp#7052): one prompt on many sessions at once gives one token string.
func TestOnePromptOnManySessionsGivesOneOutput(t *testing.T) {
	want := baseline(t, small(), request("s", 1, 50, 20))
	for _, n := range []int{1, 2, 4, 8} {
		r := newRig(t, withSlots(8))
		for _, name := range names(n) {
			r.accept(request(name, 1, 50, 20))
		}
		r.finish()
		for _, name := range names(n) {
			r.wantTokens(key(name, 1), want)
		}
	}
}

// I3 (ollama#17475): a victim takes a cancelled donor's slot at once.
func TestVictimInACancelledDonorsSlotEqualsBaseline(t *testing.T) {
	r := newRig(t, withSlots(2))
	for i := range 20 {
		donor := kept(request(fmt.Sprintf("donor%d", i), 100+i, 60, 30))
		victim := request(fmt.Sprintf("victim%d", i), 200+i, 5+i, 10)
		r.accept(donor)
		r.untilTokens(donor.Key(), 1+i)
		slot := r.started[donor.Key()].Slot
		r.cancel(donor.Key())
		r.accept(victim)
		r.finish()
		if got := r.started[victim.Key()].Slot; got != slot {
			t.Errorf("victim in slot %d, donor in %d", got, slot)
		}
		r.wantTokens(victim.Key(), baseline(t, small(), victim))
	}
}

func TestDrawnTokensDependOnTheSeedAloneNotOnTheCrowd(t *testing.T) {
	drawn := func(name string, seed int) scheduler.Request {
		req := request(name, 1, 30, 20)
		req.Sampling.Temperature, req.Sampling.TopP, req.Sampling.Seed = 1, 0.95, uint64(seed)
		return req
	}
	r := newRig(t, withSlots(8))
	var outputs [][]scheduler.Token
	for i, name := range names(8) {
		r.accept(drawn(name, i/2))
	}
	r.finish()
	for i, name := range names(8) {
		r.wantTokens(key(name, 1), baseline(t, small(), drawn(name, i/2)))
		outputs = append(outputs, r.ends[key(name, 1)].Tokens)
	}
	if slices.Equal(outputs[0], outputs[2]) {
		t.Error("two seeds gave the same output")
	}
}

package llama_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// BenchmarkSpeeds are the figures of which internal/sim/speeds.json is made: what a decode step of so many sessions, a prompt chunk,
// and the saving and restoring of a session take, on the 135M Q4_0 model with one thread. Medians.
func BenchmarkSpeeds(b *testing.B) {
	const slots, depth, chunk = 16, 256, 256
	r := newRig(b, shared.get(b, "135m", "q4_0"), llama.Options{Slots: slots, ContextTokens: 2 * depth, PrefillChunk: chunk})
	prompt := r.prompt(tale, depth)
	rows := make([]scheduler.Row, slots)
	for slot := range rows {
		if err := r.Open(slot, greedy(), prompt); err != nil {
			b.Fatal(err)
		}
		r.prefill(slot, 0, prompt, false, noToken)
		rows[slot] = scheduler.Row{Slot: slot, Pos: depth, Token: 5, Forced: noToken}
	}
	for _, n := range []int{1, 2, 4, 8, 16} {
		b.Run(fmt.Sprintf("step-of-%d", n), func(b *testing.B) {
			medianOf(b, "ms/step", 1, func() {
				for _, res := range r.Decode(rows[:n]) {
					if res.Outcome != scheduler.OutcomeToken {
						b.Fatal(res.Err)
					}
				}
			}, func() {
				for slot := range n {
					if err := r.Trim(slot, depth); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
	b.Run("prefill", func(b *testing.B) {
		r.Release(0)
		medianOf(b, "ms/token", chunk, func() { r.prefill(0, 0, prompt, false, noToken) }, func() { r.Release(0) })
	})
	r.prefill(0, 0, prompt, false, noToken)
	r.Release(1)
	b.Run("save-and-restore", func(b *testing.B) {
		var st scheduler.State
		medianOf(b, "ms/token", depth, func() {
			st = r.save(0)
			r.restore(1, st)
		}, func() {
			st.Free()
			r.Release(1)
		})
	})
}

// medianOf reports the median time of do, in milliseconds for each of so many; undo is not timed.
func medianOf(b *testing.B, unit string, each int, do, undo func()) {
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		do()
		took = append(took, time.Since(began))
		undo()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e6/float64(each), unit)
}

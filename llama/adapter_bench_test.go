package llama_test

import (
	"slices"
	"testing"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// What a tick of 8 sessions costs, by how many adapters they have among them. The engine changes as often as under the
// scheduler, which begins a tick with the adapter that the one before ended with. Their slots alternate.
func BenchmarkDecode8NoAdapter(b *testing.B)   { benchmarkAdapters(b, "") }
func BenchmarkDecode8OneAdapter(b *testing.B)  { benchmarkAdapters(b, "bard") }
func BenchmarkDecode8TwoAdapters(b *testing.B) { benchmarkAdapters(b, "bard", "clerk") }

func benchmarkAdapters(b *testing.B, adapters ...string) {
	const sessions, depth, end = 8, 64, 256
	r := newRig(b, adaptedModel(b, "135m", "q4_0"), llama.Options{Slots: sessions, ContextTokens: end})
	groups := make([][]scheduler.Row, len(adapters))
	prompt := r.prompt(tale, depth)
	for slot := range sessions {
		group := slot % len(adapters)
		r.Bind(slot, adapters[group])
		if err := r.Open(slot, greedy(), prompt); err != nil {
			b.Fatal(err)
		}
		r.prefill(slot, 0, prompt, false, noToken)
		groups[group] = append(groups[group], scheduler.Row{Slot: slot, Pos: depth, Token: 5, Forced: noToken})
	}
	for b.Loop() {
		for _, rows := range groups {
			for i, res := range r.Decode(rows) {
				if res.Outcome != scheduler.OutcomeToken {
					b.Fatal(res.Err)
				}
				rows[i].Token = res.Token
				rows[i].Pos++
				if rows[i].Pos < end {
					continue
				}
				if err := r.Trim(rows[i].Slot, depth); err != nil {
					b.Fatal(err)
				}
				rows[i].Pos = depth
			}
		}
		slices.Reverse(groups)
	}
	b.ReportMetric(float64(b.N*sessions)/b.Elapsed().Seconds(), "tokens/s")
}

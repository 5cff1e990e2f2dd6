package llama_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

func BenchmarkDecode1(b *testing.B) { benchmarkDecode(b, 1) }
func BenchmarkDecode4(b *testing.B) { benchmarkDecode(b, 4) }
func BenchmarkDecode8(b *testing.B) { benchmarkDecode(b, 8) }

// benchmarkDecode times one batch of greedy rows at depth 64 to 255.
func benchmarkDecode(b *testing.B, sessions int) {
	const depth, end = 64, 256
	r := newRig(b, story(b), llama.Options{Slots: sessions, ContextTokens: end})
	rows := make([]scheduler.Row, sessions)
	for slot := range rows {
		prompt := r.prompt(tale, depth)
		if err := r.Open(slot, greedy(), prompt); err != nil {
			b.Fatal(err)
		}
		r.prefill(slot, 0, prompt, false, noToken)
		rows[slot] = scheduler.Row{Slot: slot, Pos: depth, Token: 5, Forced: noToken}
	}
	b.ReportAllocs()
	for b.Loop() {
		for slot, res := range r.Decode(rows) {
			if res.Outcome != scheduler.OutcomeToken {
				b.Fatal(res.Err)
			}
			rows[slot].Token = res.Token
			rows[slot].Pos++
		}
		if rows[0].Pos == end {
			for slot := range rows {
				if err := r.Trim(slot, depth); err != nil {
					b.Fatal(err)
				}
				rows[slot].Pos = depth
			}
		}
	}
	b.ReportMetric(float64(b.N*sessions)/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkSaveRestore512 times what a hot session of 512 tokens costs, without its first token.
// BenchmarkOpenDRY opens a slot with DRY: making looks for 16 breakers in the vocabulary, copying has found them before.
func BenchmarkOpenDRY(b *testing.B) {
	r := newRig(b, story(b), llama.Options{Slots: 1, ContextTokens: 256, Threads: 1})
	for _, name := range []string{"make", "copy"} {
		b.Run(name, func(b *testing.B) {
			s := greedy()
			s.DRYMultiplier, s.DRYBreakers = 1, strings.Split("abcdefghijklmnop", "")
			for i := range b.N {
				if name == "make" {
					s.DRYBreakers[0] = strconv.Itoa(i)
				}
				if err := r.Open(0, s, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkSaveRestore512(b *testing.B) {
	const tokens = 512
	r := newRig(b, story(b), llama.Options{Slots: 2, ContextTokens: 2 * tokens})
	r.prefill(0, 0, r.prompt(tale, tokens), false, noToken)
	for b.Loop() {
		st := r.save(0)
		r.restore(1, st)
		b.SetBytes(st.Bytes())
		st.Free()
		r.Release(1)
	}
}

// BenchmarkHotTurn512 compares the first token of a hot session of 512 tokens (save, restore into another slot, evaluate
// the last token) with that of a cold one, on a model of 135 M parameters. Medians, in turns.
func BenchmarkHotTurn512(b *testing.B) {
	const tokens = 512
	model := shared.get(b, "135m", "q4_0")
	r := newRig(b, model, llama.Options{Slots: 2, ContextTokens: 2 * tokens})
	prompt := r.prompt(tale, tokens)
	var cold, hot []float64
	for b.Loop() {
		began := time.Now()
		if err := r.Open(0, greedy(), prompt); err != nil {
			b.Fatal(err)
		}
		r.prefill(0, 0, prompt, true, noToken)
		cold = append(cold, time.Since(began).Seconds())

		began = time.Now()
		st := r.save(0)
		r.restore(1, st)
		st.Free()
		if err := r.Trim(1, tokens-1); err != nil {
			b.Fatal(err)
		}
		if err := r.Open(1, greedy(), prompt); err != nil {
			b.Fatal(err)
		}
		r.prefill(1, tokens-1, prompt[tokens-1:], true, noToken)
		hot = append(hot, time.Since(began).Seconds())
		r.Release(0)
		r.Release(1)
	}
	slices.Sort(cold)
	slices.Sort(hot)
	mid := len(cold) / 2
	b.ReportMetric(1000*cold[mid], "cold-ms")
	b.ReportMetric(1000*hot[mid], "hot-ms")
	b.ReportMetric(cold[mid]/hot[mid], "cold/hot")
}

package goengine_test

import (
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

func TestDecodeDoesNotAllocate(t *testing.T) {
	drawn := scheduler.DefaultSampling()
	drawn.Temperature, drawn.TopK, drawn.TopP, drawn.MinP, drawn.RepeatPenalty, drawn.Seed = 0.8, 40, 0.9, 0.05, 1.1, 1
	for name, sampling := range map[string]scheduler.Sampling{"greedy": scheduler.DefaultSampling(), "drawn": drawn} {
		e := newEngine(t, goengine.Config{})
		s := start(t, e, 0, prompt(1, 20), sampling)
		rows := []scheduler.Row{s.row()}
		allocs := testing.AllocsPerRun(50, func() {
			r := e.Decode(rows)[0]
			rows[0].Pos++
			rows[0].Index++
			rows[0].Token = r.Token
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations a row, want 0", name, allocs)
		}
	}
}

func BenchmarkDecodeRow(b *testing.B) {
	const context = 64
	e, err := goengine.New(goengine.Config{})
	if err != nil {
		b.Fatal(err)
	}
	start(b, e, 0, prompt(1, context), scheduler.DefaultSampling())
	rows := []scheduler.Row{{Pos: context, Token: 5, Index: 1, Forced: scheduler.NoToken}}
	for b.Loop() {
		if r := e.Decode(rows); r[0].Outcome != scheduler.OutcomeToken {
			b.Fatal(r[0])
		}
		if err := e.Trim(0, context); err != nil {
			b.Fatal(err)
		}
	}
}

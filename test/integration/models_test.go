package integration

import (
	"context"
	"testing"

	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

func loadModel(t *testing.T, shape, weights string, o llama.LoadOptions) *llama.Model {
	t.Helper()
	model, err := llama.Load(context.Background(), llama.FromFile(testmodel.Path(t, shape, weights)), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(model.Free)
	return model
}

func sweep(t *testing.T, model *llama.Model, exact bool, requests []scheduler.Request) *scheduler.SweepReport {
	t.Helper()
	report, err := scheduler.Sweep(context.Background(), factory(t, model, llama.Options{Exact: exact, ContextTokens: 512, PrefillChunk: 64}),
		scheduler.SweepOptions{Requests: requests})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestQuantisedModelsOfThirtyLayersAreTheSameInACrowd(t *testing.T) {
	for _, c := range []struct {
		weights     string
		fast        bool
		exact, bits bool
	}{
		{"f16", false, false, true}, {"f16", false, true, true},
		{"q4_0", false, false, false}, {"q4_0", false, true, true},
		{"q8_0", false, false, false}, {"q8_0", false, true, true},
		{"q4_k_m", false, false, false}, {"q4_k_m", false, true, true}, {"q4_k_m", true, true, true},
	} {
		model := loadModel(t, "30layers-tiny", c.weights, llama.LoadOptions{Fast: c.fast})
		report := sweep(t, model, c.exact, sweepRequests(8, 80, 10, model.Facts().VocabTokens))
		if !report.CorruptionFree {
			t.Errorf("%+v: tokens depend on the crowd: %+v", c, report.Settings)
		}
		if c.bits && (report.BitExact == nil || !*report.BitExact) {
			t.Errorf("%+v: bits depend on the crowd: %+v", c, report.Settings)
		}
	}
}

func TestModelsWithoutPlainAttentionAreTheSameInACrowd(t *testing.T) {
	for shape, trim := range map[string]scheduler.TrimKind{
		"mamba": scheduler.TrimNone, "hybrid": scheduler.TrimNone, "swa": scheduler.TrimWindow,
	} {
		model := loadModel(t, shape, "f16", llama.LoadOptions{})
		engine, err := llama.NewEngine(model, llama.Options{Slots: 1, Threads: 1, ContextTokens: 512})
		if err != nil {
			t.Fatal(err)
		}
		if got := engine.Facts().Trim; got != trim {
			t.Errorf("%s: trim %s, want %s", shape, got, trim)
		}
		engine.Free()
		report := sweep(t, model, false, sweepRequests(8, 200, 40, model.Facts().VocabTokens))
		if !report.CorruptionFree {
			t.Errorf("%s: tokens depend on the crowd: %+v", shape, report.Settings)
		}
		for _, r := range report.Results {
			if r.CacheMisses != 0 {
				t.Errorf("%s: %d cache misses at %d sessions", shape, r.CacheMisses, r.Concurrency)
			}
		}
	}
}

package integration

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

const (
	systemTokens = 600 // that their prompts begin with
	ownTokens    = 20
)

// crowded are the requests of a crowd with one system prompt.
func crowded(sessions, vocab int) []scheduler.Request {
	system := randomPrompt(1, systemTokens, vocab)
	requests := make([]scheduler.Request, sessions)
	for i := range requests {
		requests[i] = requestTokens(fmt.Sprint("s", i), slices.Concat(system, randomPrompt(uint64(100+i), ownTokens, vocab)), 4)
	}
	return requests
}

// serveCrowd runs the crowd on a node of its own, and returns what it yielded and how many tokens were prefilled, in what time.
func serveCrowd(t testing.TB, sessions int, model *llama.Model, o llama.Options, sharing scheduler.Sharing) (
	ends map[scheduler.TurnKey]scheduler.Ending, prefilled int64, took time.Duration,
) {
	t.Helper()
	n := newNodeWith(t, model, o, func(_ *llama.Engine, c *scheduler.Config) {
		c.Sharing, c.Budget.MaxQueueDepth, c.MaxResults = sharing, sessions, 2*sessions
	})
	began := time.Now()
	for _, req := range crowded(sessions, model.Facts().VocabTokens) {
		n.submit(req)
	}
	ends = n.complete()
	return ends, n.Telemetry().PrefillTokensTotal, time.Since(began)
}

func TestACrowdWithOneSystemPromptYieldsWhatItYieldsUnshared(t *testing.T) {
	const sessions = 10
	for _, exact := range []bool{false, true} {
		o := llama.Options{Slots: 8, ContextTokens: 1024, PrefillChunk: 64, Exact: exact}
		shared, prefilled, _ := serveCrowd(t, sessions, story, o, scheduler.ShareTenant)
		unshared, all, _ := serveCrowd(t, sessions, story, o, scheduler.ShareNothing)
		for key, end := range unshared {
			if !slices.Equal(shared[key].Tokens, end.Tokens) {
				t.Errorf("exact %t: %s yields %v, unshared %v", exact, key, shared[key].Tokens, end.Tokens)
			}
		}
		const onGrid = 576
		if want := int64(onGrid + sessions*(systemTokens+ownTokens-onGrid)); prefilled != want || all != sessions*(systemTokens+ownTokens) {
			t.Errorf("exact %t: %d tokens prefilled, unshared %d; want %d and %d", exact, prefilled, all, want, sessions*(systemTokens+ownTokens))
		}
	}
}

// BenchmarkSharedPrefix compares the prefill of a crowd with one system prompt with that of one that shares nothing, by tokens and
// by time until the last has its four tokens.
func BenchmarkSharedPrefix(b *testing.B) {
	const sessions = 64
	big, err := llama.Load(context.Background(), llama.FromFile(testmodel.Path(b, "135m", "q4_0")), llama.LoadOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(big.Free)
	for name, model := range map[string]*llama.Model{"story": story, "135m": big} {
		for _, grid := range []int{64, 256} {
			b.Run(fmt.Sprintf("%s/grid %d", name, grid), func(b *testing.B) {
				o := llama.Options{Slots: 8, ContextTokens: 1024, PrefillChunk: grid}
				for b.Loop() {
					_, prefilled, took := serveCrowd(b, sessions, model, o, scheduler.ShareTenant)
					_, all, tookAll := serveCrowd(b, sessions, model, o, scheduler.ShareNothing)
					b.ReportMetric(100*float64(prefilled)/float64(all), "%-of-tokens")
					b.ReportMetric(100*took.Seconds()/tookAll.Seconds(), "%-of-time")
				}
			})
		}
	}
}

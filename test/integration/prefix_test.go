package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
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
	for _, test := range []struct {
		grid, shared int
		exact        bool
	}{{64, 576, false}, {64, 576, true}, {llama.DefaultPrefillChunk, 556, false}, {llama.DefaultPrefillChunk, 556, true}} {
		o := llama.Options{Slots: 8, ContextTokens: 1024, PrefillChunk: test.grid, Exact: test.exact}
		shared, prefilled, _ := serveCrowd(t, sessions, story, o, scheduler.ShareTenant)
		unshared, all, _ := serveCrowd(t, sessions, story, o, scheduler.ShareNothing)
		for key, end := range unshared {
			if !slices.Equal(shared[key].Tokens, end.Tokens) {
				t.Errorf("%+v: %s yields %v, unshared %v", test, key, shared[key].Tokens, end.Tokens)
			}
		}
		if want := int64(test.shared + sessions*(systemTokens+ownTokens-test.shared)); prefilled != want || all != sessions*(systemTokens+ownTokens) {
			t.Errorf("%+v: %d tokens prefilled, unshared %d; want %d and %d", test, prefilled, all, want, sessions*(systemTokens+ownTokens))
		}
	}
}

// hashed are what turns yielded, each token with the hash of the logits it was chosen from.
type hashed map[scheduler.TurnKey][]uint64

func (h hashed) observe(report *scheduler.Report) {
	for _, token := range report.Tokens {
		h[token.Key] = append(h[token.Key], uint64(token.Token), token.LogitHash)
	}
}

// Prompts with beginnings of any length in common and any of their own, together and one after the other, kept or not: with a grid that may be
// cut anywhere and one that may not, every turn yields the bits it yields cold.
func TestTurnsThatShareAnythingHaveTheBitsOfColdOnes(t *testing.T) {
	for _, grid := range []int{64, 256, 150} {
		t.Run(fmt.Sprintf("grid %d", grid), func(t *testing.T) {
			o := llama.Options{Slots: 4, ContextTokens: 1024, PrefillChunk: grid, Exact: true, Audit: true}
			share := func(_ *llama.Engine, c *scheduler.Config) { c.Sharing = scheduler.ShareTenant }
			warm, cold := newNodeWith(t, story, o, share), newNode(t, story, o, nil)
			rng := rand.New(rand.NewPCG(1, uint64(grid)))
			vocab := story.Facts().VocabTokens
			system := randomPrompt(1, 700, vocab)
			turn := uint64(0)
			got, want := hashed{}, hashed{}
			for range 6 {
				turn++
				for session := range 2 + rng.IntN(6) {
					prompt := slices.Concat(system[:rng.IntN(len(system))], randomPrompt(rng.Uint64(), 1+rng.IntN(200), vocab))
					req := requestTokens(fmt.Sprint("s", session), prompt, 4)
					req.Turn, req.Keep = turn, rng.IntN(2) == 0
					warm.submit(req)
					req.Keep = false
					cold.submit(req)
				}
				warm.run(got.observe)
				cold.run(want.observe)
			}
			for key, bits := range want {
				if !slices.Equal(got[key], bits) {
					t.Errorf("turn %s has other bits than cold", key)
				}
			}
			if tele := warm.Telemetry(); tele.PrefixHitsTotal == 0 || tele.HotHitsTotal == 0 {
				t.Errorf("%d turns shared a beginning and %d were hot; want some", tele.PrefixHitsTotal, tele.HotHitsTotal)
			}
		})
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

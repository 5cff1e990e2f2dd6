package integration

import (
	"slices"
	"testing"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/hotkv/spill"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// spilledTo gives a node the folder, as after a start of its process.
func spilledTo(t testing.TB, dir string) func(*llama.Engine, *scheduler.Config) {
	return func(engine *llama.Engine, c *scheduler.Config) {
		store, err := spill.Open(spill.Options{Dir: dir, BudgetBytes: 1 << 30, Recipes: scheduler.Recipes(engine), Exact: engine.Fingerprints().Exact, Load: engine.LoadState})
		if err != nil {
			t.Fatal(err)
		}
		c.Spill = store
	}
}

// complete runs what is pending, and waits for the disk where a turn does.
func (n *node) complete() map[scheduler.TurnKey]scheduler.Ending {
	n.t.Helper()
	ends, err := n.RunToCompletion(0)
	if err != nil {
		n.t.Fatal(err)
	}
	endings := make(map[scheduler.TurnKey]scheduler.Ending)
	for _, end := range ends {
		endings[end.Key] = end
	}
	return endings
}

func TestAHotTurnAfterARestartEqualsTheSameTurnCold(t *testing.T) {
	for _, exact := range []bool{false, true} {
		dir, o := t.TempDir(), llama.Options{Slots: 2, Exact: exact, PrefillChunk: 64}
		first := requestTokens("s", randomPrompt(5, 300, story.Facts().VocabTokens), 40)
		first.Keep = true
		var second scheduler.Request
		t.Run("before", func(t *testing.T) {
			n := newNodeWith(t, story, o, spilledTo(t, dir))
			n.submit(first)
			second = nextTurn(first, n.complete()[first.Key()], randomPrompt(6, 20, story.Facts().VocabTokens))
		})
		t.Run("after", func(t *testing.T) {
			n := newNodeWith(t, story, o, spilledTo(t, dir))
			n.submit(second)
			hot := n.complete()[second.Key()]
			cached := len(first.Prompt) + first.MaxNewTokens - 1
			if exact {
				cached = 256 // the grid below the first prompt's end
			}
			if hot.Usage.Cached != cached || n.Telemetry().SpillHitsTotal != 1 {
				t.Errorf("exact %t: %d cached and %d hits from disk; want %d and 1", exact, hot.Usage.Cached, n.Telemetry().SpillHitsTotal, cached)
			}
			if cold := alone(t, story, o, second); !slices.Equal(hot.Tokens, cold) {
				t.Errorf("exact %t: hot %v, cold %v", exact, hot.Tokens, cold)
			}
		})
	}
}

// Another number of slots is another layout of the KV.
func TestKVOnDiskOfAnotherRecipeIsNeverLoaded(t *testing.T) {
	dir := t.TempDir()
	first := requestTokens("s", randomPrompt(5, 100, story.Facts().VocabTokens), 4)
	first.Keep = true
	var second scheduler.Request
	t.Run("two slots", func(t *testing.T) {
		n := newNodeWith(t, story, llama.Options{Slots: 2}, spilledTo(t, dir))
		n.submit(first)
		second = nextTurn(first, n.complete()[first.Key()], nil)
	})
	t.Run("three slots", func(t *testing.T) {
		n := newNodeWith(t, story, llama.Options{Slots: 3}, spilledTo(t, dir))
		if lost := n.Telemetry().SpillLostTotal[spill.LostRecipe]; lost != 1 {
			t.Errorf("%d files of another recipe, want 1", lost)
		}
		second.RequireHot = true
		n.submit(second)
		if end := n.complete()[second.Key()]; end.Reason != scheduler.CacheMiss || end.Miss != hotkv.MissNever {
			t.Errorf("ended %s %s, want cache-miss of cause never", end.Reason, end.Miss)
		}
	})
}

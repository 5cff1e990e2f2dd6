package goengine_test

import (
	"errors"
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

var twoAdapters = goengine.Config{Adapters: []string{"a", "b"}, EOGBias: -1000}

func TestAdaptersChangeTheTokensInEveryModeButEcho(t *testing.T) {
	for _, mode := range []goengine.Mode{goengine.Attention, goengine.Window, goengine.Recurrent, goengine.Echo} {
		cfg := twoAdapters
		cfg.Mode = mode
		e := newEngine(t, cfg)
		seen := map[string]bool{}
		for _, name := range []string{"", "a", "b"} {
			e.Bind(0, name)
			s := start(t, e, 0, prompt(1, 20), greedy)
			for s.made < 16 {
				step(t, e, s)
			}
			e.Release(0)
			var key []byte
			for _, token := range text(s.all) {
				key = append(key, byte(token), byte(token>>8))
			}
			seen[string(key)] = true
		}
		want := 3
		if mode == goengine.Echo {
			want = 1
		}
		if len(seen) != want {
			t.Errorf("mode %d: %d different texts, want %d", mode, len(seen), want)
		}
	}
}

func TestStateGoesOnlyIntoASlotOfItsAdapter(t *testing.T) {
	e := newEngine(t, twoAdapters)
	e.Bind(0, "a")
	start(t, e, 0, prompt(1, 20), greedy)
	state, err := e.Save(0, 20)
	if err != nil {
		t.Fatal(err)
	}
	defer state.Free()
	for name, want := range map[string]error{"": scheduler.ErrStateRecipe, "b": scheduler.ErrStateRecipe, "a": nil} {
		e.Bind(1, name)
		if err := e.Restore(1, state); !errors.Is(err, want) {
			t.Errorf("into a slot of %q: %v, want %v", name, err, want)
		}
		e.Release(1)
	}
}

func TestBindingToAnotherAdapterDropsTheSlotsKV(t *testing.T) {
	e := newEngine(t, twoAdapters)
	e.Bind(0, "a")
	start(t, e, 0, prompt(1, 20), greedy)
	e.Bind(0, "a")
	if want := e.Facts().KVBytes(20); e.KVBytes() != want {
		t.Errorf("%d KV bytes after the same binding, want %d", e.KVBytes(), want)
	}
	e.Bind(0, "b")
	if e.KVBytes() != 0 {
		t.Errorf("%d KV bytes after another binding, want none", e.KVBytes())
	}
}

func TestMisuseOfAdaptersPanics(t *testing.T) {
	e := newEngine(t, twoAdapters)
	mustPanic(t, "an adapter that is not there", func() { e.Bind(0, "c") })
	e = newEngine(t, twoAdapters)
	e.Bind(0, "a")
	a, b := start(t, e, 0, prompt(1, 20), greedy), start(t, e, 1, prompt(2, 20), greedy)
	mustPanic(t, "rows of two adapters in one call", func() { e.Decode([]scheduler.Row{a.row(), b.row()}) })
}

package integration

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// adaptedModel is a small model with two adapters.
func adaptedModel(t *testing.T) *llama.Model {
	t.Helper()
	return loadModel(t, "tiny", "f16", llama.LoadOptions{Adapters: []llama.AdapterFile{
		{Name: "bard", Path: testmodel.Adapter(t, "tiny", 1), Scale: 1}, {Name: "clerk", Path: testmodel.Adapter(t, "tiny", 2), Scale: 1},
	}})
}

func with(adapter string, req scheduler.Request) scheduler.Request {
	req.Adapter = adapter
	return req
}

// There is one slot, and whoever has it meanwhile has another adapter and no grammar.
func TestASuspendedSessionGoesOnWithItsAdapterWithinItsGrammar(t *testing.T) {
	model, o := adaptedModel(t), llama.Options{Slots: 1, ContextTokens: 256, PrefillChunk: 32}
	vocab := model.Facts().VocabTokens
	for _, adapter := range []string{"", "bard"} {
		n := newNode(t, model, o, nil)
		bound := ofTenant("big", with(adapter, requestTokens("bound", randomPrompt(1, 40, vocab), 100)))
		bound.Grammar.Text = `root ::= "(" ([a-f] [0-9])*`
		bound.Sampling.Temperature, bound.Sampling.Seed, bound.Sampling.IgnoreEOG = 1, 7, true
		other := ofTenant("small", with("clerk", requestTokens("other", randomPrompt(2, 40, vocab), 8)))
		n.submit(bound)
		ticks := 0
		var suspended []scheduler.TurnKey
		ends := n.run(func(r *scheduler.Report) {
			suspended = append(suspended, r.Suspended...)
			if ticks++; ticks == 60 {
				n.submit(other)
			}
		})
		if !slices.Equal(suspended, []scheduler.TurnKey{bound.Key()}) {
			t.Fatalf("suspended %v", suspended)
		}
		for _, req := range []scheduler.Request{bound, other} {
			if got, want := ends[req.Key()].Tokens, alone(t, model, o, req); !slices.Equal(got, want) {
				t.Errorf("with %q: turn %s yielded %v, alone %v", adapter, req.Key(), got, want)
			}
		}
		if text := textOf(t, model, ends[bound.Key()].Tokens); !regexp.MustCompile(`^\(([a-f][0-9])*[a-f]?$`).MatchString(text) || len(text) < 50 {
			t.Errorf("with %q: the text is %q", adapter, text)
		}
	}
}

func TestACrowdOfMixedAdaptersKeepsToItsGrammars(t *testing.T) {
	model, o := adaptedModel(t), llama.Options{Slots: 6, ContextTokens: 256, PrefillChunk: 32, Exact: true}
	vocab := model.Facts().VocabTokens
	n := newNode(t, model, o, nil)
	grammars := []struct{ text, form string }{
		{`root ::= "(" ([a-f] [0-9])*`, `^\(([a-f][0-9])*[a-f]?$`}, {`root ::= [0-9]+`, `^[0-9]+$`}, {"", `(?s).*`},
	}
	var requests []scheduler.Request
	for i := range 9 {
		req := with([]string{"", "bard", "clerk"}[i%3], requestTokens(fmt.Sprint("s", i), randomPrompt(uint64(i), 20+i, vocab), 24))
		req.Grammar.Text = grammars[i/3].text // each with each adapter
		req.Sampling.Temperature, req.Sampling.Seed = 1, uint64(i+1)
		requests = append(requests, req)
		n.submit(req)
	}
	ends := n.complete()
	for i, req := range requests {
		got := ends[req.Key()].Tokens
		if want := alone(t, model, o, req); !slices.Equal(got, want) {
			t.Errorf("%s with %q yields %v, alone %v", req.Session, req.Adapter, got, want)
		}
		if text := textOf(t, model, got); len(got) != 24 || !regexp.MustCompile(grammars[i/3].form).MatchString(text) {
			t.Errorf("%s with %q: %d tokens, text %q, want 24 that match %s", req.Session, req.Adapter, len(got), text, grammars[i/3].form)
		}
	}
}

func TestKVOnDiskIsHotAfterARestartForItsOwnAdapterOnly(t *testing.T) {
	model, o := adaptedModel(t), llama.Options{Slots: 2, ContextTokens: 256, PrefillChunk: 32}
	vocab := model.Facts().VocabTokens
	for _, test := range []struct {
		from, to string
		cached   int
	}{{"bard", "bard", 108}, {"bard", "clerk", 0}, {"bard", "", 0}, {"", "bard", 0}} {
		dir := t.TempDir()
		first := with(test.from, requestTokens("s", randomPrompt(5, 100, vocab), 9))
		first.Keep, first.Sampling.IgnoreEOG = true, true
		var second scheduler.Request
		t.Run(fmt.Sprintf("of %q", test.from), func(t *testing.T) {
			n := newNodeWith(t, model, o, spilledTo(t, dir))
			n.submit(first)
			second = with(test.to, nextTurn(first, n.complete()[first.Key()], randomPrompt(6, 20, vocab)))
		})
		t.Run(fmt.Sprintf("with %q", test.to), func(t *testing.T) {
			n := newNodeWith(t, model, o, spilledTo(t, dir))
			n.submit(second)
			end := n.complete()[second.Key()]
			if end.Usage.Cached != test.cached || n.Telemetry().SpillHitsTotal != 1 {
				t.Errorf("%d cached and %d read from disk, want %d and 1", end.Usage.Cached, n.Telemetry().SpillHitsTotal, test.cached)
			}
			if misses := n.Telemetry().HotMissesTotal[hotkv.MissRecipe]; (misses == 1) != (test.cached == 0) {
				t.Errorf("%d misses for the recipe", misses)
			}
			if cold := alone(t, model, o, second); !slices.Equal(end.Tokens, cold) {
				t.Errorf("it yields %v, cold %v", end.Tokens, cold)
			}
		})
	}
}

func TestACrowdOfMixedAdaptersWithOneSystemPromptYieldsWhatEachYieldsAlone(t *testing.T) {
	model, o := adaptedModel(t), llama.Options{Slots: 6, ContextTokens: 256, PrefillChunk: 32, Exact: true}
	vocab := model.Facts().VocabTokens
	system := randomPrompt(1, 70, vocab)
	n := newNodeWith(t, model, o, func(_ *llama.Engine, c *scheduler.Config) { c.Sharing = scheduler.ShareTenant })
	var requests []scheduler.Request
	for i := range 9 {
		prompt := slices.Concat(system, randomPrompt(uint64(10+i), 20, vocab))
		req := with([]string{"", "bard", "clerk"}[i%3], requestTokens(fmt.Sprint("s", i), prompt, 12))
		requests = append(requests, req)
		n.submit(req)
	}
	ends := n.complete()
	for _, req := range requests {
		if got, want := ends[req.Key()].Tokens, alone(t, model, o, req); !slices.Equal(got, want) {
			t.Errorf("%s with %q yields %v, alone %v", req.Session, req.Adapter, got, want)
		}
	}
	if tele := n.Telemetry(); tele.PrefixHitsTotal != 6 || tele.PrefixTokensTotal != 6*64 {
		t.Errorf("%d shared %d tokens, want 6 that shared %d: all but the first of each adapter", tele.PrefixHitsTotal, tele.PrefixTokensTotal, 6*64)
	}
}

package llama_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// adaptedModel is a model of a named shape with two adapters, and the first once more at scale 0.
func adaptedModel(t testing.TB, shape, weights string) *llama.Model {
	t.Helper()
	bard, clerk := testmodel.Adapter(t, shape, 1), testmodel.Adapter(t, shape, 2)
	return withAdapters(t, shape, weights, llama.AdapterFile{Name: "bard", Path: bard, Scale: 1}, llama.AdapterFile{Name: "clerk", Path: clerk, Scale: 1},
		llama.AdapterFile{Name: "still", Path: bard, Scale: 0}, llama.AdapterFile{Name: "half", Path: bard, Scale: 0.5})
}

// withAdapters is a model of a named shape with adapters.
func withAdapters(t testing.TB, shape, weights string, adapters ...llama.AdapterFile) *llama.Model {
	t.Helper()
	m, err := llama.Load(context.Background(), llama.FromFile(testmodel.Path(t, shape, weights)), llama.LoadOptions{Adapters: adapters})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Free)
	return m
}

// alone runs one session with an adapter: n tokens. The slot is empty afterwards.
func (r *rig) alone(adapter string, prompt []scheduler.Token, n int) *session {
	r.t.Helper()
	r.Bind(0, adapter)
	return r.generate(0, greedy(), prompt, n)
}

func TestAnAdapterChangesTheTokensAndScaleZeroDoesNot(t *testing.T) {
	for _, shape := range []string{"tiny", "swa", "mamba", "hybrid"} {
		t.Run(shape, func(t *testing.T) {
			r := newRig(t, adaptedModel(t, shape, "f16"), llama.Options{Slots: 2})
			prompt := r.prompt(tale, 40)
			plain := r.alone("", prompt, 24).out
			for _, name := range []string{"still", ""} {
				equal(t, "with "+name, r.alone(name, prompt, 24).out, plain)
			}
			texts := [][]scheduler.Token{plain}
			for _, name := range []string{"bard", "clerk", "half"} {
				out := r.alone(name, prompt, 24).out
				if slices.ContainsFunc(texts, func(other []scheduler.Token) bool { return slices.Equal(out, other) }) {
					t.Errorf("%s gave the tokens of another: %v", name, out)
				}
				texts = append(texts, out)
			}
			equal(t, "without an adapter after others", r.alone("", prompt, 24).out, plain)
			equal(t, "on a model that has no adapters", newRig(t, random(t, shape), llama.Options{Slots: 2}).alone("", prompt, 24).out, plain)
		})
	}
}

// The scheduler makes a call for each adapter: rows of the others' slots lie between those of one.
func TestTokensInACrowdOfMixedAdaptersAreThoseAlone(t *testing.T) {
	for _, kind := range []struct {
		shape, weights string
		exact          bool
		chunk          int // from 64 tokens on, attention evaluates a chunk in another way than decoded rows
	}{
		{"tiny", "f16", false, 16}, {"tiny", "f16", true, 16}, {"tiny", "q8_0", false, 16}, {"tiny", "q8_0", true, 16}, {"tiny", "q4_0", true, 16},
		{"30layers-tiny", "q4_k_m", false, 16}, {"30layers-tiny", "q4_0", false, 16}, {"swa", "f16", true, 16}, {"mamba", "f16", false, 16},
		{"hybrid", "f16", false, 16}, {"tiny", "q8_0", true, 64}, {"tiny", "q4_k_m", true, 64},
	} {
		name := fmt.Sprintf("%s %s by %d", kind.shape, kind.weights, kind.chunk)
		if kind.exact {
			name += " exact"
		}
		t.Run(name, func(t *testing.T) {
			m := adaptedModel(t, kind.shape, kind.weights)
			factory := func(slots int) (scheduler.Engine, func(), error) {
				e, err := llama.NewEngine(m, llama.Options{Slots: slots, ContextTokens: 256, PrefillChunk: kind.chunk, Threads: 1, Exact: kind.exact, Audit: true})
				if err != nil {
					return nil, nil, err
				}
				return e, e.Free, nil
			}
			adapters := []string{"", "bard", "clerk"}
			var requests []scheduler.Request
			sampling := greedy()
			sampling.IgnoreEOG = true
			for i := range 12 {
				requests = append(requests, scheduler.Request{
					Tenant: "t", Session: string(rune('a' + i)), Adapter: adapters[i%3], MaxNewTokens: 16, Sampling: sampling,
					Prompt: promptOf(t, m, strings.Repeat(tale, 3), kind.chunk+50)[i : kind.chunk+4+4*i],
				})
			}
			report, err := scheduler.Sweep(context.Background(), factory, scheduler.SweepOptions{Requests: requests, Levels: []int{1, 3, 6}})
			if err != nil {
				t.Fatal(err)
			}
			if !report.CorruptionFree || kind.exact && !(*report.BitExact && *report.SettingsExact) {
				t.Errorf("corruption free %t, bit exact %t, settings exact %t; report %+v", report.CorruptionFree, *report.BitExact,
					*report.SettingsExact, report)
			}
			if why := report.Unproven(); why != "" {
				t.Error(why)
			}
		})
	}
}

func TestStateOfOneAdapterIsRefusedByASlotOfAnother(t *testing.T) {
	r := newRig(t, adaptedModel(t, "tiny", "f16"), llama.Options{Slots: 2})
	prompt := r.prompt(tale, 20)
	r.Bind(0, "bard")
	s := r.begin(0, greedy(), prompt)
	st := r.save(0)
	defer st.Free()
	for _, name := range []string{"", "clerk", "half"} {
		r.Bind(1, name)
		if err := r.Restore(1, st); !errors.Is(err, scheduler.ErrStateRecipe) {
			t.Errorf("a slot of %q took bard's state: %v", name, err)
		}
	}
	r.Bind(1, "bard")
	r.restore(1, st)
	r.steps(8, s)
	again := &session{slot: 1, kept: 20, index: 1, newest: s.out[0], out: s.out[:1:1]}
	if err := r.Open(1, greedy(), prompt); err != nil {
		t.Fatal(err)
	}
	r.steps(8, again)
	equal(t, "from the restored state", again.out, s.out)
}

func TestStatesOfAllAdaptersAreLoadedEachForItsOwn(t *testing.T) {
	r := newRig(t, adaptedModel(t, "tiny", "f16"), llama.Options{Slots: 2})
	prompt := r.prompt(tale, 20)
	for _, name := range []string{"", "bard", "clerk"} {
		want := r.alone(name, prompt, 8).out
		r.begin(0, greedy(), prompt)
		st := r.save(0)
		loaded, err := r.LoadState(st.Bytes(), bytes.NewReader(st.Blob()))
		st.Free()
		r.Release(0)
		if err != nil {
			t.Fatal(err)
		}
		r.Bind(1, "half")
		if err := r.Restore(1, loaded); !errors.Is(err, scheduler.ErrStateRecipe) {
			t.Errorf("a slot of another adapter took the loaded state of %q: %v", name, err)
		}
		r.Bind(1, name)
		r.restore(1, loaded)
		loaded.Free()
		if err := r.Open(1, greedy(), prompt); err != nil {
			t.Fatal(err)
		}
		again := &session{slot: 1, kept: 20, index: 1, newest: want[0], out: slices.Clone(want[:1])}
		r.steps(7, again)
		r.Release(1)
		equal(t, "with "+name, again.out, want)
	}
}

func TestLoadedStateOfAnotherModelsAdapterIsRefused(t *testing.T) {
	prompt := []scheduler.Token{5, 6, 7, 8}
	var blob []byte
	t.Run("saved with two adapters", func(t *testing.T) {
		r := newRig(t, adaptedModel(t, "tiny", "f16"), llama.Options{Slots: 1})
		r.Bind(0, "bard")
		r.begin(0, greedy(), prompt)
		st := r.save(0)
		blob = slices.Clone(st.Blob())
		st.Free()
	})
	t.Run("loaded without them", func(t *testing.T) {
		m, err := llama.Load(context.Background(), llama.FromFile(testmodel.Path(t, "tiny", "f16")), llama.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Free)
		r := newRig(t, m, llama.Options{Slots: 1})
		if _, err := r.LoadState(int64(len(blob)), bytes.NewReader(blob)); !errors.Is(err, scheduler.ErrStateRecipe) {
			t.Errorf("error is %v, want %v", err, scheduler.ErrStateRecipe)
		}
	})
}

func TestBindingToAnotherAdapterDropsTheSlotsKV(t *testing.T) {
	r := newRig(t, adaptedModel(t, "tiny", "f16"), llama.Options{Slots: 1})
	r.Bind(0, "bard")
	r.begin(0, greedy(), r.prompt(tale, 20))
	r.Bind(0, "bard")
	if n, _, _ := r.Held(0); n != 20 {
		t.Errorf("the slot holds %d tokens after the same binding, want 20", n)
	}
	r.Bind(0, "clerk")
	r.checkEmpty(0)
}

func TestMovedSlotGoesOnWithItsAdapter(t *testing.T) {
	r := newRig(t, adaptedModel(t, "tiny", "f16"), llama.Options{Slots: 2})
	prompt := r.prompt(tale, 20)
	want := r.alone("bard", prompt, 12).out
	r.Bind(1, "bard")
	s := r.begin(1, greedy(), prompt)
	r.steps(4, s)
	r.Bind(0, "")
	if err := r.Move(1, 0); err != nil {
		t.Fatal(err)
	}
	s.slot = 0
	r.steps(7, s)
	equal(t, "moved", s.out, want)
}

func TestEqualAdaptersHaveEqualRecipesWhateverTheirNames(t *testing.T) {
	path, other := testmodel.Adapter(t, "tiny", 1), testmodel.Adapter(t, "tiny", 2)
	m, err := llama.Load(context.Background(), llama.FromFile(testmodel.Path(t, "tiny", "f16")), llama.LoadOptions{
		Adapters: []llama.AdapterFile{{"a", path, 1}, {"b", path, 1}, {"c", path, 2}, {"d", other, 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Free)
	got := newRig(t, m, llama.Options{Slots: 1}).Facts().Adapters
	if got[0].Recipe != got[1].Recipe || got[0].Recipe == got[2].Recipe || got[0].Recipe == got[3].Recipe || got[2].Recipe == got[3].Recipe {
		t.Errorf("adapters are %+v; want a and b of one recipe, c and d each of its own", got)
	}
}

func TestFilesThatAreNoAdapterOfTheModelAreRefused(t *testing.T) {
	good, err := os.ReadFile(testmodel.Adapter(t, "tiny", 1))
	if err != nil {
		t.Fatal(err)
	}
	write := func(data []byte) string {
		path := filepath.Join(t.TempDir(), "adapter.gguf")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	renamed := func(from, to string) string {
		return write(bytes.Replace(good, []byte(from), []byte(to), 1))
	}
	random := append([]byte("GGUF\x03\x00\x00\x00"), make([]byte, 4096)...)
	for i, r := 8, rand.New(rand.NewPCG(1, 2)); i < len(random); i++ {
		random[i] = byte(r.Uint32())
	}
	huge := filepath.Join(t.TempDir(), "huge.gguf")
	tiny, err := testmodel.Lookup("tiny")
	if err != nil {
		t.Fatal(err)
	}
	if err := testmodel.WriteAdapter(huge, tiny, 1, 500); err != nil {
		t.Fatal(err)
	}
	model := testmodel.Path(t, "tiny", "f16")
	tests := map[string]struct{ path, want string }{
		"absent":               {filepath.Join(t.TempDir(), "none.gguf"), "no such file"},
		"a folder":             {t.TempDir(), "is not a file"},
		"empty":                {write(nil), "gguf: byte 0"},
		"random bytes":         {write(random), "gguf: byte"},
		"text":                 {write([]byte("once upon a time, there was an adapter")), "gguf: byte 0"},
		"cut in its header":    {write(good[:200]), "gguf: byte"},
		"cut in its data":      {write(good[:len(good)-100]), "damaged or cut short"},
		"a model":              {model, `it is no adapter: its general.type is "", not "adapter"`},
		"no adapter type":      {renamed("adapter.type", "adapter.typo"), `its adapter.type is ""; only "lora" is served`},
		"another architecture": {testmodel.Adapter(t, "mamba", 1), `it was made for architecture "mamba", the model is "llama"`},
		"another size":         {testmodel.Adapter(t, "30layers-tiny", 1), "which do not fit the model's of [64 64]"},
		"half a pair":          {renamed("attn_q.weight.lora_b", "attn_q.weight.lora_x"), `tensor "blk.0.attn_q.weight.lora_a" is without its other half`},
		"an unknown tensor":    {renamed("blk.0.attn_q.weight.lora_b", "blk.0.attn_q.weight_lora_b"), "blk.0.attn_q.weight"},
		"too large a rank":     {huge, `its rank for tensor "blk.0.attn_q.weight" is 500; the matrix has 64 rows of 64`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := llama.Load(context.Background(), llama.FromFile(model), llama.LoadOptions{Adapters: []llama.AdapterFile{{"bard", tt.path, 1}}})
			if m != nil {
				m.Free()
			}
			var wrong *llama.AdapterError
			if !errors.As(err, &wrong) || wrong.Name != "bard" || !strings.Contains(wrong.Reason, tt.want) {
				t.Errorf("error is %v, want one of adapter bard: %s", err, tt.want)
			}
		})
	}
}

func TestAdapterOfAnotherRankForEachMatrixIsServed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ranks.gguf")
	shape, err := testmodel.Lookup("tiny")
	if err != nil {
		t.Fatal(err)
	}
	if err := testmodel.WriteAdapter(path, shape, 1, 1, 8, 3, 32, 5); err != nil {
		t.Fatal(err)
	}
	m := withAdapters(t, "tiny", "f16", llama.AdapterFile{Name: "ranks", Path: path, Scale: 1})
	r := newRig(t, m, llama.Options{Slots: 4})
	prompt := r.prompt(tale, 20)
	want := r.alone("ranks", prompt, 12).out
	if plain := r.alone("", prompt, 12).out; slices.Equal(plain, want) {
		t.Errorf("with and without the adapter %v", want)
	}
	var all []*session
	for slot := range 4 {
		r.Bind(slot, "ranks")
		all = append(all, r.begin(slot, greedy(), prompt))
	}
	r.steps(11, all...)
	for _, s := range all {
		equal(t, "in a crowd", s.out, want)
	}
}

func TestTwentyAdaptersAreServedSideBySide(t *testing.T) {
	const n = 20
	var files []llama.AdapterFile
	for i := range n {
		files = append(files, llama.AdapterFile{Name: fmt.Sprint("a", i), Path: testmodel.Adapter(t, "tiny", uint64(i+1)), Scale: 1})
	}
	m := withAdapters(t, "tiny", "q8_0", files...)
	r := newRig(t, m, llama.Options{Slots: 8, ContextTokens: 256})
	sched, err := scheduler.New(r.Engine, scheduler.Config{Budget: scheduler.DefaultBudget(r.Facts())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sched.Close)
	sampling := greedy()
	sampling.IgnoreEOG = true
	prompt := r.prompt(tale, 20)
	for _, f := range files {
		if d := sched.Submit(scheduler.Request{Tenant: "t", Session: f.Name, Turn: 1, Adapter: f.Name, Prompt: prompt, MaxNewTokens: 12,
			Sampling: sampling}); !d.Accepted() {
			t.Fatal(d)
		}
	}
	ends, err := sched.RunToCompletion(0)
	if err != nil || len(ends) != n {
		t.Fatalf("%d turns ended, want %d; error %v", len(ends), n, err)
	}
	alone := newRig(t, m, llama.Options{Slots: 1, ContextTokens: 256})
	seen := map[string]string{} // by tokens
	for _, end := range ends {
		want := alone.alone(end.Key.Session, prompt, 12).out
		equal(t, "with "+end.Key.Session, end.Tokens, want)
		if other := seen[fmt.Sprint(want)]; other != "" {
			t.Errorf("%s and %s gave the same tokens", other, end.Key.Session)
		}
		seen[fmt.Sprint(want)] = end.Key.Session
	}
}

func TestAdaptersNeedNamesAndScalesInRange(t *testing.T) {
	path := testmodel.Adapter(t, "tiny", 1)
	for want, files := range map[string][]llama.AdapterFile{
		"adapters need names, and no two the same": {{"a", path, 1}, {"a", path, 2}},
		"scale is 101; use -100 to 100":            {{"a", path, 101}},
	} {
		_, err := llama.Load(context.Background(), llama.FromFile(testmodel.Path(t, "tiny", "f16")), llama.LoadOptions{Adapters: files})
		if want = "adapter a (" + path + ") cannot be used: " + want; err == nil || err.Error() != want {
			t.Errorf("error is %v, want %s", err, want)
		}
	}
}

func TestAdapterWhoseNumbersAreNoneIsRefusedAtStart(t *testing.T) {
	path := testmodel.Adapter(t, "tiny", 1)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := &patch{t: t, data: data}
	copy(p.weights("blk.0.attn_q.weight.lora_b"), []byte{0, 0, 0xc0, 0x7f}) // a NaN
	if err := os.WriteFile(path, p.data, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := llama.Load(context.Background(), llama.FromFile(testmodel.Path(t, "tiny", "f16")), llama.LoadOptions{
		Adapters: []llama.AdapterFile{{"bard", path, 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Free)
	_, err = llama.NewEngine(m, llama.Options{Slots: 1, Threads: 1})
	want := "adapter bard (" + path + ") cannot be used: the first step with it failed: engine: nan-logits: the model's output is not a number"
	if err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
}

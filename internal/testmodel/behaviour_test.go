package testmodel_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"

	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

const promptText = "The 3 old sailors said: \"we saw it\", and the thunder sang again. "

// decoders are the small shapes that generate text.
var decoders = []string{"tiny", "30layers-tiny", "mamba", "swa", "hybrid"}

func load(t *testing.T, path string) (*llama.Model, error) {
	t.Helper()
	llama.SetLogger(slog.New(slog.DiscardHandler), slog.LevelError)
	m, err := llama.Load(context.Background(), llama.FromFile(path), llama.LoadOptions{})
	if err == nil {
		t.Cleanup(m.Free)
	}
	return m, err
}

func engine(t *testing.T, name string) (*llama.Engine, *llama.Model) {
	t.Helper()
	m, err := load(t, testmodel.Path(t, name, "f16"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := llama.NewEngine(m, llama.Options{Slots: 1, ContextTokens: 512, Threads: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Free)
	return e, m
}

// generate returns n greedy tokens after a prompt of at most one chunk.
func generate(t *testing.T, e *llama.Engine, prompt []scheduler.Token, n int) []scheduler.Token {
	t.Helper()
	defer e.Release(0)
	if err := e.Open(0, scheduler.DefaultSampling(), prompt); err != nil {
		t.Fatal(err)
	}
	var out []scheduler.Token
	take := func(r scheduler.Result) {
		if r.Outcome != scheduler.OutcomeToken {
			t.Fatalf("token %d: outcome %d: %v", len(out), r.Outcome, r.Err)
		}
		out = append(out, r.Token)
	}
	take(e.Prefill(scheduler.Chunk{Tokens: prompt, Last: true, Forced: scheduler.NoToken}))
	for len(out) < n {
		i := len(out)
		take(e.Decode([]scheduler.Row{{Pos: len(prompt) + i - 1, Token: out[i-1], Index: i, Forced: scheduler.NoToken}})[0])
	}
	return out
}

func tokenize(t *testing.T, m *llama.Model, text string) []scheduler.Token {
	t.Helper()
	tokens, err := m.Tokenize(text, false)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func TestGreedyTextGoesOnWithoutALoop(t *testing.T) {
	for _, name := range decoders {
		e, m := engine(t, name)
		out := generate(t, e, tokenize(t, m, promptText), 64)
		distinct := make(map[scheduler.Token]bool)
		for i, token := range out {
			distinct[token] = true
			if m.IsControl(token) {
				t.Errorf("%s: token %d is a control token", name, i)
			}
		}
		if len(distinct) < 20 {
			t.Errorf("%s: only %d different tokens of %d: %v", name, len(distinct), len(out), out)
		}
		for period := 1; period <= 8; period++ {
			if slices.Equal(out[64-3*period:64-period], out[64-2*period:]) {
				t.Errorf("%s: ends in a loop of %d: %v", name, period, out)
			}
		}
	}
}

func TestATokenAnywhereInTheContextChangesGreedyText(t *testing.T) {
	for _, name := range decoders {
		e, m := engine(t, name)
		prompt := tokenize(t, m, promptText+promptText)
		want := generate(t, e, prompt, 64)
		changed := 0
		places := []int{1, len(prompt) / 4, len(prompt) / 2, len(prompt) - 2}
		for _, i := range places {
			other := slices.Clone(prompt)
			other[i] = 300 + other[i]%50 // a piece of text
			if other[i] == prompt[i] {
				other[i]++
			}
			if !slices.Equal(generate(t, e, other, 64), want) {
				changed++
			}
		}
		if changed < len(places)-1 {
			t.Errorf("%s: of %d changed tokens only %d changed the text", name, len(places), changed)
		}
	}
}

func TestTextSurvivesTheVocabulary(t *testing.T) {
	for _, name := range decoders {
		m, err := load(t, testmodel.Path(t, name, "f16"))
		if err != nil {
			t.Fatal(err)
		}
		text := promptText + "\n\tünïcode 😀 <|im_end|> ~!"
		tokens := tokenize(t, m, text)
		if got, err := m.Detokenize(tokens, false); err != nil || got != text {
			t.Errorf("%s: %q came back as %q, %v", name, text, got, err)
		}
		if letters := len([]byte(text)); len(tokens) >= letters {
			t.Errorf("%s: %d tokens for %d bytes", name, len(tokens), letters)
		}
	}
}

func TestEncoderAndDamagedFilesDoNotLoad(t *testing.T) {
	if _, err := load(t, testmodel.Path(t, "encoder", "f16")); err == nil {
		t.Error("an encoder was accepted")
	}
	whole := testmodel.Path(t, "tiny", "f16")
	for _, damage := range testmodel.Damages() {
		path := filepath.Join(t.TempDir(), damage.Name+".gguf")
		if err := testmodel.WriteDamaged(whole, path, damage); err != nil {
			t.Fatal(err)
		}
		if _, err := load(t, path); err == nil {
			t.Errorf("%s was accepted", damage.Name)
		}
	}
}

package llama_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// cutInto evaluates a prompt in chunks that end at cuts. It returns all KV and a hash of the last logits; the slot is empty afterwards.
func (r *rig) cutInto(adapter string, prompt []scheduler.Token, cuts []int) (kv []byte, hash uint64) {
	r.t.Helper()
	r.Bind(0, adapter)
	if err := r.Open(0, greedy(), prompt); err != nil {
		r.t.Fatal(err)
	}
	defer r.Release(0)
	from := 0
	var res scheduler.Result
	for _, to := range append(cuts, len(prompt)) {
		res = r.Prefill(scheduler.Chunk{Pos: from, Tokens: prompt[from:to], Last: to == len(prompt), Forced: noToken})
		if res.Err != nil {
			r.t.Fatal(res.Err)
		}
		from = to
	}
	st := r.save(0)
	defer st.Free()
	return bytes.Clone(st.Blob()), res.LogitHash
}

// onGrid cuts at multiples of the grid.
func onGrid(tokens, grid int) (cuts []int) {
	for at := grid; at < tokens; at += grid {
		cuts = append(cuts, at)
	}
	return cuts
}

// randomCuts cut a prompt into chunks of least to most tokens.
func randomCuts(rng *rand.Rand, tokens, least, most int) (cuts []int) {
	for at := 0; tokens-at > most || tokens-at >= 2*least && rng.IntN(4) > 0; {
		at += least + rng.IntN(min(most, tokens-at-least)-least+1)
		cuts = append(cuts, at)
	}
	return cuts
}

func randomTokens(rng *rand.Rand, m *llama.Model, n int) []scheduler.Token {
	tokens := make([]scheduler.Token, n)
	for i := range tokens {
		tokens[i] = scheduler.Token(rng.IntN(m.Facts().VocabTokens))
	}
	return tokens
}

func TestChunksOfLeastChunkTokensAndMoreGiveTheSameBitsWhereverTheyAreCut(t *testing.T) {
	const layers = "30layers-tiny"
	models := map[string]*llama.Model{"story": story(t), "swa": random(t, "swa"), "adapters": adaptedModel(t, "tiny", "q4_0")}
	for _, weights := range testmodel.WeightTypes {
		models[layers+" "+weights] = shared.get(t, layers, weights)
	}
	for name, m := range models {
		for _, exact := range []bool{false, true} {
			if exact && strings.HasPrefix(name, layers) {
				continue // it is of decode calls; that it changes nothing here, smaller models show
			}
			t.Run(fmt.Sprintf("%s, exact %t", name, exact), func(t *testing.T) {
				r := newRig(t, m, llama.Options{Slots: 2, ContextTokens: min(700, m.Facts().ContextTokens), Exact: exact, Audit: true})
				f := r.Facts()
				if f.LeastChunk != 64 {
					t.Fatalf("the least chunk is %d, want 64", f.LeastChunk)
				}
				adapters := []string{""}
				if name == "adapters" {
					adapters = append(adapters, "bard")
				}
				for _, adapter := range adapters {
					rng := rand.New(rand.NewPCG(1, 2))
					prompt := randomTokens(rng, m, min(600, f.ContextTokens-10))
					kv, hash := r.cutInto(adapter, prompt, onGrid(len(prompt), f.PrefillChunk))
					for range 2 {
						cuts := randomCuts(rng, len(prompt), f.LeastChunk, f.PrefillChunk)
						if got, gotHash := r.cutInto(adapter, prompt, cuts); !bytes.Equal(got, kv) || gotHash != hash {
							t.Errorf("adapter %q: KV or logits differ where the prompt is cut at %v", adapter, cuts)
						}
					}
				}
			})
		}
	}
}

func TestPromptsAreCutOnTheGridWhereTheirBitsDependOnIt(t *testing.T) {
	fast, err := llama.Load(context.Background(), llama.FromFile(testmodel.Path(t, "30layers-tiny", "q4_k_m")), llama.LoadOptions{Fast: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fast.Free)
	for name, c := range map[string]struct {
		m *llama.Model
		o llama.Options
	}{
		"kernels that take rows by fours":     {fast, llama.Options{}},
		"recurrent layers":                    {random(t, "mamba"), llama.Options{}},
		"recurrent layers and others":         {random(t, "hybrid"), llama.Options{}},
		"chunks that cannot be cut":           {story(t), llama.Options{PrefillChunk: 130}},
		"chunks that are cut into calls":      {story(t), llama.Options{BatchTokens: 200}},
		"a context too short for such chunks": {story(t), llama.Options{ContextTokens: 100}},
	} {
		c.o.Slots = 1
		if f := newRig(t, c.m, c.o).Facts(); f.LeastChunk != 0 {
			t.Errorf("%s: the least chunk is %d, want none", name, f.LeastChunk)
		}
	}
}

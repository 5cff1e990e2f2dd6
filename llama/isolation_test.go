package llama_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/meshnet/node/internal/gguf"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/models"
	"github.com/meshnet/node/scheduler"
)

// llama.cpp#14097: a decode call that fails with four sessions in it.
func TestFailingRowEndsOnlyItsOwnSession(t *testing.T) {
	for _, exact := range []bool{false, true} {
		for victim := range 4 {
			t.Run(fmt.Sprint("exact ", exact, " slot ", victim), func(t *testing.T) {
				failOneOfFour(t, newRig(t, story(t), llama.Options{Slots: 4, ContextTokens: 256, Exact: exact}), victim)
			})
		}
	}
}

func failOneOfFour(t *testing.T, r *rig, victim int) {
	t.Helper()
	want := crowd(r, []int{0, 1, 2, 3}, greedy(), 16)
	var sessions, others []*session
	for slot := range 4 {
		s := r.begin(slot, greedy(), crowdPrompt(r, slot))
		sessions = append(sessions, s)
		if slot != victim {
			others = append(others, s)
		}
	}
	r.steps(5, sessions...)
	r.Skew(victim, 1) // llama.cpp refuses a row that leaves a position out, and with it the whole call
	sessions[victim].kept++
	for i, res := range r.decode(sessions...) {
		if i != victim {
			sessions[i].take(t, res)
			sessions[i].kept++
		} else if res.Outcome != scheduler.OutcomeError || res.Err.Cause != scheduler.CauseFatal {
			t.Fatalf("the victim: outcome %d, error %v", res.Outcome, res.Err)
		}
	}
	if held, _, last := r.Held(victim); held != 0 || last != -1 {
		t.Errorf("the victim's slot holds %d tokens, to position %d; want none", held, last)
	}
	r.Release(victim)
	next := r.begin(victim, greedy(), crowdPrompt(r, victim))
	others = append(others, next)
	r.steps(9, others...)
	for _, s := range others {
		equal(t, fmt.Sprintf("tokens of slot %d", s.slot), s.out, want[s.slot].out[:len(s.out)])
	}
}

// The scale of one block of the output matrix is not a number: so is one logit of every row.
func TestNaNLogitsAreTheRowsError(t *testing.T) {
	p := &patch{t: t, data: models.Story()}
	const token, blocksInRow, blockBytes = 444, 4, 34 // Q8_0: a scale and 32 weights
	putF16(p.weights("token_embd.weight")[token*blocksInRow*blockBytes:], 0, nanF16)
	r := newRig(t, loadBytes(t, p.data), llama.Options{Slots: 2, ContextTokens: 256, Audit: true})
	prompt := r.prompt(tale, 20)
	check := func(what string, res scheduler.Result) {
		t.Helper()
		if res.Outcome != scheduler.OutcomeError || res.Err.Cause != scheduler.CauseNaN {
			t.Errorf("%s: outcome %d, error %v", what, res.Outcome, res.Err)
		}
	}
	for name, sampling := range map[string]scheduler.Sampling{"greedy": greedy(), "warm": warm(1)} {
		if err := r.Open(0, sampling, prompt); err != nil {
			t.Fatal(err)
		}
		check(name+", prefill", r.prefill(0, 0, prompt, true, noToken))
		for _, forced := range []scheduler.Token{noToken, 9} {
			r.prefill(0, 0, prompt, false, noToken)
			row := scheduler.Row{Slot: 0, Pos: len(prompt), Token: 7, Index: 1, Forced: forced}
			check(fmt.Sprint(name, ", decode, forced ", forced), r.Decode([]scheduler.Row{row})[0])
		}
		r.Release(0)
	}
}

// poisoned is a token whose embedding holds a NaN, in a model that is otherwise sound: the byte 0xF5, which no text holds.
const poisoned = 3 + 0xf5

func poisonedModel(t *testing.T, shape string) *llama.Model {
	t.Helper()
	const width, vocabulary = 64, 512
	p := shapedModel(t, shape)
	// The output matrix is a copy of the sound embeddings: the NaN is in the input only.
	p.addTensor("output.weight", width, vocabulary, bytes.Clone(p.weights("token_embd.weight")))
	putF16(p.weights("token_embd.weight"), poisoned*width+3, nanF16)
	return loadBytes(t, p.data)
}

func TestNaNInOneRowLeavesTheOthersTheirTokens(t *testing.T) {
	r := newRig(t, poisonedModel(t, "tiny"), llama.Options{Slots: 4, ContextTokens: 256})
	want := crowd(r, []int{0, 1, 2, 3}, greedy(), 12)
	var sessions []*session
	for slot := range 4 {
		sessions = append(sessions, r.begin(slot, greedy(), crowdPrompt(r, slot)))
	}
	victim := sessions[1]
	victim.newest = poisoned
	for i, res := range r.decode(sessions...) {
		if i != 1 {
			sessions[i].take(t, res)
			sessions[i].kept++
		} else if res.Outcome != scheduler.OutcomeError || res.Err.Cause != scheduler.CauseNaN {
			t.Fatalf("the victim: outcome %d, error %v", res.Outcome, res.Err)
		}
	}
	r.Release(1)
	others := []*session{sessions[0], sessions[2], sessions[3]}
	r.steps(10, others...)
	for _, s := range others {
		equal(t, fmt.Sprintf("tokens of slot %d", s.slot), s.out, want[s.slot].out)
	}
}

// A NaN in a cell that attention masks is still a NaN when it is multiplied by zero.
func TestSlotAfterNaNIsSoundForTheNextSession(t *testing.T) {
	for _, shape := range []string{"tiny", "swa", "mamba", "hybrid"} {
		t.Run(shape, func(t *testing.T) {
			r := newRig(t, poisonedModel(t, shape), llama.Options{Slots: 2, ContextTokens: 512, Audit: true})
			for _, length := range []int{3, 40, 200, 400} {
				prompt := r.prompt(tale, length)
				want := r.generate(1, greedy(), prompt, 8)
				poison(r, 0, 300)
				got := r.generate(0, greedy(), prompt, 8)
				equal(t, fmt.Sprintf("tokens of a prompt of %d after a NaN", length), got.out, want.out)
				equal(t, fmt.Sprintf("logit hashes of a prompt of %d after a NaN", length), got.hashes, want.hashes)
			}
		})
	}
}

// poison runs a session whose KV is not numbers, which ends it.
func poison(r *rig, slot, length int) {
	r.t.Helper()
	bad := r.prompt(tale, length)
	bad[1], bad[length/2], bad[length-1] = poisoned, poisoned, poisoned
	if err := r.Open(slot, greedy(), bad); err != nil {
		r.t.Fatal(err)
	}
	if res := r.prefill(slot, 0, bad, true, noToken); res.Err == nil || res.Err.Cause != scheduler.CauseNaN {
		r.t.Fatalf("outcome %d, error %v", res.Outcome, res.Err)
	}
	if held, _, last := r.Held(slot); held != 0 || last != -1 {
		r.t.Errorf("the slot holds %d tokens, to position %d; want none", held, last)
	}
	r.Release(slot)
}

// suppressingModel is the story model, with the metadata that forbids its first n tokens.
func suppressingModel(t *testing.T, n int) *llama.Model {
	t.Helper()
	pair := u32(text(nil, "tokenizer.ggml.suppress_tokens"), uint32(gguf.Array))
	pair = u64(u32(pair, uint32(gguf.Int32)), uint64(n))
	for token := range n {
		pair = u32(pair, uint32(token))
	}
	p := &patch{t: t, data: models.Story()}
	p.add(pair, nil)
	return loadBytes(t, p.data)
}

func TestRowWithEveryTokenMaskedIsASamplerError(t *testing.T) {
	r := newRig(t, suppressingModel(t, 1024), llama.Options{Slots: 1, ContextTokens: 256})
	topK, penalised := warm(1), greedy()
	topK.TopK, topK.TopP, topK.MinP = 5, 0.5, 0.1
	penalised.RepeatPenalty = 1.5
	for name, sampling := range map[string]scheduler.Sampling{"greedy": greedy(), "warm": warm(1), "filtered": topK, "penalised": penalised} {
		prompt := r.prompt(tale, 20)
		if err := r.Open(0, sampling, prompt); err != nil {
			t.Fatal(err)
		}
		if res := r.prefill(0, 0, prompt, true, noToken); res.Err == nil || res.Err.Cause != scheduler.CauseSampler {
			t.Errorf("%s: got %+v, error %v", name, res, res.Err)
		}
		r.Release(0)
	}
}

func TestTokensTheModelForbidsAreNeverChosen(t *testing.T) {
	const forbidden = 1000
	r := newRig(t, suppressingModel(t, forbidden), llama.Options{Slots: 1, ContextTokens: 256})
	for _, sampling := range []scheduler.Sampling{greedy(), warm(3)} {
		for i, token := range r.generate(0, sampling, r.prompt(tale, 20), 30).out {
			if token < forbidden {
				t.Errorf("token %d is %d", i, token)
			}
		}
	}
}

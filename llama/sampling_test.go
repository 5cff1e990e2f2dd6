package llama_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

func TestATemperatureOfAlmostZeroTakesTheLikeliestToken(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
	prompt := r.prompt("Once upon a time", 5)
	want := r.generate(0, greedy(), prompt, 20)
	for _, temperature := range []float64{1e-300, 1e-45, 1e-39, 1e-38, 1e-30, 1e-9} {
		almost := warm(1)
		almost.Temperature = temperature
		equal(t, fmt.Sprintf("tokens at temperature %g", temperature), r.generate(0, almost, prompt, 20).out, want.out)
	}
}

func TestARepeatPenaltyOfAlmostZeroLeavesATokenToDraw(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
	for _, divisor := range []float64{1e-300, 1e-40, 1e-30} {
		for _, temperature := range []float64{1e-40, 1} {
			s := warm(1)
			s.RepeatPenalty, s.Temperature = divisor, temperature
			if got := len(r.generate(0, s, r.prompt("Once upon a time", 5), 20).out); got != 20 {
				t.Errorf("penalty %g, temperature %g: %d tokens", divisor, temperature, got)
			}
		}
	}
}

// penalised is sampling with a temperature and a memory.
func penalised(seed uint64) scheduler.Sampling {
	s := warm(seed)
	s.RepeatPenalty, s.PresencePenalty, s.FrequencyPenalty, s.PenaltyLastN = 1.3, 0.2, 0.3, 32
	return s
}

func TestDrawsDependOnSeedAndIndexAlone(t *testing.T) {
	for name, sampling := range map[string]scheduler.Sampling{"warm": warm(42), "penalised": penalised(42)} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, story(t), llama.Options{Slots: 4, ContextTokens: 256, Exact: true, Audit: true})
			slots := []int{0, 1, 2, 3}
			for _, s := range crowd(r, slots, sampling, 20) {
				alone := r.generate(0, sampling, crowdPrompt(r, s.slot), 20)
				equal(t, fmt.Sprintf("tokens of slot %d", s.slot), s.out, alone.out)
			}
			want := r.generate(0, sampling, crowdPrompt(r, 1), 20)
			moved := r.begin(0, sampling, crowdPrompt(r, 1))
			r.steps(7, moved)
			if err := r.Move(0, 3); err != nil {
				t.Fatal(err)
			}
			moved.slot = 3
			r.steps(12, moved)
			r.Release(3)
			equal(t, "tokens after a move", moved.out, want.out)

			resumed := resume(r, sampling, want, 7)
			r.steps(12, resumed)
			equal(t, "tokens after a restore", append(want.out[:8:8], resumed.out...), want.out)
		})
	}
}

// resume replays a generation's first steps in slot 0 and carries it on in slot 2, as another node would: with the state and a new sampler.
func resume(r *rig, sampling scheduler.Sampling, of *session, steps int) *session {
	r.t.Helper()
	prompt := crowdPrompt(r, 1)
	s := r.begin(0, sampling, prompt)
	r.steps(steps, s)
	st := r.save(0)
	defer st.Free()
	r.Release(0)
	r.restore(2, st)
	if err := r.Open(2, sampling, slices.Concat(prompt, of.out[:steps+1])); err != nil {
		r.t.Fatal(err)
	}
	return &session{slot: 2, kept: s.kept, newest: s.newest, index: s.index}
}

func TestSeedsDiffer(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
	seen := make(map[string]uint64)
	for _, seed := range []uint64{0, 1, 2, 1 << 32, 1 << 63, math.MaxUint64} {
		text := fmt.Sprint(r.generate(0, warm(seed), r.prompt(tale, 20), 24).out)
		if other, ok := seen[text]; ok {
			t.Errorf("seeds %d and %d draw the same tokens", seed, other)
		}
		seen[text] = seed
	}
}

func TestFiltersThatLeaveOneTokenAreGreedy(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
	want := r.generate(0, greedy(), r.prompt(tale, 20), 24).out
	topK, topP, minP, cold, neutral := warm(9), warm(9), warm(9), warm(9), greedy()
	topK.TopK = 1
	topP.TopP = 1e-6
	minP.MinP = 1
	cold.Temperature = 1e-4
	neutral.PenaltyLastN, neutral.RepeatPenalty = 0, 2 // looks back at nothing
	for name, sampling := range map[string]scheduler.Sampling{"top_k 1": topK, "tiny top_p": topP, "min_p 1": minP, "cold": cold, "no look back": neutral} {
		equal(t, name, r.generate(0, sampling, r.prompt(tale, 20), 24).out, want)
	}
}

// first is the first token of a prompt, under a sampler that has seen history.
func first(r *rig, sampling scheduler.Sampling, history []scheduler.Token) scheduler.Token {
	r.t.Helper()
	if err := r.Open(0, sampling, history); err != nil {
		r.t.Fatal(err)
	}
	res := r.prefill(0, 0, r.prompt(tale, 20), true, noToken)
	if res.Outcome != scheduler.OutcomeToken {
		r.t.Fatalf("outcome %d, error %v", res.Outcome, res.Err)
	}
	r.Release(0)
	return res.Token
}

func TestPenaltiesPushAwayWhatTheHistoryHolds(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
	best := first(r, greedy(), nil)
	often := slices.Repeat([]scheduler.Token{best}, 10)
	frequency, presence, repeat := greedy(), greedy(), greedy()
	frequency.FrequencyPenalty = 2
	presence.PresencePenalty = 2
	repeat.RepeatPenalty = 2
	for name, sampling := range map[string]scheduler.Sampling{"frequency": frequency, "repeat": repeat} {
		if got := first(r, sampling, often); got == best {
			t.Errorf("%s: the token is still chosen", name)
		}
	}
	// Ten times count ten times for frequency, and once for presence.
	frequency.FrequencyPenalty = 0.2
	if a, b := first(r, presence, often), first(r, frequency, often); a != b {
		t.Errorf("ten times 0.2 gives %d, once 2 gives %d", b, a)
	}
	// What lies further back than the penalties look does not count.
	old := append(often, 20, 21, 22, 23, 24)
	frequency.FrequencyPenalty, frequency.PenaltyLastN = 2, 5
	if got := first(r, frequency, old); got != best {
		t.Errorf("a token out of the penalties' reach is pushed away: got %d, want %d", got, best)
	}
	frequency.PenaltyLastN = 6
	frequency.FrequencyPenalty, frequency.PresencePenalty = 2, 2
	frequency.RepeatPenalty = 2
	if got := first(r, frequency, old); got == best {
		t.Error("a token just within the penalties' reach is still chosen")
	}
}

// llama.cpp#21203: ignoring the end of generation.
func TestIgnoredEndOfGenerationNeverComes(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
	isEnd := r.model.IsEOG
	for name, sampling := range map[string]scheduler.Sampling{"greedy": greedy(), "warm": warm(5), "penalised": penalised(5)} {
		if out := r.generate(0, sampling, r.prompt(tale, 20), 64).out; !slices.ContainsFunc(out, isEnd) {
			t.Errorf("%s: no end in 64 tokens; the test shows nothing", name)
		}
		sampling.IgnoreEOG = true
		out := r.generate(0, sampling, r.prompt(tale, 20), 64).out
		if len(out) != 64 || slices.ContainsFunc(out, isEnd) {
			t.Errorf("%s: %d tokens, or an end among them: %v", name, len(out), out)
		}
	}
}

// drawer draws again and again for the row after a prompt.
type drawer struct {
	*rig
	kept int
	gap  float64 // between the two best logits
	best scheduler.Token
}

func newDrawer(t *testing.T) *drawer {
	t.Helper()
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256, Audit: true})
	prompt := r.prompt(tale, 24)
	d := &drawer{rig: r, kept: len(prompt)}
	r.prefill(0, 0, prompt, false, noToken)
	res := d.draw(greedy(), 0)
	d.gap, d.best = float64(res.Gap), res.Token
	return d
}

func (d *drawer) draw(sampling scheduler.Sampling, index int, history ...scheduler.Token) scheduler.Result {
	d.t.Helper()
	if err := d.Open(0, sampling, history); err != nil {
		d.t.Fatal(err)
	}
	const input = 261
	res := d.Decode([]scheduler.Row{{Slot: 0, Pos: d.kept, Token: input, Index: index, Forced: noToken}})[0]
	if res.Outcome != scheduler.OutcomeToken {
		d.t.Fatalf("outcome %d, error %v", res.Outcome, res.Err)
	}
	if err := d.Trim(0, d.kept); err != nil {
		d.t.Fatal(err)
	}
	return res
}

// With top_k 2 the chance of the best token follows from the gap between the two best logits. The draws are fixed by
// their seeds: this test gives the same numbers at every run on the same hardware.
func TestDrawsFollowTheSoftmax(t *testing.T) {
	const draws, mostDeviations = 1500, 3.5
	d := newDrawer(t)
	for _, temperature := range []float64{0.5, 1, 2} {
		chance := 1 / (1 + math.Exp(-d.gap/temperature))
		if chance > 0.999 {
			t.Fatalf("the best token has a chance of %g at temperature %g: the test shows nothing", chance, temperature)
		}
		for name, at := range map[string]func(i int) (seed uint64, index int){
			"seeds":   func(i int) (uint64, int) { return uint64(i), 3 },
			"indices": func(i int) (uint64, int) { return 77, i },
		} {
			hits, pairs := 0, 0
			previous := false
			for i := range draws {
				seed, index := at(i)
				s := warm(seed)
				s.Temperature, s.TopK = temperature, 2
				hit := d.draw(s, index).Token == d.best
				if hit {
					hits++
				}
				if i > 0 && hit == previous {
					pairs++
				}
				previous = hit
			}
			within(t, fmt.Sprintf("%s, temperature %g: best token", name, temperature), hits, draws, chance, mostDeviations)
			same := chance*chance + (1-chance)*(1-chance)
			within(t, fmt.Sprintf("%s, temperature %g: equal neighbours", name, temperature), pairs, draws-1, same, mostDeviations)
		}
	}
}

func within(t *testing.T, what string, got, of int, chance, mostDeviations float64) {
	t.Helper()
	mean, deviation := float64(of)*chance, math.Sqrt(float64(of)*chance*(1-chance))
	if off := math.Abs(float64(got)-mean) / deviation; off > mostDeviations {
		t.Errorf("%s: %d of %d, %.1f expected: %.1f standard deviations off", what, got, of, mean, off)
	}
}

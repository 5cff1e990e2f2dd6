package integration

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// llama.cpp#7052
func TestOnePromptInAnyCrowdYieldsOneText(t *testing.T) {
	baseline := alone(t, story, llama.Options{Slots: 1}, request(t, "s", "Once upon a time", 120))
	for _, crowd := range []int{1, 2, 4, 8} {
		n := newNode(t, story, llama.Options{Slots: crowd}, nil)
		for i := range crowd {
			n.submit(request(t, fmt.Sprint("s", i), "Once upon a time", 120))
		}
		for key, end := range n.run(nil) {
			if !slices.Equal(end.Tokens, baseline) {
				t.Errorf("crowd of %d: %s yields %v, alone %v", crowd, key, end.Tokens, baseline)
			}
		}
	}
}

// ollama#17475
func TestTheNextHolderOfACancelledSessionsSlotIsUndisturbed(t *testing.T) {
	victim := request(t, "victim", "Long ago, a brave robot", 60)
	baseline := alone(t, story, llama.Options{Slots: 1}, victim)
	n := newNode(t, story, llama.Options{Slots: 1}, nil)
	for round := range 20 {
		donor := request(t, "donor", "There once was a shy owl", 100)
		donor.Turn = uint64(round + 1)
		victim.Turn = uint64(round + 1)
		n.submit(donor)
		n.submit(victim)
		endings := n.run(func(r *scheduler.Report) {
			for _, token := range r.Tokens {
				if token.Key == donor.Key() && token.Index == 3+round {
					if _, err := n.Cancel(donor.Key(), scheduler.Cancelled, "", ""); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
		if end := endings[donor.Key()]; end.Reason != scheduler.Cancelled || len(end.Tokens) != 4+round {
			t.Fatalf("round %d: the donor ended %s with %d tokens", round, end.Reason, len(end.Tokens))
		}
		if end := endings[victim.Key()]; !slices.Equal(end.Tokens, baseline) {
			t.Fatalf("round %d: the victim yields %v, alone %v", round, end.Tokens, baseline)
		}
	}
}

// model_server#4428
func TestDroppingOneOfSixteenChangesNoneOfTheOthers(t *testing.T) {
	const sessions, rounds = 16, 50
	requests := make([]scheduler.Request, sessions)
	baselines := make([][]scheduler.Token, sessions)
	for i := range requests {
		requests[i] = requestTokens(fmt.Sprint("s", i), randomPrompt(uint64(i), 4+i, story.Facts().VocabTokens), 12)
		baselines[i] = alone(t, story, llama.Options{Slots: 1}, requests[i])
	}
	n := newNode(t, story, llama.Options{Slots: sessions}, nil)
	for round := range rounds {
		dropped := round % sessions
		for i := range requests {
			requests[i].Turn = uint64(round + 1)
			n.submit(requests[i])
		}
		endings := n.run(func(r *scheduler.Report) {
			for _, token := range r.Tokens {
				if token.Key == requests[dropped].Key() && token.Index == 2 {
					if _, err := n.Cancel(token.Key, scheduler.Cancelled, "", ""); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
		for i, req := range requests {
			end := endings[req.Key()]
			if i == dropped {
				if end.Reason != scheduler.Cancelled || len(end.Tokens) != 3 {
					t.Fatalf("round %d: the dropped one ended %s with %d tokens", round, end.Reason, len(end.Tokens))
				}
			} else if !slices.Equal(end.Tokens, baselines[i]) {
				t.Fatalf("round %d: session %d yields %v, alone %v", round, i, end.Tokens, baselines[i])
			}
		}
	}
}

func TestASampledTurnIsTheSameAloneInACrowdAndTakenOver(t *testing.T) {
	sampled := request(t, "sampled", "The small fox", 80)
	sampled.Sampling = everySampler(sampled.Sampling)
	o := llama.Options{Slots: 8, Exact: true}
	baseline := alone(t, story, o, sampled)

	if plain := alone(t, story, o, request(t, "sampled", "The small fox", 80)); slices.Equal(plain, baseline) {
		t.Fatal("the samplers change nothing: the test shows nothing")
	}
	n := newNode(t, story, o, nil)
	for i := range 7 {
		n.submit(requestTokens(fmt.Sprint("other", i), randomPrompt(uint64(i), 30*i+5, story.Facts().VocabTokens), 60+i))
	}
	n.submit(sampled)
	if end := n.run(nil)[sampled.Key()]; !slices.Equal(end.Tokens, baseline) {
		t.Errorf("in a crowd %v, alone %v", end.Tokens, baseline)
	}

	for _, known := range []int{1, 33, 79} {
		resumed := sampled
		resumed.Replay = baseline[:known]
		fresh := newNode(t, story, o, nil)
		fresh.submit(resumed)
		end := fresh.run(nil)[resumed.Key()]
		if !slices.Equal(end.Tokens, baseline) || end.Usage.New != len(baseline)-known || end.Usage.Replayed != known {
			t.Errorf("taken over after %d tokens: %v (%+v), alone %v", known, end.Tokens, end.Usage, baseline)
		}
	}
}

// everySampler turns on whatever has a memory, a filter or a random choice.
func everySampler(s scheduler.Sampling) scheduler.Sampling {
	s.Temperature, s.TopK, s.TypicalP, s.TopP, s.MinP, s.Seed = 1.2, 200, 0.98, 0.95, 0.001, 42
	s.RepeatPenalty, s.PresencePenalty, s.FrequencyPenalty, s.PenaltyLastN = 1.1, 0.1, 0.1, 48
	s.DRYMultiplier, s.DRYAllowedLength, s.DRYPenaltyLastN = 0.8, 1, 128
	s.XTCProbability, s.XTCThreshold = 0.5, 0.1
	s.LogitBias = []scheduler.Bias{{Token: 300, Bias: 2}, {Token: 301, Bias: math.Inf(-1)}}
	s.Probs = 5
	return s
}

// sweepRequests are n prompts of lengths up to longest.
func sweepRequests(n, longest, newTokens, vocab int) []scheduler.Request {
	requests := make([]scheduler.Request, n)
	for i := range requests {
		requests[i] = requestTokens(fmt.Sprint("s", i), randomPrompt(uint64(100+i), max(1, longest*(i+1)/n), vocab), newTokens)
	}
	return requests
}

func factory(t *testing.T, model *llama.Model, o llama.Options) scheduler.EngineFactory {
	t.Helper()
	o.Threads, o.Audit = 1, true
	return func(level int) (scheduler.Engine, func(), error) {
		o := o
		o.Slots = level
		engine, err := llama.NewEngine(model, o)
		if err != nil {
			return nil, nil, err
		}
		return engine, engine.Free, nil
	}
}

func TestTheSweepFindsTheStoryModelExact(t *testing.T) {
	for _, exact := range []bool{false, true} {
		report, err := scheduler.Sweep(context.Background(), factory(t, story, llama.Options{Exact: exact, ContextTokens: 1024}),
			scheduler.SweepOptions{Requests: sweepRequests(8, 600, 24, story.Facts().VocabTokens)})
		if err != nil {
			t.Fatal(err)
		}
		if !report.CorruptionFree {
			t.Errorf("exact %t: corrupt: %+v", exact, report.Settings)
		}
		if exact && (report.BitExact == nil || !*report.BitExact) {
			t.Errorf("not bit-exact: %+v", report.Settings)
		}
		if exact && (report.SettingsExact == nil || !*report.SettingsExact) {
			t.Errorf("kept KV or a cancelled neighbour changes bits: %+v", report.SettingDifferences)
		}
	}
}

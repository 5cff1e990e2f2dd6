package integration

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/schemas"
)

// Tokens of the model that the effects are shown with: ordinary ones, without a space. They are taken for what they are, whatever
// the model thinks of them: duel gives two of them the probabilities that it wants.
const (
	tokenEnd  = 2                // ends a text
	tokenByte = 3 + 0xc3         // a byte that is no character
	best      = int64(302)       // twice in duelPrompt, the last time four tokens before its end
	second    = int64(304)       // nowhere in it
	lead      = 1.0              // of best over second, by the logarithm of their probabilities
	shareBest = 0.73105857863000 // 1 / (1 + e^−lead)
)

// duelPrompt ends as it went on before: 320 321, and then best.
var duelPrompt = []int64{310, best, 311, 312, 320, 321, best, 313, 320, 321}

// ask is a small greedy request, of which change makes what it wants.
func (r *optionRig) ask(change func(*client.Request, *schemas.Sampling)) *followed {
	r.Helper()
	s := schemas.DefaultSampling()
	req := client.Request{Tenant: "t", Session: r.session(), Turn: 1, Model: "m", TokenIDs: duelPrompt, MaxNewTokens: 1, Sampling: &s, Deadline: time.Minute}
	change(&req, &s)
	return follow(r.T, r.client, req, nil)
}

// forced biases one token so that it is chosen.
func forced(token int64) []schemas.TokenBias { return []schemas.TokenBias{{TokenID: token, Bias: 100}} }

// duel are biases under which only two tokens can come after duelPrompt: best is ahead by lead.
func (r *optionRig) duel() []schemas.TokenBias {
	r.Helper()
	const above = 50 // all the others
	logProb := func(token int64) float64 {
		got := r.ask(func(_ *client.Request, s *schemas.Sampling) { s.LogitBias, s.Probs = forced(token), 1 })
		if !slices.Equal(got.TokenIDs, []int64{token}) {
			r.Fatalf("a bias of 100 for token %d gives %v", token, got.TokenIDs)
		}
		return got.Probs[0].LogProb
	}
	return []schemas.TokenBias{{TokenID: best, Bias: above + lead - logProb(best)}, {TokenID: second, Bias: above - logProb(second)}}
}

// duelist changes the sampling of a duel.
type duelist func(*schemas.Sampling)

// wins fails unless the greedy choice in a duel is this token.
func (r *optionRig) wins(token int64, change duelist) {
	r.Helper()
	biases := r.duel()
	got := r.ask(func(_ *client.Request, s *schemas.Sampling) {
		s.LogitBias = biases
		change(s)
	})
	if !slices.Equal(got.TokenIDs, []int64{token}) {
		r.Errorf("chosen is %v, want %d", got.TokenIDs, token)
	}
}

// come fails unless these tokens are what many seeds draw in a duel.
func (r *optionRig) come(change duelist, tokens ...int64) {
	r.Helper()
	const seeds = 16
	biases := r.duel()
	var drawn []int64
	for seed := range uint64(seeds) {
		got := r.ask(func(_ *client.Request, s *schemas.Sampling) {
			s.LogitBias, s.Temperature, s.Seed = biases, 1, &seed
			change(s)
		})
		drawn = append(drawn, got.TokenIDs...)
	}
	slices.Sort(drawn)
	if drawn = slices.Compact(drawn); !slices.Equal(drawn, tokens) {
		r.Errorf("drawn are %v, want %v", drawn, tokens)
	}
}

// numberEffects are on either side of where each option changes what comes.
var numberEffects = map[string]func(*optionRig){
	"temperature": func(r *optionRig) {
		r.come(func(s *schemas.Sampling) { s.Temperature = 0 }, best)
		r.come(func(s *schemas.Sampling) { s.Temperature = 0.05 }, best) // e^−20
		r.come(func(s *schemas.Sampling) { s.Temperature = 2 }, best, second)
	},
	"top_k": func(r *optionRig) {
		r.come(func(s *schemas.Sampling) { s.TopK = 1 }, best)
		r.come(func(s *schemas.Sampling) { s.TopK = 2 }, best, second)
	},
	"top_p": func(r *optionRig) {
		r.come(func(s *schemas.Sampling) { s.TopP = shareBest - 0.001 }, best)
		r.come(func(s *schemas.Sampling) { s.TopP = shareBest + 0.001 }, best, second)
	},
	"min_p": func(r *optionRig) {
		r.come(func(s *schemas.Sampling) { s.MinP = math.Exp(-lead) + 0.001 }, best)
		r.come(func(s *schemas.Sampling) { s.MinP = math.Exp(-lead) - 0.001 }, best, second)
	},
	"typical_p": func(r *optionRig) {
		r.come(func(s *schemas.Sampling) { s.TypicalP = shareBest - 0.001 }, best)
		r.come(func(s *schemas.Sampling) { s.TypicalP = shareBest + 0.001 }, best, second)
	},
	"xtc_probability": func(r *optionRig) {
		r.come(func(s *schemas.Sampling) { s.XTCProbability, s.XTCThreshold = 1, 0.2 }, second)
		r.come(func(s *schemas.Sampling) { s.XTCProbability, s.XTCThreshold = 0, 0.2 }, best, second)
	},
	"xtc_threshold": func(r *optionRig) {
		r.come(func(s *schemas.Sampling) { s.XTCProbability, s.XTCThreshold = 1, 1-shareBest-0.001 }, second)
		r.come(func(s *schemas.Sampling) { s.XTCProbability, s.XTCThreshold = 1, 1-shareBest+0.001 }, best, second)
		r.come(func(s *schemas.Sampling) { s.XTCProbability, s.XTCThreshold = 1, 0.51 }, best, second)
	},
	"repeat_penalty": func(r *optionRig) { // of a logit that the biases put at 51 or so
		r.wins(best, func(s *schemas.Sampling) { s.RepeatPenalty = 1.001 })
		r.wins(second, func(s *schemas.Sampling) { s.RepeatPenalty = 1.1 })
	},
	"presence_penalty": func(r *optionRig) {
		r.wins(best, func(s *schemas.Sampling) { s.PresencePenalty = lead - 0.01 })
		r.wins(second, func(s *schemas.Sampling) { s.PresencePenalty = lead + 0.01 })
	},
	"frequency_penalty": func(r *optionRig) { // twice
		r.wins(best, func(s *schemas.Sampling) { s.FrequencyPenalty = lead/2 - 0.01 })
		r.wins(second, func(s *schemas.Sampling) { s.FrequencyPenalty = lead/2 + 0.01 })
	},
	"penalty_last_n": func(r *optionRig) {
		r.wins(best, func(s *schemas.Sampling) { s.PresencePenalty, s.PenaltyLastN = 2, 3 })
		r.wins(second, func(s *schemas.Sampling) { s.PresencePenalty, s.PenaltyLastN = 2, 4 })
	},
	"dry_multiplier": func(r *optionRig) {
		r.wins(best, func(s *schemas.Sampling) { s.DRYMultiplier = lead - 0.01 })
		r.wins(second, func(s *schemas.Sampling) { s.DRYMultiplier = lead + 0.01 })
	},
	"dry_base": func(r *optionRig) { // two tokens repeat where one is allowed
		r.wins(best, func(s *schemas.Sampling) { s.DRYMultiplier, s.DRYAllowedLength, s.DRYBase = lead/2, 1, 1.98 })
		r.wins(second, func(s *schemas.Sampling) { s.DRYMultiplier, s.DRYAllowedLength, s.DRYBase = lead/2, 1, 2.02 })
	},
	"dry_allowed_length": func(r *optionRig) {
		r.wins(best, func(s *schemas.Sampling) { s.DRYMultiplier, s.DRYAllowedLength = 5, 3 })
		r.wins(second, func(s *schemas.Sampling) { s.DRYMultiplier, s.DRYAllowedLength = 5, 2 })
	},
	"dry_penalty_last_n": func(r *optionRig) {
		r.wins(best, func(s *schemas.Sampling) { s.DRYMultiplier, s.DRYPenaltyLastN = 5, 5 })
		r.wins(second, func(s *schemas.Sampling) { s.DRYMultiplier, s.DRYPenaltyLastN = 5, 6 })
	},
	"n_probs": func(r *optionRig) {
		for n := range 4 {
			got := r.ask(func(q *client.Request, s *schemas.Sampling) { s.Probs, q.MaxNewTokens, s.IgnoreEOS = n, 3, true })
			if n == 0 && len(got.Probs) != 0 || n > 0 && len(got.Probs) != 3 {
				r.Errorf("n_probs %d: %+v", n, got.Probs)
			}
			for i, p := range got.Probs {
				if len(p.TopIDs) != n || len(p.TopProbs) != n || p.TopIDs[0] != got.TokenIDs[i] || p.TopProbs[0] != p.LogProb {
					r.Errorf("n_probs %d: token %d has %+v", n, got.TokenIDs[i], p)
				}
			}
		}
	},
}

func biasEffect(r *optionRig) {
	r.wins(best, func(*schemas.Sampling) {})
	r.wins(second, func(s *schemas.Sampling) { s.LogitBias[0].Bias -= lead + 0.01 })
	r.wins(second, func(s *schemas.Sampling) { s.LogitBias[0].Bias = math.Inf(-1) })
}

func breakersEffect(r *optionRig) {
	last := r.ask(func(_ *client.Request, s *schemas.Sampling) { s.LogitBias = forced(321) }).Text
	r.wins(second, func(s *schemas.Sampling) { s.DRYMultiplier, s.DRYBreakers = 5, []string{} })
	r.wins(second, func(s *schemas.Sampling) { s.DRYMultiplier = 5 })
	r.wins(best, func(s *schemas.Sampling) { s.DRYMultiplier, s.DRYBreakers = 5, []string{strings.TrimSpace(last)} })
}

func seedEffect(r *optionRig) {
	draw := func(seed *uint64) *followed {
		return r.ask(func(q *client.Request, s *schemas.Sampling) {
			s.Temperature, s.Seed, s.IgnoreEOS, q.MaxNewTokens = 2, seed, true, 20
		})
	}
	five, six := uint64(5), uint64(6)
	a, again, b, free := draw(&five), draw(&five), draw(&six), draw(nil)
	told := draw(free.started[0].Seed)
	if !slices.Equal(a.TokenIDs, again.TokenIDs) || slices.Equal(a.TokenIDs, b.TokenIDs) {
		r.Errorf("seed 5 draws %v and %v, seed 6 %v", a.TokenIDs, again.TokenIDs, b.TokenIDs)
	}
	if !slices.Equal(told.TokenIDs, free.TokenIDs) || slices.Equal(free.TokenIDs, draw(nil).TokenIDs) {
		r.Errorf("without a seed it draws %v, with the one that was told %v, and without one again the same", free.TokenIDs, told.TokenIDs)
	}
}

// ends asks for up to six tokens of a model that ends at once if it may.
func (r *optionRig) ends(change func(*client.Request, *schemas.Sampling)) *followed {
	r.Helper()
	return r.ask(func(q *client.Request, s *schemas.Sampling) {
		s.LogitBias, q.MaxNewTokens = forced(tokenEnd), 6
		change(q, s)
	})
}

func (r *optionRig) wantEnd(got *followed, finish schemas.Finish, tokens int) {
	r.Helper()
	if got.Final.Finish != finish || got.Final.Count != tokens || len(got.TokenIDs) != tokens {
		r.Errorf("ends %s with %d tokens, %v; want %s with %d", got.Final.Finish, got.Final.Count, got.TokenIDs, finish, tokens)
	}
}

func ignoreEOSEffect(r *optionRig) {
	r.wantEnd(r.ends(func(*client.Request, *schemas.Sampling) {}), schemas.FinishStop, 1)
	r.wantEnd(r.ends(func(_ *client.Request, s *schemas.Sampling) { s.IgnoreEOS = true }), schemas.FinishLength, 6)
}

func mostEffect(r *optionRig) {
	r.wantEnd(r.ends(func(q *client.Request, s *schemas.Sampling) { s.IgnoreEOS, q.MaxNewTokens = true, 7 }), schemas.FinishLength, 7)
}

func leastEffect(r *optionRig) {
	got := r.ends(func(q *client.Request, _ *schemas.Sampling) { q.MinNewTokens = 3 })
	r.wantEnd(got, schemas.FinishStop, 4)
	if at := slices.Index(got.TokenIDs, tokenEnd); at != 3 {
		r.Errorf("the end is token %d of %v, want 3", at, got.TokenIDs)
	}
}

func stopEffect(r *optionRig) {
	say := func(least int, stop ...string) *followed {
		return r.ask(func(q *client.Request, s *schemas.Sampling) {
			q.MinNewTokens, q.MaxNewTokens, s.IgnoreEOS, q.Stop = least, 60, true, stop
		})
	}
	whole := say(0)
	early, late := stopsOf(r.T, whole.Text)
	got := say(0, late, early)
	if want, _, _ := strings.Cut(whole.Text, early); got.Final.Finish != schemas.FinishStopString || got.Text != want {
		r.Errorf("with %q it ends %s, %q; want %q", early, got.Final.Finish, got.Text, want)
	}
	if got := say(60, early, late); got.Final.Finish != schemas.FinishLength || got.Text != whole.Text {
		r.Errorf("with 60 tokens at least it ends %s, %q; want %q", got.Final.Finish, got.Text, whole.Text)
	}
}

func rawEffect(r *optionRig) {
	for raw, want := range map[bool]string{true: "\xc3", false: ""} {
		got := r.ask(func(q *client.Request, s *schemas.Sampling) { q.Raw, s.LogitBias = raw, forced(tokenByte) })
		if got.Text != "\ufffd" || string(got.Bytes) != want {
			r.Errorf("raw %t: text %q, bytes %q; want bytes %q", raw, got.Text, got.Bytes, want)
		}
	}
}

// says compares a prompt with the tokens that it should come to.
func (r *optionRig) says(text string, special bool, change func(*client.Request)) {
	r.Helper()
	tokens, err := r.model.Tokenize(text, special)
	if err != nil {
		r.Fatal(err)
	}
	turn := func(change func(*client.Request)) *followed {
		return r.ask(func(q *client.Request, s *schemas.Sampling) {
			q.MaxNewTokens, q.TokenIDs, s.IgnoreEOS, s.Probs = 12, nil, true, 3
			change(q)
		})
	}
	want := turn(func(q *client.Request) {
		for _, token := range tokens {
			q.TokenIDs = append(q.TokenIDs, int64(token))
		}
	})
	got := turn(change)
	if got.Final.Usage.PromptTokens != len(tokens) {
		r.Errorf("the prompt has %d tokens, want %d", got.Final.Usage.PromptTokens, len(tokens))
	}
	sameTurn(r.T, text, got, want)
}

func promptEffect(r *optionRig) {
	r.says("the old fox", false, func(q *client.Request) { q.Prompt = "the old fox" })
}

// Nothing is put before token ids, as a prompt gets a token that begins a text.
func tokensEffect(r *optionRig) {
	say := func(ids ...int64) *followed {
		got := r.ask(func(q *client.Request, s *schemas.Sampling) { q.TokenIDs, q.MaxNewTokens, s.IgnoreEOS = ids, 12, true })
		if got.Final.Usage.PromptTokens != len(ids) {
			r.Errorf("%d token ids are a prompt of %d tokens", len(ids), got.Final.Usage.PromptTokens)
		}
		return got
	}
	if one, other := say(300, 301), say(300, 302); slices.Equal(one.TokenIDs, other.TokenIDs) {
		r.Errorf("two prompts give the same tokens, %v", one.TokenIDs)
	}
}

func specialEffect(r *optionRig) {
	for _, special := range []bool{false, true} {
		r.says("</s>the fox", special, func(q *client.Request) { q.Prompt, q.Special = "</s>the fox", special })
	}
	asText, _ := r.model.Tokenize("</s>", false)
	if asToken, err := r.model.Tokenize("</s>", true); err != nil || len(asToken) >= len(asText) {
		r.Errorf("%v as a token, %v as text: %v", asToken, asText, err)
	}
}

var hello = []schemas.ChatMessage{{Role: schemas.RoleSystem, Content: "Be brief."}, {Role: schemas.RoleUser, Content: "Hello!"}}

func messagesEffect(r *optionRig) {
	r.says("system: Be brief.\nuser: Hello!\nassistant: ", true, func(q *client.Request) { q.Messages = hello })
}

func toolsEffect(r *optionRig) {
	r.says("weather\nsystem: Be brief.\nuser: Hello!\nassistant: ", true, func(q *client.Request) { q.Messages, q.Tools = hello, tool })
}

func schemaEffect(r *optionRig) {
	got := r.ask(func(q *client.Request, _ *schemas.Sampling) { q.JSONSchema, q.MaxNewTokens = `{"const":{"a":[1]}}`, 40 })
	if got.Text != `{"a":[1]}` && got.Text != `{"a": [1]}` || got.Final.Finish != schemas.FinishStop {
		r.Errorf("ends %s, %q", got.Final.Finish, got.Text)
	}
}

func grammarEffect(r *optionRig) {
	got := r.ask(func(q *client.Request, _ *schemas.Sampling) { q.Grammar, q.MaxNewTokens = `root ::= "so be it"`, 40 })
	if got.Text != "so be it" || got.Final.Finish != schemas.FinishStop {
		r.Errorf("ends %s, %q", got.Final.Finish, got.Text)
	}
}

func adapterEffect(r *optionRig) {
	say := func(adapter string) []int64 {
		return r.ask(func(q *client.Request, s *schemas.Sampling) {
			q.Adapter, q.MaxNewTokens, s.IgnoreEOS = adapter, 20, true
		}).TokenIDs
	}
	with, without := say("bard"), say("")
	if slices.Equal(with, without) || !slices.Equal(with, say("bard")) || !slices.Equal(without, say("")) {
		r.Errorf("with the adapter %v, without it %v, or not the same each time", with, without)
	}
}

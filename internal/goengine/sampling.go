package goengine

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/meshnet/node/scheduler"
)

// Ranges of scheduler.Sampling.
const (
	maxTopK         = 1 << 20
	maxPenaltyLastN = 4096
)

// sampler is one session's way from logits to tokens, and the tokens its penalties look back on.
type sampler struct {
	scheduler.Sampling
	promptTokens int
	recent       []scheduler.Token // ring of the newest PenaltyLastN tokens
	oldest       int               // where the next one goes once the ring is full
}

// candidate is a token that can still be drawn.
type candidate struct {
	token scheduler.Token
	logit float32
}

func (s *sampler) reset(sampling scheduler.Sampling, history []scheduler.Token) {
	s.Sampling, s.promptTokens, s.oldest = sampling, len(history), 0
	s.recent = slices.Grow(s.recent[:0], sampling.PenaltyLastN)
	for _, token := range history[max(0, len(history)-sampling.PenaltyLastN):] {
		s.accept(token)
	}
}

func (s *sampler) accept(token scheduler.Token) {
	switch {
	case s.PenaltyLastN == 0:
	case len(s.recent) < s.PenaltyLastN:
		s.recent = append(s.recent, token)
	default:
		s.recent[s.oldest] = token
		s.oldest = (s.oldest + 1) % s.PenaltyLastN
	}
}

func (s *sampler) penalises() bool {
	return s.RepeatPenalty != 1 || s.PresencePenalty != 0 || s.FrequencyPenalty != 0
}

// sample chooses a token: penalties, then top-k, top-p and min-p, then temperature and the draw. It
// changes the row. ok is false where no token is possible.
func (e *Engine) sample(s *slot, row []float32, index int) (token scheduler.Token, ok bool) {
	if s.sampler.IgnoreEOG {
		row[e.cfg.EOG] = float32(math.Inf(-1))
	}
	if s.sampler.penalises() {
		e.penalise(&s.sampler, row)
	}
	if s.sampler.Temperature == 0 {
		return greedy(row)
	}
	ranked := e.rank(row)
	if len(ranked) == 0 {
		return 0, false
	}
	ranked = s.sampler.filter(ranked)
	return pick(ranked, s.sampler.Temperature, uniform(s.sampler.Seed, uint64(index), purposeToken)), true
}

// penalise lowers the logits of recent tokens: once for being there at all, and once for each time.
func (e *Engine) penalise(s *sampler, row []float32) {
	for _, token := range s.recent {
		e.seen[token]++
	}
	for _, token := range s.recent {
		count := e.seen[token]
		if count == 0 {
			continue // done
		}
		e.seen[token] = 0
		logit := float64(row[token])
		if logit > 0 {
			logit /= s.RepeatPenalty
		} else {
			logit *= s.RepeatPenalty
		}
		row[token] = float32(logit - s.PresencePenalty - float64(count)*s.FrequencyPenalty)
	}
}

// greedy is the token with the largest logit, and of several the lowest.
func greedy(row []float32) (token scheduler.Token, ok bool) {
	best := float32(math.Inf(-1))
	for i, v := range row {
		if v > best {
			best, token, ok = v, scheduler.Token(i), true
		}
	}
	return token, ok
}

// rank lists the possible tokens, likeliest first and equal ones by id.
func (e *Engine) rank(row []float32) []candidate {
	ranked := e.ranked[:0]
	for i, v := range row {
		if !math.IsInf(float64(v), -1) {
			ranked = append(ranked, candidate{scheduler.Token(i), v})
		}
	}
	slices.SortFunc(ranked, func(a, b candidate) int {
		if order := cmp.Compare(b.logit, a.logit); order != 0 {
			return order
		}
		return cmp.Compare(a.token, b.token)
	})
	return ranked
}

// filter keeps the head of ranked that top-k, top-p and min-p allow; at least one.
func (s *sampler) filter(ranked []candidate) []candidate {
	if s.TopK > 0 {
		ranked = ranked[:min(s.TopK, len(ranked))]
	}
	if s.TopP < 1 {
		var total, sum float64
		for _, c := range ranked {
			total += weight(c, ranked[0], 1)
		}
		for i, c := range ranked {
			sum += weight(c, ranked[0], 1)
			if sum >= s.TopP*total {
				ranked = ranked[:i+1]
				break
			}
		}
	}
	if s.MinP > 0 {
		for i, c := range ranked {
			if weight(c, ranked[0], 1) < s.MinP {
				ranked = ranked[:i]
				break
			}
		}
	}
	return ranked
}

// pick draws from ranked, u being uniform in [0, 1).
func pick(ranked []candidate, temperature, u float64) scheduler.Token {
	var total float64
	for _, c := range ranked {
		total += weight(c, ranked[0], temperature)
	}
	rest := u * total
	for _, c := range ranked {
		rest -= weight(c, ranked[0], temperature)
		if rest < 0 {
			return c.token
		}
	}
	return ranked[0].token // rounding left a rest
}

// weight is a candidate's probability relative to the likeliest one's.
func weight(c, top candidate, temperature float64) float64 {
	if c.logit == top.logit { // also where both are infinite
		return 1
	}
	return math.Exp((float64(c.logit) - float64(top.logit)) / temperature)
}

// purposeToken tells the draw of a token from other random choices at the same index.
const purposeToken = 1

// uniform is a number in [0, 1) that depends on its arguments alone.
func uniform(seed, index, purpose uint64) float64 {
	h := mix(mix(mix(seed)^index) ^ purpose)
	return float64(h>>11) / (1 << 53)
}

// mix is the output function of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// checkSampling names the first parameter that is out of its range. NaN is out of every range.
func checkSampling(s scheduler.Sampling) error {
	for _, field := range []struct {
		name     string
		value    float64
		ok       bool
		interval string
	}{
		{"Temperature", s.Temperature, s.Temperature >= 0 && s.Temperature <= 2, "[0, 2]"},
		{"TopK", float64(s.TopK), s.TopK >= 0 && s.TopK <= maxTopK, "[0, 1048576]"},
		{"TopP", s.TopP, s.TopP > 0 && s.TopP <= 1, "(0, 1]"},
		{"MinP", s.MinP, s.MinP >= 0 && s.MinP <= 1, "[0, 1]"},
		{"RepeatPenalty", s.RepeatPenalty, s.RepeatPenalty > 0 && s.RepeatPenalty <= 2, "(0, 2]"},
		{"PresencePenalty", s.PresencePenalty, s.PresencePenalty >= -2 && s.PresencePenalty <= 2, "[-2, 2]"},
		{"FrequencyPenalty", s.FrequencyPenalty, s.FrequencyPenalty >= -2 && s.FrequencyPenalty <= 2, "[-2, 2]"},
		{"PenaltyLastN", float64(s.PenaltyLastN), s.PenaltyLastN >= 0 && s.PenaltyLastN <= maxPenaltyLastN, "[0, 4096]"},
	} {
		if !field.ok {
			return fmt.Errorf("goengine: sampling: %s is %v, must be in %s", field.name, field.value, field.interval)
		}
	}
	return nil
}

package goengine

import (
	"cmp"
	"math"
	"slices"

	"github.com/meshnet/node/scheduler"
)

// sampler is one session's way from logits to tokens, and the tokens its penalties look back on.
type sampler struct {
	scheduler.Sampling
	promptTokens int
	recent       []scheduler.Token // as many of the newest as any penalty looks back, newest last
}

// candidate is a token that can still be drawn.
type candidate struct {
	token scheduler.Token
	logit float32
}

func (s *sampler) reset(sampling scheduler.Sampling, history []scheduler.Token) {
	s.Sampling, s.promptTokens = sampling, len(history)
	s.recent = slices.Grow(s.recent[:0], s.memory())
	for _, token := range history[max(0, len(history)-s.memory()):] {
		s.accept(token)
	}
}

// memory is how many tokens the penalties look back.
func (s *sampler) memory() int {
	n := 0
	if s.Penalises() {
		n = s.PenaltyLastN
	}
	if s.DRY() {
		n = max(n, s.DRYPenaltyLastN)
	}
	return n
}

func (s *sampler) accept(token scheduler.Token) {
	switch n := s.memory(); {
	case n == 0:
	case len(s.recent) < n:
		s.recent = append(s.recent, token)
	default:
		copy(s.recent, s.recent[1:])
		s.recent[n-1] = token
	}
}

// newest are the last n tokens, or all there are.
func (s *sampler) newest(n int) []scheduler.Token { return s.recent[max(0, len(s.recent)-n):] }

// sample chooses a token: biases, penalties, DRY, then top-k, typical-p, top-p, min-p and XTC, then temperature and the
// draw. It changes the row. ok is false where no token is possible.
func (e *Engine) sample(s *slot, row []float32, index int) (token scheduler.Token, ok bool) {
	for _, b := range s.sampler.LogitBias {
		row[b.Token] += float32(b.Bias)
	}
	if s.sampler.IgnoreEOG || index < s.sampler.MinNewTokens {
		row[e.cfg.EOG] = float32(math.Inf(-1))
	}
	if s.sampler.Penalises() {
		e.penalise(&s.sampler, row)
	}
	if s.sampler.DRY() {
		s.sampler.penaliseRepetition(row)
	}
	if s.sampler.Temperature == 0 {
		return greedy(row)
	}
	ranked := e.rank(row)
	if len(ranked) == 0 {
		return 0, false
	}
	ranked = s.sampler.filter(ranked)
	if s.sampler.XTC() && uniform(s.sampler.Seed, uint64(index), purposeXTC) < s.sampler.XTCProbability {
		ranked = s.sampler.exclude(ranked)
	}
	return pick(ranked, s.sampler.Temperature, uniform(s.sampler.Seed, uint64(index), purposeToken)), true
}

// penaliseRepetition is DRY: it lowers the logits of tokens that would go on repeating a sequence. The tokens of this
// engine have no text, and so there is no sequence breaker among them.
func (s *sampler) penaliseRepetition(row []float32) {
	window := s.newest(s.DRYPenaltyLastN)
	longest := map[scheduler.Token]int{}
	for end := range max(0, len(window)-1) {
		n := 0
		for n <= end && window[end-n] == window[len(window)-1-n] {
			n++
		}
		if next := window[end+1]; n >= s.DRYAllowedLength {
			longest[next] = max(longest[next], n)
		}
	}
	for token, n := range longest {
		row[token] -= float32(s.DRYMultiplier * math.Pow(s.DRYBase, float64(min(n-s.DRYAllowedLength, 60))))
	}
}

// penalise lowers the logits of recent tokens: once for being there at all, and once for each time.
func (e *Engine) penalise(s *sampler, row []float32) {
	recent := s.newest(s.PenaltyLastN)
	for _, token := range recent {
		e.seen[token]++
	}
	for _, token := range recent {
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
	slices.SortFunc(ranked, likelier)
	return ranked
}

func likelier(a, b candidate) int {
	if order := cmp.Compare(b.logit, a.logit); order != 0 {
		return order
	}
	return cmp.Compare(a.token, b.token)
}

// filter keeps what top-k, typical-p, top-p and min-p allow of ranked, in its order; at least one.
func (s *sampler) filter(ranked []candidate) []candidate {
	if s.TopK > 0 {
		ranked = ranked[:min(s.TopK, len(ranked))]
	}
	if s.TypicalP < 1 {
		ranked = s.typical(ranked)
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

// typical keeps the candidates whose surprise is closest to the expected one, until they add up to TypicalP.
func (s *sampler) typical(ranked []candidate) []candidate {
	var total, entropy float64
	for _, c := range ranked {
		total += weight(c, ranked[0], 1)
	}
	chance := func(c candidate) float64 { return weight(c, ranked[0], 1) / total }
	for _, c := range ranked {
		if p := chance(c); p > 0 {
			entropy -= p * math.Log(p)
		}
	}
	top := ranked[0]
	off := func(c candidate) float64 { return math.Abs(-math.Log(weight(c, top, 1)/total) - entropy) }
	slices.SortStableFunc(ranked, func(a, b candidate) int { return cmp.Compare(off(a), off(b)) })
	sum := 0.0
	for i, c := range ranked {
		if sum += weight(c, top, 1) / total; sum > s.TypicalP {
			ranked = ranked[:i+1]
			break
		}
	}
	slices.SortFunc(ranked, likelier)
	return ranked
}

// exclude is XTC: of the candidates that reach the threshold only the least likely stays.
func (s *sampler) exclude(ranked []candidate) []candidate {
	var total float64
	for _, c := range ranked {
		total += weight(c, ranked[0], 1)
	}
	likely := 0
	for likely < len(ranked) && weight(ranked[likely], ranked[0], 1)/total >= s.XTCThreshold {
		likely++
	}
	return ranked[max(0, likely-1):]
}

// probs are the log-probabilities of a row as the model gave it, and how to find that of any token of it.
func (e *Engine) probs(row []float32, n int) (p *scheduler.Probs, whole float64) {
	ranked := e.rank(row)
	for _, c := range ranked {
		whole += weight(c, ranked[0], 1)
	}
	whole = float64(ranked[0].logit) + math.Log(whole)
	p = &scheduler.Probs{Top: make([]scheduler.Prob, min(n, len(ranked)))}
	for i, c := range ranked[:len(p.Top)] {
		p.Top[i] = scheduler.Prob{Token: c.token, LogProb: float64(c.logit) - whole}
	}
	return p, whole
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

// The purposes tell the random choices at one index apart.
const (
	purposeToken = 1
	purposeXTC   = 2
)

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

package bench

import "time"

// Measures are the numbers of one phase of one system, in one round or as the medians of several.
type Measures struct {
	Completed int            `json:"completed"`
	Failed    int            `json:"failed"`
	Failures  map[string]int `json:"failures,omitempty"`  // by reason
	Cut       int            `json:"cut,omitempty"`       // in flight when the run was interrupted; neither completed nor failed
	Short     int            `json:"short,omitempty"`     // completed with fewer tokens than asked for, with IgnoreEOS
	Estimated int            `json:"estimated,omitempty"` // completed without a count of output tokens: pieces of text are counted

	Seconds      float64 `json:"seconds"` // from the first request sent to the last that ended
	PromptTokens int     `json:"prompt_tokens"`
	CachedTokens int     `json:"cached_tokens"`
	OutputTokens int     `json:"output_tokens"`

	RequestsPerSecond     float64  `json:"requests_per_second"`
	OutputTokensPerSecond float64  `json:"output_tokens_per_second"`
	TotalTokensPerSecond  float64  `json:"total_tokens_per_second"`
	GoodputPerSecond      *float64 `json:"goodput_requests_per_second,omitempty"` // nil without an SLO

	TTFT Summary `json:"ttft"`
	TPOT Summary `json:"tpot"`
	ITL  Summary `json:"itl"`
	E2EL Summary `json:"e2el"`

	// Interrupted is a round that did not run to its end.
	Interrupted bool `json:"interrupted,omitempty"`
}

// samples are the times of completed requests in milliseconds, in any order.
type samples struct{ ttft, tpot, itl, e2el []float64 }

// add takes those of more records.
func (s *samples) add(records []Record) {
	for i := range records {
		r := &records[i]
		if r.Failure != nil {
			continue
		}
		s.ttft = append(s.ttft, milliseconds(r.First))
		s.e2el = append(s.e2el, milliseconds(r.End))
		if r.Answer.OutputTokens > 1 {
			s.tpot = append(s.tpot, milliseconds(r.TPOT()))
		}
		for _, gap := range r.Gaps {
			s.itl = append(s.itl, milliseconds(gap))
		}
	}
}

// measure makes the numbers of one phase of one round.
func (o *Options) measure(records []Record, interrupted bool) Measures {
	m := Measures{Interrupted: interrupted, Failures: make(map[string]int)}
	var first, last time.Duration
	good := 0
	for i := range records {
		r := &records[i]
		if i == 0 || r.Sent < first {
			first = r.Sent
		}
		last = max(last, r.Sent+r.End)
		if r.Failure != nil && r.Failure.Reason == reasonInterrupted {
			m.Cut++
			continue
		}
		if r.Failure != nil {
			m.Failed++
			m.Failures[r.Failure.Reason]++
			continue
		}
		m.Completed++
		m.PromptTokens += r.Answer.PromptTokens
		m.CachedTokens += r.Answer.CachedTokens
		m.OutputTokens += r.Answer.OutputTokens
		if o.IgnoreEOS && r.Answer.OutputTokens < r.MaxTokens {
			m.Short++
		}
		if r.Answer.Estimated {
			m.Estimated++
		}
		if o.SLO.met(r) {
			good++
		}
	}
	m.Seconds = (last - first).Seconds()
	perSecond := func(n int) float64 {
		if m.Seconds <= 0 {
			return 0
		}
		return float64(n) / m.Seconds
	}
	m.RequestsPerSecond = perSecond(m.Completed)
	m.OutputTokensPerSecond = perSecond(m.OutputTokens)
	m.TotalTokensPerSecond = perSecond(m.PromptTokens + m.OutputTokens)
	if o.SLO != (SLO{}) {
		goodput := perSecond(good)
		m.GoodputPerSecond = &goodput
	}
	var s samples
	s.add(records)
	m.TTFT, m.TPOT, m.ITL, m.E2EL = summarize(s.ttft), summarize(s.tpot), summarize(s.itl), summarize(s.e2el)
	return m
}

// medians are those of each number by itself over rounds; counts are sums. A round that was interrupted is left out where there
// is another, and one without a completed request where it has no times.
func medians(rounds []Measures) Measures {
	whole := make([]*Measures, 0, len(rounds))
	for i := range rounds {
		if !rounds[i].Interrupted {
			whole = append(whole, &rounds[i])
		}
	}
	if len(whole) == 0 {
		for i := range rounds {
			whole = append(whole, &rounds[i])
		}
	}
	of := func(number func(*Measures) float64) float64 {
		values := make([]float64, len(whole))
		for i, m := range whole {
			values[i] = number(m)
		}
		return Median(values)
	}
	sum := Measures{Failures: make(map[string]int)}
	for i := range rounds {
		sum.count(&rounds[i])
	}
	sum.Interrupted = len(whole) > 0 && whole[0].Interrupted
	sum.Seconds = of(func(m *Measures) float64 { return m.Seconds })
	sum.RequestsPerSecond = of(func(m *Measures) float64 { return m.RequestsPerSecond })
	sum.OutputTokensPerSecond = of(func(m *Measures) float64 { return m.OutputTokensPerSecond })
	sum.TotalTokensPerSecond = of(func(m *Measures) float64 { return m.TotalTokensPerSecond })
	if len(whole) > 0 && whole[0].GoodputPerSecond != nil {
		goodput := of(func(m *Measures) float64 { return *m.GoodputPerSecond })
		sum.GoodputPerSecond = &goodput
	}
	for _, latency := range latencies {
		*latency.of(&sum) = medianSummary(whole, latency.of)
	}
	return sum
}

// count adds the counts of a round.
func (m *Measures) count(round *Measures) {
	m.Completed += round.Completed
	m.Failed += round.Failed
	m.Cut += round.Cut
	m.Short += round.Short
	m.Estimated += round.Estimated
	m.PromptTokens += round.PromptTokens
	m.CachedTokens += round.CachedTokens
	m.OutputTokens += round.OutputTokens
	for reason, n := range round.Failures {
		m.Failures[reason] += n
	}
}

// latencies are the times by the names people compare them by.
var latencies = []struct {
	name string
	of   func(*Measures) *Summary
}{
	{"TTFT", func(m *Measures) *Summary { return &m.TTFT }},
	{"TPOT", func(m *Measures) *Summary { return &m.TPOT }},
	{"ITL", func(m *Measures) *Summary { return &m.ITL }},
	{"E2EL", func(m *Measures) *Summary { return &m.E2EL }},
}

// summaryNumbers are the numbers of a summary by their columns.
var summaryNumbers = []struct {
	name string
	of   func(*Summary) *float64
}{
	{"mean", func(s *Summary) *float64 { return &s.Mean }},
	{"median", func(s *Summary) *float64 { return &s.Median }},
	{"p90", func(s *Summary) *float64 { return &s.P90 }},
	{"p99", func(s *Summary) *float64 { return &s.P99 }},
	{"max", func(s *Summary) *float64 { return &s.Max }},
}

func medianSummary(rounds []*Measures, of func(*Measures) *Summary) Summary {
	var result Summary
	for _, number := range summaryNumbers {
		var values []float64
		for _, m := range rounds {
			if s := of(m); s.Count > 0 {
				values = append(values, *number.of(s))
			}
		}
		*number.of(&result) = Median(values)
	}
	for _, m := range rounds {
		result.Count += of(m).Count
	}
	return result
}

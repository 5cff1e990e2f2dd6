package bench

import (
	"strings"
	"time"
)

// ReportVersion is that of the JSON document.
const ReportVersion = 1

// Report is what a run measured. The first system is the mesh; a second is the peer.
type Report struct {
	SchemaVersion int           `json:"schema_version"`
	Began         time.Time     `json:"began"`
	Seconds       float64       `json:"seconds"`
	Model         string        `json:"model"`
	Prompts       string        `json:"prompts"`
	Options       Options       `json:"options"`
	Systems       []string      `json:"systems"`
	Interrupted   bool          `json:"interrupted,omitempty"`
	Phases        []PhaseReport `json:"phases"`
	Warmup        []Measures    `json:"warmup,omitempty"`    // of each system; not part of anything else
	Occupancy     []Occupancy   `json:"occupancy,omitempty"` // of the mesh's nodes

	marks []mark
}

// mark is when a phase of a system ran, since the run began.
type mark struct {
	phase, system int
	from, to      time.Duration
}

// Occupancy is what the nodes of the model say of themselves, together. They do so once a second.
type Occupancy struct {
	Seconds        float64 `json:"seconds"` // since the run began
	ActiveSessions int     `json:"active_sessions"`
	QueueDepth     int     `json:"queue_depth"`
	KVBytes        int64   `json:"kv_total_bytes"`
}

// PhaseReport is one load.
type PhaseReport struct {
	Phase
	Name    string         `json:"name"`
	Systems []SystemReport `json:"systems"`
	// Ratios are the mesh's medians divided by the peer's, by the name of the number; nil without a peer. A number that is 0
	// on either side has none.
	Ratios map[string]float64 `json:"ratios,omitempty"`
	// SameTexts are answers whose text was the same to the byte on both sides, of those that completed on both.
	SameTexts     int `json:"same_texts,omitempty"`
	ComparedTexts int `json:"compared_texts,omitempty"`
}

// SystemReport is what one system did under one load.
type SystemReport struct {
	System   string            `json:"system"`
	Median   Measures          `json:"median"`
	Rounds   []Measures        `json:"rounds"`
	Examples map[string]string `json:"failure_examples,omitempty"` // what was said first, by reason
	Requests []RequestReport   `json:"requests"`

	records []Record
}

// RequestReport is one request.
type RequestReport struct {
	Round        int     `json:"round"` // from 1
	Number       int     `json:"number"`
	SentSeconds  float64 `json:"sent_seconds"` // since the run began
	TTFT         float64 `json:"ttft_ms,omitempty"`
	TPOT         float64 `json:"tpot_ms,omitempty"`
	E2EL         float64 `json:"e2el_ms"`
	MaxITL       float64 `json:"max_itl_ms,omitempty"`
	PromptTokens int     `json:"prompt_tokens,omitempty"`
	CachedTokens int     `json:"cached_tokens,omitempty"`
	OutputTokens int     `json:"output_tokens,omitempty"`
	Failure      string  `json:"failure,omitempty"`
}

func requestReport(round int, r *Record) RequestReport {
	report := RequestReport{
		Round: round + 1, Number: r.Number, SentSeconds: r.Sent.Seconds(), TTFT: milliseconds(r.First), E2EL: milliseconds(r.End),
		PromptTokens: r.Answer.PromptTokens, CachedTokens: r.Answer.CachedTokens, OutputTokens: r.Answer.OutputTokens,
	}
	if r.Failure != nil {
		report.Failure = r.Failure.Reason
		return report
	}
	report.TPOT = milliseconds(r.TPOT())
	for _, gap := range r.Gaps {
		report.MaxITL = max(report.MaxITL, milliseconds(gap))
	}
	return report
}

// maxExample bounds what is kept of a failure's words, in bytes.
const maxExample = 300

// take adds a round of a system.
func (s *SystemReport) take(round int, records []Record, m Measures) {
	s.Rounds = append(s.Rounds, m)
	s.records = append(s.records, records...)
	for i := range records {
		s.Requests = append(s.Requests, requestReport(round, &records[i]))
		if f := records[i].Failure; f != nil && s.Examples[f.Reason] == "" {
			if s.Examples == nil {
				s.Examples = make(map[string]string)
			}
			s.Examples[f.Reason] = oneLine(f.Detail)
		}
	}
}

// oneLine is the beginning of what was said, without breaks and broken characters.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text[:min(len(text), maxExample)]), " ")
	return strings.ToValidUTF8(text, "")
}

// conclude makes medians and comparisons.
func (p *PhaseReport) conclude() {
	for i := range p.Systems {
		p.Systems[i].Median = medians(p.Systems[i].Rounds)
	}
	if len(p.Systems) != 2 {
		return
	}
	ours, theirs := &p.Systems[0], &p.Systems[1]
	p.Ratios = ratios(&ours.Median, &theirs.Median)
	hashes := make(map[int]uint64, len(ours.records))
	for i := range ours.records {
		if r := &ours.records[i]; r.Failure == nil {
			hashes[r.Number] = r.textHash
		}
	}
	for i := range theirs.records {
		r := &theirs.records[i]
		if hash, ok := hashes[r.Number]; ok && r.Failure == nil {
			p.ComparedTexts++
			if hash == r.textHash {
				p.SameTexts++
			}
		}
	}
}

// goodputTitle is that of the rate which only a run with an SLO has.
const goodputTitle = "goodput req/s"

// throughputs are the rates by the names people compare them by; of says false where there is none.
var throughputs = []struct {
	key, title string
	of         func(*Measures) (float64, bool)
}{
	{"requests_per_second", "req/s", func(m *Measures) (float64, bool) { return m.RequestsPerSecond, true }},
	{"output_tokens_per_second", "output tok/s", func(m *Measures) (float64, bool) { return m.OutputTokensPerSecond, true }},
	{"total_tokens_per_second", "total tok/s", func(m *Measures) (float64, bool) { return m.TotalTokensPerSecond, true }},
	{"goodput_requests_per_second", goodputTitle, func(m *Measures) (float64, bool) {
		if m.GoodputPerSecond == nil {
			return 0, false
		}
		return *m.GoodputPerSecond, true
	}},
}

func ratios(ours, theirs *Measures) map[string]float64 {
	r := make(map[string]float64)
	put := func(key string, a, b float64) {
		if a > 0 && b > 0 {
			r[key] = a / b
		}
	}
	for _, t := range throughputs {
		a, _ := t.of(ours)
		b, _ := t.of(theirs)
		put(t.key, a, b)
	}
	for _, l := range latencies {
		for _, n := range summaryNumbers {
			put(ratioKey(l.name, n.name), *n.of(l.of(ours)), *n.of(l.of(theirs)))
		}
	}
	return r
}

// ratioKey names the ratio of a number of a latency.
func ratioKey(latency, number string) string { return latency + " " + number }

// Completed counts the requests of a system, by its index, that completed.
func (r *Report) Completed(system int) int {
	n := 0
	for _, p := range r.Phases {
		if system < len(p.Systems) {
			n += p.Systems[system].Median.Completed
		}
	}
	return n
}

package scheduler

import (
	"encoding/json"
	"time"
)

// sweepSchemaVersion changes when a field of SweepReport changes its meaning.
const sweepSchemaVersion = 2

// SweepReport is the outcome of a sweep. Results, SaturationConcurrency and ReferenceOutputs are those of SettingCold.
type SweepReport struct {
	SchemaVersion         int           `json:"schema_version"`
	Results               []SweepResult `json:"results"`
	SaturationConcurrency int           `json:"saturation_concurrency"` // from here on the average occupancy no longer rises

	// CorruptionFree: in every setting all levels gave every session the same tokens. BitExact: the same
	// logits too; nil where the engine does not audit. Both hold where there was nothing to differ: see Unproven.
	CorruptionFree bool  `json:"corruption_free"`
	BitExact       *bool `json:"bit_exact"`
	// SettingsExact: SettingDifferences are none, to the bit. An exact engine owes that. Nil where the engine does not audit, or
	// only SettingCold ran.
	SettingsExact    *bool              `json:"settings_exact"`
	ReferenceOutputs map[string][]Token `json:"reference_outputs"` // by session, at the lowest level

	Settings           []SettingReport     `json:"settings"`
	SettingDifferences []SettingDifference `json:"setting_differences"`
}

// SettingReport compares the levels of one setting with its lowest one.
type SettingReport struct {
	Setting        Setting       `json:"setting"`
	Results        []SweepResult `json:"results"`
	CorruptionFree bool          `json:"corruption_free"`
	BitExact       *bool         `json:"bit_exact"`
	// FirstDifference is the first differing token, or, if all are equal, the first token from differing logits.
	FirstDifference *Difference `json:"first_difference"`
}

// SettingDifference compares a setting with what it would be undisturbed, both at the lowest level: SettingHot with SettingAfresh,
// SettingCancelledNeighbour with SettingCold. SettingHot is not compared with SettingCold, in which what is the prompt of a
// second turn is partly decoded, not prefilled: that may round differently on any engine. Of an engine that is not exact it is
// no corruption: it keeps KV that was decoded for the next turn.
type SettingDifference struct {
	Setting         Setting     `json:"setting"`
	Against         Setting     `json:"against"`
	TokensEqual     bool        `json:"tokens_equal"`
	BitsEqual       *bool       `json:"bits_equal"`
	FirstDifference *Difference `json:"first_difference"`
}

// Difference is where a session came out differently than in its reference.
type Difference struct {
	Setting        Setting `json:"setting"`
	Level          int     `json:"level"`
	Session        string  `json:"session"`
	TokenIndex     int     `json:"token_index"` // through all turns of the session
	TokensDiffer   bool    `json:"tokens_differ"`
	ReferenceToken Token   `json:"reference_token"` // −1 where the stream had ended
	Token          Token   `json:"token"`
	// The distance between the two largest logits, where the engine audits.
	ReferenceGap float32 `json:"reference_gap"`
	Gap          float32 `json:"gap"`
}

// SweepResult is the measurement of one level.
type SweepResult struct {
	Concurrency        int     `json:"concurrency"`
	Ticks              int     `json:"ticks"`
	DecodeBatches      int     `json:"decode_batches"`
	DecodeTokens       int64   `json:"decode_tokens"`
	PrefillTokens      int64   `json:"prefill_tokens"`
	CachedTokens       int64   `json:"cached_tokens"`
	AvgBatchOccupancy  float64 `json:"avg_batch_occupancy"`
	MaxBatchOccupancy  int     `json:"max_batch_occupancy"`
	TokensPerTick      float64 `json:"tokens_per_tick"`       // decoded and prefilled
	TokensPerSec       float64 `json:"tokens_per_sec"`        // decoded and prefilled, by the clock on the wall
	DecodeTokensPerSec float64 `json:"decode_tokens_per_sec"` // in the time of the decode batches
	Seconds            float64 `json:"seconds"`
	PeakKVBytes        int64   `json:"peak_kv_bytes"`
	RejectedAdmissions int64   `json:"rejected_admissions"`
	CacheMisses        int     `json:"cache_misses"`

	occupancySum int
	decoding     time.Duration
}

// MarshalJSON rounds averages and rates to 4 decimals.
func (r SweepResult) MarshalJSON() ([]byte, error) {
	type plain SweepResult // without this method
	for _, f := range []*float64{&r.AvgBatchOccupancy, &r.TokensPerTick, &r.TokensPerSec, &r.DecodeTokensPerSec, &r.Seconds} {
		*f = round4(*f)
	}
	return json.Marshal(plain(r))
}

func (r *SweepResult) observe(report *Report, kvBytes int64) {
	r.Ticks++
	r.DecodeTokens += int64(report.DecodeTokens)
	r.PrefillTokens += int64(report.PrefillTokens)
	r.MaxBatchOccupancy = max(r.MaxBatchOccupancy, report.Occupancy)
	r.PeakKVBytes = max(r.PeakKVBytes, kvBytes)
	if report.Occupancy > 0 {
		r.DecodeBatches++
		r.occupancySum += report.Occupancy
		r.decoding += report.Decode
	}
}

func (r *SweepResult) finish(took time.Duration) {
	tokens := float64(r.DecodeTokens + r.PrefillTokens)
	r.Seconds = took.Seconds()
	r.AvgBatchOccupancy = ratio(float64(r.occupancySum), float64(r.DecodeBatches))
	r.TokensPerTick = ratio(tokens, float64(r.Ticks))
	r.TokensPerSec = ratio(tokens, r.Seconds)
	r.DecodeTokensPerSec = ratio(float64(r.DecodeTokens), r.decoding.Seconds())
}

// ratio is 0 where nothing was measured.
func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

func compareRuns(requests []Request, all []settingRuns) *SweepReport {
	undisturbed := map[Setting]Setting{SettingHot: SettingAfresh, SettingCancelledNeighbour: SettingCold}
	lowest := make(map[Setting]sweepRun)
	for _, runs := range all {
		lowest[runs.setting] = runs.levels[0]
	}
	cold := lowest[SettingCold]
	report := &SweepReport{SchemaVersion: sweepSchemaVersion, CorruptionFree: true, ReferenceOutputs: make(map[string][]Token),
		SettingDifferences: []SettingDifference{}}
	for _, req := range requests {
		tokens := []Token{}
		for _, step := range cold.streams[req.Session] {
			tokens = append(tokens, step.token)
		}
		report.ReferenceOutputs[req.Session] = tokens
	}
	for _, runs := range all {
		if runs.setting == SettingAfresh { // a reference only
			continue
		}
		setting := compareLevels(requests, runs)
		report.Settings = append(report.Settings, setting)
		report.CorruptionFree = report.CorruptionFree && setting.CorruptionFree
		report.BitExact = both(report.BitExact, setting.BitExact)
		against, compared := undisturbed[runs.setting]
		if !compared {
			continue
		}
		d := compareStreams(requests, lowest[against], runs.levels[0], runs.setting)
		bits := exactness(cold, d)
		report.SettingsExact = both(report.SettingsExact, bits)
		report.SettingDifferences = append(report.SettingDifferences, SettingDifference{
			Setting: runs.setting, Against: against, TokensEqual: d == nil || !d.TokensDiffer, BitsEqual: bits, FirstDifference: d,
		})
	}
	report.Results = report.Settings[0].Results
	report.SaturationConcurrency = saturation(report.Results)
	return report
}

func compareLevels(requests []Request, runs settingRuns) SettingReport {
	report := SettingReport{Setting: runs.setting, CorruptionFree: true}
	for _, run := range runs.levels {
		report.Results = append(report.Results, run.result)
		d := compareStreams(requests, runs.levels[0], run, runs.setting)
		if d != nil && (report.FirstDifference == nil || d.TokensDiffer && !report.FirstDifference.TokensDiffer) {
			report.FirstDifference = d
		}
	}
	if d := report.FirstDifference; d != nil {
		report.CorruptionFree = !d.TokensDiffer
	}
	report.BitExact = exactness(runs.levels[0], report.FirstDifference)
	return report
}

// compareStreams finds the first differing token of the run, else the first differing logits, else nil.
func compareStreams(requests []Request, reference, run sweepRun, setting Setting) *Difference {
	var bits *Difference
	for _, req := range requests {
		want, got := reference.streams[req.Session], run.streams[req.Session]
		for i := range max(len(want), len(got)) {
			a, b := stepAt(want, i), stepAt(got, i)
			if a.token == b.token && (a.hash == b.hash || bits != nil) {
				continue
			}
			d := &Difference{Setting: setting, Level: run.result.Concurrency, Session: req.Session, TokenIndex: i,
				TokensDiffer: a.token != b.token, ReferenceToken: a.token, Token: b.token, ReferenceGap: a.gap, Gap: b.gap}
			if d.TokensDiffer {
				return d
			}
			bits = d
		}
	}
	return bits
}

func stepAt(stream []sweepStep, i int) sweepStep {
	if i < len(stream) {
		return stream[i]
	}
	return sweepStep{token: NoToken}
}

// exactness is nil where the engine did not audit.
func exactness(run sweepRun, d *Difference) *bool {
	if !run.audit {
		return nil
	}
	exact := d == nil
	return &exact
}

// both is a and b, where nil says nothing.
func both(a, b *bool) *bool {
	if a == nil || b == nil {
		return b
	}
	exact := *a && *b
	return &exact
}

// saturationTolerance is how much the average occupancy must rise to count as a gain.
const saturationTolerance = 1e-9

// saturation is the smallest level from which on the average occupancy no longer rises.
func saturation(results []SweepResult) int {
	best := results[0]
	for _, result := range results[1:] {
		if result.AvgBatchOccupancy <= best.AvgBatchOccupancy+saturationTolerance {
			return best.Concurrency
		}
		best = result
	}
	return best.Concurrency
}

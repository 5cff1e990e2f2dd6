package scheduler

import "fmt"

// Unproven says why a report without a difference is no proof of sameness: that there was nothing to differ. It is "" where
// the report stands.
func (r *SweepReport) Unproven() string {
	if len(r.Results) < 2 {
		return "there is only one level, which was compared with itself; give at least two"
	}
	for _, result := range r.Results {
		if result.MaxBatchOccupancy < result.Concurrency {
			return fmt.Sprintf("level %d never had more than %d sessions in a batch; give more requests or more new tokens",
				result.Concurrency, result.MaxBatchOccupancy)
		}
	}
	for _, setting := range r.Settings {
		for _, result := range setting.Results {
			switch {
			case result.CacheMisses > 0:
				return fmt.Sprintf("%s: %d sessions at level %d lost their KV and ended early", setting.Setting, result.CacheMisses, result.Concurrency)
			case setting.Setting == SettingHot && result.CachedTokens == 0:
				return fmt.Sprintf("%s: no KV was reused at level %d; an exact engine reuses whole prefill chunks only, "+
					"and a recurrent model then none: give prompts longer than a chunk", setting.Setting, result.Concurrency)
			}
		}
	}
	return ""
}

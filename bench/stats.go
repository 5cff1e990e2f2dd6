package bench

import (
	"math"
	"slices"
	"time"
)

// Summary is a distribution of times in milliseconds. Without values all is 0.
type Summary struct {
	Count  int     `json:"count"`
	Mean   float64 `json:"mean_ms"`
	Median float64 `json:"median_ms"`
	P90    float64 `json:"p90_ms"`
	P99    float64 `json:"p99_ms"`
	Max    float64 `json:"max_ms"`
}

// summarize sorts the values, which are milliseconds.
func summarize(values []float64) Summary {
	if len(values) == 0 {
		return Summary{}
	}
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return Summary{
		Count: len(values), Mean: sum / float64(len(values)), Median: Percentile(values, 50),
		P90: Percentile(values, 90), P99: Percentile(values, 99), Max: values[len(values)-1],
	}
}

// Percentile is the pth percentile of sorted values, p in [0, 100]: that at rank (n-1)·p/100, counted from 0, and on
// a straight line between the two neighbours where that is no whole number. NumPy and vLLM's benchmark do the same. Without values it is 0.
func Percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := float64(len(sorted)-1) * p / 100
	low := int(math.Floor(rank))
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (sorted[high]-sorted[low])*(rank-float64(low))
}

// Median of values in any order; 0 without any.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return Percentile(sorted, 50)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

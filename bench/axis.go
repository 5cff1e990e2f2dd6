package bench

import (
	"math"
	"strconv"
)

// axis maps values to a place between 0 and 1.
type axis struct {
	min, max float64
	log      bool // min is then above 0
	ticks    []float64
}

func (a *axis) at(v float64) float64 {
	low, high := a.min, a.max
	if a.log {
		v, low, high = math.Log(max(v, a.min)), math.Log(a.min), math.Log(a.max)
	}
	if high <= low {
		return 0.5
	}
	return (v - low) / (high - low)
}

// linearAxis goes from 0 to a round number at or above most, in about so many steps.
func linearAxis(most float64, steps int) axis {
	if !(most > 0) {
		most = 1
	}
	step := roundStep(most / float64(steps))
	a := axis{max: math.Ceil(most/step-1e-9) * step}
	for i := 0; float64(i)*step <= a.max*(1+1e-9); i++ {
		a.ticks = append(a.ticks, float64(i)*step)
	}
	return a
}

// spanAxis goes from 0 to most exactly, as time does.
func spanAxis(most float64, steps int) axis {
	a := linearAxis(most, steps)
	if most > 0 {
		a.max = most
	}
	for len(a.ticks) > 0 && a.ticks[len(a.ticks)-1] > a.max {
		a.ticks = a.ticks[:len(a.ticks)-1]
	}
	return a
}

// logAxis covers values above 0. It has ticks at 1, 2 and 5 of each power of ten, or at the powers alone where
// those would be many.
func logAxis(least, most float64) axis {
	if !(least > 0) || !(most >= least) {
		least, most = 1, 10
	}
	if most < least*1.2 {
		least, most = least/1.1, most*1.1
	}
	a := axis{min: least, max: most, log: true}
	factors := []float64{1, 2, 5}
	if most/least > 300 {
		factors = []float64{1}
	}
	for power := math.Floor(math.Log10(least)); power <= math.Ceil(math.Log10(most)); power++ {
		for _, factor := range factors {
			if v := factor * math.Pow(10, power); v >= least*(1-1e-9) && v <= most*(1+1e-9) {
				a.ticks = append(a.ticks, v)
			}
		}
	}
	if len(a.ticks) == 0 {
		a.ticks = []float64{least, most}
	}
	return a
}

// loadAxis has a tick for each load that was run.
func loadAxis(loads []float64) axis {
	a := axis{min: loads[0], max: loads[0], log: true, ticks: loads}
	for _, v := range loads {
		a.min, a.max = min(a.min, v), max(a.max, v)
	}
	return a
}

// roundStep is the least of 1, 2, 5 times a power of ten at or above v.
func roundStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, factor := range []float64{1, 2, 5} {
		if step := factor * power; step >= v*(1-1e-9) {
			return step
		}
	}
	return 10 * power
}

// short is a number as a tick has it.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 3, 64) + "M"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 3, 64) + "k"
	default:
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
}

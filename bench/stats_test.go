package bench

import (
	"math"
	"testing"
	"time"
)

// The expected values are NumPy's: numpy.percentile(values, p) with its default method.
func TestPercentilesLieOnTheLineBetweenTheTwoNearestRanks(t *testing.T) {
	ten := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, c := range []struct {
		values []float64
		p      float64
		want   float64
	}{
		{ten, 0, 1}, {ten, 50, 5.5}, {ten, 90, 9.1}, {ten, 99, 9.91}, {ten, 100, 10},
		{[]float64{15, 20, 35, 40, 50}, 40, 29}, {[]float64{15, 20, 35, 40, 50}, 90, 46},
		{[]float64{7}, 99, 7}, {nil, 50, 0},
	} {
		if got := Percentile(c.values, c.p); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("percentile %g of %v is %v, want %v", c.p, c.values, got, c.want)
		}
	}
}

func TestASummaryOfKnownValues(t *testing.T) {
	got := summarize([]float64{40, 15, 50, 35, 20})
	if want := (Summary{Count: 5, Mean: 32, Median: 35, P90: 46, P99: 49.6, Max: 50}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := summarize(nil); got != (Summary{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

const ms = time.Millisecond

// completedRecord took 100 ms to its first text, then came a text every 20 ms.
func completedRecord(number int, sent time.Duration, tokens int) Record {
	r := Record{Number: number, Sent: sent, First: 100 * ms, MaxTokens: tokens, Answer: Answer{PromptTokens: 10, OutputTokens: tokens}}
	r.Last = r.First
	for range tokens - 1 {
		r.Gaps = append(r.Gaps, 20*ms)
		r.Last += 20 * ms
	}
	r.End = r.Last + 5*ms
	return r
}

func TestMeasuresOfKnownRecords(t *testing.T) {
	failed := Record{Number: 3, Sent: 0, End: 50 * ms, Failure: &Failure{"http-503", "busy"}}
	cut := Record{Number: 4, Sent: 10 * ms, End: 60 * ms, Failure: &Failure{reasonInterrupted, ""}}
	short := completedRecord(2, 895*ms, 1)
	short.MaxTokens = 6
	records := []Record{completedRecord(0, 0, 6), completedRecord(1, 200*ms, 6), short, failed, cut}
	o := Options{IgnoreEOS: true, SLO: SLO{E2EL: 150 * ms}}
	m := o.measure(records, false)
	if m.Completed != 3 || m.Failed != 1 || m.Failures["http-503"] != 1 || m.Cut != 1 || m.Short != 1 {
		t.Errorf("counts: %+v", m)
	}
	if m.Seconds != 1 || m.RequestsPerSecond != 3 || m.OutputTokensPerSecond != 13 || m.TotalTokensPerSecond != 43 || *m.GoodputPerSecond != 1 {
		t.Errorf("rates: %+v, goodput %g", m, *m.GoodputPerSecond)
	}
	if m.TTFT.Max != 100 || m.TTFT.Count != 3 || m.TPOT.Count != 2 || m.TPOT.Mean != 20 || m.ITL.Count != 10 || m.ITL.P99 != 20 || m.E2EL.Max != 205 {
		t.Errorf("times: %+v", m)
	}
}

func TestTheSLOIsOfEveryGapAndOfTheMeanByItself(t *testing.T) {
	r := completedRecord(0, 0, 11)
	r.Gaps[4] = 120 * ms
	r.Last += 100 * ms
	r.End += 100 * ms
	for text, want := range map[string]bool{
		"itl=119ms": false, "itl=120ms": true, "tpot=29ms": false, "tpot=30ms": true, "ttft=99ms": false, "ttft=100ms": true,
		"e2el=404ms": false, "e2el=405ms": true, "ttft=1s,itl=1s,tpot=1s,e2el=1s": true, "ttft=1s,itl=1ms": false,
	} {
		var slo SLO
		if err := slo.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if slo.met(&r) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
}

func TestMediansAreOfEachNumberByItselfAndLeaveOutWhatWasInterrupted(t *testing.T) {
	round := func(rate, ttft float64) Measures {
		return Measures{Completed: 2, RequestsPerSecond: rate, TTFT: Summary{Count: 2, Median: ttft}, Failures: map[string]int{"timeout": 1}, Failed: 1}
	}
	broken := round(1000, 1000)
	broken.Interrupted = true
	m := medians([]Measures{round(1, 30), round(3, 10), round(2, 20), broken})
	if m.RequestsPerSecond != 2 || m.TTFT.Median != 20 || m.TTFT.Count != 6 || m.Interrupted {
		t.Errorf("medians %+v", m)
	}
	if m.Completed != 8 || m.Failed != 4 || m.Failures["timeout"] != 4 {
		t.Errorf("counts are sums over all rounds: %+v", m)
	}
	if m := medians([]Measures{broken}); m.RequestsPerSecond != 1000 || !m.Interrupted {
		t.Errorf("alone, an interrupted round is better than none: %+v", m)
	}
	empty := round(4, 0)
	empty.TTFT = Summary{}
	if m := medians([]Measures{round(1, 30), empty}); m.TTFT.Median != 30 || m.RequestsPerSecond != 2.5 {
		t.Errorf("a round without times has none to give: %+v", m)
	}
}

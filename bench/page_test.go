package bench

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// measured is a report of a run that a test plays.
func measured(t *testing.T, peer string, change func(*Options)) *Report {
	t.Helper()
	var report *Report
	synctest.Test(t, func(t *testing.T) {
		o := options()
		o.Concurrency, o.Requests, o.Rounds, o.SLO = []int{1, 2}, 4, 2, SLO{TTFT: time.Second}
		if change != nil {
			change(&o)
		}
		run := &Run{
			Options: o, Prompts: RandomIDs(Lengths{3, 3}, 0, 50, 1), Model: "toy",
			Targets:   []Target{&played{"mesh", playAnswer(10 * ms)}},
			Occupancy: func() (Occupancy, error) { return Occupancy{ActiveSessions: 2, KVBytes: 5 << 20}, nil },
		}
		if peer != "" {
			run.Targets = append(run.Targets, &played{peer, playAnswer(20 * ms)})
		}
		var err error
		if report, err = run.Do(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	return report
}

func renderPage(t *testing.T, r *Report) string {
	t.Helper()
	var b strings.Builder
	if err := WritePage(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var outside = regexp.MustCompile(`(?i)(https?:|//[a-z]|\bsrc\s*=|href\s*=|url\(|@import|<script|<link|<iframe|<object|<embed|<img|\son[a-z]+\s*=)`)

func TestThePageRefersToNothingOutsideOfIt(t *testing.T) {
	for _, peer := range []string{"", "llama-server"} {
		text := renderPage(t, measured(t, peer, nil))
		if found := outside.FindString(text); found != "" {
			t.Errorf("peer %q: the page has %q", peer, found)
		}
		for _, want := range []string{"<svg", "TTFT", "E2EL", "goodput", "KV that the nodes hold", "default-src &#39;none&#39;"} {
			if !strings.Contains(strings.ReplaceAll(text, "'none'", "&#39;none&#39;"), want) {
				t.Errorf("peer %q: the page has no %q", peer, want)
			}
		}
		if peer != "" && !strings.Contains(text, "0.50x") {
			t.Error("the page has no ratio of 0.50")
		}
	}
}

func TestWhatOthersSaidIsTextOnThePage(t *testing.T) {
	r := measured(t, `<script>alert("x")</script>`, nil)
	r.Model = `<img src=x onerror=alert(1)>`
	r.Phases[0].Systems[1].Examples = map[string]string{"http-500": "<b onclick=evil()>"}
	r.Phases[0].Systems[1].Median.Failures = map[string]int{"http-500": 1}
	text := renderPage(t, r)
	if strings.Contains(text, "<script") || strings.Contains(text, "<img") || strings.Contains(text, "<b onclick") {
		t.Error("the page has markup of others")
	}
}

func TestChartsAreWellFormedWhateverWasMeasured(t *testing.T) {
	pictures := regexp.MustCompile(`(?s)<svg.*?</svg>`)
	empty := &Report{Systems: []string{"mesh", "other"}, Phases: []PhaseReport{{Name: "1 at once", Phase: Phase{Concurrency: 1}, Systems: []SystemReport{{System: "mesh"}, {System: "other"}}}}}
	for claim, r := range map[string]*Report{
		"a run":        measured(t, "", nil),
		"with a peer":  measured(t, "other", nil),
		"an open loop": measured(t, "other", func(o *Options) { o.Concurrency, o.Rates = nil, []float64{0.5, 20} }),
		"one request":  measured(t, "", func(o *Options) { o.Concurrency, o.Requests, o.Rounds = []int{1}, 1, 1 }),
		"nothing":      empty,
	} {
		found := pictures.FindAllString(renderPage(t, r), -1)
		if len(found) < 5 {
			t.Errorf("%s: %d pictures", claim, len(found))
		}
		for _, picture := range found {
			if strings.Contains(picture, "NaN") || strings.Contains(picture, "Inf") {
				t.Errorf("%s: a coordinate is no number: %s", claim, picture)
			}
			for decoder := xml.NewDecoder(strings.NewReader(picture)); ; {
				if _, err := decoder.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s: %v: %s", claim, err, picture)
				}
			}
		}
	}
}

func TestAxesCoverTheirValuesWithRoundTicks(t *testing.T) {
	for _, most := range []float64{0, 0.03, 1, 7, 99, 100, 12345, 3e6} {
		a := linearAxis(most, 4)
		if a.max < most || len(a.ticks) < 2 || len(a.ticks) > 8 || a.ticks[len(a.ticks)-1] > a.max*(1+1e-9) {
			t.Errorf("linear to %g: %+v", most, a)
		}
	}
	for _, span := range [][2]float64{{0, 0}, {5, 5}, {0.1, 90}, {200, 240}, {1, 1e9}, {math.NaN(), 1}} {
		a := logAxis(span[0], span[1])
		if len(a.ticks) == 0 || a.min <= 0 || a.at(a.min) != 0 || a.at(a.max) != 1 || a.at(a.min/10) != 0 {
			t.Errorf("logarithmic over %v: %+v", span, a)
		}
	}
}

func TestTheTableHasEveryNumberOnce(t *testing.T) {
	var b strings.Builder
	if err := WriteTable(&b, measured(t, "other", func(o *Options) { o.Concurrency, o.Requests = []int{2}, 8 })); err != nil {
		t.Fatal(err)
	}
	const want = `toy: 3 random token ids, answers of 4-9 tokens, medians of 2 rounds

                   completed  failed  req/s  output tok/s  total tok/s  goodput req/s
2 at once  mesh           16       0   66.7           133          333           66.7
           other          16       0   33.3          66.7          167           33.3
           ratio                      2.00x         2.00x        2.00x          2.00x

           ms             mean  median    p90    p99    max
2 at once  TTFT  mesh     10.0    10.0   10.0   10.0   10.0
                 other    20.0    20.0   20.0   20.0   20.0
                 ratio   0.50x   0.50x  0.50x  0.50x  0.50x
           TPOT  mesh     10.0    10.0   10.0   10.0   10.0
                 other    20.0    20.0   20.0   20.0   20.0
                 ratio   0.50x   0.50x  0.50x  0.50x  0.50x
           ITL   mesh     10.0    10.0   10.0   10.0   10.0
                 other    20.0    20.0   20.0   20.0   20.0
                 ratio   0.50x   0.50x  0.50x  0.50x  0.50x
           E2EL  mesh     30.0    30.0   30.0   30.0   30.0
                 other    60.0    60.0   60.0   60.0   60.0
                 ratio   0.50x   0.50x  0.50x  0.50x  0.50x

Ratios are mesh : other. Above 1 is better for a rate, below 1 for a time.
16 of 16 answers have the same text on both sides.
2 at once, mesh: 16 answers are shorter than asked for.
2 at once, other: 16 answers are shorter than asked for.
`
	if b.String() != want {
		t.Errorf("the table is\n%s", b.String())
	}
}

package bench

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// played is a target that a test plays.
type played struct {
	name string
	play func(ctx context.Context, job *Job, l *Listener) (Answer, error)
}

func (p *played) Name() string { return p.name }

func (p *played) Generate(ctx context.Context, job *Job, l *Listener) (Answer, error) {
	return p.play(ctx, job, l)
}

// waits is false if ctx ends first.
func waits(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func load(t *testing.T, o Options, phase Phase, play func(context.Context, *Job, *Listener) (Answer, error)) []Record {
	t.Helper()
	return loadUntil(t.Context(), o, phase, play)
}

func loadUntil(ctx context.Context, o Options, phase Phase, play func(context.Context, *Job, *Listener) (Answer, error)) []Record {
	l := &loader{target: &played{"toy", play}, opts: &o, origin: time.Now()}
	return l.run(ctx, phase, o.plan(RandomIDs(Lengths{1, 1}, 0, 10, o.Seed), 0, 0, phase, 0))
}

func TestAClosedLoopKeepsExactlyNInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, requests = 5, 200
		var inFlight, sent atomic.Int64
		checks := 0
		var checker sync.WaitGroup
		checker.Go(func() { // between the instants at which requests end
			for waits(t.Context(), ms/2); sent.Load() < requests; waits(t.Context(), ms) {
				checks++
				if now := inFlight.Load(); now != n {
					t.Errorf("%d are in flight when %d were sent", now, sent.Load())
				}
			}
		})
		records := load(t, options(), Phase{Concurrency: n, Requests: requests}, func(ctx context.Context, job *Job, l *Listener) (Answer, error) {
			sent.Add(1)
			if now := inFlight.Add(1); now > n {
				t.Errorf("%d are in flight", now)
			}
			waits(ctx, time.Duration(1+job.Seed%97)*ms)
			l.Text("x")
			inFlight.Add(-1)
			return Answer{OutputTokens: 1}, nil
		})
		checker.Wait()
		if checks < requests {
			t.Errorf("it was looked %d times only", checks)
		}
		if len(records) != requests || sent.Load() != requests {
			t.Errorf("%d records of %d requests", len(records), sent.Load())
		}
	})
}

func TestAnOpenLoopSendsWhenItsTimeHasComeWhateverIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		phase := Phase{Rate: 10, Requests: 50}
		began := time.Now()
		records := load(t, o, phase, func(ctx context.Context, job *Job, l *Listener) (Answer, error) {
			if since := time.Since(began); since != job.At {
				t.Errorf("request %d is sent at %s, not at %s", job.Number, since, job.At)
			}
			waits(ctx, 10*time.Second) // far longer than the gaps
			l.Text("x")
			return Answer{OutputTokens: 1}, nil
		})
		for i, at := range arrivals(stream(o.Seed, 0, 0, forArrivals), phase.Rate, phase.Requests) {
			if r := &records[i]; r.Sent != at || r.First != 10*time.Second || r.Failure != nil {
				t.Errorf("record %d: %+v", i, r)
			}
		}
	})
}

func TestTimesAreThoseAtWhichTextCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := load(t, options(), Phase{Concurrency: 1, Requests: 1}, func(ctx context.Context, _ *Job, l *Listener) (Answer, error) {
			waits(ctx, 50*ms)
			l.Text("") // a token without a character is not seen
			waits(ctx, 50*ms)
			l.Text("a")
			waits(ctx, 30*ms)
			l.Text("b")
			waits(ctx, 10*ms)
			l.Text("c")
			waits(ctx, 5*ms)
			l.End()
			waits(ctx, 500*ms) // what comes after the end is not the request's
			return Answer{Text: "abc", OutputTokens: 5}, nil
		})
		r := &records[0]
		if r.First != 100*ms || !slices.Equal(r.Gaps, []time.Duration{30 * ms, 10 * ms}) || r.Last != 140*ms || r.End != 145*ms || r.TPOT() != 10*ms {
			t.Errorf("record %+v, TPOT %s", r, r.TPOT())
		}
	})
}

func TestARequestThatDoesNotEndIsGivenUpAndSaysWhy(t *testing.T) {
	silent := func(ctx context.Context, _ *Job, _ *Listener) (Answer, error) {
		<-ctx.Done()
		return Answer{}, ctx.Err()
	}
	for reason, c := range map[string]struct {
		play func(context.Context, *Job, *Listener) (Answer, error)
		end  time.Duration
	}{
		reasonTimeout: {silent, time.Minute}, // before the first text only the timeout counts
		reasonStalled: {func(ctx context.Context, job *Job, l *Listener) (Answer, error) {
			waits(ctx, 3*time.Second)
			l.Text("a")
			waits(ctx, 9*time.Second)
			l.Text("b")
			return silent(ctx, job, l)
		}, 22 * time.Second},
		reasonNoText: {func(context.Context, *Job, *Listener) (Answer, error) { return Answer{OutputTokens: 3}, nil }, 0},
		reasonOther:  {func(context.Context, *Job, *Listener) (Answer, error) { return Answer{}, errors.New("odd") }, 0},
		"of-its-own": {func(context.Context, *Job, *Listener) (Answer, error) { return Answer{}, &Failure{"of-its-own", ""} }, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := load(t, options(), Phase{Concurrency: 1, Requests: 1}, c.play)[0]
			if r.Failure == nil || r.Failure.Reason != reason || r.End != c.end {
				t.Errorf("%s: %+v at %s", reason, r.Failure, r.End)
			}
		})
	}
}

func TestAnInterruptedLoadSendsNoMoreAndCountsWhatItCut(t *testing.T) {
	for _, phase := range []Phase{{Concurrency: 4, Requests: 100}, {Rate: 2, Requests: 100}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(3500*ms, cancel)
			o := options()
			var sent atomic.Int64
			records := loadUntil(ctx, o, phase, func(ctx context.Context, _ *Job, l *Listener) (Answer, error) {
				sent.Add(1)
				if !waits(ctx, time.Second) {
					return Answer{}, ctx.Err()
				}
				l.Text("x")
				return Answer{OutputTokens: 1}, nil
			})
			if int(sent.Load()) != len(records) {
				t.Errorf("%d records of %d requests sent", len(records), sent.Load())
			}
			m := o.measure(records, true)
			if m.Failed != 0 || m.Completed+m.Cut != len(records) || m.Cut == 0 || m.Completed == 0 {
				t.Errorf("%s: %+v", phase, m)
			}
			if phase.Rate == 0 && (m.Completed != 12 || m.Cut != 4) {
				t.Errorf("%d completed and %d cut in three and a half rounds of four", m.Completed, m.Cut)
			}
		})
	}
}

func TestTargetsTakeTurnsWithTheSameJobsAndWhoBeginsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		jobs := make(map[string][]Job)
		target := func(name string, pace time.Duration) *played {
			return &played{name, func(ctx context.Context, job *Job, l *Listener) (Answer, error) {
				if n := len(order); n == 0 || order[n-1] != name {
					order = append(order, name)
				}
				jobs[name] = append(jobs[name], *job)
				waits(ctx, pace)
				l.Text("x")
				return Answer{Text: "x", OutputTokens: 1, PromptTokens: 3}, nil
			}}
		}
		o := options()
		o.Concurrency, o.Requests, o.Rounds, o.Warmup = []int{1}, 5, 4, 2
		run := &Run{Options: o, Prompts: RandomIDs(Lengths{3, 3}, 0, 50, 1), Model: "toy", Targets: []Target{target("mesh", 10*ms), target("other", 20*ms)}}
		report, err := run.Do(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// Warm-up, then a pair for each round; two parts of one target in a row look like one.
		if want := []string{"mesh", "other", "mesh", "other", "mesh", "other", "mesh"}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
		if len(jobs["mesh"]) != 22 || !slices.EqualFunc(jobs["mesh"], jobs["other"], func(a, b Job) bool {
			return a.Number == b.Number && a.Seed == b.Seed && a.MaxTokens == b.MaxTokens && slices.Equal(a.Prompt.TokenIDs, b.Prompt.TokenIDs)
		}) {
			t.Errorf("the jobs are not the same")
		}
		p := &report.Phases[0]
		if got := p.Ratios["requests_per_second"]; got < 1.999 || got > 2.001 {
			t.Errorf("the ratio of rates is %g, want 2", got)
		}
		if p.Ratios["TTFT median"] != 0.5 || p.SameTexts != 20 || p.ComparedTexts != 20 || p.Systems[0].Median.Completed != 20 || len(p.Systems[1].Rounds) != 4 {
			t.Errorf("phase %+v", p)
		}
		if report.Warmup[0].Completed != 2 || report.Interrupted {
			t.Errorf("warm-up %+v", report.Warmup)
		}
	})
}

// playAnswer is an answer of two texts, each so long after what was before, and the end after that.
func playAnswer(pace time.Duration) func(context.Context, *Job, *Listener) (Answer, error) {
	return func(ctx context.Context, _ *Job, l *Listener) (Answer, error) {
		for range 2 {
			waits(ctx, pace)
			l.Text("x")
		}
		waits(ctx, pace)
		return Answer{Text: "xx", PromptTokens: 3, OutputTokens: 2}, nil
	}
}

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// sweepStep is one token of a session, as a sweep compares it.
type sweepStep struct {
	token Token
	hash  uint64
	gap   float32
}

// sweepRun is one setting at one level: the measurement and every session's steps.
type sweepRun struct {
	result  SweepResult
	audit   bool
	streams map[string][]sweepStep // by session, through all its turns
}

type settingRuns struct {
	setting Setting
	levels  []sweepRun // lowest first
}

// sweeper runs one setting at one level.
type sweeper struct {
	ctx   context.Context
	sched *Scheduler
	opts  SweepOptions
	run   sweepRun
}

// The neighbour's own names and length; its tenant is none of the requests'.
const (
	neighbourTenant    = "sweep-neighbour"
	neighbourNewTokens = 8
	neighbourCancelled = 3 // tokens after which it is cancelled
)

func sweepOnce(ctx context.Context, factory EngineFactory, opts SweepOptions, setting Setting, level int) (run sweepRun, err error) {
	engine, closeEngine, err := factory(level)
	if err != nil {
		return run, err
	}
	defer closeEngine()
	facts := engine.Facts()
	if facts.Slots < level {
		return run, fmt.Errorf("engine has %d slots, the level needs %d", facts.Slots, level)
	}
	sched, err := New(engine, Config{Budget: sweepBudget(facts, opts.Requests, level), Clock: opts.Clock})
	if err != nil {
		return run, err
	}
	defer sched.Close()
	w := &sweeper{ctx: ctx, sched: sched, opts: opts,
		run: sweepRun{result: SweepResult{Concurrency: level}, audit: facts.Audit, streams: make(map[string][]sweepStep)}}
	switch setting {
	case SettingHot:
		err = w.twoTurns(true)
	case SettingAfresh:
		err = w.twoTurns(false)
	case SettingCancelledNeighbour:
		err = w.cancelledNeighbour()
	default:
		err = w.measure(func() error { return w.submit(w.firstTurns(opts.Requests)...) })
	}
	w.run.result.RejectedAdmissions = sched.Telemetry().RejectedAdmissionsTotal
	return w.run, err
}

// sweepBudget never refuses, evicts or queues for KV: whether sessions come out the same must not depend on it.
func sweepBudget(facts Facts, requests []Request, level int) NodeBudget {
	budget := DefaultBudget(facts)
	budget.KVBudgetBytes = max(1, int64(len(requests)+1)*facts.KVBytes(facts.ContextTokens))
	budget.HotBudgetBytes = 4 * (budget.KVBudgetBytes + defaultScratchPerSession*int64(len(requests)))
	budget.SuspendBudgetBytes = 0
	budget.ScratchBytesPerSession, budget.ScratchBudgetBytes = 1, int64(level)
	budget.MaxActiveSessions, budget.MaxBatchSize = level, level
	budget.MaxQueueDepth = len(requests) + 1
	budget.MaxPrefillTokensPerTick = crowdingPrefill(requests, level)
	return budget
}

// crowdingPrefill is how many prompt tokens a tick must take for a crowd to be one before its first members are half done:
// a prompt, or more where many sessions have few tokens to generate.
func crowdingPrefill(requests []Request, level int) int {
	longest, total, shortest := 0, 0, MaxNewTokensLimit
	for _, req := range requests {
		longest, total = max(longest, len(req.Prompt)), total+len(req.Prompt)
		shortest = min(shortest, req.MaxNewTokens)
	}
	return max(longest, total*level/len(requests)/max(1, shortest/2))
}

// firstTurns are the requests as the sweep runs them cold.
func (w *sweeper) firstTurns(requests []Request) []Request {
	turns := slices.Clone(requests)
	for i := range turns {
		turns[i].Turn, turns[i].Epoch, turns[i].Keep, turns[i].RequireHot, turns[i].Deadline = 1, 0, false, false, time.Time{}
	}
	return turns
}

// twoTurns runs each request's first half, saves its KV where it is to be kept, and measures the second half.
func (w *sweeper) twoTurns(keep bool) error {
	turns := w.firstTurns(w.opts.Requests)
	for i := range turns {
		turns[i].Keep = keep
		turns[i].MaxNewTokens = (turns[i].MaxNewTokens + 1) / 2
	}
	if err := w.submit(turns...); err != nil {
		return err
	}
	if err := w.drive(func(*Report) bool { return true }); err != nil {
		return err
	}
	w.sched.saveParked()
	for i, req := range w.opts.Requests {
		turns[i].Turn, turns[i].Keep = 2, false
		turns[i].MaxNewTokens = req.MaxNewTokens - turns[i].MaxNewTokens
		turns[i].Prompt = slices.Clone(req.Prompt)
		for _, step := range w.run.streams[req.Session] {
			turns[i].Prompt = append(turns[i].Prompt, step.token)
		}
	}
	return w.measure(func() error { return w.submit(turns...) })
}

// cancelledNeighbour lets a neighbour decode beside the requests, cancels it, and gives its slot to the last request.
func (w *sweeper) cancelledNeighbour() error {
	turns := w.firstTurns(w.opts.Requests)
	neighbour := turns[0]
	neighbour.Tenant, neighbour.Session = neighbourTenant, neighbourTenant
	neighbour.MaxNewTokens, neighbour.Sampling.IgnoreEOG = neighbourNewTokens, true
	neighbour.Prompt = slices.Clone(neighbour.Prompt[:(len(neighbour.Prompt)+1)/2])
	slices.Reverse(neighbour.Prompt)
	return w.measure(func() error {
		last := len(turns) - 1
		if err := w.submit(append([]Request{neighbour}, turns[:last]...)...); err != nil {
			return err
		}
		got := 0
		err := w.drive(func(r *Report) bool {
			for _, token := range r.Tokens {
				if token.Key.Tenant == neighbourTenant {
					got++
				}
			}
			return got < neighbourCancelled
		})
		if err != nil {
			return err
		}
		if found, err := w.sched.Cancel(neighbour.Key(), Cancelled, "", ""); err != nil || !found {
			return errors.Join(errors.New("the neighbour ended before it could be cancelled"), err)
		}
		return w.submit(turns[last])
	})
}

func (w *sweeper) submit(turns ...Request) error {
	for _, req := range turns {
		if d := w.sched.Submit(req); !d.Accepted() {
			return fmt.Errorf("request refused: %s", d)
		}
	}
	return nil
}

// measure runs what begin submits to its end and takes its numbers, and no earlier ones, as the result.
func (w *sweeper) measure(begin func() error) error {
	w.run.result = SweepResult{Concurrency: w.run.result.Concurrency}
	start := w.opts.Clock()
	if err := begin(); err != nil {
		return err
	}
	if err := w.drive(func(*Report) bool { return true }); err != nil {
		return err
	}
	w.run.result.finish(w.opts.Clock().Sub(start))
	return nil
}

// drive ticks while turns are pending and goOn says so.
func (w *sweeper) drive(goOn func(*Report) bool) error {
	for limit := w.sched.defaultTickLimit(); w.sched.Pending() > 0; limit-- {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if limit == 0 {
			return fmt.Errorf("%d turns still pending at the tick limit", w.sched.Pending())
		}
		report, err := w.sched.Tick()
		if err != nil {
			return err
		}
		w.observe(report)
		if err := w.collect(); err != nil {
			return err
		}
		if !goOn(report) {
			return nil
		}
	}
	return nil
}

func (w *sweeper) observe(r *Report) {
	w.run.result.observe(r, w.sched.kvTotal())
	for _, token := range r.Tokens {
		if token.Key.Tenant == neighbourTenant {
			continue
		}
		session := token.Key.Session
		w.run.streams[session] = append(w.run.streams[session], sweepStep{token.Token, token.LogitHash, token.Gap})
	}
}

func (w *sweeper) collect() error {
	for _, end := range w.sched.TakeResults(nil) {
		switch end.Reason {
		case Completed, Cancelled:
			w.run.result.CachedTokens += int64(end.Usage.Cached)
		case CacheMiss:
			w.run.result.CacheMisses++
		default:
			return fmt.Errorf("turn %s ended %s %s: %s", end.Key, end.Reason, end.Cause, end.Detail)
		}
	}
	return nil
}

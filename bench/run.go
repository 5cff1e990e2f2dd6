package bench

import (
	"context"
	"sync"
	"time"
)

// Progress is where a run stands.
type Progress struct {
	Phase         string // or "warm-up"
	System        string
	Round, Rounds int           // from 1
	Done, Total   int           // requests of the phase
	Pieces        int           // texts that came in it
	InPhase       time.Duration // since it began
}

// Run is one benchmark. Its fields do not change while it runs.
type Run struct {
	Options Options
	Prompts *Prompts
	Model   string   // for the report
	Targets []Target // the mesh, and perhaps a peer

	Progress  func(Progress)            // or nil; called by one goroutine at a time, and not after Do
	Occupancy func() (Occupancy, error) // or nil; Seconds is set by Run
}

const (
	progressEvery  = 250 * time.Millisecond
	occupancyEvery = 500 * time.Millisecond
)

// Do runs every phase of every round on every target. When ctx ends, what is in flight is cancelled, and the report is of
// what was measured until then.
func (b *Run) Do(ctx context.Context) (*Report, error) {
	if err := b.Options.Validate(len(b.Targets)); err != nil {
		return nil, err
	}
	longest := b.Prompts.longestAnswer(b.Options.Output)
	if err := checkTokens(b.Options.requests(len(b.Targets)), longest); err != nil {
		return nil, err
	}
	began := time.Now()
	report := &Report{
		SchemaVersion: ReportVersion, Began: began.UTC(), Model: b.Model, Prompts: b.Prompts.Describe(), Options: b.Options,
	}
	for _, target := range b.Targets {
		report.Systems = append(report.Systems, target.Name())
	}
	for _, phase := range b.Options.phases() {
		p := PhaseReport{Phase: phase, Name: phase.String()}
		for _, name := range report.Systems {
			p.Systems = append(p.Systems, SystemReport{System: name})
		}
		report.Phases = append(report.Phases, p)
	}
	stop := b.watch(began, report)
	b.warmUp(ctx, began, report)
	b.rounds(ctx, began, report)
	stop()
	for i := range report.Phases {
		report.Phases[i].conclude()
	}
	report.Seconds = time.Since(began).Seconds()
	report.Interrupted = ctx.Err() != nil
	return report, nil
}

// warmUp sends requests that are not counted, as many at once as the first phase has.
func (b *Run) warmUp(ctx context.Context, began time.Time, report *Report) {
	phase := b.Options.phases()[0]
	phase.Requests = b.Options.Warmup
	if phase.Requests == 0 {
		return
	}
	jobs := b.Options.plan(b.Prompts, warmupRound, 0, phase, 0)
	for _, target := range b.Targets {
		records := b.phase(ctx, began, target, phase, jobs, Progress{Phase: "warm-up"})
		report.Warmup = append(report.Warmup, b.Options.measure(records, ctx.Err() != nil))
	}
}

// rounds runs the phases. The targets take turns, and who begins changes with each phase and each round.
func (b *Run) rounds(ctx context.Context, began time.Time, report *Report) {
	number := b.Options.Warmup
	for round := range b.Options.Rounds {
		for index, phase := range b.Options.phases() {
			jobs := b.Options.plan(b.Prompts, round, index, phase, number)
			number += len(jobs)
			for turn := range b.Targets {
				system := (turn + round + index) % len(b.Targets)
				if ctx.Err() != nil {
					return
				}
				from := time.Since(began)
				at := Progress{Phase: phase.String(), Round: round + 1, Rounds: b.Options.Rounds}
				records := b.phase(ctx, began, b.Targets[system], phase, jobs, at)
				report.marks = append(report.marks, mark{index, system, from, time.Since(began)})
				report.Phases[index].Systems[system].take(round, records, b.Options.measure(records, ctx.Err() != nil))
			}
		}
	}
}

// phase runs the jobs on one target, and tells of its progress meanwhile.
func (b *Run) phase(ctx context.Context, began time.Time, target Target, phase Phase, jobs []Job, at Progress) []Record {
	l := &loader{target: target, opts: &b.Options, origin: began}
	from := time.Now()
	stop := every(progressEvery, func() {
		if b.Progress == nil {
			return
		}
		now := at
		now.System, now.Total, now.Done, now.Pieces = target.Name(), len(jobs), int(l.done.Load()), int(l.pieces.Load())
		now.InPhase = time.Since(from)
		b.Progress(now)
	})
	defer stop()
	return l.run(ctx, phase, jobs)
}

// watch takes the occupancy of the mesh until stop is called.
func (b *Run) watch(began time.Time, report *Report) (stop func()) {
	if b.Occupancy == nil {
		return func() {}
	}
	return every(occupancyEvery, func() {
		if o, err := b.Occupancy(); err == nil { // nodes that cannot be asked are a gap in a picture
			o.Seconds = time.Since(began).Seconds()
			report.Occupancy = append(report.Occupancy, o)
		}
	})
}

// every calls do at once and then with every period. It does so no more when stop has returned.
func every(period time.Duration, do func()) (stop func()) {
	end := make(chan struct{})
	var caller sync.WaitGroup
	caller.Go(func() {
		ticker := time.NewTicker(period)
		defer ticker.Stop()
		for {
			do()
			select {
			case <-ticker.C:
			case <-end:
				return
			}
		}
	})
	return func() {
		close(end)
		caller.Wait()
	}
}

package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// loader sends the requests of one phase to one system.
type loader struct {
	target Target
	opts   *Options
	origin time.Time // when the run began

	done   atomic.Int64 // requests that ended
	pieces atomic.Int64 // texts that came
}

// run sends the jobs and waits for all that were sent. When ctx ends it sends no more.
func (l *loader) run(ctx context.Context, phase Phase, jobs []Job) []Record {
	if phase.Rate > 0 {
		return l.open(ctx, jobs)
	}
	return l.closed(ctx, phase.Concurrency, jobs)
}

// closed keeps n requests in flight for as long as there are any.
func (l *loader) closed(ctx context.Context, n int, jobs []Job) []Record {
	records := make([]Record, len(jobs))
	var next atomic.Int64
	var users sync.WaitGroup
	for range min(n, len(jobs)) {
		users.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(jobs) {
					return
				}
				l.measure(ctx, time.Now(), &jobs[i], &records[i])
			}
		})
	}
	users.Wait()
	return records[:min(int(next.Load()), len(jobs))]
}

// open sends each request when its time has come, whatever became of the others. Its clock runs from that time on: a load
// generator that is late makes a system look worse, never better.
func (l *loader) open(ctx context.Context, jobs []Job) []Record {
	records := make([]Record, len(jobs))
	began := time.Now()
	var flights sync.WaitGroup
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range jobs {
		at := began.Add(jobs[i].At)
		timer.Reset(time.Until(at))
		select {
		case <-timer.C:
		case <-ctx.Done():
			flights.Wait()
			return records[:i]
		}
		flights.Go(func() { l.measure(ctx, at, &jobs[i], &records[i]) })
	}
	flights.Wait()
	return records
}

// measure runs one request and writes its record.
func (l *loader) measure(ctx context.Context, began time.Time, job *Job, r *Record) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timeout := time.AfterFunc(time.Until(began.Add(l.opts.Timeout)), func() { cancel(errTimeout) })
	defer timeout.Stop()
	stall := time.AfterFunc(2*MaxTimeout, func() { cancel(errStalled) }) // the first text makes it shorter
	defer stall.Stop()
	r.Number, r.Sent, r.MaxTokens = job.Number, began.Sub(l.origin), job.MaxTokens
	listener := &Listener{began: began, record: r, heard: func() {
		stall.Reset(l.opts.Stall)
		l.pieces.Add(1)
	}}
	answer, err := l.target.Generate(ctx, job, listener)
	var failure *Failure
	if err != nil {
		failure = failureOf(err, context.Cause(ctx))
	}
	listener.finish(answer, failure)
	l.done.Add(1)
}

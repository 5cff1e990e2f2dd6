package part

import (
	"context"
	"errors"
	"sync"
)

// Life implements Part but for Start. A part embeds it, and its Start calls Launch:
//
//	func (a *Advertiser) Start(ctx context.Context) error { return a.Launch(ctx, a.open, a.run) }
//
// The zero value is ready to use. A Life must not be copied.
type Life struct {
	once             sync.Once
	started, stopped chan struct{}
	ready            func()

	running sync.WaitGroup // every goroutine of the part

	mu     sync.Mutex // guards what follows
	phase  phase
	ctx    context.Context    // of the part's goroutines
	cancel context.CancelFunc // of ctx
	err    error              // the first one
}

// phase is where a part is in its life.
type phase int

const (
	fresh   phase = iota
	alive         // launched
	leaving       // launched, and ending or ended
	unborn        // stopped before it was launched
)

// Launch begins the part's life. It calls open, which may be nil, for what is known at once; if that fails,
// the part is stopped with open's error, which Launch returns. Then run goes on in a goroutine: it calls ready
// once the part does what it is for, and returns soon after its ctx has ended. The part ends when run
// returns, and has ended once every function given to Go has returned too.
//
// An error of run is the part's. That ctx ended is none.
func (l *Life) Launch(ctx context.Context, open func(context.Context) error, run func(ctx context.Context, ready func()) error) error {
	ctx, err := l.begin(ctx)
	if err != nil {
		return err
	}
	if open != nil {
		err = open(ctx)
	}
	if err != nil {
		l.end(err)
	} else {
		l.running.Go(func() { l.end(run(ctx, l.ready)) })
	}
	l.running.Done() // the place that begin took for Launch
	go func() {      // ends with the others; whoever waits for stopped waits for it
		l.running.Wait()
		close(l.stopped)
	}()
	if err != nil {
		<-l.stopped
	}
	return err
}

// Go runs f as a further goroutine of the part. It is for open, run, and functions that Go already runs. An
// error of f ends the whole part. Once the part is ending, f is not run.
func (l *Life) Go(f func(context.Context) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase != alive {
		return
	}
	ctx := l.ctx
	l.running.Go(func() {
		if err := f(ctx); err != nil {
			l.end(err)
		}
	})
}

// Stop implements Part.
func (l *Life) Stop() {
	l.init()
	l.mu.Lock()
	switch l.phase {
	case fresh:
		l.phase = unborn
		close(l.stopped)
	case alive:
		l.phase = leaving
		l.cancel()
	}
	l.mu.Unlock()
	<-l.stopped
}

// Started implements Part.
func (l *Life) Started() <-chan struct{} {
	l.init()
	return l.started
}

// Stopped implements Part.
func (l *Life) Stopped() <-chan struct{} {
	l.init()
	return l.stopped
}

// Err implements Part.
func (l *Life) Err() error {
	select {
	case <-l.Stopped():
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.err
	default:
		return nil
	}
}

// init makes the channels, so that they can be waited on before Start.
func (l *Life) init() {
	l.once.Do(func() {
		l.started, l.stopped = make(chan struct{}), make(chan struct{})
		l.ready = sync.OnceFunc(func() { close(l.started) })
	})
}

// begin takes the part from fresh to alive, and a place in running for its caller.
func (l *Life) begin(ctx context.Context) (context.Context, error) {
	l.init()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.phase {
	case fresh:
	case unborn:
		return nil, ErrStopped
	default:
		return nil, ErrStarted
	}
	l.phase = alive
	l.ctx, l.cancel = context.WithCancel(ctx)
	l.running.Add(1)
	return l.ctx, nil
}

// end takes note of one goroutine's result, and lets the others end.
func (l *Life) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := l.ctx.Err()
	if l.err == nil && (asked == nil || !errors.Is(err, asked)) {
		l.err = err
	}
	l.phase = leaving
	l.cancel()
}

package integration

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/schemas"
)

const (
	poisonNeighbours = 20
	poisonTokens     = 250
)

// toyFleet starts every worker again that dies, until the test ends.
type toyFleet struct {
	deaths atomic.Int64

	mu      sync.Mutex // guards what follows
	workers map[string]*toyWorker
	logs    []*bytes.Buffer // of all that there were
	ended   bool
}

func startToyFleet(t *testing.T, url string, names ...string) *toyFleet {
	t.Helper()
	f := &toyFleet{workers: make(map[string]*toyWorker)}
	var keepers sync.WaitGroup
	t.Cleanup(func() {
		f.mu.Lock()
		f.ended = true
		for _, w := range f.workers {
			w.in.Close() // fails where it has died
		}
		f.mu.Unlock()
		keepers.Wait()
		for _, log := range f.logs {
			if t.Failed() {
				t.Logf("a worker's log:\n%s", log)
			}
		}
	})
	for _, name := range names {
		w, err := startToy(toyOptions{URL: url, Node: name, Slots: 8})
		if err != nil {
			t.Fatal(err)
		}
		f.workers[name], f.logs = w, append(f.logs, &w.errors)
		keepers.Go(func() { f.keep(t, url, name, w) })
	}
	return f
}

func (f *toyFleet) keep(t *testing.T, url, name string, w *toyWorker) {
	for {
		w.gone()
		f.mu.Lock()
		ended := f.ended
		f.mu.Unlock()
		if ended {
			return
		}
		f.deaths.Add(1)
		var err error
		if w, err = startToy(toyOptions{URL: url, Node: name, Slots: 8}); err != nil {
			t.Error(err)
			return
		}
		f.mu.Lock()
		f.workers[name], f.logs = w, append(f.logs, &w.errors)
		if f.ended {
			w.in.Close()
		}
		f.mu.Unlock()
	}
}

func poisonRequest(session, prompt string) client.Request {
	req := meshRequest(session, poisonTokens)
	req.Prompt = prompt
	return req
}

// A turn that kills whoever evaluates it is found and ended; those that ran beside it lose nothing.
func TestTurnThatKillsItsWorkersEndsAtTheThirdTakeoverAndHarmsNoOther(t *testing.T) {
	server := natsservertest.Start(t, natsserver.Options{})
	fleet := startToyFleet(t, server.ClientURL(), "a", "b", "c")
	c := meshClient(t, server.ClientURL())
	var running, neighbours sync.WaitGroup
	for i := range poisonNeighbours {
		running.Add(1)
		neighbours.Go(func() {
			var once sync.Once
			defer once.Do(running.Done) // also where it does not run
			req := poisonRequest(fmt.Sprint("neighbour", i), fmt.Sprint("once upon a time in ", i))
			result, err := generate(t, c, req, func(string, int) { once.Do(running.Done) })
			if want := toyUndisturbed(t, req.Prompt, poisonTokens); err != nil || result.Text != want {
				t.Errorf("neighbour %d: attempt %d, %v, %.100q; undisturbed %.100q", i, result.Final.Attempt, err, result.Text, want)
			}
		})
	}
	running.Wait()
	_, err := generate(t, c, poisonRequest("poison", "once "+toyKill), nil)
	var ended *client.TurnError
	if !errors.As(err, &ended) {
		t.Fatalf("the turn that kills: %v", err)
	}
	if ended.Final.Reason != schemas.Failed || ended.Final.Cause != schemas.CauseWorkerLost || ended.Final.Attempt != 3 || ended.Final.Count != 0 {
		t.Errorf("the turn that kills ended with %v: %+v", err, ended.Final)
	}
	neighbours.Wait()
	next := poisonRequest("next", "and then")
	result, err := generate(t, c, next, nil)
	if want := toyUndisturbed(t, next.Prompt, poisonTokens); err != nil || result.Text != want {
		t.Errorf("the next turn: %v, %.100q; undisturbed %.100q", err, result.Text, want)
	}
	if n := fleet.deaths.Load(); n != 3 {
		t.Errorf("%d workers died, not 3", n)
	}
	checkNothingLeft(t, server.ClientURL(), poisonNeighbours+2)
}

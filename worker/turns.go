package worker

import (
	"context"
	"sync"

	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// turns are the live turns of this worker, and the locks by which arrivals of one turn are handled one at a
// time. Safe for concurrent use.
type turns struct {
	mu       sync.Mutex // guards what follows
	live     map[scheduler.TurnKey]*turn
	arriving map[schemas.TurnID]*arrival
}

// arrival is one turn's lock.
type arrival struct {
	free  chan struct{} // has its token while nobody holds the lock
	users int           // holders and waiters
}

func newTurns() *turns {
	return &turns{live: map[scheduler.TurnKey]*turn{}, arriving: map[schemas.TurnID]*arrival{}}
}

func turnKey(id schemas.TurnID) scheduler.TurnKey {
	return scheduler.TurnKey{Tenant: id.Tenant.String(), Session: id.Session.String(), Turn: uint64(id.Turn)}
}

// lock waits for the turn's lock. The error is ctx's.
func (t *turns) lock(ctx context.Context, id schemas.TurnID) (unlock func(), err error) {
	t.mu.Lock()
	a := t.arriving[id]
	if a == nil {
		a = &arrival{free: make(chan struct{}, 1)}
		a.free <- struct{}{}
		t.arriving[id] = a
	}
	a.users++
	t.mu.Unlock()
	select {
	case <-a.free:
		return func() {
			a.free <- struct{}{}
			t.forget(id, a)
		}, nil
	case <-ctx.Done():
		t.forget(id, a)
		return nil, ctx.Err()
	}
}

func (t *turns) forget(id schemas.TurnID, a *arrival) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.users--; a.users == 0 {
		delete(t.arriving, id)
	}
}

func (t *turns) get(id schemas.TurnID) *turn { return t.find(turnKey(id)) }

func (t *turns) find(key scheduler.TurnKey) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[key]
}

func (t *turns) add(turn *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live[turn.key] = turn
}

func (t *turns) remove(turn *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live[turn.key] == turn {
		delete(t.live, turn.key)
	}
}

// all is a new slice.
func (t *turns) all() []*turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*turn, 0, len(t.live))
	for _, turn := range t.live {
		all = append(all, turn)
	}
	return all
}

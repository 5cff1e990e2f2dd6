package hotkv_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/meshnet/node/hotkv"
)

// crowd is what concurrent users of one store share: the free slots and the number of states not yet freed.
type crowd struct {
	store *hotkv.Store
	free  chan int
	held  []atomic.Bool // by slot: true from when it left free until it comes back
	live  atomic.Int64
}

// countedState is freed through its crowd.
type countedState struct {
	fakeState
	crowd *crowd
}

func (c *countedState) Free() {
	c.fakeState.Free()
	c.crowd.live.Add(-1)
}

func (c *crowd) newState() *countedState {
	c.live.Add(1)
	return &countedState{fakeState: fakeState{bytes: 7, tokens: 3}, crowd: c}
}

func (c *crowd) dispose(t *testing.T, entries ...hotkv.Entry) {
	for _, e := range entries {
		switch {
		case e.Parked():
			c.release(t, e.Slot)
		case e.State != nil:
			if e.State.Free(); e.State.(*countedState).freed.Load() != 1 {
				t.Error("a state was freed twice")
			}
		}
	}
}

func (c *crowd) release(t *testing.T, slot int) {
	if !c.held[slot].CompareAndSwap(true, false) {
		t.Errorf("slot %d was released twice", slot)
		return
	}
	c.free <- slot
}

// newEntry parks in a free slot if there is one.
func (c *crowd) newEntry(name string, epoch uint64) hotkv.Entry {
	select {
	case slot := <-c.free:
		c.held[slot].Store(true)
		return atEpoch(parked(name, slot, 5), epoch)
	default:
		e := atEpoch(parked(name, hotkv.NoSlot, 7), epoch)
		e.State = c.newState()
		return e
	}
}

func (c *crowd) step(t *testing.T, rng *rand.Rand) {
	name, epoch := fmt.Sprint(rng.IntN(12)), rng.Uint64N(4)
	switch rng.IntN(8) {
	case 0, 1, 2:
		e := c.newEntry(name, epoch)
		evicted, err := c.store.Put(e)
		if err != nil {
			c.dispose(t, e)
		}
		c.dispose(t, evicted...)
	case 3:
		if e, ok := c.store.OldestParked(); ok {
			st := c.newState()
			evicted, ok := c.store.Saved(e.Key, e.Slot, st)
			if ok {
				c.release(t, e.Slot)
			} else {
				st.Free()
			}
			c.dispose(t, evicted...)
		}
	case 4, 5:
		e, _ := c.store.Take(session(name), epoch, "r")
		c.dispose(t, e)
	case 6:
		c.dispose(t, c.store.Fence(session(name), epoch)...)
	case 7:
		c.dispose(t, c.store.Invalidate(session(name))...)
	}
	if s := c.store.Stats(); s.Bytes > s.BudgetBytes || s.Bytes != int64(5*s.Parked+7*s.Saved) {
		t.Errorf("inconsistent stats: %+v", s)
	}
}

func TestConcurrentUsersNeverShareAnEntry(t *testing.T) {
	const slots, users, steps = 6, 8, 3000
	// A small fence memory keeps forgetting, so that low epochs come back into use.
	c := &crowd{
		store: hotkv.New(40, hotkv.WithFenceLimit(3)), free: make(chan int, slots), held: make([]atomic.Bool, slots),
	}
	for slot := range slots {
		c.free <- slot
	}
	var wg sync.WaitGroup
	for user := range users {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(user), 1))
			for range steps {
				c.step(t, rng)
			}
		})
	}
	wg.Wait()
	c.dispose(t, c.store.Close()...)
	if n := c.live.Load(); n != 0 {
		t.Errorf("%d states were not freed", n)
	}
	if n := len(c.free); n != slots {
		t.Errorf("%d slots came back, want %d", n, slots)
	}
	wantBytes(t, c.store, 0)
}

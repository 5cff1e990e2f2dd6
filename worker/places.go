package worker

import (
	"slices"
	"sync"

	"github.com/meshnet/node/schemas"
)

// places counts what the worker may hold: it never fetches more requests than there are free ones, but for guests. A place is
// pledged by a fetch, held by a request while it is decided on and while its turn runs, and kept through
// its ending, so that a slow server cannot pile up ended turns without bound. Safe for concurrent use.
//
// It also seats turns at the scheduler: all at once, except that one from its third attempt on, which may be what
// kills workers, runs alone.
type places struct {
	limit    int           // turns that run at once
	spare    int           // places beyond them for guests, to whom running turns give way
	freed    chan struct{} // has room for one: something was given back
	returned chan struct{} // likewise, for whoever claims a place

	mu       sync.Mutex             // guards what follows
	closed   bool                   // no more fetches
	pledged  int                    // to a fetch
	held     int                    // being decided on, or running
	tenants  map[schemas.Tenant]int // of held, by tenant
	ending   int                    // running no more, not over yet
	lendable []*place               // of the last fetch from the lane of all
	claimed  bool                   // the next place is for the own lane
	lonely   int                    // seats asked for or taken by turns that run alone
	seated   int                    // turns that the scheduler may know
	alone    bool                   // the one that is seated runs alone
	waiting  []*seat                // first come, first seated
}

func newPlaces(limit, spare int) *places {
	return &places{limit: limit, spare: spare, freed: make(chan struct{}, 1), returned: make(chan struct{}, 1), tenants: map[schemas.Tenant]int{}}
}

// room is how many requests may be fetched now from the lane of all.
func (p *places) room() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unclaimedLocked()
}

func (p *places) unclaimedLocked() int {
	if p.claimed {
		return max(0, p.roomLocked()-1)
	}
	return p.roomLocked()
}

func (p *places) roomLocked() int {
	if p.closed || p.lonely > 0 {
		return 0
	}
	return max(0, min(p.limit-p.pledged-p.held, 2*p.limit-p.pledged-p.held-p.ending))
}

// free is how many turns could begin now.
func (p *places) free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0
	}
	return max(0, p.limit-p.held)
}

// full says that nothing could run now even if it were here. A fetch under way that has brought nothing makes no
// worker full.
func (p *places) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed || p.lonely > 0 || p.held >= p.limit
}

// pledge takes up to n places for a fetch from the lane of all. There is one at a time.
func (p *places) pledge(n int) []*place {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lendable = p.pledgeLocked(min(n, p.unclaimedLocked()))
	return slices.Clone(p.lendable)
}

// guests are those of the tenants that have no request here, and how many of them can get a place all the same. There is none for
// guests while a place is free for anyone.
func (p *places) guests(waiting []schemas.Tenant) (guests []schemas.Tenant, room int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held < p.limit {
		return nil, 0
	}
	for _, tenant := range waiting {
		if p.tenants[tenant] == 0 {
			guests = append(guests, tenant)
		}
	}
	return guests, p.spareLocked()
}

// spareLocked is how many more guests there are places for.
func (p *places) spareLocked() int {
	if p.closed || p.lonely > 0 {
		return 0
	}
	return max(0, p.limit+p.spare-p.pledged-p.held-p.ending)
}

// admit takes a place for a request that has come without one, where its tenant has no other here. It is nil if there is none.
func (p *places) admit(tenant schemas.Tenant) *place {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tenants[tenant] > 0 || p.spareLocked() == 0 {
		return nil
	}
	place := &place{of: p, state: placeHeld, tenant: tenant}
	p.count(placeHeld, tenant, 1)
	return place
}

// pledgeLocked pledges n places.
func (p *places) pledgeLocked(n int) []*place {
	taken := make([]*place, max(0, n))
	for i := range taken {
		taken[i] = &place{of: p}
	}
	p.pledged += len(taken)
	return taken
}

// shut ends fetching, or begins it again.
func (p *places) shut(closed bool) {
	p.mu.Lock()
	p.closed = closed
	p.mu.Unlock()
	p.tell()
}

func (p *places) tell() {
	signal(p.freed)
	signal(p.returned)
}

// place is one of the places. A nil one is none: its holder may decide, but not run.
type place struct {
	of     *places
	state  placeState     // guarded by of.mu
	tenant schemas.Tenant // likewise; whose request came for it
}

// placeState is what a place is used for. It grows, but for a place that is lent.
type placeState int

const (
	placePledged placeState = iota
	placeLent               // its fetch goes on without it
	placeHeld
	placeEnding
	placeFree
)

// end makes room for another turn while this one's outcome is being told.
func (p *place) end() { p.move(placeEnding) }

// release gives the place back. Idempotent.
func (p *place) release() { p.move(placeFree) }

func (p *place) move(state placeState) {
	if p == nil {
		return
	}
	p.of.mu.Lock()
	if state > p.state {
		p.of.count(p.state, p.tenant, -1)
		p.of.count(state, p.tenant, 1)
		p.state = state
	}
	p.of.mu.Unlock()
	p.of.tell()
}

func (p *places) count(state placeState, tenant schemas.Tenant, by int) {
	switch state {
	case placePledged:
		p.pledged += by
	case placeHeld:
		p.held += by
		if p.tenants[tenant] += by; p.tenants[tenant] == 0 {
			delete(p.tenants, tenant)
		}
	case placeEnding:
		p.ending += by
	}
}

// seat is a turn's turn to be submitted.
type seat struct {
	of      *places
	alone   bool
	granted chan struct{} // closed when it may be
	taken   bool          // guarded by of.mu
}

// seat asks for a seat. Its leave must follow.
func (p *places) seat(alone bool) *seat {
	s := &seat{of: p, alone: alone, granted: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if alone {
		p.lonely++
	}
	p.waiting = append(p.waiting, s)
	p.grant()
	return s
}

func (p *places) grant() {
	for len(p.waiting) > 0 {
		s := p.waiting[0]
		if p.seated > 0 && (p.alone || s.alone) {
			return
		}
		p.waiting = p.waiting[1:]
		p.seated++
		p.alone, s.taken = s.alone, true
		close(s.granted)
	}
}

// leave gives the seat back, or asks no more for it.
func (s *seat) leave() {
	p := s.of
	p.mu.Lock()
	defer p.tell()
	defer p.mu.Unlock()
	if s.alone {
		p.lonely--
	}
	if s.taken {
		p.seated--
		p.alone = p.alone && !s.alone
	} else {
		for i, w := range p.waiting {
			if w == s {
				p.waiting = append(p.waiting[:i], p.waiting[i+1:]...)
				break
			}
		}
	}
	p.grant()
}

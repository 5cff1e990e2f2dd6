package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/worker/ledger"
)

// leastTick is how long a tick takes that evaluates nothing.
const leastTick = 10 * time.Microsecond

// node is one start of a worker: its scheduler is real, what is around it follows package worker.
type node struct {
	w      *world
	id     int
	name   string
	boot   string
	up     bool
	diedAt time.Duration

	sched   *scheduler.Scheduler
	engine  *engine
	now     time.Duration // the scheduler's clock: ahead of the world's during a tick
	ticking bool
	report  *scheduler.Report // of the tick under way
	arrived []*run            // to be submitted before the next tick
	runs    map[scheduler.TurnKey]*run
	endings []scheduler.Ending // buffer

	// Places, as worker.places counts them.
	limit   int
	pledged int         // to the fetch
	held    int         // being decided on, or running
	tenants map[int]int // of held
	fetch   *fetch
	leased  []*message

	// Seats, likewise.
	lonely  int // asked for or taken by turns that run alone
	seated  int
	alone   bool // the one that is seated runs alone
	waiting []*run

	own      *lane
	sweeping bool // a sweep of the own lane is planned

	noLook time.Duration // before that time
}

// run is an attempt at a turn on a node.
type run struct {
	n     *node
	m     *message
	t     *turn
	alone bool
}

// start begins a node's life, with nothing hot.
func (w *world) start(id int, own *lane) *node {
	w.boots++
	n := &node{w: w, id: id, name: fmt.Sprintf("n%d", id), boot: fmt.Sprintf("b%d", w.boots), up: true, now: w.now,
		runs: map[scheduler.TurnKey]*run{}, tenants: map[int]int{}, own: own}
	own.owner = n
	n.engine = newEngine(w.speeds, w.factor(id), w.cfg.Slots, &n.now)
	sched, err := scheduler.New(n.engine, scheduler.Config{
		Budget: scheduler.DefaultBudget(n.engine.Facts()), Clock: func() time.Time { return epoch.Add(n.now) },
	})
	if err != nil {
		panic(err) // the budget is the engine's own
	}
	n.sched, n.limit = sched, sched.ActiveCap()
	n.fill()
	w.after(time.Duration(w.rng.Int64N(int64(GuestsEvery))), n.look)
	return n
}

// kill ends it without a word: its leases run out, and what it had hot is gone.
func (n *node) kill() {
	n.up, n.diedAt = false, n.w.now
	n.w.measure(n.engine)
	if n.fetch != nil {
		n.fetch.over = true
	}
	for _, m := range n.leased {
		n.w.bus.abandoned(m)
	}
	n.w.rescueLater(n)
	n.sched, n.engine, n.runs, n.leased, n.arrived, n.waiting, n.report = nil, nil, nil, nil, nil, nil, nil
}

// room is how many requests may be fetched now.
func (n *node) room() int {
	if n.lonely > 0 {
		return 0
	}
	return max(0, n.limit-n.pledged-n.held)
}

// full says that nothing could run now even if it were here.
func (n *node) full() bool { return n.lonely > 0 || n.held >= n.limit }

// claim finds a place for the own lane: a free one, else one that is pledged to the fetch and not used.
func (n *node) claim() bool {
	switch {
	case n.lonely > 0:
		return false
	case n.room() > 0:
		return true
	case n.fetch != nil && n.fetch.left > n.fetch.lent:
		n.fetch.lent++
		n.pledged--
		return true
	}
	return false
}

// fill takes what it has places for, from its own lane first.
func (n *node) fill() {
	if !n.up {
		return
	}
	for n.own.waiting() > 0 && n.claim() {
		n.take(n.own.next(), true)
	}
	if n.own.waiting() > 0 {
		n.sweepLater()
	}
	if room := n.room(); n.fetch == nil && room > 0 {
		n.pledged += room
		n.fetch = n.w.bus.ask(n, room)
		n.w.bus.offer(n.w.bus.all)
	}
}

// heard: something was published into the own lane.
func (n *node) heard() { n.w.after(toDeliver, n.fill) }

// fetched: the fetch got a request.
func (n *node) fetched(f *fetch, m *message) {
	f.left--
	place := f.left >= f.lent
	if place {
		n.pledged--
	} else {
		f.lent--
		place = n.room() > 0
	}
	if f.left == 0 {
		f.over, n.fetch = true, nil
		n.w.after(toDeliver, n.fill)
	}
	n.take(m, place)
}

// expired: the fetch got no more in time.
func (n *node) expired(f *fetch) {
	f.over, n.fetch = true, nil
	n.pledged -= f.left - f.lent
	n.fill()
}

// take has a request delivered, to a place or without one.
func (n *node) take(m *message, place bool) {
	n.w.bus.lease(m, n)
	if place {
		n.held++
		n.tenants[m.t.tenant]++
	}
	n.w.after(toDeliver, func() {
		if !n.up {
			return
		}
		if running := n.decide(m, place, false); !running && place {
			n.release(m.t)
		}
	})
}

// release gives a place back.
func (n *node) release(t *turn) {
	n.held--
	if n.tenants[t.tenant]--; n.tenants[t.tenant] == 0 {
		delete(n.tenants, t.tenant)
	}
	n.fill()
}

func (n *node) unlease(m *message) {
	i := slices.Index(n.leased, m)
	n.leased = slices.Delete(n.leased, i, i+1)
}

// sweepLater looks into the own lane at the next sweep.
func (n *node) sweepLater() {
	if n.sweeping || !n.up {
		return
	}
	n.sweeping = true
	n.w.after(LaneSweep-(n.w.now+time.Duration(n.id)*time.Millisecond)%LaneSweep, n.sweep)
}

// sweep empties the own lane while there is no room here.
func (n *node) sweep() {
	n.sweeping = false
	if !n.up {
		return
	}
	if n.full() {
		for range n.own.waiting() {
			n.take(n.own.next(), false)
		}
	}
	n.fill()
}

// look looks now and then for tenants without a turn here.
func (n *node) look() {
	if !n.up {
		return
	}
	n.lookForGuests()
	n.w.after(GuestsEvery, n.look)
}

// lookForGuests is one look past the lane's head, as worker's guests have it. But it takes no time, so that no two of them find the same request;
// and the request itself is taken out of its order, where the worker runs a copy and deletes the request in the end.
func (n *node) lookForGuests() {
	l := n.w.bus.all
	if !n.full() || n.w.now < n.noLook {
		return
	}
	n.w.traffic.count(n.w.now, Guests, msgAsk)
	if l.unoffered() == 0 {
		return
	}
	n.w.traffic.count(n.w.now, Guests, 2*msgAsk)
	n.noLook = n.w.now + time.Duration(l.some)*Listing
	if n.lonely > 0 {
		return
	}
	from, reads := n.w.rng.IntN(n.w.cfg.Tenants), 0
	for i := range n.w.cfg.Tenants {
		tenant := (from + i) % n.w.cfg.Tenants
		if reads == MostRead || 2*n.limit-n.pledged-n.held <= 0 {
			return
		}
		if l.stored[tenant] == 0 || n.tenants[tenant] > 0 {
			continue
		}
		reads++
		n.w.traffic.count(n.w.now, Guests, msgAsk)
		if m := l.first(tenant); m != nil {
			n.invite(l, m)
		}
	}
}

// invite takes a guest's request, unless its turn runs elsewhere.
func (n *node) invite(l *lane, m *message) {
	n.w.traffic.count(n.w.now, Guests, msgRead)
	may := ledger.Message{Lineage: m.lineage, PayloadHash: m.t.hash}
	if m.t.rec.State != ledger.Absent && !ledger.MayTakeOver(m.t.rec, may, ledger.Self{}) {
		return
	}
	n.w.traffic.count(n.w.now, Guests, msgPublish+msgFetch+3*msgAsk) // the copy comes and is fetched; the request is found and deleted
	n.w.traffic.writes++
	n.w.stats.guests++
	m.offered = true
	l.taken++
	n.take(m, true)
}

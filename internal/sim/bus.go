package sim

import "time"

// The times that the bus takes, each way the same. Together they are what it adds to a first token in BenchmarkFirstToken
// of test/integration, 1.06 ms.
const (
	toDeliver = 300 * time.Microsecond // from a client's publish to the worker
	toClaim   = 600 * time.Microsecond // to read the ledger and to swap
	toRead    = 150 * time.Microsecond // from an event's publish to its reader
)

// The rules of the worker, which package worker's test of them compares with its own.
const (
	AckWait     = 30 * time.Second
	FetchExpiry = time.Second
	LaneSweep   = 2 * time.Second
	RescueEvery = 10 * time.Second // of one worker: they do not look at once
	GuestsEvery = 250 * time.Millisecond
	MostRead    = 64                     // requests in one look for guests
	Listing     = 100 * time.Microsecond // of pause behind a look, for each tenant that waits
)

const beatEvery = AckWait / 3

// message is a copy of a request in the stream.
type message struct {
	t          *turn
	seq        uint64
	lineage    []uint64 // of the copies that it was moved from
	hops       int
	deliveries int
	lane       *lane

	offered bool          // it was delivered, or taken out of the order for a guest
	holder  *node         // whom it was delivered to; nil while it waits
	renewed time.Duration // when the holder's lease began; it is renewed every beatEvery from then on
}

// lane is a subject of the stream of requests: of all, or a node's own. What came back is delivered before what is new.
type lane struct {
	owner  *node // nil: the lane of all
	fresh  queue[*message]
	again  queue[*message]
	of     []queue[*message] // fresh, by tenant, those that were offered meanwhile among them
	taken  int               // of fresh: for guests
	stored []int             // by tenant: requests that are waiting or running
	some   int               // tenants with any
}

func newLane(owner *node, tenants int) *lane {
	l := &lane{owner: owner, stored: make([]int, tenants)}
	if owner == nil {
		l.of = make([]queue[*message], tenants)
	}
	return l
}

func (l *lane) waiting() int { return l.again.len() + l.unoffered() }

// unoffered is how many requests nobody was offered.
func (l *lane) unoffered() int { return l.fresh.len() - l.taken }

// next takes the next one to be delivered; there is one.
func (l *lane) next() *message {
	if l.again.len() > 0 {
		return l.again.pop()
	}
	for {
		m := l.fresh.pop()
		if !m.offered {
			m.offered = true
			return m
		}
		l.taken--
	}
}

// first is a tenant's first request in the lane of all that nobody was offered; nil where it has none.
func (l *lane) first(tenant int) *message {
	of := &l.of[tenant]
	for of.len() > 0 {
		if m := of.items[of.head]; !m.offered {
			return m
		}
		of.pop()
	}
	return nil
}

// fetch is a worker's question for requests in the lane of all.
type fetch struct {
	of   *node
	left int // it may still get
	lent int // of those, places that the own lane has taken
	over bool
}

// bus is the stream of requests and those who wait for it.
type bus struct {
	w       *world
	all     *lane
	fetches queue[*fetch] // each gets one in turns
	seq     uint64
}

// publish stores a request; from is the copy that it was moved from. It is false where the tenant's quota in the lane is used up.
func (b *bus) publish(l *lane, t *turn, from *message) bool {
	b.w.traffic.count(b.w.now, Requests, msgPublish)
	if l.stored[t.tenant] >= b.w.cfg.Quota {
		return false
	}
	b.w.traffic.writes++
	b.seq++
	m := &message{t: t, seq: b.seq, lane: l}
	if from != nil {
		m.hops, m.lineage = from.hops+1, append(from.lineage[:len(from.lineage):len(from.lineage)], from.seq)
	}
	if l.stored[t.tenant]++; l.stored[t.tenant] == 1 {
		l.some++
	}
	l.fresh.push(m)
	if l.owner == nil {
		l.of[t.tenant].push(m)
	}
	b.offer(l)
	return true
}

// offer delivers what waits in a lane, as far as somebody asked.
func (b *bus) offer(l *lane) {
	if l.owner != nil {
		l.owner.heard()
		return
	}
	for l.waiting() > 0 && b.fetches.len() > 0 {
		f := b.fetches.pop()
		if f.over {
			continue
		}
		f.of.fetched(f, l.next())
		if f.left > 0 {
			b.fetches.push(f)
		}
	}
}

// ask waits for up to n requests.
func (b *bus) ask(n *node, places int) *fetch {
	b.w.traffic.count(b.w.now, Fetches, msgFetch)
	f := &fetch{of: n, left: places}
	b.w.after(FetchExpiry, func() {
		if !f.over {
			b.w.traffic.count(b.w.now, Fetches, msgExpiry)
			n.expired(f)
		}
	})
	b.fetches.push(f)
	return f
}

// lease gives a request to a node.
func (b *bus) lease(m *message, n *node) {
	b.w.traffic.count(b.w.now, Requests, msgDelivery)
	m.holder, m.renewed = n, b.w.now
	m.deliveries++
	n.leased = append(n.leased, m)
}

// back makes a request that was delivered wait again after a delay.
func (b *bus) back(m *message, delay time.Duration) {
	m.holder = nil
	again := func() {
		m.lane.again.push(m)
		switch owner := m.lane.owner; {
		case owner == nil:
			b.offer(m.lane)
		case owner.up:
			owner.sweepLater() // nobody is told of it
		default:
			b.w.rescueLater(owner)
		}
	}
	if delay == 0 {
		again()
		return
	}
	b.w.after(delay, again)
}

// nak gives a request back.
func (b *bus) nak(m *message, delay time.Duration) {
	b.w.traffic.count(b.w.now, Leases, msgNak)
	m.holder.unlease(m)
	b.back(m, delay)
}

// ack takes a request out of the stream.
func (b *bus) ack(m *message) {
	b.w.traffic.count(b.w.now, Leases, msgAck+msgBeat*int((b.w.now-m.renewed)/beatEvery))
	m.holder.unlease(m)
	m.holder = nil
	if m.lane.stored[m.t.tenant]--; m.lane.stored[m.t.tenant] == 0 {
		m.lane.some--
	}
}

// abandoned lets the lease on a dead node's request run out.
func (b *bus) abandoned(m *message) {
	beats := (b.w.now - m.renewed) / beatEvery
	b.w.traffic.count(b.w.now, Leases, msgBeat*int(beats))
	b.w.at(m.renewed+beats*beatEvery+AckWait, func() { b.back(m, 0) })
}

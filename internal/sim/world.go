package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker/ledger"
)

// epoch is the beginning of the virtual time.
var epoch = time.Unix(1_700_000_000, 0).UTC()

// As clients have them.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// session is a conversation; its turns follow each other.
type session struct {
	name    string
	tenant  int
	turns   int // so far
	context int // tokens of the conversation
	hot     int // the node that kept it; −1 for none
}

// turn is one request of a session, from its first submission to its outcome.
type turn struct {
	s         *session
	key       scheduler.TurnKey
	tenant    int
	hash      ledger.Hash
	prompt    int // tokens
	newTokens int
	asked     time.Duration
	deadline  time.Time
	rec       ledger.Record // the ledger's register
	said      int           // tokens in the stream of events
	over      bool
}

// world is a mesh and its clients.
type world struct {
	agenda
	cfg     *Scenario
	speeds  *Speeds
	rng     *rand.Rand
	bus     *bus
	nodes   []*node // the last start of each
	boots   int
	tokens  []scheduler.Token // prompts and replays are its beginnings
	tenants []string
	traffic traffic
	stats   stats
	errs    []error // what cannot be
}

// Run simulates a scenario until every turn has ended.
func Run(cfg Scenario, speeds *Speeds) (*Result, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	w := newWorld(&cfg, speeds)
	w.planArrivals()
	w.planDeaths()
	for w.stats.done < w.stats.turns && len(w.errs) == 0 {
		if !w.next() {
			w.broken("nothing is to happen, and turns have not ended")
		}
	}
	w.audit()
	return w.result(), errors.Join(w.errs...)
}

// audit adds up what the engines did, and looks for what is left behind though every turn has ended.
func (w *world) audit() {
	if w.bus.all.some > 0 {
		w.broken(fmt.Sprintf("requests of %d tenants are left in the lane of all", w.bus.all.some))
	}
	for _, n := range w.nodes {
		if n.own.some > 0 {
			w.broken(fmt.Sprintf("requests of %d tenants are left in the lane of %s", n.own.some, n.name))
		}
		if !n.up {
			continue
		}
		w.measure(n.engine)
		if n.held != 0 || n.seated != 0 || len(n.leased) != 0 || n.sched.Pending() != 0 {
			w.broken(fmt.Sprintf("%s has %d places, %d seats, %d leases and %d turns left", n.name, n.held, n.seated, len(n.leased), n.sched.Pending()))
		}
	}
}

// newWorld is a mesh that nobody has asked anything yet. The scenario is complete.
func newWorld(cfg *Scenario, speeds *Speeds) *world {
	w := &world{cfg: cfg, speeds: speeds, rng: rand.New(rand.NewPCG(cfg.Seed, 0)), tokens: make([]scheduler.Token, contextTokens)}
	for i := range w.tokens {
		w.tokens[i] = someToken
	}
	for i := range cfg.Tenants {
		w.tenants = append(w.tenants, fmt.Sprintf("t%d", i))
	}
	w.stats.init(cfg)
	w.bus = &bus{w: w, all: newLane(nil, cfg.Tenants)}
	for id := range cfg.Workers {
		w.nodes = append(w.nodes, w.start(id, &lane{stored: make([]int, cfg.Tenants)}))
	}
	return w
}

// broken notes what cannot be.
func (w *world) broken(what string) { w.errs = append(w.errs, errors.New("sim: "+what)) }

// factor is how many times longer a node takes.
func (w *world) factor(id int) float64 { return w.cfg.Factors[id%len(w.cfg.Factors)] }

// planArrivals plans the first turn of every session.
func (w *world) planArrivals() {
	flood := int(float64(w.cfg.Sessions) * w.cfg.Flood)
	rate := w.cfg.Load * w.cfg.Capacity(w.speeds) / float64(w.cfg.Turns) // sessions a second
	at := time.Duration(0)
	for i := range w.cfg.Sessions {
		s := &session{name: fmt.Sprintf("s%d", i), hot: -1}
		begins := time.Duration(0)
		if i >= flood {
			if w.cfg.Load > 0 {
				at += time.Duration(w.rng.ExpFloat64() / rate * float64(time.Second))
			}
			begins = at
			if s.tenant = i % w.cfg.Tenants; flood > 0 {
				s.tenant = 1 + i%(w.cfg.Tenants-1)
			}
		}
		w.at(begins, func() { w.ask(s) })
	}
}

// planDeaths lets a part of the nodes die in each minute, at any time of it.
func (w *world) planDeaths() {
	dying := int(w.cfg.Deaths * float64(w.cfg.Workers))
	if dying == 0 {
		return
	}
	for _, id := range w.rng.Perm(w.cfg.Workers)[:dying] {
		w.after(time.Duration(w.rng.Int64N(int64(time.Minute))), func() { w.die(id) })
	}
	w.after(time.Minute, w.planDeaths)
}

func (w *world) die(id int) {
	n := w.nodes[id]
	if !n.up {
		return
	}
	w.stats.deaths++
	n.kill()
	w.after(w.cfg.Back, func() { w.nodes[id] = w.start(id, n.own) })
}

// rescueLater empties the lane of a dead node once it is known that it is dead, unless it is there again.
func (w *world) rescueLater(n *node) {
	known := n.diedAt + capability.Silence + time.Duration(w.rng.Int64N(int64(RescueEvery)/int64(len(w.nodes))))
	w.at(known, func() {
		if n.own.owner != n {
			return
		}
		for range n.own.waiting() {
			rescuer := w.anyUp()
			if rescuer == nil {
				w.after(capability.Silence, func() { w.rescueLater(n) })
				return
			}
			m := n.own.next()
			w.bus.lease(m, rescuer)
			rescuer.decide(m, false, true)
		}
	})
}

// anyUp is a node that is alive; nil where there is none.
func (w *world) anyUp() *node {
	from := w.rng.IntN(len(w.nodes))
	for i := range w.nodes {
		if n := w.nodes[(from+i)%len(w.nodes)]; n.up {
			return n
		}
	}
	return nil
}

// ask begins a session's next turn.
func (w *world) ask(s *session) {
	s.turns++
	t := &turn{s: s, tenant: s.tenant, key: scheduler.TurnKey{Tenant: w.tenants[s.tenant], Session: s.name, Turn: uint64(s.turns)},
		hash: ledger.Hash{1}, prompt: s.context + w.cfg.Prompt.draw(w.rng), newTokens: w.cfg.NewTokens.draw(w.rng),
		asked: w.now, deadline: epoch.Add(w.now + schemas.DefaultDeadline)}
	w.stats.asked(t)
	l := w.bus.all
	if s.hot >= 0 {
		if n := w.nodes[s.hot]; n.up || w.now-n.diedAt < capability.Silence {
			l = n.own
		}
	}
	w.submit(t, l, firstRetry)
}

// submit publishes a turn, and tries again while its tenant's quota is used up.
func (w *world) submit(t *turn, l *lane, wait time.Duration) {
	if t.over || w.bus.publish(l, t, nil) || l != w.bus.all && w.bus.publish(w.bus.all, t, nil) {
		return
	}
	w.stats.quota++
	if epoch.Add(w.now + wait).After(t.deadline) {
		w.ended(t, ledger.ReasonRejected, "quota")
		return
	}
	w.after(wait, func() { w.submit(t, w.bus.all, min(2*wait, lastRetry)) })
}

// began: a turn got its slot.
func (w *world) began(t *turn, s *scheduler.Started) {
	if t.key.Turn > 1 {
		w.stats.returns++
		if hot(s) {
			w.stats.hits++
		}
	}
	w.stats.cached += int64(s.CachedTokens)
}

// said: a token of a turn is in the stream.
func (w *world) said(t *turn) {
	t.said++
	w.stats.serve(t, 1)
	if t.said == 1 {
		w.stats.serve(t, t.prompt)
		w.stats.first(t, w.now+toRead-t.asked)
	}
}

// ended: a turn has its outcome. Its session goes on after a while.
func (w *world) ended(t *turn, reason, cause string) {
	if t.over {
		w.broken(fmt.Sprintf("%s ended twice", t.key))
	}
	t.over = true
	w.stats.ended(w.now, t, reason, cause)
	s := t.s
	if s.turns >= w.cfg.Turns {
		return
	}
	s.context = t.prompt + t.said
	think := time.Duration(w.rng.ExpFloat64() * float64(w.cfg.Think))
	w.after(toRead+think, func() { w.ask(s) })
}

// measure adds what an engine did.
func (w *world) measure(e *engine) {
	w.stats.evaluated += e.evaluated
	w.stats.busy += e.busy
	w.stats.steps += e.steps
	w.stats.rows += e.rows
}

package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/hotkv/spill"
)

// Config is what New needs beside the engine.
type Config struct {
	Budget NodeBudget
	Clock  func() time.Time // nil is time.Now

	// StallAfter is how long one call of the engine may take before FailStalled gives up on it; 0 is for ever.
	StallAfter time.Duration

	// Spill keeps on disk what the hot store has no room for; it must be open for the engine's restore fingerprint. It is still its
	// owner's, to be closed after the scheduler. Nil is none.
	Spill *spill.Store

	// Sharing says which sessions share the KV of prompts that begin alike. It is kept within the hot budget.
	Sharing Sharing

	// MaxResults bounds live turns and endings not yet taken together; what would exceed it is refused
	// as a full queue, so that no ending is ever dropped. 0 is twice the active and queue places.
	MaxResults int

	// Weights are by tenant, [MinWeight, MaxWeight]; a tenant that is not named has 1. While tenants contend, each gets tokens in
	// proportion to its weight.
	Weights map[string]float64
}

// Scheduler admits turns and runs them on an engine.
//
// Submit, Cancel, Drain, Interrupt, Telemetry, TakeResults and FailStalled are safe for concurrent use
// and never wait for an engine call. Tick, and what calls it (Run, RunToCompletion, Close), belongs to one
// goroutine at a time, the only one that calls the engine; a second Tick at the same time panics.
type Scheduler struct {
	engine  Engine
	facts   Facts
	prints  Fingerprints // as they were at New
	recipes []string     // Recipes of the engine, as they were at New: by turn.adapter
	budget  NodeBudget
	cfg     Config
	clock   func() time.Time
	wake    chan struct{}

	activeCap int

	ticking atomic.Bool

	// mu guards everything below. A tick holds it except around engine calls and Stop hooks.
	mu sync.Mutex

	hot            *hotkv.Store // parked and saved KV; called with mu held
	slots          []slot
	unclean        int       // slots that cleanSlots has to see to
	active         []*turn   // oldest first
	waiting        int       // turns in the accounts' queues
	smallest       int64     // KV bytes: none of them needs less
	earliest       time.Time // no deadline of a waiting turn is before it; zero where none has one
	sessions       map[SessionKey][]*turn
	tenants        map[string]*account
	ring           []*account // of all tenants, next to be served first
	live           int        // accepted turns that have not ended
	arrivals       uint64     // submissions
	pledged        int        // tokenising turns that hold a place among the active
	reserved       int64      // KV bytes of active turns
	suspended      int        // turns in the queue that had begun
	suspendedBytes int64      // their saved KV

	seen        prefixes  // what prompts begin with
	promoted    []TurnKey // since the last report
	results     []Ending  // not yet taken
	draining    bool
	stalled     bool      // FailStalled gave up on the engine call in flight
	engineSince time.Time // start of the engine call in flight; zero if there is none

	stats stats
	paces paces

	blocked []*turn // buffer of promote
	order   byShare // buffer of promotionOrder

	// Owned by the ticking goroutine; buffers are reused.
	report     Report
	batch      []*turn
	group      []*turn
	rows       []Row
	opening    []*turn
	hooks      []*turn
	verdicts   []bool
	dirty      []int
	windowFrom int    // slot at which the next decode window begins
	noMove     uint64 // no session is moved before this tick
	noSuspend  uint64 // no session is suspended before this tick

	lastAdapter int   // that of the engine's last call, as in turn.adapter
	kinds       []int // adapters, as in turn.adapter; buffer of adapterOrder
}

// New returns a scheduler for an engine that no one else uses. The errors name each field that is out of its range.
func New(engine Engine, cfg Config) (*Scheduler, error) {
	facts := engine.Facts()
	if err := errors.Join(checkFacts(facts), cfg.Budget.Validate(), validateWeights(cfg.Weights)); err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	if cfg.StallAfter < 0 {
		return nil, fmt.Errorf("scheduler: %w", fieldError("stall_after", cfg.StallAfter, "at least 0"))
	}
	activeCap := cfg.Budget.EffectiveActiveCap(facts.Slots)
	if cfg.MaxResults == 0 {
		cfg.MaxResults = 2 * (activeCap + cfg.Budget.MaxQueueDepth)
	}
	if cfg.MaxResults < 1 {
		return nil, fmt.Errorf("scheduler: %w", fieldError("max_results", cfg.MaxResults, "at least 1, or 0 for the default"))
	}
	clock := cfg.Clock
	if clock == nil {
		clock = time.Now
	}
	s := &Scheduler{
		engine: engine, facts: facts, prints: engine.Fingerprints(), recipes: Recipes(engine), budget: cfg.Budget, cfg: cfg, clock: clock, activeCap: activeCap,
		wake:     make(chan struct{}, 1),
		hot:      hotkv.New(cfg.Budget.HotBudgetBytes),
		slots:    make([]slot, facts.Slots),
		sessions: make(map[SessionKey][]*turn),
		tenants:  make(map[string]*account),
		paces:    paces{steps: make([]pace, facts.Slots+1)},
	}
	if err := s.checkSpill(); err != nil {
		return nil, err
	}
	s.cfg.Spill.Epochs(func(key SessionKey, epoch uint64) { s.hot.Fence(key, epoch) }) // no request may fall behind it
	s.stats.init(clock())
	return s, nil
}

// ActiveCap is how many sessions may be active at once.
func (s *Scheduler) ActiveCap() int { return s.activeCap }

// Pending is how many accepted turns have not ended.
func (s *Scheduler) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live
}

// Live says whether the turn was accepted and has not ended.
func (s *Scheduler) Live(key TurnKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(key) != nil
}

// TakeResults appends the endings since the last call to dst. Each is handed over once.
func (s *Scheduler) TakeResults(dst []Ending) []Ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	dst = append(dst, s.results...)
	clear(s.results)
	s.results = s.results[:0]
	return dst
}

// Close interrupts what is live, releases every slot and frees all saved KV, or hands it to the spill. It belongs to the
// ticking goroutine. Submissions are refused from then on.
func (s *Scheduler) Close() {
	s.Interrupt()
	s.beginTick()
	s.reap()
	s.retire(s.hot.Close())
	s.cleanSlots()
	s.endTick()
}

func (s *Scheduler) find(key TurnKey) *turn {
	for _, t := range s.sessions[key.SessionKey()] {
		if t.key.Turn == key.Turn {
			return t
		}
	}
	return nil
}

// link makes an accepted turn live.
func (s *Scheduler) link(t *turn) {
	if s.live == 0 {
		s.stats.busySince = t.submitted
	}
	s.live++
	t.account = s.account(t.key.Tenant)
	t.account.live++
	key := t.key.SessionKey()
	t.follows = len(s.sessions[key]) > 0
	s.sessions[key] = append(s.sessions[key], t)
}

// unlink makes it no longer live, whether it ended or its place is given back.
func (s *Scheduler) unlink(t *turn) {
	s.live--
	if t.account.live--; t.account.live == 0 && t.account.unused() {
		s.forget(t.account)
	}
	key := t.key.SessionKey()
	turns := s.sessions[key]
	if i := slices.Index(turns, t); i >= 0 {
		turns = slices.Delete(turns, i, i+1)
	}
	if len(turns) == 0 {
		delete(s.sessions, key)
		return
	}
	turns[0].follows = false
	s.sessions[key] = turns
}

// callEngine gives up mu for a call of the engine, engineReturned takes it again. In between, turns may
// be marked by anyone and ended by FailStalled, and parked KV may be fenced by Submit; nothing else changes.
func (s *Scheduler) callEngine() {
	s.engineSince = s.clock()
	s.mu.Unlock()
}

func (s *Scheduler) engineReturned() {
	s.mu.Lock()
	s.engineSince = time.Time{}
	s.stalled = false
}

// engineStepped is engineReturned for a call whose speed is measured.
func (s *Scheduler) engineStepped(p *pace) {
	s.mu.Lock()
	now := s.clock()
	p.add(now.Sub(s.engineSince), now)
	s.engineSince = time.Time{}
	s.stalled = false
}

// nudge wakes Run.
func (s *Scheduler) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

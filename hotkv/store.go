// Package hotkv keeps the KV of idle sessions within a byte budget, so that a session's next turn need
// not pay for its prompt again. It decides what is kept, for whom and for how long: least recently used
// goes first, and a higher route epoch makes older KV stale.
//
// It never touches KV itself: it frees no State and releases no slot, but hands every entry that leaves
// it to the caller, exactly once. It starts no goroutine, and calls nothing of its caller's under its lock.
package hotkv

import "sync"

const (
	defaultFenceLimit = 16384
	defaultMissMemory = 16384
)

// Store holds at most one entry for each session. All methods are safe for concurrent use; all but
// InvalidateAll and Close take constant time for each entry they hand out.
//
// A route epoch is a fence: the highest that Put, Take or Fence named for a session is remembered, KV
// built under a lower one leaves the store, and requests with a lower one are refused. The fence of a
// session whose KV is stored is never forgotten; others are, least recently named first (WithFenceLimit).
type Store struct {
	budget int64

	mu     sync.Mutex // guards all below; no method of a State is called with it held
	closed bool
	byKey  map[Key]*item
	byUse  list[item] // every item
	parked list[item] // those that are parked; in the order of byUse
	fences *memory[uint64]
	causes *memory[Miss] // why the KV of sessions that have none went away

	bytes, parkedBytes int64
	parkedCount        int
	prefixCount        int
	hits, evictions    int64
	misses             map[Miss]int64
}

// item is a stored entry. For as long as its session's fence is remembered, that is the entry's epoch.
type item struct {
	Entry
	use, park link[item]
}

// Option changes a default of New.
type Option func(*Store)

// WithFenceLimit bounds for how many sessions the fence is remembered (default 16384). With 0 only those of
// stored entries are.
func WithFenceLimit(sessions int) Option {
	return func(s *Store) { s.fences = newMemory[uint64](sessions) }
}

// WithMissMemory bounds for how many sessions it is remembered why their KV went away (default 16384).
// A forgotten cause reads as MissNever.
func WithMissMemory(sessions int) Option {
	return func(s *Store) { s.causes = newMemory[Miss](sessions) }
}

// New returns an empty store. A budget of 0 is valid: nothing is ever kept.
func New(budgetBytes int64, opts ...Option) *Store {
	s := &Store{
		budget: budgetBytes,
		byKey:  make(map[Key]*item),
		fences: newMemory[uint64](defaultFenceLimit),
		causes: newMemory[Miss](defaultMissMemory),
		misses: make(map[Miss]int64),
	}
	s.byUse.init()
	s.parked.init()
	for _, opt := range opts {
		opt(s)
	}
	return s
}

// Put stores e as the most recently used entry. What leaves the store for it is returned, and is the
// caller's to dispose of: first an earlier entry of the same key, then others, least recently used first.
//
// On error nothing has changed and e is still the caller's: *TooLargeError where e alone exceeds the
// budget, *StaleEpochError where its epoch is below the session's fence, *InvalidEntryError, ErrClosed.
// A slot must not be parked twice; the store does not know which slots there are.
func (s *Store) Put(e Entry) (evicted []Entry, err error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if e.Bytes > s.budget {
		return nil, &TooLargeError{Key: e.Key, Bytes: e.Bytes, BudgetBytes: s.budget}
	}
	if fence, known := s.fence(e.Key); known && e.Epoch < fence {
		return nil, &StaleEpochError{Key: e.Key, Epoch: e.Epoch, Fence: fence}
	}
	if old, ok := s.byKey[e.Key]; ok {
		evicted = append(evicted, s.remove(old))
	}
	evicted = s.makeRoom(e.Bytes, nil, evicted)
	s.fences.remember(e.Key, e.Epoch)
	s.causes.forget(e.Key)
	s.insert(e)
	return evicted, nil
}

// Saved turns the entry of key that is parked in slot into a saved one, which counts st.Bytes() and keeps
// its place in the order of use. The slot is then the caller's, and st the store's.
//
// If the store is then beyond its budget, others make room, least recently used first; if st alone exceeds
// the budget, the entry itself leaves, with st as its State, and no other does. What leaves is returned
// and is the caller's to dispose of.
//
// With ok false the entry is gone or is not the one that st was saved from (parked elsewhere, saved already,
// another number of tokens): nothing has changed and st is still the caller's. Between saving a slot and this
// call, no new KV of the same session may be parked in that slot: it could not be told from the old.
func (s *Store) Saved(key Key, slot int, st State) (evicted []Entry, ok bool) {
	if st == nil {
		return nil, false
	}
	bytes, tokens := st.Bytes(), st.Tokens()
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.byKey[key]
	if it == nil || !it.Parked() || it.Slot != slot || len(it.Tokens) != tokens || bytes < 1 {
		return nil, false
	}
	if bytes > s.budget {
		e := s.evict(it)
		e.Slot, e.State, e.Bytes = NoSlot, st, bytes
		return []Entry{e}, true
	}
	s.unpark(it)
	s.bytes -= it.Bytes
	it.Slot, it.State, it.Bytes = NoSlot, st, bytes
	evicted = s.makeRoom(bytes, it, nil)
	s.bytes += bytes
	return evicted, true
}

// Take removes the entry of key and hands it over. Where miss is not Hit there is nothing to use, but the
// entry may be KV that became stale (its epoch is older, or its recipe another), for the caller to
// dispose of. Where there is nothing to dispose of, it is neither Parked nor has it a State.
//
// An epoch below the session's fence is a miss that leaves the entry stored: the request is stale, not the KV.
func (s *Store) Take(key Key, epoch uint64, recipe string) (e Entry, miss Miss) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, miss = s.take(key, epoch, recipe)
	if miss == Hit {
		s.hits++
	} else {
		s.misses[miss]++
	}
	return e, miss
}

func (s *Store) take(key Key, epoch uint64, recipe string) (Entry, Miss) {
	if fence, known := s.fence(key); known && epoch < fence {
		return none, MissEpoch
	}
	s.fences.remember(key, epoch)
	it, stored := s.byKey[key]
	switch {
	case !stored:
		if cause, known := s.causes.recall(key); known {
			return none, cause
		}
		return none, MissNever
	case it.Epoch < epoch:
		return s.lose(it, MissEpoch), MissEpoch
	case it.Recipe != recipe:
		return s.lose(it, MissRecipe), MissRecipe
	default:
		return s.remove(it), Hit
	}
}

// Peek returns the entry of key, which stays the store's and keeps its place in the order of use. Its
// State may be used only while no one else can remove the entry, since whoever does may free it.
func (s *Store) Peek(key Key) (e Entry, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if it, stored := s.byKey[key]; stored {
		return it.Entry, true
	}
	return none, false
}

// Longest is the greatest i from 1 to n at which there is something under key(i), which is a prefix's; 0 where there is nothing.
func (s *Store) Longest(n int, key func(i int) Key) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.prefixCount == 0 {
		return 0
	}
	for ; n > 0; n-- {
		if _, stored := s.byKey[key(n)]; stored {
			return n
		}
	}
	return 0
}

// OldestParked returns the least recently used entry that is parked: whose slot to reclaim next. It
// stays the store's and keeps its place in the order of use.
func (s *Store) OldestParked() (e Entry, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if it := s.parked.oldest(); it != nil {
		return it.Entry, true
	}
	return none, false
}

// Invalidate removes the entry of key, if any, for the caller to dispose of. Where there is none, the loss is
// remembered nonetheless: it is then of KV that was taken and cannot be put back.
func (s *Store) Invalidate(key Key) []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if it, stored := s.byKey[key]; stored {
		return []Entry{s.lose(it, MissInvalidated)}
	}
	s.causes.remember(key, MissInvalidated)
	return nil
}

// InvalidateAll removes every entry, least recently used first, for the caller to dispose of. Fences stay.
func (s *Store) InvalidateAll() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.invalidateAll()
}

// Close is InvalidateAll, after which Put is refused. A second Close returns nothing.
func (s *Store) Close() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.invalidateAll()
}

// Stats is consistent: all its numbers are of one moment.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	misses := make(map[Miss]int64)
	for _, cause := range MissCauses() {
		misses[cause] = s.misses[cause]
	}
	return Stats{
		BudgetBytes: s.budget,
		Bytes:       s.bytes,
		ParkedBytes: s.parkedBytes,
		SavedBytes:  s.bytes - s.parkedBytes,
		Parked:      s.parkedCount,
		Saved:       len(s.byKey) - s.parkedCount,
		Prefixes:    s.prefixCount,
		Hits:        s.hits,
		Misses:      misses,
		Evictions:   s.evictions,
	}
}

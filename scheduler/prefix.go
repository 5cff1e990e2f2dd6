package scheduler

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sort"

	"github.com/meshnet/node/hotkv"
)

// Sharing says which sessions share the KV of prompts that begin alike.
type Sharing uint8

// The kinds of sharing. What is shared is only what every session would evaluate alike, so that a turn yields what it yields
// alone. Who shares can tell from the time to the first token that somebody else sent the same beginning.
const (
	ShareNothing Sharing = iota
	ShareTenant          // sessions of one tenant
	ShareAll             // all sessions, whoever's they are
)

// digest names the beginning of a prompt, for those who may share it: turns with one adapter.
type digest = [sha256.Size]byte

// seenPrefixes is of how many digests, at least, it is remembered that a prompt began so.
const seenPrefixes = 1 << 15

// prefixes remembers which session's prompt began with what, for a bounded time: once there are enough newer ones, the older
// half is forgotten.
type prefixes struct{ newer, older map[digest]SessionKey }

func (p *prefixes) remember(d digest, by SessionKey) {
	if len(p.newer) >= seenPrefixes || p.newer == nil {
		p.older, p.newer = p.newer, make(map[digest]SessionKey)
	}
	p.newer[d] = by
}

// seenByOther says whether another session's prompt began so, as far as remembered.
func (p *prefixes) seenByOther(d digest, than SessionKey) bool {
	by, known := p.newer[d]
	if !known {
		by, known = p.older[d]
	}
	return known && by != than
}

// shares says whether any KV is shared, and prepares the turn for it. A window that is kept as a ring lies in another order once it is
// restored, which may round differently; an exact engine keeps no ring.
func (s *Scheduler) shares(t *turn) bool {
	ring := s.facts.Trim == TrimWindow && !s.facts.Exact
	if s.cfg.Sharing == ShareNothing || s.budget.HotBudgetBytes == 0 || ring {
		return false
	}
	if t.chain == nil {
		t.chain = s.chainOf(t)
	}
	return len(t.chain) > 0
}

// chainOf names each of the prompt's beginnings of a whole number of units that leaves enough of it to go on with.
func (s *Scheduler) chainOf(t *turn) []digest {
	prompt, unit := t.req.Prompt, s.facts.unit()
	longest := len(prompt) - s.facts.rest()
	chain := make([]digest, 0, max(0, longest/unit))
	hash := sha256.New()
	write := func(b []byte) { _, _ = hash.Write(b) } // a hash takes all
	for _, name := range []string{s.recipe(t), s.sharers(t)} {
		write(binary.LittleEndian.AppendUint64(nil, uint64(len(name))))
		write([]byte(name))
	}
	var ids []byte
	for end := unit; end <= longest; end += unit {
		ids = ids[:0]
		for _, id := range prompt[end-unit : end] {
			ids = binary.LittleEndian.AppendUint32(ids, uint32(id))
		}
		write(ids)
		chain = append(chain, digest(hash.Sum(nil)))
	}
	return chain
}

// sharers is the tenant whose sessions share, or "" for all.
func (s *Scheduler) sharers(t *turn) string {
	if s.cfg.Sharing == ShareAll {
		return ""
	}
	return t.key.Tenant
}

// prefixKey is where the KV of the turn's first tokens is kept, a whole number of units.
func (s *Scheduler) prefixKey(t *turn, tokens int) hotkv.Key {
	return hotkv.Key{Tenant: s.sharers(t), Prefix: t.chain[tokens/s.facts.unit()-1]}
}

// common is how many tokens two prompts begin with alike, a whole number of units.
func (s *Scheduler) common(a, b *turn) int {
	units := sort.Search(min(len(a.chain), len(b.chain)), func(i int) bool { return a.chain[i] != b.chain[i] })
	return units * s.facts.unit()
}

// stored is of how many of the prompt's first tokens the KV is kept.
func (s *Scheduler) stored(t *turn) int {
	unit := s.facts.unit()
	return unit * s.hot.Longest(len(t.chain), func(i int) hotkv.Key { return s.prefixKey(t, i*unit) })
}

// awaitsPrefix says whether the turn waits, without a slot, for another that is evaluating what both prompts begin with, and that
// will have its KV saved then. It asks anew at every tick: once that turn has saved it, or ended, or could not, the wait is over.
// A turn of which something is hot, or has to be, waits for nobody.
func (s *Scheduler) awaitsPrefix(t *turn) bool {
	t.leader = nil
	entry, hot := s.hot.Peek(t.key.SessionKey())
	if hot && entry.Recipe == s.recipe(t) || t.req.RequireHot || !s.shares(t) {
		return false
	}
	var leader *turn
	most := s.stored(t)
	worth := most + s.facts.rest() // less is sooner evaluated than waited for
	for _, other := range s.active {
		if other.phase != phasePrefill || other.marked() || !other.exact() {
			continue
		}
		if n := s.savable(other, s.common(t, other)); n > most && n >= worth {
			leader, most = other, n
		}
	}
	if leader == nil {
		return false
	}
	leader.saveAt(most)
	t.leader, t.awaited = leader, most
	return true
}

// willSave says whether the turn has still to save so much of its KV for others. A nil turn has not.
func (t *turn) willSave(pos int) bool {
	return t != nil && t.phase == phasePrefill && !t.marked() && slices.Contains(t.saves, pos)
}

// exact says whether all of the turn's KV is as good as cold, or will be.
func (t *turn) exact() bool { return t.exactLen == len(t.req.Prompt) }

// savable is how many tokens, n at most and a whole number of units, the turn may be cut at to have their KV saved: none of its chunks
// is too short then. 0 is none.
func (s *Scheduler) savable(t *turn, n int) int {
	tooNear := func(n int) bool {
		near := func(at int) bool { return n != at && max(n-at, at-n) < s.facts.LeastChunk }
		return near(t.pos) || slices.ContainsFunc(t.saves, near)
	}
	for n >= t.pos && tooNear(n) {
		n -= s.facts.unit()
	}
	if n < t.pos || s.facts.KVBytes(n) > s.budget.HotBudgetBytes {
		return 0
	}
	return n
}

// saveAt has the turn's KV saved for others when it is that long.
func (t *turn) saveAt(pos int) {
	if !slices.Contains(t.saves, pos) {
		t.saves = append(t.saves, pos)
	}
}

// nextSave is the next position at which the turn's KV is to be saved, or the prompt's end.
func (t *turn) nextSave() int {
	next := len(t.req.Prompt)
	for _, pos := range t.saves {
		if pos > t.pos {
			next = min(next, pos)
		}
	}
	return next
}

// restorePrefix puts the longest kept beginning of the prompt into the turn's empty slot, and returns how many tokens that is. The
// state is taken out of the hot store meanwhile, so that nobody frees it.
func (s *Scheduler) restorePrefix(t *turn) int {
	if t.marked() || !s.shares(t) {
		return 0
	}
	n := s.stored(t)
	if n == 0 {
		return 0
	}
	entry, miss := s.hot.Take(s.prefixKey(t, n), 0, s.recipe(t))
	if miss != hotkv.Hit {
		s.dispose([]hotkv.Entry{entry})
		return 0
	}
	s.callEngine()
	err := s.engine.Restore(t.slot, entry.State)
	s.engineReturned()
	if err != nil {
		entry.State.Free()
		return 0
	}
	s.report.Restores++
	s.putPrefix(entry)
	tokens := len(entry.Tokens)
	s.stats.prefixHits++
	s.stats.prefixTokens += int64(tokens)
	s.stats.cached += int64(tokens)
	return tokens
}

// putPrefix keeps a state as the most recently used.
func (s *Scheduler) putPrefix(entry hotkv.Entry) {
	entry.Used = s.clock()
	evicted, err := s.hot.Put(entry)
	s.evict(evicted)
	if err != nil { // beyond the budget
		entry.State.Free()
	}
}

// notePrompt remembers what the turn's prompt begins with. Where another session's began so too, and its KV is not kept, this turn
// has it saved: the third to come need not evaluate it.
func (s *Scheduler) notePrompt(t *turn) {
	if !s.shares(t) {
		return
	}
	key := t.key.SessionKey()
	shared := 0
	for i, d := range t.chain {
		if s.seen.seenByOther(d, key) {
			shared = (i + 1) * s.facts.unit()
		}
		s.seen.remember(d, key)
	}
	if !t.exact() {
		return
	}
	if end := s.savable(t, shared); end > t.pos {
		t.saveAt(end)
	}
}

// keepPrefix saves the turn's KV, where it is as long as others want it. False says that this has to wait for the next tick: while anyone
// decodes, only one session is saved in a tick.
func (s *Scheduler) keepPrefix(t *turn) bool {
	i := slices.Index(t.saves, t.pos)
	if i < 0 {
		return true
	}
	key := s.prefixKey(t, t.pos)
	if _, stored := s.hot.Peek(key); !stored {
		if s.report.Saves > 0 && s.decoding() {
			return false
		}
		s.savePrefix(t, key)
	}
	t.saves = slices.DeleteFunc(t.saves, func(pos int) bool { return pos == t.pos })
	return true
}

func (s *Scheduler) savePrefix(t *turn, key hotkv.Key) {
	s.report.Saves++
	s.callEngine()
	state, err := s.engine.Save(t.slot, t.pos)
	s.engineReturned()
	if err != nil {
		return // whoever waits for it evaluates it
	}
	s.putPrefix(hotkv.Entry{
		Key: key, Recipe: s.recipe(t), Tokens: slices.Clone(t.req.Prompt[:t.pos]), ExactLen: t.pos,
		Slot: hotkv.NoSlot, State: state, Bytes: state.Bytes(),
	})
}

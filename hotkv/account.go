package hotkv

// This file is the only one in which entries come and go. All of it runs under the store's lock.

// insert adds e as the most recently used. There must be room, and no other entry of its key.
func (s *Store) insert(e Entry) {
	it := &item{Entry: e}
	s.byKey[e.Key] = it
	s.byUse.add(&it.use, it)
	s.bytes += e.Bytes
	if e.Key.isPrefix() {
		s.prefixCount++
	}
	if e.Parked() {
		s.parked.add(&it.park, it)
		s.parkedBytes += e.Bytes
		s.parkedCount++
	}
}

// remove takes it out and returns its entry, which is the caller's from then on.
func (s *Store) remove(it *item) Entry {
	if it.Parked() {
		s.unpark(it)
	}
	s.byUse.remove(&it.use)
	s.bytes -= it.Bytes
	if it.Key.isPrefix() {
		s.prefixCount--
	}
	delete(s.byKey, it.Key)
	return it.Entry
}

// unpark takes it from among the parked; it remains stored and counted.
func (s *Store) unpark(it *item) {
	s.parked.remove(&it.park)
	s.parkedBytes -= it.Bytes
	s.parkedCount--
}

// lose removes it and remembers why, for the session's next Take.
func (s *Store) lose(it *item, cause Miss) Entry {
	s.causes.remember(it.Key, cause)
	return s.remove(it)
}

func (s *Store) evict(it *item) Entry {
	s.evictions++
	return s.lose(it, MissEvicted)
}

// makeRoom evicts, least recently used first, until need more bytes fit, and appends what it evicts. It
// passes over keep, which the caller has already taken out of the count. need is at most the budget.
func (s *Store) makeRoom(need int64, keep *item, evicted []Entry) []Entry {
	for s.bytes > s.budget-need {
		it := s.byUse.oldest()
		if it == keep {
			it = it.use.newer.owner
		}
		evicted = append(evicted, s.evict(it))
	}
	return evicted
}

func (s *Store) invalidateAll() (all []Entry) {
	for it := s.byUse.oldest(); it != nil; it = s.byUse.oldest() {
		all = append(all, s.lose(it, MissInvalidated))
	}
	return all
}

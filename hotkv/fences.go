package hotkv

// Fence raises the session's fence to epoch. If KV built under a lower one was stored, it is returned for
// the caller to dispose of. An epoch at or below the fence changes nothing, except that naming the
// fence makes it the one that is forgotten last.
func (s *Store) Fence(key Key, epoch uint64) (stale []Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fence, known := s.fence(key); known && epoch < fence {
		epoch = fence
	}
	s.fences.remember(key, epoch)
	if it, stored := s.byKey[key]; stored && it.Epoch < epoch {
		stale = []Entry{s.lose(it, MissEpoch)}
	}
	return stale
}

// Epoch returns the session's fence; known is false where there is none, or it is forgotten. It has no
// effect on which fence is forgotten next.
func (s *Store) Epoch(key Key) (epoch uint64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fence(key)
}

// fence prefers the stored entry's epoch: it is the same while both are known, and is not forgotten.
func (s *Store) fence(key Key) (epoch uint64, known bool) {
	if it, stored := s.byKey[key]; stored {
		return it.Epoch, true
	}
	return s.fences.recall(key)
}

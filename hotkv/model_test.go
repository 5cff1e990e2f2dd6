package hotkv_test

import (
	"slices"

	"github.com/meshnet/node/hotkv"
)

// model is the store in the most obvious code: slices, searched from end to end.
type model struct {
	budget                int64
	fenceLimit, lossLimit int
	entries               []hotkv.Entry // least recently used first
	fences                []modelFence  // least recently named first
	losses                []modelLoss   // oldest first
	closed                bool
	hits, evictions       int64
	misses                map[hotkv.Miss]int64
}

type modelFence struct {
	key   hotkv.Key
	epoch uint64
}

type modelLoss struct {
	key   hotkv.Key
	cause hotkv.Miss
}

func (m *model) find(key hotkv.Key) int {
	return slices.IndexFunc(m.entries, func(e hotkv.Entry) bool { return e.Key == key })
}

func (m *model) bytes() (sum int64) {
	for _, e := range m.entries {
		sum += e.Bytes
	}
	return sum
}

func (m *model) fence(key hotkv.Key) (uint64, bool) {
	if i := m.find(key); i >= 0 {
		return m.entries[i].Epoch, true
	}
	for _, f := range m.fences {
		if f.key == key {
			return f.epoch, true
		}
	}
	return 0, false
}

func (m *model) name(key hotkv.Key, epoch uint64) {
	m.fences = slices.DeleteFunc(m.fences, func(f modelFence) bool { return f.key == key })
	m.fences = append(m.fences, modelFence{key, epoch})
	if len(m.fences) > m.fenceLimit {
		m.fences = m.fences[1:]
	}
}

func (m *model) drop(i int) hotkv.Entry {
	e := m.entries[i]
	m.entries = slices.Delete(m.entries, i, i+1)
	return e
}

func (m *model) lose(i int, cause hotkv.Miss) hotkv.Entry {
	e := m.drop(i)
	m.rememberLoss(e.Key, cause)
	return e
}

func (m *model) rememberLoss(key hotkv.Key, cause hotkv.Miss) {
	m.forgetLoss(key)
	m.losses = append(m.losses, modelLoss{key, cause})
	if len(m.losses) > m.lossLimit {
		m.losses = m.losses[1:]
	}
}

func (m *model) forgetLoss(key hotkv.Key) {
	m.losses = slices.DeleteFunc(m.losses, func(l modelLoss) bool { return l.key == key })
}

func (m *model) evict(i int) hotkv.Entry {
	m.evictions++
	return m.lose(i, hotkv.MissEvicted)
}

// put expects a valid entry; refused stands for any error.
func (m *model) put(e hotkv.Entry) (evicted []hotkv.Entry, refused bool) {
	fence, known := m.fence(e.Key)
	if m.closed || e.Bytes > m.budget || known && e.Epoch < fence {
		return nil, true
	}
	if i := m.find(e.Key); i >= 0 {
		evicted = append(evicted, m.drop(i))
	}
	for m.bytes()+e.Bytes > m.budget {
		evicted = append(evicted, m.evict(0))
	}
	m.name(e.Key, e.Epoch)
	m.forgetLoss(e.Key)
	m.entries = append(m.entries, e)
	return evicted, false
}

func (m *model) saved(key hotkv.Key, slot int, st hotkv.State) (evicted []hotkv.Entry, ok bool) {
	i := m.find(key)
	if i < 0 || m.entries[i].State != nil || m.entries[i].Slot != slot || len(m.entries[i].Tokens) != st.Tokens() {
		return nil, false
	}
	m.entries[i].Slot, m.entries[i].State, m.entries[i].Bytes = hotkv.NoSlot, st, st.Bytes()
	if st.Bytes() > m.budget {
		return []hotkv.Entry{m.evict(i)}, true
	}
	for m.bytes() > m.budget {
		victim := 0
		if m.entries[0].Key == key {
			victim = 1
		}
		evicted = append(evicted, m.evict(victim))
	}
	return evicted, true
}

func (m *model) take(key hotkv.Key, epoch uint64, recipe string) (hotkv.Entry, hotkv.Miss) {
	e, miss := m.look(key, epoch, recipe)
	if miss == hotkv.Hit {
		m.hits++
	} else {
		m.misses[miss]++
	}
	return e, miss
}

func (m *model) look(key hotkv.Key, epoch uint64, recipe string) (hotkv.Entry, hotkv.Miss) {
	nothing := hotkv.Entry{Slot: hotkv.NoSlot}
	if fence, known := m.fence(key); known && epoch < fence {
		return nothing, hotkv.MissEpoch
	}
	m.name(key, epoch)
	if i := m.find(key); i >= 0 {
		if m.entries[i].Epoch < epoch {
			return m.lose(i, hotkv.MissEpoch), hotkv.MissEpoch
		}
		if m.entries[i].Recipe != recipe {
			return m.lose(i, hotkv.MissRecipe), hotkv.MissRecipe
		}
		return m.drop(i), hotkv.Hit
	}
	for _, l := range m.losses {
		if l.key == key {
			return nothing, l.cause
		}
	}
	return nothing, hotkv.MissNever
}

func (m *model) raise(key hotkv.Key, epoch uint64) (stale []hotkv.Entry) {
	if fence, known := m.fence(key); known {
		epoch = max(epoch, fence)
	}
	m.name(key, epoch)
	if i := m.find(key); i >= 0 && m.entries[i].Epoch < epoch {
		stale = append(stale, m.lose(i, hotkv.MissEpoch))
	}
	return stale
}

func (m *model) invalidate(key hotkv.Key) (out []hotkv.Entry) {
	if i := m.find(key); i >= 0 {
		return append(out, m.lose(i, hotkv.MissInvalidated))
	}
	m.rememberLoss(key, hotkv.MissInvalidated)
	return nil
}

func (m *model) invalidateAll() (out []hotkv.Entry) {
	for len(m.entries) > 0 {
		out = append(out, m.lose(0, hotkv.MissInvalidated))
	}
	return out
}

func (m *model) oldestParked() (hotkv.Entry, bool) {
	for _, e := range m.entries {
		if e.State == nil {
			return e, true
		}
	}
	return hotkv.Entry{Slot: hotkv.NoSlot}, false
}

func (m *model) stats() hotkv.Stats {
	s := hotkv.Stats{BudgetBytes: m.budget, Hits: m.hits, Evictions: m.evictions, Misses: m.misses}
	for _, e := range m.entries {
		s.Bytes += e.Bytes
		if e.Key.Prefix != [32]byte{} {
			s.Prefixes++
		}
		if e.State == nil {
			s.Parked++
			s.ParkedBytes += e.Bytes
		} else {
			s.Saved++
			s.SavedBytes += e.Bytes
		}
	}
	return s
}

package hotkv

// memory remembers one value for each of the last limit keys it was told about.
// It is not safe for concurrent use: the store's lock guards it.
type memory[V any] struct {
	limit int
	byKey map[Key]*record[V]
	byUse list[record[V]]
}

type record[V any] struct {
	key   Key
	value V
	use   link[record[V]]
}

func newMemory[V any](limit int) *memory[V] {
	m := &memory[V]{limit: limit, byKey: make(map[Key]*record[V])}
	m.byUse.init()
	return m
}

// recall has no effect on what is forgotten next.
func (m *memory[V]) recall(key Key) (value V, known bool) {
	if r, ok := m.byKey[key]; ok {
		return r.value, true
	}
	return value, false
}

// remember makes key the one that is forgotten last, and forgets the oldest where the limit asks for it.
func (m *memory[V]) remember(key Key, value V) {
	if m.limit < 1 {
		return
	}
	r, known := m.byKey[key]
	switch {
	case known:
		m.byUse.remove(&r.use)
	case len(m.byKey) < m.limit:
		r = &record[V]{key: key}
	default: // full: the oldest record becomes this key's
		r = m.byUse.oldest()
		m.byUse.remove(&r.use)
		delete(m.byKey, r.key)
		r.key = key
	}
	r.value = value
	m.byKey[key] = r
	m.byUse.add(&r.use, r)
}

func (m *memory[V]) forget(key Key) {
	if r, known := m.byKey[key]; known {
		m.byUse.remove(&r.use)
		delete(m.byKey, key)
	}
}

package hotkv_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/meshnet/node/hotkv"
	"pgregory.net/rapid"
)

// machine drives a store and the model side by side, and is the caller that owns what the store does not:
// the free slots, and every state that was ever made.
type machine struct {
	store  *hotkv.Store
	model  *model
	free   []int        // slots that hold no entry
	states []*fakeState // all that were made
}

// Few keys, epochs and slots, small limits: everything collides all the time.
var (
	allKeys = []hotkv.Key{
		{Tenant: "a", Session: "1"}, {Tenant: "a", Session: "2"}, {Tenant: "a", Session: "3"},
		{Tenant: "b", Session: "1"}, {Tenant: "b", Session: "2"}, {Tenant: "b", Prefix: [32]byte{3}},
	}
	someKey    = rapid.SampledFrom(allKeys)
	someEpoch  = rapid.Uint64Range(0, 3)
	someRecipe = rapid.SampledFrom([]string{"r", "r", "r", "q"})
	someBytes  = rapid.Int64Range(1, 45)
)

func newMachine(t *rapid.T) *machine {
	m := &model{
		budget:     rapid.SampledFrom([]int64{100, 40, 1, 0}).Draw(t, "budget"),
		fenceLimit: rapid.IntRange(0, 5).Draw(t, "fences"),
		lossLimit:  rapid.IntRange(0, 5).Draw(t, "losses"),
		misses:     make(map[hotkv.Miss]int64),
	}
	for _, cause := range hotkv.MissCauses() {
		m.misses[cause] = 0
	}
	store := hotkv.New(m.budget, hotkv.WithFenceLimit(m.fenceLimit), hotkv.WithMissMemory(m.lossLimit))
	return &machine{store: store, model: m, free: []int{0, 1, 2, 3}}
}

func (m *machine) newState(t *rapid.T, tokens int) *fakeState {
	st := &fakeState{bytes: someBytes.Draw(t, "state bytes"), tokens: tokens}
	m.states = append(m.states, st)
	return st
}

// dispose is what a caller does with what it is handed: every state is freed once, every slot released once.
func (m *machine) dispose(t *rapid.T, entries ...hotkv.Entry) {
	for _, e := range entries {
		switch {
		case e.Parked():
			if slices.Contains(m.free, e.Slot) {
				t.Fatalf("slot %d was handed out twice", e.Slot)
			}
			m.free = append(m.free, e.Slot)
		case e.State != nil:
			st := e.State.(*fakeState)
			if st.Free(); st.freed.Load() != 1 {
				t.Fatalf("a state was handed out twice, or the store freed it: %+v", e)
			}
		}
	}
}

// check compares a result with the model's and disposes of it.
func (m *machine) check(t *rapid.T, what string, got, want []hotkv.Entry) {
	if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
		t.Fatalf("%s handed out\n%+v, want\n%+v", what, got, want)
	}
	m.dispose(t, got...)
}

func (m *machine) put(t *rapid.T) {
	e := hotkv.Entry{
		Key: someKey.Draw(t, "key"), Epoch: someEpoch.Draw(t, "epoch"), Recipe: someRecipe.Draw(t, "recipe"),
		Tokens: make([]int32, rapid.IntRange(1, 2).Draw(t, "tokens")), Slot: hotkv.NoSlot,
	}
	if len(m.free) > 0 && rapid.Bool().Draw(t, "parked") {
		e.Slot, e.Bytes = m.free[0], someBytes.Draw(t, "bytes")
		m.free = m.free[1:]
	} else {
		st := m.newState(t, len(e.Tokens))
		e.State, e.Bytes = st, st.bytes
	}
	want, refused := m.model.put(e)
	got, err := m.store.Put(e)
	if (err != nil) != refused {
		t.Fatalf("Put(%+v) = %v, want refused %v", e, err, refused)
	}
	if refused {
		m.dispose(t, e)
	}
	m.check(t, "Put", got, want)
}

func (m *machine) save(t *rapid.T) {
	key := someKey.Draw(t, "key")
	slot, tokens := rapid.IntRange(0, 3).Draw(t, "slot"), rapid.IntRange(1, 2).Draw(t, "tokens")
	if e, ok := m.store.Peek(key); ok && rapid.Bool().Draw(t, "as it is") {
		slot, tokens = e.Slot, len(e.Tokens)
	}
	st := m.newState(t, tokens)
	want, wantOK := m.model.saved(key, slot, st)
	got, ok := m.store.Saved(key, slot, st)
	if ok != wantOK {
		t.Fatalf("Saved(%v, %d) = %v, want %v", key, slot, ok, wantOK)
	}
	if ok {
		m.free = append(m.free, slot)
	} else {
		st.Free()
	}
	m.check(t, "Saved", got, want)
}

func (m *machine) take(t *rapid.T) {
	key, epoch, recipe := someKey.Draw(t, "key"), someEpoch.Draw(t, "epoch"), someRecipe.Draw(t, "recipe")
	want, wantMiss := m.model.take(key, epoch, recipe)
	got, miss := m.store.Take(key, epoch, recipe)
	if miss != wantMiss {
		t.Fatalf("Take(%v, %d, %s): miss %q, want %q", key, epoch, recipe, miss, wantMiss)
	}
	m.check(t, "Take", []hotkv.Entry{got}, []hotkv.Entry{want})
}

func (m *machine) fence(t *rapid.T) {
	key, epoch := someKey.Draw(t, "key"), someEpoch.Draw(t, "epoch")
	m.check(t, "Fence", m.store.Fence(key, epoch), m.model.raise(key, epoch))
}

func (m *machine) invalidate(t *rapid.T) {
	key := someKey.Draw(t, "key")
	m.check(t, "Invalidate", m.store.Invalidate(key), m.model.invalidate(key))
}

// invalidateAll and close empty the store, so they are rare.
func (m *machine) invalidateAll(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
		m.check(t, "InvalidateAll", m.store.InvalidateAll(), m.model.invalidateAll())
	}
}

func (m *machine) close(t *rapid.T) {
	if rapid.IntRange(0, 99).Draw(t, "very rarely") == 0 {
		m.model.closed = true
		m.check(t, "Close", m.store.Close(), m.model.invalidateAll())
	}
}

// agree is what holds between any two operations.
func (m *machine) agree(t *rapid.T) {
	var sum int64
	for _, key := range allKeys {
		e, stored := m.store.Peek(key)
		sum += e.Bytes
		if i := m.model.find(key); stored != (i >= 0) || stored && !reflect.DeepEqual(e, m.model.entries[i]) {
			t.Fatalf("Peek(%v) = %+v, %v; model has %+v", key, e, stored, m.model.entries)
		}
		epoch, known := m.store.Epoch(key)
		if wantEpoch, wantKnown := m.model.fence(key); epoch != wantEpoch || known != wantKnown {
			t.Fatalf("Epoch(%v) = %d, %v; want %d, %v", key, epoch, known, wantEpoch, wantKnown)
		}
	}
	e, ok := m.store.OldestParked()
	if wantE, wantOK := m.model.oldestParked(); ok != wantOK || !reflect.DeepEqual(e, wantE) {
		t.Fatalf("OldestParked = %+v, %v; want %+v, %v", e, ok, wantE, wantOK)
	}
	stats := m.store.Stats()
	if !reflect.DeepEqual(stats, m.model.stats()) {
		t.Fatalf("Stats\n%+v, want\n%+v", stats, m.model.stats())
	}
	if stats.Bytes != sum || sum > stats.BudgetBytes {
		t.Fatalf("counts %d bytes, the entries have %d, the budget is %d", stats.Bytes, sum, stats.BudgetBytes)
	}
	if parked := 4 - len(m.free); parked != stats.Parked {
		t.Fatalf("%d slots are not free, %d entries are parked", parked, stats.Parked)
	}
}

func TestStoreAgreesWithTheNaiveModelAndOwnsEachEntryOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		t.Repeat(map[string]func(*rapid.T){
			"":              m.agree,
			"Put":           m.put,
			"PutAgain":      m.put, // twice as often as the rest
			"Saved":         m.save,
			"Take":          m.take,
			"Fence":         m.fence,
			"Invalidate":    m.invalidate,
			"InvalidateAll": m.invalidateAll,
			"Close":         m.close,
		})
		m.dispose(t, m.store.Close()...)
		for _, st := range m.states {
			if n := st.freed.Load(); n != 1 {
				t.Fatalf("a state was freed %d times", n)
			}
		}
		if len(m.free) != 4 {
			t.Fatalf("slots %v are free in the end, want all 4", m.free)
		}
	})
}

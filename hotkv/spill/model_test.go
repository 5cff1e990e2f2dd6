package spill_test

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/hotkv/spill"
)

// kept is what the model says of one session.
type kept struct {
	name    string
	content byte
	epoch   uint64
	used    int64
}

// model is the store after everything was written: a slice, in the order of use, whose oldest go where there are too many.
type model struct {
	entries []kept
	room    int
}

func (m *model) find(name string) int {
	return slices.IndexFunc(m.entries, func(k kept) bool { return k.name == name })
}

func (m *model) remove(name string) {
	m.entries = slices.DeleteFunc(m.entries, func(k kept) bool { return k.name == name })
}

// offer makes room before the entry is there: it is never its own victim.
func (m *model) offer(k kept) {
	m.remove(k.name)
	for len(m.entries) >= m.room {
		m.entries = m.entries[1:]
	}
	m.entries = append(m.entries, k)
	slices.SortStableFunc(m.entries, func(a, b kept) int { return cmp.Compare(a.used, b.used) })
}

// machine drives a store and its model. Each offer is written before the next step, so that the two can be compared.
type machine struct {
	model  model
	disk   *brokenDisk
	memory memory
	store  *spill.Store
	budget int64
	used   int64
}

func (m *machine) open(t *rapid.T) {
	store, err := spill.Open(spill.Options{Files: m.disk, BudgetBytes: m.budget, Recipes: []string{"r"}, Load: m.memory.load})
	if err != nil {
		t.Fatal(err)
	}
	m.store = store
}

func (m *machine) restart(t *rapid.T) {
	if err := m.store.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.open(t)
}

var someName = rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})

func (m *machine) offer(t *rapid.T) {
	m.used += rapid.Int64Range(-2, 5).Draw(t, "later by")
	k := kept{someName.Draw(t, "name"), rapid.Byte().Draw(t, "content"), rapid.Uint64Range(1, 3).Draw(t, "epoch"), m.used}
	if slices.ContainsFunc(m.model.entries, func(other kept) bool { return other.used == k.used && other.name != k.name }) {
		return // which of two of the same moment is older is nobody's business
	}
	e := m.memory.entry(k.name, k.content, k.used)
	e.Epoch = k.epoch
	m.store.Offer(e)
	m.model.offer(k)
	m.restart(t) // writes it
}

func (m *machine) fetch(t *rapid.T) {
	name, epoch := someName.Draw(t, "name"), rapid.Uint64Range(1, 3).Draw(t, "epoch")
	r := &rig{Store: m.store}
	got, ok := r.fetch(session(name), epoch)
	i := m.model.find(name)
	want := i >= 0 && m.model.entries[i].epoch == epoch
	if ok != want {
		t.Fatalf("Fetch(%s, %d) = %t, want %t of %+v", name, epoch, ok, want, m.model.entries)
	}
	if !ok {
		return
	}
	if k := m.model.entries[i]; got.Epoch != k.epoch || byte(got.Tokens[0]) != k.content || got.Used.Unix() != k.used {
		t.Fatalf("Fetch(%s) = %+v, want %+v", name, got, k)
	}
	got.State.Free()
	m.model.remove(name)
}

func (m *machine) fence(t *rapid.T) {
	name, epoch := someName.Draw(t, "name"), rapid.Uint64Range(1, 3).Draw(t, "epoch")
	m.store.Fence(session(name), epoch)
	if i := m.model.find(name); i >= 0 && m.model.entries[i].epoch < epoch {
		m.model.remove(name)
	}
}

func (m *machine) check(t *rapid.T) {
	got := map[string]uint64{}
	m.store.Epochs(func(key hotkv.Key, epoch uint64) { got[key.Session] = epoch })
	want := map[string]uint64{}
	for _, k := range m.model.entries {
		want[k.name] = k.epoch
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("the store has sessions at epochs %v, want %v", got, want)
	}
	if bytes := m.disk.bytes(); bytes > m.budget {
		t.Fatalf("%d bytes on the disk, the budget is %d", bytes, m.budget)
	}
}

func TestStoreAgreesWithTheNaiveModelAcrossRestarts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{disk: newDisk(), model: model{room: rapid.IntRange(1, 4).Draw(t, "room")}}
		m.budget = int64(m.model.room*oneFile) + rapid.Int64Range(0, int64(oneFile)-1).Draw(t, "spare")
		m.open(t)
		t.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"offer":   m.offer,
			"again":   m.offer, // twice as often as the rest
			"fetch":   m.fetch,
			"fence":   m.fence,
			"restart": m.restart,
			"remove": func(t *rapid.T) {
				name := someName.Draw(t, "name")
				m.store.Remove(session(name))
				m.model.remove(name)
			},
		})
		if err := m.store.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := m.memory.live.Load(); n != 0 {
			t.Fatalf("%d states were not freed", n)
		}
		if len(m.disk.names()) != len(m.model.entries) {
			t.Fatalf("files %v, want one for each of %v", m.disk.names(), m.model.entries)
		}
	})
}

func TestConcurrentUsersAreEachHandedTheirOwnKV(t *testing.T) {
	const users, steps = 8, 300
	r := newRig(t, func(o *spill.Options) {
		o.BudgetBytes, o.BacklogBytes = 5*int64(oneFile), 4*blobBytes
	})
	var wg sync.WaitGroup
	for user := range users {
		wg.Go(func() {
			name, other := string(rune('a'+user)), string(rune('a'+(user+1)%users))
			for step := range steps {
				r.Offer(r.memory.entry(name, byte(user), int64(step)))
				if step%7 == 0 {
					r.Remove(session(other))
				}
				if step%11 == 0 {
					r.Fence(session(other), uint64(step%3))
				}
				if e, ok := r.fetch(session(name), 1); ok {
					if e.Key != session(name) || byte(e.Tokens[0]) != byte(user) {
						t.Errorf("%s was handed %+v", name, e)
					}
					e.State.Free()
				}
				if s := r.Stats(); s.Bytes > s.BudgetBytes {
					t.Errorf("%d bytes of files, the budget is %d", s.Bytes, s.BudgetBytes)
				}
			}
		})
	}
	wg.Wait()
}

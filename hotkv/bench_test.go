package hotkv_test

import (
	"fmt"
	"testing"

	"github.com/meshnet/node/hotkv"
)

const benchSessions = 1000

// benchEntries are parked entries of 1 byte each: a budget of n bytes keeps n of them.
func benchEntries(sessions int) []hotkv.Entry {
	entries := make([]hotkv.Entry, sessions)
	for i := range entries {
		entries[i] = parked(fmt.Sprintf("session-%d", i), i, 1)
	}
	return entries
}

func fullStore(tb testing.TB, entries []hotkv.Entry, budgetBytes int64) *hotkv.Store {
	tb.Helper()
	s := hotkv.New(budgetBytes)
	for _, e := range entries {
		if _, err := s.Put(e); err != nil {
			tb.Fatal(err)
		}
	}
	return s
}

// One turn of a session whose KV is hot, among 1,000 of them.
func BenchmarkTakeAndPutBack(b *testing.B) {
	entries := benchEntries(benchSessions)
	s := fullStore(b, entries, benchSessions)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		e, miss := s.Take(entries[i%benchSessions].Key, 1, "r")
		if miss != hotkv.Hit {
			b.Fatal(miss)
		}
		if _, err := s.Put(e); err != nil {
			b.Fatal(err)
		}
	}
}

// Twice as many sessions as fit: every Put evicts one.
func BenchmarkPutThatEvicts(b *testing.B) {
	entries := benchEntries(2 * benchSessions)
	s := fullStore(b, entries, benchSessions)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if evicted, err := s.Put(entries[i%len(entries)]); err != nil || len(evicted) != 1 {
			b.Fatal(len(evicted), err)
		}
	}
}

// All but the newest of 1,000 entries are saved: the oldest parked one is the last in the order of use.
func BenchmarkOldestParked(b *testing.B) {
	entries := benchEntries(benchSessions)
	s := fullStore(b, entries, benchSessions)
	for _, e := range entries[:benchSessions-1] {
		if _, ok := s.Saved(e.Key, e.Slot, &fakeState{bytes: 1, tokens: 3}); !ok {
			b.Fatal("not saved")
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if e, _ := s.OldestParked(); e.Slot != benchSessions-1 {
			b.Fatal(e.Slot)
		}
	}
}

func BenchmarkMiss(b *testing.B) {
	s := fullStore(b, benchEntries(benchSessions), benchSessions)
	b.ReportAllocs()
	for b.Loop() {
		if _, miss := s.Take(session("unknown"), 1, "r"); miss != hotkv.MissNever {
			b.Fatal(miss)
		}
	}
}

func BenchmarkStats(b *testing.B) {
	s := fullStore(b, benchEntries(benchSessions), benchSessions)
	b.ReportAllocs()
	for b.Loop() {
		if s.Stats().Parked != benchSessions {
			b.Fatal("wrong count")
		}
	}
}

func TestTurnOfAHotSessionAllocatesItsEntryOnly(t *testing.T) {
	entries := benchEntries(benchSessions)
	s := fullStore(t, entries, benchSessions)
	i := 0
	perTurn := testing.AllocsPerRun(benchSessions, func() {
		e, _ := s.Take(entries[i%benchSessions].Key, 1, "r")
		if _, err := s.Put(e); err != nil {
			t.Error(err)
		}
		i++
	})
	if perTurn > 1 {
		t.Errorf("%v allocations for one Take and Put, want at most 1", perTurn)
	}
}

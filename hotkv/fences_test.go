package hotkv_test

import (
	"testing"

	"github.com/meshnet/node/hotkv"
)

func wantEpoch(t *testing.T, s *hotkv.Store, name string, want uint64, wantKnown bool) {
	t.Helper()
	if epoch, known := s.Epoch(session(name)); epoch != want || known != wantKnown {
		t.Errorf("Epoch(%s) = %d, %v; want %d, %v", name, epoch, known, want, wantKnown)
	}
}

func TestHigherFenceHandsOverTheStaleKVOnce(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, atEpoch(parked("a", 0, 10), 3), parked("b", 1, 10))
	wantNames(t, "Fence at the entry's epoch", s.Fence(session("a"), 3))
	wantNames(t, "Fence below it", s.Fence(session("a"), 2))
	wantNames(t, "Fence above it", s.Fence(session("a"), 4), "a")
	wantNames(t, "the same Fence again", s.Fence(session("a"), 4))
	wantEpoch(t, s, "a", 4, true)
	wantBytes(t, s, 10)
	wantMiss(t, s, "a", 4, hotkv.MissEpoch)
}

func TestRequestOfAHigherEpochGetsStaleKVOnlyToDisposeOf(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, atEpoch(parked("a", 6, 10), 3))
	e, miss := s.Take(session("a"), 4, "r")
	if miss != hotkv.MissEpoch || e.Slot != 6 || !e.Parked() {
		t.Errorf("Take = %+v, %q; want the stale entry of slot 6 and %q", e, miss, hotkv.MissEpoch)
	}
	wantEpoch(t, s, "a", 4, true)
	wantMiss(t, s, "a", 4, hotkv.MissEpoch)
}

func TestStaleRequestLeavesFreshKVStored(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, atEpoch(parked("a", 0, 10), 3))
	wantMiss(t, s, "a", 2, hotkv.MissEpoch)
	if _, miss := s.Take(session("a"), 3, "r"); miss != hotkv.Hit {
		t.Errorf("miss %q after a stale request, want the KV still there", miss)
	}
	wantMiss(t, s, "a", 2, hotkv.MissEpoch) // the fence outlives the KV
}

func TestKVOfAnotherRecipeIsHandedOverToDisposeOf(t *testing.T) {
	s := hotkv.New(100)
	e := saved("a", 10)
	mustPut(t, s, e)
	got, miss := s.Take(session("a"), 1, "other recipe")
	if miss != hotkv.MissRecipe || got.State != e.State {
		t.Errorf("Take = %+v, %q; want the stale entry and %q", got, miss, hotkv.MissRecipe)
	}
	wantMiss(t, s, "a", 1, hotkv.MissRecipe)
	wantBytes(t, s, 0)
}

func TestEpochZeroIsAFenceLikeAnyOther(t *testing.T) {
	s := hotkv.New(100)
	wantEpoch(t, s, "a", 0, false)
	s.Fence(session("a"), 0)
	wantEpoch(t, s, "a", 0, true)
	mustPut(t, s, atEpoch(parked("a", 0, 10), 0))
	wantNames(t, "Fence", s.Fence(session("a"), 1), "a")
}

func TestLeastRecentlyNamedFenceIsForgotten(t *testing.T) {
	s := hotkv.New(100, hotkv.WithFenceLimit(2))
	s.Fence(session("a"), 5)
	s.Fence(session("b"), 6)
	s.Fence(session("a"), 1) // no higher, yet named
	s.Fence(session("c"), 7)
	wantEpoch(t, s, "a", 5, true)
	wantEpoch(t, s, "b", 0, false)
	wantEpoch(t, s, "c", 7, true)
}

func TestFenceOfStoredKVIsNeverForgotten(t *testing.T) {
	s := hotkv.New(100, hotkv.WithFenceLimit(1))
	mustPut(t, s, atEpoch(parked("a", 0, 10), 5))
	s.Fence(session("b"), 1)
	s.Fence(session("c"), 1)
	wantEpoch(t, s, "a", 5, true)
	wantMiss(t, s, "a", 4, hotkv.MissEpoch)
	if _, err := s.Put(atEpoch(parked("a", 1, 10), 4)); err == nil {
		t.Error("an entry below the epoch of the stored one was stored")
	}
}

func TestFencesOutliveInvalidation(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, atEpoch(parked("a", 0, 10), 5))
	s.InvalidateAll()
	wantMiss(t, s, "a", 4, hotkv.MissEpoch)
	wantMiss(t, s, "a", 5, hotkv.MissInvalidated)
}

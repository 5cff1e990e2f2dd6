package hotkv_test

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/meshnet/node/hotkv"
)

func TestTakeHandsOverWhatWasPut(t *testing.T) {
	s := hotkv.New(100)
	inSlot, blob := parked("a", 0, 40), saved("b", 60)
	mustPut(t, s, inSlot, blob)
	for _, want := range []hotkv.Entry{inSlot, blob} {
		got, miss := s.Take(want.Key, 1, "r")
		if miss != hotkv.Hit || !reflect.DeepEqual(got, want) {
			t.Errorf("Take = %+v, %q; want %+v", got, miss, want)
		}
	}
	wantBytes(t, s, 0)
	wantMiss(t, s, "a", 1, hotkv.MissNever)
}

func TestKeysThatConcatenateAlikeAreDifferentSessions(t *testing.T) {
	s := hotkv.New(100)
	e := parked("", 0, 10)
	e.Key = hotkv.Key{Tenant: "ab", Session: "c"}
	mustPut(t, s, e)
	if _, ok := s.Peek(hotkv.Key{Tenant: "a", Session: "bc"}); ok {
		t.Error("session bc of tenant a sees the KV of session c of tenant ab")
	}
}

func TestLeastRecentlyUsedMakesRoom(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, parked("a", 0, 30), saved("b", 30), parked("c", 2, 40))
	again, _ := s.Take(session("a"), 1, "r")
	mustPut(t, s, again) // a was used after b and c
	evicted, err := s.Put(saved("d", 50))
	if err != nil {
		t.Fatal(err)
	}
	wantNames(t, "evicted", evicted, "b", "c")
	wantBytes(t, s, 80)
	wantMiss(t, s, "b", 1, hotkv.MissEvicted)
}

func TestOnlyAsMuchIsEvictedAsIsNeeded(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, parked("a", 0, 50), parked("b", 1, 50))
	evicted, _ := s.Put(parked("c", 2, 50))
	wantNames(t, "evicted", evicted, "a")
	wantBytes(t, s, 100)
}

func TestPutReplacesTheSessionsEarlierKV(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, parked("a", 0, 50), parked("b", 1, 40))
	evicted, err := s.Put(parked("a", 2, 60)) // fits beside b only without the earlier a
	if err != nil || len(evicted) != 1 || evicted[0].Slot != 0 {
		t.Fatalf("Put = %+v, %v; want the entry of slot 0 back", evicted, err)
	}
	if e, _ := s.Peek(session("a")); e.Slot != 2 {
		t.Errorf("stored entry is in slot %d, want 2", e.Slot)
	}
	if got := s.Stats(); got.Bytes != 100 || got.Evictions != 0 {
		t.Errorf("bytes %d, evictions %d; want 100 and 0: a replaced entry made no room", got.Bytes, got.Evictions)
	}
}

func TestBudgetZeroKeepsNothing(t *testing.T) {
	s := hotkv.New(0)
	_, err := s.Put(parked("a", 0, 1))
	var tooLarge *hotkv.TooLargeError
	if !errors.As(err, &tooLarge) || tooLarge.Bytes != 1 || tooLarge.BudgetBytes != 0 {
		t.Errorf("Put = %v, want a TooLargeError of 1 byte against 0", err)
	}
	wantBytes(t, s, 0)
}

func TestLargestBudgetDoesNotOverflow(t *testing.T) {
	s := hotkv.New(math.MaxInt64)
	mustPut(t, s, parked("a", 0, math.MaxInt64-1), parked("b", 1, 1))
	evicted, err := s.Put(parked("c", 2, math.MaxInt64))
	if err != nil {
		t.Fatal(err)
	}
	wantNames(t, "evicted", evicted, "a", "b")
	wantBytes(t, s, math.MaxInt64)
}

func TestRefusedEntryChangesNothing(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, atEpoch(parked("a", 0, 50), 5), parked("b", 1, 50))
	before := s.Stats()
	blob := func(change func(e *hotkv.Entry)) hotkv.Entry {
		e := atEpoch(saved("a", 10), 7)
		change(&e)
		return e
	}
	cases := map[string]struct {
		entry hotkv.Entry
		want  string
	}{
		"alone beyond the budget": {
			atEpoch(parked("a", 2, 101), 7),
			`hot KV of session "a" of tenant "acme" needs 101 bytes, the budget is 100: raise the budget or do not keep it`,
		},
		"epoch below the fence": {
			atEpoch(parked("a", 2, 10), 4),
			`hot KV of session "a" of tenant "acme" has route epoch 4, the session is at 5: dispose of the entry`,
		},
		"no bytes": {
			parked("a", 2, 0),
			"hot KV entry: Bytes: 0; an entry counts at least 1 byte",
		},
		"neither slot nor state": {
			parked("a", hotkv.NoSlot, 10),
			"hot KV entry: Slot: -1 names no slot and there is no State; park the entry in a slot or save it",
		},
		"both slot and state": {
			blob(func(e *hotkv.Entry) { e.Slot = 0 }),
			"hot KV entry: Slot: 0 with a State; a saved entry has NoSlot (-1)",
		},
		"bytes that are not the state's": {
			blob(func(e *hotkv.Entry) { e.Bytes = 11 }),
			"hot KV entry: Bytes: 11, but the State has 10; count what the State occupies",
		},
		"tokens that are not the state's": {
			blob(func(e *hotkv.Entry) { e.Tokens = e.Tokens[:2] }),
			"hot KV entry: Tokens: 2 ids, but the State holds 3 positions; they must be equal",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			evicted, err := s.Put(c.entry)
			if err == nil || err.Error() != c.want || len(evicted) != 0 {
				t.Errorf("Put = %v, %v\nwant the error %s", names(evicted), err, c.want)
			}
			if after := s.Stats(); !reflect.DeepEqual(after, before) {
				t.Errorf("stats went from %+v to %+v", before, after)
			}
			if epoch, _ := s.Epoch(session("a")); epoch != 5 {
				t.Errorf("fence is %d, want 5", epoch)
			}
			if e, ok := s.Peek(session("a")); !ok || e.Slot != 0 {
				t.Errorf("stored entry is %+v, want the one in slot 0", e)
			}
		})
	}
}

func TestOldestParkedPassesOverSavedEntries(t *testing.T) {
	s := hotkv.New(100)
	if e, ok := s.OldestParked(); ok || e.Parked() {
		t.Errorf("an empty store has the parked entry %+v", e)
	}
	mustPut(t, s, saved("a", 10), parked("b", 4, 10), parked("c", 5, 10))
	if e, ok := s.OldestParked(); !ok || e.Slot != 4 {
		t.Errorf("OldestParked = slot %d, %v; want 4", e.Slot, ok)
	}
}

func TestReclaimedSlotKeepsTheEntrysPlaceInTheOrderOfUse(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, parked("a", 0, 40), parked("b", 1, 30))
	st := &fakeState{bytes: 50, tokens: 3}
	if evicted, ok := s.Saved(session("a"), 0, st); !ok || len(evicted) != 0 {
		t.Fatalf("Saved = %v, %v; want it to fit", names(evicted), ok)
	}
	got := s.Stats()
	if got.Parked != 1 || got.ParkedBytes != 30 || got.Saved != 1 || got.SavedBytes != 50 || got.Bytes != 80 {
		t.Errorf("%+v, want 1 parked with 30 bytes and 1 saved with 50", got)
	}
	if e, _ := s.OldestParked(); e.Key != session("b") {
		t.Errorf("oldest parked is %v, want b", e.Key)
	}
	evicted, _ := s.Put(parked("c", 0, 30))
	wantNames(t, "evicted", evicted, "a")
	if evicted[0].State != hotkv.State(st) || evicted[0].Slot != hotkv.NoSlot {
		t.Errorf("evicted %+v, want the saved state and no slot", evicted[0])
	}
}

func TestSavedEntryThatGrewEvictsOthersFirst(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, parked("a", 0, 30), parked("b", 1, 30), parked("c", 2, 40))
	evicted, ok := s.Saved(session("a"), 0, &fakeState{bytes: 60, tokens: 3})
	if !ok {
		t.Fatal("Saved refused the state of a parked entry")
	}
	wantNames(t, "evicted", evicted, "b")
	wantBytes(t, s, 100)
}

func TestSavedEntryBeyondTheBudgetLeavesAlone(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, parked("a", 0, 30), parked("b", 1, 30))
	st := &fakeState{bytes: 101, tokens: 3}
	evicted, ok := s.Saved(session("a"), 0, st)
	if !ok || len(evicted) != 1 || evicted[0].State != hotkv.State(st) || evicted[0].Parked() || evicted[0].Bytes != 101 {
		t.Fatalf("Saved = %+v, %v; want the entry itself with its state", evicted, ok)
	}
	wantBytes(t, s, 30)
	wantMiss(t, s, "a", 1, hotkv.MissEvicted)
}

func TestStateOfAnEntryThatIsGoneOrChangedIsRefused(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, parked("a", 0, 30), saved("b", 30))
	good := &fakeState{bytes: 30, tokens: 3}
	cases := map[string]struct {
		key  hotkv.Key
		slot int
		st   hotkv.State
	}{
		"gone":                 {session("x"), 0, good},
		"parked elsewhere":     {session("a"), 1, good},
		"saved already":        {session("b"), hotkv.NoSlot, good},
		"other token count":    {session("a"), 0, &fakeState{bytes: 30, tokens: 4}},
		"state without bytes":  {session("a"), 0, &fakeState{bytes: 0, tokens: 3}},
		"no state":             {session("a"), 0, nil},
		"another tenant's key": {hotkv.Key{Tenant: "other", Session: "a"}, 0, good},
	}
	for name, c := range cases {
		if evicted, ok := s.Saved(c.key, c.slot, c.st); ok || len(evicted) != 0 {
			t.Errorf("%s: Saved = %v, %v; want it refused", name, names(evicted), ok)
		}
	}
	if e, ok := s.Peek(session("a")); !ok || !e.Parked() {
		t.Errorf("entry a is %+v, want it parked as before", e)
	}
	wantBytes(t, s, 60)
}

func TestInvalidatedSessionsSayWhyTheyMiss(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, parked("a", 0, 10), saved("b", 10), parked("c", 1, 10))
	wantNames(t, "Invalidate(b)", s.Invalidate(session("b")), "b")
	wantNames(t, "Invalidate(b) again", s.Invalidate(session("b")))
	wantNames(t, "InvalidateAll", s.InvalidateAll(), "a", "c")
	for _, name := range []string{"a", "b", "c"} {
		wantMiss(t, s, name, 1, hotkv.MissInvalidated)
	}
	wantMiss(t, s, "d", 1, hotkv.MissNever)
	wantBytes(t, s, 0)
}

func TestClosedStoreIsEmptyAndStaysSo(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, parked("a", 0, 10), saved("b", 10))
	wantNames(t, "Close", s.Close(), "a", "b")
	wantNames(t, "second Close", s.Close())
	if _, err := s.Put(parked("a", 0, 10)); !errors.Is(err, hotkv.ErrClosed) {
		t.Errorf("Put = %v, want ErrClosed", err)
	}
	wantMiss(t, s, "a", 1, hotkv.MissInvalidated)
	wantBytes(t, s, 0)
}

func TestLossIsForgottenOnceKVIsKeptAgain(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, parked("a", 0, 10))
	s.Invalidate(session("a"))
	mustPut(t, s, parked("a", 0, 10))
	if _, miss := s.Take(session("a"), 1, "r"); miss != hotkv.Hit {
		t.Fatalf("miss %q, want a hit", miss)
	}
	wantMiss(t, s, "a", 1, hotkv.MissNever)
}

func TestInvalidatingTakenKVIsRemembered(t *testing.T) {
	s := hotkv.New(100)
	mustPut(t, s, parked("a", 0, 10))
	if _, miss := s.Take(session("a"), 1, "r"); miss != hotkv.Hit {
		t.Fatalf("miss %q, want a hit", miss)
	}
	wantNames(t, "Invalidate(a)", s.Invalidate(session("a")))
	wantMiss(t, s, "a", 1, hotkv.MissInvalidated)
}

func TestOnlyTheLatestLossesAreRemembered(t *testing.T) {
	s := hotkv.New(100, hotkv.WithMissMemory(2))
	mustPut(t, s, parked("a", 0, 10), parked("b", 1, 10), parked("c", 2, 10))
	s.InvalidateAll()
	wantMiss(t, s, "a", 1, hotkv.MissNever)
	wantMiss(t, s, "b", 1, hotkv.MissInvalidated)
	wantMiss(t, s, "c", 1, hotkv.MissInvalidated)
}

func TestStatsCountEachLookupOnce(t *testing.T) {
	s := hotkv.New(20)
	mustPut(t, s, parked("hit", 0, 10), parked("evicted", 1, 10))
	s.Take(session("hit"), 1, "r")
	mustPut(t, s, parked("recipe", 0, 10))
	if evicted, err := s.Put(parked("epoch", 2, 10)); err != nil || len(evicted) != 1 {
		t.Fatal("want one eviction")
	}
	s.Take(session("evicted"), 1, "r")
	s.Take(session("recipe"), 1, "other")
	s.Take(session("epoch"), 2, "r")
	s.Take(session("never"), 1, "r")
	mustPut(t, s, parked("invalidated", 0, 10))
	s.Invalidate(session("invalidated"))
	s.Take(session("invalidated"), 1, "r")
	mustPut(t, s, parked("left", 3, 7), saved("behind", 8))
	want := hotkv.Stats{
		BudgetBytes: 20, Bytes: 15, ParkedBytes: 7, SavedBytes: 8, Parked: 1, Saved: 1, Hits: 1, Evictions: 1,
		Misses: map[hotkv.Miss]int64{
			hotkv.MissNever: 1, hotkv.MissEvicted: 1, hotkv.MissEpoch: 1, hotkv.MissRecipe: 1, hotkv.MissInvalidated: 1,
		},
	}
	if got := s.Stats(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestLongestFindsTheGreatestKeyOfAPrefixThatIsStored(t *testing.T) {
	s := hotkv.New(100)
	key := func(i int) hotkv.Key { return hotkv.Key{Tenant: "a", Prefix: [32]byte{byte(i)}} }
	if got := s.Longest(9, key); got != 0 {
		t.Errorf("an empty store has prefix %d", got)
	}
	for _, i := range []int{3, 7} {
		e := saved("", 10)
		e.Key = key(i)
		mustPut(t, s, e)
	}
	for n, want := range map[int]int{0: 0, 2: 0, 3: 3, 6: 3, 7: 7, 9: 7} {
		if got := s.Longest(n, key); got != want {
			t.Errorf("of %d the longest is %d, want %d", n, got, want)
		}
	}
	if got := s.Longest(9, func(i int) hotkv.Key { return hotkv.Key{Tenant: "b", Prefix: [32]byte{byte(i)}} }); got != 0 {
		t.Errorf("another tenant has prefix %d", got)
	}
}

package spill_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/hotkv/spill"
)

func TestKVComesBackOnceAsItWasHandedOver(t *testing.T) {
	r := newRig(t)
	r.Offer(r.memory.entry("a", 7, 100))
	r.wantHit("a", 7)
	r.wantMiss("a")
	if got := r.Stats(); got.Hits != 1 || got.Sessions != 0 {
		t.Errorf("%+v, want 1 hit and no session", got)
	}
}

func TestKVComesBackAfterARestart(t *testing.T) {
	r := newRig(t)
	for i, name := range []string{"a", "b", "c"} {
		r.Offer(r.memory.entry(name, byte(i+1), int64(i)))
	}
	r.reopen()
	if got := r.Stats(); got.Sessions != 3 || got.Bytes != 3*int64(oneFile) {
		t.Errorf("%d sessions in %d bytes, want 3 in %d", got.Sessions, got.Bytes, 3*oneFile)
	}
	for i, name := range []string{"a", "b", "c"} {
		r.wantHit(name, byte(i+1))
	}
	r.end()
	if paths := r.paths(); len(paths) != 0 {
		t.Errorf("%v are left, want none: what was fetched is no longer in the store", paths)
	}
}

func TestNilStoreKeepsNothing(t *testing.T) {
	var s *spill.Store
	var m memory
	s.Offer(m.entry("a", 1, 0))
	s.Keep(m.entry("a", 1, 0))
	s.Fence(session("a"), 1)
	s.Remove(session("a"))
	s.RemoveAll()
	s.Epochs(func(hotkv.Key, uint64) { t.Error("there is an epoch") })
	if s.Fetch(session("a"), 1, nil) || m.live.Load() != 0 || s.Stats().Sessions != 0 || s.Close(context.Background()) != nil {
		t.Error("a nil store kept something")
	}
}

// The least recently used by the sessions' own use, whatever the order of writing, and also by a restart with a smaller budget.
func TestLeastRecentlyUsedGoesFirst(t *testing.T) {
	r := newRig(t, func(o *spill.Options) { o.BudgetBytes = 3 * int64(oneFile) })
	for i, name := range []string{"d", "a", "c", "b"} { // a was used before d, c before b
		r.Offer(r.memory.entry(name, byte(i+1), int64(name[0])))
	}
	r.end()
	r.wantLost(map[spill.Lost]int64{spill.LostBudget: 1})
	r.open(func(o *spill.Options) { o.BudgetBytes = 2 * int64(oneFile) })
	r.wantLost(map[spill.Lost]int64{spill.LostBudget: 1})
	r.wantMiss("a", "b")
	r.wantHit("c", 3)
	r.wantHit("d", 1)
}

func TestFilesNeverExceedTheBudget(t *testing.T) {
	disk := newDisk()
	budget := 3*int64(oneFile) + 10
	r := newRig(t, on(disk), func(o *spill.Options) { o.BudgetBytes = budget })
	most := int64(0)
	disk.watch = func(bytes int64) { most = max(most, bytes) }
	for i := range 20 {
		r.Keep(r.memory.entry(string(rune('a'+i)), byte(i), int64(i)))
	}
	r.end()
	if most != 3*int64(oneFile) {
		t.Errorf("%d bytes of files at most, want %d", most, 3*oneFile)
	}
	r.wantLost(map[spill.Lost]int64{spill.LostBudget: 17})
}

func TestKVLargerThanTheBudgetIsDropped(t *testing.T) {
	r := newRig(t, func(o *spill.Options) { o.BudgetBytes = int64(oneFile) - 1 })
	r.Offer(r.memory.entry("a", 1, 0))
	r.wantMiss("a")
	r.wantLost(map[spill.Lost]int64{spill.LostTooLarge: 1})
}

func TestNewerKVOfASessionReplacesTheOlder(t *testing.T) {
	r := newRig(t)
	r.Offer(r.memory.entry("a", 1, 1))
	r.reopen()
	r.Offer(r.memory.entry("a", 2, 2))
	r.reopen()
	if paths := r.paths(); len(paths) != 1 {
		t.Errorf("%d files, want 1", len(paths))
	}
	r.wantHit("a", 2)
	r.wantLost(nil)
}

func TestFencesAndRemovalsReachTheDisk(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%t", restart), func(t *testing.T) {
			r := newRig(t)
			for i, name := range []string{"fenced", "kept", "removed"} {
				r.Offer(r.memory.entry(name, byte(i), 0))
			}
			if restart {
				r.reopen()
			}
			r.Fence(session("fenced"), 2)
			r.Fence(session("kept"), 1)
			r.Remove(session("removed"))
			r.wantMiss("fenced", "removed")
			r.reopen()
			r.wantMiss("fenced", "removed")
			if len(r.paths()) != 1 {
				t.Errorf("%d files, want 1", len(r.paths()))
			}
			r.wantHit("kept", 1)
			r.wantLost(nil)
		})
	}
}

func TestRemoveAllLeavesNoFile(t *testing.T) {
	r := newRig(t)
	r.Offer(r.memory.entry("a", 1, 0))
	r.reopen()
	r.Offer(r.memory.entry("b", 1, 0))
	r.RemoveAll()
	r.wantMiss("a", "b")
	r.end()
	if paths := r.paths(); len(paths) != 0 {
		t.Errorf("%v are left", paths)
	}
}

func TestKVIsHandedToRequestsOfItsOwnEpochOnly(t *testing.T) {
	r := newRig(t)
	r.Offer(r.memory.entry("a", 1, 0))
	for _, epoch := range []uint64{0, 2} { // for the other, the KV is stale
		if _, ok := r.fetch(session("a"), epoch); ok {
			t.Errorf("a request of epoch %d was handed KV of epoch 1", epoch)
		}
	}
	r.wantHit("a", 1)
}

func TestEpochsSurviveARestart(t *testing.T) {
	r := newRig(t)
	e := r.memory.entry("a", 1, 0)
	e.Epoch = 9
	r.Offer(e)
	r.reopen()
	got := map[hotkv.Key]uint64{}
	r.Epochs(func(key hotkv.Key, epoch uint64) { got[key] = epoch })
	if len(got) != 1 || got[session("a")] != 9 {
		t.Errorf("epochs %v, want 9 for session a", got)
	}
}

func TestFilesOfAnotherRecipeAreRemovedAndCounted(t *testing.T) {
	r := newRig(t)
	r.Offer(r.memory.entry("a", 1, 0))
	r.Offer(r.memory.entry("b", 1, 0))
	other := func(o *spill.Options) { o.Recipes = []string{"other"} }
	r.reopen(other)
	r.wantMiss("a", "b")
	r.wantLost(map[spill.Lost]int64{spill.LostRecipe: 2})
	r.end()
	if paths := r.paths(); len(paths) != 0 {
		t.Errorf("%v are left", paths)
	}
}

func TestKVThatWasSavedUnderAnotherExactFingerprintIsNotExact(t *testing.T) {
	r := newRig(t, func(o *spill.Options) { o.Exact = "grid 64" })
	for _, test := range []struct {
		exact    string
		exactLen int
	}{{"grid 64", 2}, {"grid 256", 0}} {
		r.Offer(r.memory.entry("a", 1, 0))
		r.reopen(func(o *spill.Options) { o.Exact = test.exact })
		e, ok := r.fetch(session("a"), 1)
		if !ok || e.ExactLen != test.exactLen {
			t.Errorf("%s: hit is %t, exact to %d, want one exact to %d", test.exact, ok, e.ExactLen, test.exactLen)
		}
		if ok {
			e.State.Free()
		}
	}
}

// An engine has a recipe for its model without an adapter and one with each.
func TestKVComesBackUnderTheRecipeItWasHandedOverUnder(t *testing.T) {
	r := newRig(t)
	adapted := r.memory.entry("a", 1, 0)
	adapted.Recipe = "r+adapter"
	r.Offer(adapted)
	r.Offer(r.memory.entry("b", 2, 0))
	r.reopen()
	for name, recipe := range map[string]string{"a": "r+adapter", "b": "r"} {
		e, ok := r.fetch(session(name), 1)
		if !ok || e.Recipe != recipe {
			t.Errorf("%s: hit is %t, of recipe %q, want one of %q", name, ok, e.Recipe, recipe)
		}
		if ok {
			e.State.Free()
		}
	}
}

func TestKVOfARecipeThatIsGoneIsRemovedAndThatOfOthersIsKept(t *testing.T) {
	r := newRig(t)
	adapted := r.memory.entry("a", 1, 0)
	adapted.Recipe = "r+adapter"
	r.Offer(adapted)
	r.Offer(r.memory.entry("b", 2, 0))
	r.reopen(func(o *spill.Options) { o.Recipes = []string{"r"} })
	r.wantLost(map[spill.Lost]int64{spill.LostRecipe: 1})
	r.wantMiss("a")
	r.wantHit("b", 2)
}

func TestKVOfARecipeThatTheStoreIsNotOpenForIsNotTaken(t *testing.T) {
	r := newRig(t)
	other := r.memory.entry("a", 1, 0)
	other.Recipe = "other"
	r.Offer(r.memory.entry("a", 2, 0))
	r.Offer(other)
	r.wantLost(map[spill.Lost]int64{spill.LostRecipe: 1})
	r.wantMiss("a") // what was there is older
}

func TestSecondWorkerInOneFolderIsRefused(t *testing.T) {
	r := newRig(t)
	_, err := spill.Open(r.options(nil))
	if !errors.Is(err, spill.ErrInUse) || !strings.Contains(err.Error(), r.dir) {
		t.Errorf("%v, want ErrInUse with the folder's name", err)
	}
	r.reopen() // and the folder is given back
}

func TestFilesAreForTheirOwnerOnlyAndSayNothingOfTheirSession(t *testing.T) {
	r := newRig(t)
	r.Offer(r.memory.entry("../../secret", 1, 0))
	r.end()
	paths := r.paths()
	if len(paths) != 1 || strings.Contains(paths[0], "secret") || strings.Contains(paths[0], "acme") {
		t.Fatalf("files %v, want one with a hashed name", paths)
	}
	for path, want := range map[string]os.FileMode{paths[0]: 0o600, filepath.Dir(paths[0]): 0o700 | os.ModeDir} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

func TestOthersFilesInTheFolderAreLeftAlone(t *testing.T) {
	r := newRig(t)
	r.end()
	foreign := []string{"notes.txt", "x.kv", strings.Repeat("g", 32) + "-0000000000000001.kv"}
	for _, name := range foreign {
		if err := os.WriteFile(filepath.Join(r.dir, "meshnet-kv", name), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.reopen()
	r.end()
	for _, name := range foreign {
		if _, err := os.Stat(filepath.Join(r.dir, "meshnet-kv", name)); err != nil {
			t.Error(err)
		}
	}
	r.wantLost(nil)
}

func TestOptionsAreChecked(t *testing.T) {
	var m memory
	for name, o := range map[string]spill.Options{
		"no budget":        {Load: m.load},
		"nothing to load":  {BudgetBytes: 1},
		"negative backlog": {BudgetBytes: 1, Load: m.load, BacklogBytes: -1},
		"negative limit":   {BudgetBytes: 1, Load: m.load, ReadLimit: -time.Second},
	} {
		if _, err := spill.Open(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

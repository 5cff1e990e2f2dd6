package spill_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/node/hotkv/spill"
)

// Every byte of a file is covered: one that differs is found out, at the start or when the file is read, and nothing of it is loaded.
func TestDamagedFileIsNeverLoaded(t *testing.T) {
	for at := range oneFile {
		for _, when := range []string{"before the restart", "after it"} {
			r := newRig(t)
			r.Offer(r.memory.entry("a", 1, 0))
			r.end()
			flip := func() {
				path := r.paths()[0]
				content, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				content[at] ^= 0x10
				if err := os.WriteFile(path, content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if when == "after it" {
				r.open()
				flip()
			} else {
				flip()
				r.open()
			}
			r.wantMiss("a")
			if lost := r.Stats().Lost; lost[spill.LostCorrupt] != 1 {
				t.Errorf("byte %d %s: lost %v, want 1 corrupt", at, when, lost)
			}
			r.end()
			if len(r.paths()) != 0 {
				t.Errorf("byte %d %s: the file was not removed", at, when)
			}
			r.open()
		}
	}
}

func TestCutOrGrownFileIsNeverLoaded(t *testing.T) {
	for _, size := range []int{0, 1, 87, 88, 92, 100, oneFile - 1, oneFile + 1, 2 * oneFile} {
		r := newRig(t)
		r.Offer(r.memory.entry("a", 1, 0))
		r.end()
		if err := os.Truncate(r.paths()[0], int64(size)); err != nil {
			t.Fatal(err)
		}
		r.open()
		r.wantMiss("a")
		r.wantLost(map[spill.Lost]int64{spill.LostCorrupt: 1})
		if size > 0 && r.Stats().Sessions != 0 {
			t.Errorf("cut to %d bytes: indexed", size)
		}
	}
}

// A process that dies in the middle of a write leaves what has no file's name yet.
func TestUnfinishedFileIsRemovedAtTheNextStart(t *testing.T) {
	r := newRig(t)
	r.Offer(r.memory.entry("a", 1, 0))
	r.end()
	path := r.paths()[0]
	if err := os.Rename(path, path+".tmp"); err != nil {
		t.Fatal(err)
	}
	r.open()
	r.wantMiss("a")
	r.end()
	if len(r.paths()) != 0 {
		t.Errorf("%v are left", r.paths())
	}
	r.wantLost(nil)
}

// A process that dies between writing a session's newer file and removing the older one.
func TestOfTwoFilesOfASessionTheNewerCounts(t *testing.T) {
	r := newRig(t)
	r.Offer(r.memory.entry("a", 1, 1))
	r.end()
	older := r.paths()[0]
	content, err := os.ReadFile(older)
	if err != nil {
		t.Fatal(err)
	}
	r.open()
	r.Offer(r.memory.entry("a", 2, 2))
	r.end()
	if err := os.WriteFile(older, content, 0o600); err != nil {
		t.Fatal(err)
	}
	r.open()
	r.wantHit("a", 2)
	r.wantMiss("a")
	r.end()
	if len(r.paths()) != 0 {
		t.Errorf("%v are left", r.paths())
	}
}

// What the file system refuses is dropped and counted, said once, and tried again with the next.
func TestFaultsOfTheFileSystemCostTheKVOnly(t *testing.T) {
	for _, op := range []string{"create", "write", "close", "rename"} {
		t.Run(op, func(t *testing.T) {
			disk := newDisk()
			r := newRig(t, on(disk))
			disk.set(op, errFull)
			r.Offer(r.memory.entry("a", 1, 0))
			r.Offer(r.memory.entry("b", 1, 0))
			r.reopen(on(disk))
			r.wantMiss("a", "b")
			if n := strings.Count(r.log.String(), "serving goes on without"); n != 1 {
				t.Errorf("warned %d times, want once:\n%s", n, &r.log)
			}
			disk.set(op, nil)
			r.Offer(r.memory.entry("c", 3, 0))
			r.reopen(on(disk))
			r.wantHit("c", 3)
			r.end()
			if names := disk.names(); len(names) != 0 {
				t.Errorf("%v are left", names)
			}
		})
	}
}

func TestFullDiskLosesWhatDoesNotFit(t *testing.T) {
	disk := newDisk()
	disk.space = oneFile / 2
	r := newRig(t, on(disk))
	r.Offer(r.memory.entry("a", 1, 0))
	r.end()
	r.wantLost(map[spill.Lost]int64{spill.LostWrite: 1})
	if got := r.Stats(); got.Written != 0 || got.Faults != 1 || got.Bytes != 0 {
		t.Errorf("%+v, want none written, 1 fault and no bytes", got)
	}
	disk.space = -1
	r.open(on(disk))
	r.wantMiss("a")
}

// A disk that is smaller than the budget has what was used last, as the budget would.
func TestFullDiskKeepsWhatWasUsedLast(t *testing.T) {
	disk := newDisk()
	disk.space = 2*oneFile + oneFile/2
	r := newRig(t, on(disk))
	for i, name := range []string{"a", "b", "c", "d"} {
		r.Offer(r.memory.entry(name, byte(i+1), int64(i)))
	}
	r.reopen(on(disk))
	r.wantMiss("a", "b")
	r.wantHit("c", 3)
	r.wantHit("d", 4)
	r.end()
	if disk.space != 2*oneFile+oneFile/2 {
		t.Errorf("%d bytes of the disk are free in the end", disk.space)
	}
}

// What is larger than all that is kept drives none of it out in vain.
func TestFullDiskGivesUpNothingInVain(t *testing.T) {
	disk := newDisk()
	disk.space = oneFile
	r := newRig(t, on(disk))
	r.Offer(r.memory.entry("a", 1, 0))
	r.Offer(r.memory.entry("longer", 2, 1))
	r.end()
	r.wantLost(map[spill.Lost]int64{spill.LostWrite: 1})
	r.open(on(disk))
	r.wantHit("a", 1)
	r.wantMiss("longer")
}

func TestUnreadableFileIsAMiss(t *testing.T) {
	disk := newDisk()
	r := newRig(t, on(disk))
	r.Offer(r.memory.entry("a", 1, 0))
	r.reopen(on(disk))
	disk.set("open", os.ErrPermission)
	r.wantMiss("a")
	r.wantLost(map[spill.Lost]int64{spill.LostRead: 1})
}

func TestFolderThatCannotBeUsedKeepsNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(o *spill.Options) { o.Dir = file })
	r.Offer(r.memory.entry("a", 1, 0))
	r.end()
	r.wantMiss("a")
	r.wantLost(map[spill.Lost]int64{spill.LostWrite: 1})
	if n := strings.Count(r.log.String(), "serving goes on without"); n != 1 || !strings.Contains(r.log.String(), file) {
		t.Errorf("warned %d times, want once with the folder's name:\n%s", n, &r.log)
	}
}

func TestFolderThatVanishesIsAMiss(t *testing.T) {
	r := newRig(t)
	r.Offer(r.memory.entry("a", 1, 0))
	r.reopen()
	if err := os.RemoveAll(r.dir); err != nil {
		t.Fatal(err)
	}
	r.wantMiss("a")
	r.Offer(r.memory.entry("b", 1, 0))
	r.end()
	r.wantLost(map[spill.Lost]int64{spill.LostRead: 1, spill.LostWrite: 1})
}

func TestFolderOfAnotherKindIsRefused(t *testing.T) {
	r := newRig(t)
	r.end()
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(elsewhere, "meshnet-kv")); err != nil {
		t.Fatal(err)
	}
	r.open(func(o *spill.Options) { o.Dir = elsewhere })
	r.Offer(r.memory.entry("a", 1, 0))
	r.end()
	r.wantLost(map[spill.Lost]int64{spill.LostWrite: 1})
}

// Files that cannot be removed keep their place in the budget.
func TestFilesThatCannotBeRemovedStillCount(t *testing.T) {
	disk := newDisk()
	one := func(o *spill.Options) { o.BudgetBytes = int64(oneFile) }
	r := newRig(t, on(disk), one)
	r.Offer(r.memory.entry("a", 1, 1))
	r.reopen(on(disk), one)
	disk.set("remove", os.ErrPermission)
	r.Offer(r.memory.entry("b", 2, 2))
	r.end()
	if got := disk.bytes(); got != int64(oneFile) {
		t.Errorf("%d bytes on the disk, want %d", got, oneFile)
	}
	r.wantLost(map[spill.Lost]int64{spill.LostBudget: 2})
}

// The disk does not answer: whoever waits is told so in time, and what comes late is freed.
func TestReadThatTakesTooLongIsAMiss(t *testing.T) {
	disk := newDisk()
	r := newRig(t, on(disk))
	r.Offer(r.memory.entry("a", 1, 0))
	r.reopen(on(disk), func(o *spill.Options) { o.ReadLimit = time.Microsecond })
	release := disk.block("open")
	r.wantMiss("a")
	release()
	r.end()
	r.wantLost(map[spill.Lost]int64{spill.LostRead: 1})
}

func TestBacklogIsBounded(t *testing.T) {
	disk := newDisk()
	release := disk.block("create")
	r := newRig(t, on(disk), func(o *spill.Options) { o.BacklogBytes = 2 * blobBytes })
	r.Offer(r.memory.entry("a", 1, 0))
	<-disk.arrived // a is being written
	r.Offer(r.memory.entry("b", 2, 0))
	r.Offer(r.memory.entry("c", 3, 0))
	if got := r.Stats().BacklogBytes; got != 2*blobBytes {
		t.Errorf("%d bytes wait, want %d", got, 2*blobBytes)
	}
	r.wantLost(map[spill.Lost]int64{spill.LostBacklog: 1})
	r.wantMiss("c")
	release()
	r.reopen(on(disk))
	r.wantHit("a", 1)
	r.wantHit("b", 2)
}

func TestEmptyBacklogTakesAny(t *testing.T) {
	r := newRig(t, func(o *spill.Options) { o.BacklogBytes = 1 })
	r.Offer(r.memory.entry("a", 1, 0))
	r.reopen()
	r.wantHit("a", 1)
}

func TestKVThatIsBeingWrittenIsHandedOverRemovedOrReplaced(t *testing.T) {
	for name, test := range map[string]struct {
		meanwhile func(*rig)
		left      int
	}{
		"fetched":  {func(r *rig) { r.wantHit("a", 1) }, 0},
		"fenced":   {func(r *rig) { r.Fence(session("a"), 2) }, 0},
		"removed":  {func(r *rig) { r.Remove(session("a")) }, 0},
		"replaced": {func(r *rig) { r.Offer(r.memory.entry("a", 2, 0)) }, 1},
		"fetched while it waits": {func(r *rig) {
			r.Offer(r.memory.entry("b", 2, 0))
			r.wantHit("b", 2)
		}, 1},
	} {
		for _, fails := range []error{nil, errFull} {
			t.Run(fmt.Sprintf("%s, write error %v", name, fails), func(t *testing.T) {
				disk := newDisk()
				disk.set("rename", fails)
				release := disk.block("create")
				r := newRig(t, on(disk))
				r.Offer(r.memory.entry("a", 1, 0))
				<-disk.arrived
				done := make(chan struct{})
				if name == "fetched" { // waits for the write
					go func() { defer close(done); test.meanwhile(r) }()
					for r.Stats().Sessions > 0 {
						runtime.Gosched() // until it is asked for
					}
				} else {
					test.meanwhile(r)
					close(done)
				}
				release()
				<-done
				r.end()
				want := test.left
				if fails != nil {
					want = 0
				}
				if names := disk.names(); len(names) != want {
					t.Errorf("files %v, want %d", names, want)
				}
			})
		}
	}
}

func TestCloseGivesUpWhatTheDiskDoesNotTakeInTime(t *testing.T) {
	disk := newDisk()
	release := disk.block("create")
	r := newRig(t, on(disk))
	r.Offer(r.memory.entry("a", 1, 0))
	<-disk.arrived
	r.Offer(r.memory.entry("b", 2, 0))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Close(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "1 sessions") {
		t.Errorf("Close = %v, want one session given up", err)
	}
	release()
	r.end()
	r.wantLost(map[spill.Lost]int64{spill.LostBacklog: 1})
}

// Start is bounded: what there was no time to look at is removed, not read.
func TestScanEndsInTime(t *testing.T) {
	disk := newDisk()
	r := newRig(t, on(disk))
	r.Offer(r.memory.entry("a", 1, 0))
	r.reopen(on(disk), func(o *spill.Options) { o.ScanLimit = time.Nanosecond })
	r.wantMiss("a")
	r.end()
	if names := disk.names(); len(names) != 0 {
		t.Errorf("%v are left", names)
	}
	r.wantLost(map[spill.Lost]int64{spill.LostRead: 1})
}

func TestKeepIsNotBoundByTheBacklog(t *testing.T) {
	disk := newDisk()
	release := disk.block("create")
	r := newRig(t, on(disk), func(o *spill.Options) { o.BacklogBytes = 1 })
	for i := range 10 {
		r.Keep(r.memory.entry(string(rune('a'+i)), byte(i), int64(i)))
	}
	<-disk.arrived
	release()
	r.reopen(on(disk))
	r.wantLost(nil)
	for i := range 10 {
		r.wantHit(string(rune('a'+i)), byte(i))
	}
}

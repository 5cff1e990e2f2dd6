// Package spill keeps, in files, the KV of sessions that had to make room for others, so that it can be hot
// again, also in a later process. It is a cache: whatever goes wrong with a file is a miss and a count, never an error of a turn.
//
// A file is never written in place: it gets its name once it is whole, and its checksums are verified
// before anything is taken from it. Nothing is flushed to the disk on purpose, since a file that a crash of the machine
// takes is only a miss, and one that it cuts is found out by its length or its checksum.
package spill

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/meshnet/node/hotkv"
)

const (
	defaultBacklog   = 256 << 20
	defaultReadLimit = 5 * time.Second
	defaultScanLimit = 5 * time.Second
)

// Options are what Open needs.
type Options struct {
	Dir          string // the folder in which the store makes one of its own
	BudgetBytes  int64  // of all files together; at least 1
	BacklogBytes int64  // KV in memory that waits to be written; what comes beyond is dropped; 0 is 256 MiB

	Recipes []string // restore fingerprints of the engine, one without an adapter and one with each: no other's KV is ever loaded
	Exact   string   // the engine's exact fingerprint: of KV that was saved under another, no part counts as exact
	// Load makes a state of a blob, of which it reads all size bytes. It is called on any goroutine, several at once.
	Load func(size int64, r io.Reader) (hotkv.State, error)

	ReadLimit time.Duration // after which a read is given up, and its session's KV with it; 0 is 5 s
	ScanLimit time.Duration // of Open; the files it had no time to look at are removed; 0 is 5 s
	Log       *slog.Logger  // nil is slog.Default()
	Files     Files         // nil is the folder in Dir
}

// Store holds at most one entry for each session, either in a file or on its way to one. Its methods are safe for concurrent use.
// None of them but Close waits for the disk. A nil Store keeps nothing.
//
// What is handed to the store is its own from then on, and what it hands out is no longer there.
type Store struct {
	o       Options
	files   Files
	recipes map[digest]string

	work  chan struct{} // capacity 1: the writer has something to do
	tasks sync.WaitGroup

	mu      sync.Mutex // guards all below; not held while files, Load, a State or a fetch's done are called
	byKey   map[hotkv.Key]*item
	stored  list.List // of *item in files, by their last use, the oldest first
	waiting []*item   // for the writer, in the order they came
	trash   []File    // files that are to be removed
	number  uint64    // of the last file
	backlog int64     // KV bytes of items that wait or are being written
	disk    int64     // bytes of the files there are: stored, being read, and trash
	closed  bool
	warned  bool // since the last write that succeeded
	counts  counts
}

// place is where an item is.
type place uint8

const (
	waiting place = iota
	writing
	inFile
)

// item is what the store keeps for one session. While it is being written it belongs to the writer, which
// looks at taker and dropped when it is done.
type item struct {
	key   hotkv.Key
	epoch uint64
	used  int64 // Unix nanoseconds
	file  File
	place place
	entry hotkv.Entry   // until it is in a file
	at    *list.Element // of stored, once it is

	taker   *fetch // who asked for it while it was being written
	dropped bool   // fenced, removed or replaced while it was being written
}

// Open takes the folder over and indexes its files, of which it removes those of another recipe and those that are not whole.
// The errors are of the options, and ErrInUse. A folder that cannot be used for any other reason is reported to the log, and nothing is kept in it.
func Open(o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Store{
		o: o, files: o.Files, recipes: make(map[digest]string),
		work: make(chan struct{}, 1), byKey: make(map[hotkv.Key]*item),
	}
	for _, recipe := range o.Recipes {
		s.recipes[digestOf(recipe)] = recipe
	}
	s.counts.init()
	if s.files == nil {
		folder, err := openFolder(o.Dir)
		switch {
		case errors.Is(err, ErrInUse):
			return nil, err
		case err != nil:
			s.files = unusable{err}
		default:
			s.files = folder
		}
	}
	s.scan(time.Now().Add(o.ScanLimit))
	s.tasks.Go(s.write)
	return s, nil
}

func (o *Options) complete() error {
	switch {
	case o.BudgetBytes < 1:
		return fmt.Errorf("the budget for spilled KV is %d bytes; it must be at least 1", o.BudgetBytes)
	case o.BacklogBytes < 0 || o.ReadLimit < 0 || o.ScanLimit < 0:
		return fmt.Errorf("spilled KV: a backlog of %d bytes, a read limit of %s and a scan limit of %s; none may be negative",
			o.BacklogBytes, o.ReadLimit, o.ScanLimit)
	case o.Load == nil:
		return errors.New("spilled KV: there is nothing to load it with")
	}
	if o.BacklogBytes == 0 {
		o.BacklogBytes = defaultBacklog
	}
	if o.ReadLimit == 0 {
		o.ReadLimit = defaultReadLimit
	}
	if o.ScanLimit == 0 {
		o.ScanLimit = defaultScanLimit
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return nil
}

// Takes says whether a restore fingerprint is one of those that the store was opened for.
func (s *Store) Takes(recipe string) bool { return slices.Contains(s.o.Recipes, recipe) }

// Holds says whether there is an entry of the session that a Fetch with that epoch would take.
func (s *Store) Holds(key hotkv.Key, epoch uint64) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.byKey[key]
	return it != nil && it.epoch == epoch && !s.closed
}

// Offer takes e, a saved entry, to be written soon. Where the backlog is full, e is larger than the whole budget, or of a recipe that the
// store does not take, it is dropped. An older entry of the same session is dropped in any case.
func (s *Store) Offer(e hotkv.Entry) { s.offer(e, true) }

// Keep is Offer whatever waits already, for what is left in the end: the memory is used, and nothing comes after it.
func (s *Store) Keep(e hotkv.Entry) { s.offer(e, false) }

// Lose counts KV that was to be offered and could not be saved.
func (s *Store) Lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.lost[LostSave]++
}

func (s *Store) offer(e hotkv.Entry, bounded bool) {
	if s == nil {
		e.State.Free()
		return
	}
	h := headerOf(&e)
	it := &item{key: e.Key, epoch: e.Epoch, used: h.used, entry: e, file: File{Bytes: h.fileSize()}}
	s.mu.Lock()
	free := s.drop(e.Key)
	switch {
	case s.closed:
		s.counts.lost[LostBacklog]++
	case !s.Takes(e.Recipe):
		s.counts.lost[LostRecipe]++
	case !h.storable() || it.file.Bytes > s.o.BudgetBytes:
		s.counts.lost[LostTooLarge]++
	case bounded && s.backlog > 0 && s.backlog+e.Bytes > s.o.BacklogBytes: // an empty one takes any
		s.counts.lost[LostBacklog]++
	default:
		s.number++
		it.file.Name = fileName(e.Key, s.number)
		s.byKey[e.Key] = it
		s.waiting = append(s.waiting, it)
		s.backlog += e.Bytes
		e.State = nil
	}
	s.mu.Unlock()
	freeAll(free, e.State)
	signal(s.work)
}

// Fence drops the session's entry if it was built under an older route epoch.
func (s *Store) Fence(key hotkv.Key, epoch uint64) {
	if s == nil {
		return
	}
	s.mu.Lock()
	var free hotkv.State
	if it := s.byKey[key]; it != nil && it.epoch < epoch {
		free = s.drop(key)
	}
	s.mu.Unlock()
	freeAll(free)
	signal(s.work)
}

// Remove drops the session's entry, if any.
func (s *Store) Remove(key hotkv.Key) {
	if s == nil {
		return
	}
	s.mu.Lock()
	free := s.drop(key)
	s.mu.Unlock()
	freeAll(free)
	signal(s.work)
}

// RemoveAll drops every entry.
func (s *Store) RemoveAll() {
	if s == nil {
		return
	}
	var free []hotkv.State
	s.mu.Lock()
	for key := range s.byKey {
		free = append(free, s.drop(key))
	}
	s.mu.Unlock()
	freeAll(free...)
	signal(s.work)
}

// Epochs calls f with every session of which there is an entry, and its epoch.
func (s *Store) Epochs(f func(key hotkv.Key, epoch uint64)) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, it := range s.byKey {
		f(key, it.epoch)
	}
}

// Close stops taking entries, writes what waits until ctx is done, and gives the folder back. Reads that are under way are
// waited for too. The error says how many entries were given up, or that the folder could not be given back.
func (s *Store) Close(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	signal(s.work)
	ended := make(chan struct{})
	go func() { s.tasks.Wait(); close(ended) }()
	select {
	case <-ended:
		s.emptyTrash() // what was read meanwhile
		return s.files.Close()
	case <-ctx.Done():
	}
	n := s.giveUp()
	return fmt.Errorf("spilled KV: %d sessions' KV was not written in time: %w", n, ctx.Err())
}

// giveUp drops what waits. What the disk has not answered for yet is left to itself, and the folder with it.
func (s *Store) giveUp() int {
	s.mu.Lock()
	var free []hotkv.State
	for len(s.waiting) > 0 {
		free = append(free, s.drop(s.waiting[0].key))
		s.counts.lost[LostBacklog]++
	}
	s.mu.Unlock()
	freeAll(free...)
	return len(free)
}

// drop forgets the session's entry. It returns what is to be freed once the lock is given back.
func (s *Store) drop(key hotkv.Key) hotkv.State {
	it := s.byKey[key]
	if it == nil {
		return nil
	}
	delete(s.byKey, key)
	switch it.place {
	case waiting:
		s.leaveBacklog(it)
		return it.entry.State
	case writing:
		it.dropped = true
	case inFile:
		s.stored.Remove(it.at)
		s.trash = append(s.trash, it.file)
	}
	return nil
}

// leaveBacklog takes out what waits.
func (s *Store) leaveBacklog(it *item) {
	if i := slices.Index(s.waiting, it); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	s.backlog -= it.entry.Bytes
}

func freeAll(states ...hotkv.State) {
	for _, state := range states {
		if state != nil {
			state.Free()
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

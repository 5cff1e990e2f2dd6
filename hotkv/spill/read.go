package spill

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"sync/atomic"
	"time"

	"github.com/meshnet/node/hotkv"
)

// fetch is somebody's wait for an entry.
type fetch struct {
	done     func(e hotkv.Entry, ok bool)
	answered atomic.Bool
	limit    *time.Timer
}

// answer says whether the caller is the one to call done.
func (f *fetch) answer() bool { return !f.answered.Swap(true) }

// Fetch takes the session's entry out of the store. If there is one of that epoch, done is called once, soon, on another goroutine:
// with the entry, which is the callee's, or with ok false where it could not be read within the read limit. An entry of a lower epoch is
// stale and stays what it is until it is fenced; for one of a higher epoch, the request is.
func (s *Store) Fetch(key hotkv.Key, epoch uint64, done func(e hotkv.Entry, ok bool)) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.byKey[key]
	if it == nil || it.epoch != epoch || s.closed {
		return false
	}
	delete(s.byKey, key)
	f := &fetch{done: done}
	f.limit = time.AfterFunc(s.o.ReadLimit, func() { s.miss(f, LostRead) })
	switch it.place {
	case waiting:
		s.leaveBacklog(it)
		s.tasks.Go(func() { s.hand(f, it.entry) })
	case writing:
		it.taker = f
	case inFile:
		s.stored.Remove(it.at)
		s.tasks.Go(func() { s.read(f, it) })
	}
	return true
}

// hand gives an entry to whoever waits for it, unless they were told that they waited too long.
func (s *Store) hand(f *fetch, e hotkv.Entry) {
	f.limit.Stop()
	if !f.answer() {
		e.State.Free()
		return
	}
	s.mu.Lock()
	s.counts.hits++
	s.mu.Unlock()
	f.done(e, true)
}

// miss tells whoever waits that there will be nothing, unless they know.
func (s *Store) miss(f *fetch, cause Lost) {
	if !f.answer() {
		return
	}
	s.mu.Lock()
	s.counts.lost[cause]++
	s.mu.Unlock()
	f.done(hotkv.Entry{Slot: hotkv.NoSlot}, false)
}

// read reads a file, which is then of no more use: what is hot again is not in the store.
func (s *Store) read(f *fetch, it *item) {
	e, err := s.load(it)
	s.mu.Lock()
	s.trash = append(s.trash, it.file)
	s.mu.Unlock()
	signal(s.work)
	if err == nil {
		s.hand(f, e)
		return
	}
	f.limit.Stop()
	if !errors.Is(err, errCorrupt) && !errors.Is(err, errRecipe) {
		s.fault("read", err)
	}
	s.miss(f, causeOfRead(err))
}

func (s *Store) load(it *item) (hotkv.Entry, error) {
	file, size, err := s.files.Open(it.file.Name)
	if err != nil {
		return hotkv.Entry{}, err
	}
	defer file.Close() //nolint:errcheck // only read from
	h, err := readHeader(file, size, s.recipes)
	if err != nil {
		return hotkv.Entry{}, err
	}
	if h.key != it.key || h.epoch != it.epoch {
		return hotkv.Entry{}, errCorrupt
	}
	e, err := readEntry(file, &h, s.o.Load)
	if h.exact != exactMark(s.o.Exact) {
		e.ExactLen = 0
	}
	return e, err
}

func causeOfRead(err error) Lost {
	switch {
	case errors.Is(err, errRecipe):
		return LostRecipe
	case errors.Is(err, errCorrupt):
		return LostCorrupt
	}
	return LostRead
}

// scan indexes the files of an earlier process by their headers. It runs before anyone else knows the store.
func (s *Store) scan(deadline time.Time) {
	files, err := s.files.List()
	if err != nil {
		s.fault("list", err)
	}
	for _, file := range files {
		number, temporary, ours := parseName(file.Name)
		if !ours {
			continue
		}
		s.number = max(s.number, number)
		s.disk += file.Bytes
		it, err := s.index(file, temporary || time.Now().After(deadline))
		switch {
		case it == nil:
			s.trash = append(s.trash, file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				s.counts.lost[causeOfRead(err)]++
			}
		case s.byKey[it.key] == nil:
			s.byKey[it.key] = it
		default: // the crash of a process left two of one session
			older := s.byKey[it.key]
			if older.used > it.used {
				older, it = it, older
			}
			s.trash = append(s.trash, older.file)
			s.byKey[it.key] = it
		}
	}
	s.order()
	if lost := s.counts.lost; lost[LostCorrupt]+lost[LostRecipe]+lost[LostRead] > 0 {
		s.o.Log.Info("spilled KV that cannot be used was removed", "dir", s.o.Dir, "kept", len(s.byKey),
			"other_recipe", lost[LostRecipe], "corrupt", lost[LostCorrupt], "unread", lost[LostRead])
	}
}

// errUnread: there was no time to look at the file.
var errUnread = errors.New("not looked at")

// index looks at one file; nil is one that is to be removed.
func (s *Store) index(file File, skip bool) (*item, error) {
	if skip {
		if _, temporary, _ := parseName(file.Name); temporary {
			return nil, nil
		}
		return nil, errUnread
	}
	r, size, err := s.files.Open(file.Name)
	if err != nil {
		return nil, err
	}
	defer r.Close() //nolint:errcheck // only read from
	h, err := readHeader(r, size, s.recipes)
	if err != nil {
		return nil, err
	}
	return &item{key: h.key, epoch: h.epoch, used: h.used, file: file, place: inFile}, nil
}

// order sorts what was indexed by use, and keeps as much as the budget allows.
func (s *Store) order() {
	items := make([]*item, 0, len(s.byKey))
	var bytes int64
	for _, it := range s.byKey {
		items = append(items, it)
		bytes += it.file.Bytes
	}
	slices.SortFunc(items, func(a, b *item) int {
		return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(a.file.Name, b.file.Name))
	})
	for _, it := range items {
		it.at = s.stored.PushBack(it)
	}
	for bytes > s.o.BudgetBytes {
		oldest := s.stored.Front().Value.(*item)
		bytes -= oldest.file.Bytes
		s.evict(oldest)
	}
}

package spill

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/meshnet/node/hotkv"
)

// write is the one goroutine that makes and removes files, until the store is closed and nothing waits.
func (s *Store) write() {
	for {
		s.emptyTrash()
		it, closed := s.nextToWrite()
		switch {
		case it != nil:
			s.settle(it, s.writeFile(it))
		case closed:
			return
		default:
			<-s.work
		}
	}
}

func (s *Store) nextToWrite() (it *item, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return nil, s.closed
	}
	it = s.waiting[0]
	s.waiting = slices.Delete(s.waiting, 0, 1)
	it.place = writing
	return it, s.closed
}

// errNoRoom: the budget is used up by files that cannot be removed, or are being read.
var errNoRoom = errors.New("no room within the budget")

// writeFile writes the item's file. Where the disk is full below the budget, what was used longest ago makes room, once: else old KV that
// nobody asks for would keep out all that is new.
func (s *Store) writeFile(it *item) error {
	err := s.tryFile(it)
	if (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) && s.evictAsMuch(it.file.Bytes) {
		return s.tryFile(it)
	}
	return err
}

// evictAsMuch gives up the least recently used files that have so many bytes together. It is false, and gives up none, where there are
// not as many.
func (s *Store) evictAsMuch(bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest []*item
	for at := s.stored.Front(); at != nil && bytes > 0; at = at.Next() {
		oldest = append(oldest, at.Value.(*item))
		bytes -= at.Value.(*item).file.Bytes
	}
	if bytes > 0 {
		return false
	}
	for _, it := range oldest {
		s.evict(it)
	}
	return true
}

// tryFile makes room within the budget and writes the item's file, whose bytes count from before it is made.
func (s *Store) tryFile(it *item) error {
	if !s.makeRoom(it) {
		return errNoRoom
	}
	temp := it.file.Name + tempSuffix
	err := s.create(temp, &it.entry)
	if err == nil {
		err = s.files.Rename(temp, it.file.Name)
	}
	if err != nil {
		s.mu.Lock()
		s.trash = append(s.trash, File{Name: temp, Bytes: it.file.Bytes}) // whatever there is of it
		s.mu.Unlock()
	}
	return err
}

func (s *Store) create(name string, e *hotkv.Entry) error {
	w, err := s.files.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(writeEntry(w, e, exactMark(s.o.Exact)), w.Close())
}

// makeRoom removes the least recently used files until the item's fits, and counts it. False where it does not.
func (s *Store) makeRoom(it *item) bool {
	s.mu.Lock()
	coming := s.disk + it.file.Bytes
	for _, file := range s.trash {
		coming -= file.Bytes
	}
	for coming > s.o.BudgetBytes && s.stored.Len() > 0 {
		oldest := s.stored.Front().Value.(*item)
		coming -= oldest.file.Bytes
		s.evict(oldest)
	}
	s.mu.Unlock()
	s.emptyTrash()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disk+it.file.Bytes > s.o.BudgetBytes {
		return false
	}
	s.disk += it.file.Bytes
	return true
}

func (s *Store) evict(it *item) {
	s.drop(it.key)
	s.counts.lost[LostBudget]++
}

// emptyTrash removes the files that are of no use any more. One that cannot be removed stays, counts, and is tried again.
func (s *Store) emptyTrash() {
	s.mu.Lock()
	trash := s.trash
	s.trash = nil
	s.mu.Unlock()
	var left []File
	var removed int64
	for _, file := range trash {
		switch err := s.files.Remove(file.Name); {
		case err == nil, errors.Is(err, fs.ErrNotExist):
			removed += file.Bytes
		default:
			left = append(left, file)
			s.fault("remove", err)
		}
	}
	s.mu.Lock()
	s.trash = append(left, s.trash...)
	s.disk -= removed
	s.mu.Unlock()
}

// settle decides what becomes of an item once its file is written, or could not be.
func (s *Store) settle(it *item, err error) {
	s.mu.Lock()
	s.backlog -= it.entry.Bytes
	entry, taker := it.entry, it.taker
	if err == nil {
		s.counts.written++
		s.warned = false
	}
	switch {
	case err == nil && (taker != nil || it.dropped):
		s.trash = append(s.trash, it.file)
	case err == nil:
		it.place, it.entry = inFile, hotkv.Entry{}
		s.keep(it)
	case taker == nil && !it.dropped:
		delete(s.byKey, it.key)
		s.counts.lost[causeOfWrite(err)]++
	}
	s.mu.Unlock()
	if taker != nil {
		s.hand(taker, entry)
	} else {
		entry.State.Free()
	}
	if err != nil && !errors.Is(err, errNoRoom) {
		s.fault("write", err)
	}
}

// keep puts what is in a file in its place in the order of use.
func (s *Store) keep(it *item) {
	at := s.stored.Back()
	for at != nil && at.Value.(*item).used > it.used {
		at = at.Prev()
	}
	if at == nil {
		it.at = s.stored.PushFront(it)
	} else {
		it.at = s.stored.InsertAfter(it, at)
	}
}

func causeOfWrite(err error) Lost {
	if errors.Is(err, errNoRoom) {
		return LostBudget
	}
	return LostWrite
}

// fault counts what the file system refused, and warns of the first since it last took a file.
func (s *Store) fault(what string, err error) {
	s.mu.Lock()
	s.counts.faults++
	first := !s.warned
	s.warned = true
	s.mu.Unlock()
	if first {
		s.o.Log.Warn("KV of idle sessions cannot be spilled to disk; serving goes on without", "dir", s.o.Dir,
			"error", fmt.Errorf("%s: %w", what, err))
	}
}

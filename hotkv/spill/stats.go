package spill

import "maps"

// Lost says why KV that was handed to a store, or that an earlier process had left, is not there any more.
type Lost string

// The causes of a loss. KV that was fenced, removed, replaced or fetched is not lost.
const (
	LostSave     Lost = "save"      // the engine could not save it
	LostBudget   Lost = "budget"    // it made room for others
	LostTooLarge Lost = "too-large" // it exceeds the whole budget by itself
	LostBacklog  Lost = "backlog"   // the disk did not keep up
	LostWrite    Lost = "write"     // the file system refused it
	LostRead     Lost = "read"      // it could not be read, or not in time
	LostCorrupt  Lost = "corrupt"   // its file was cut or damaged
	LostRecipe   Lost = "recipe"    // it was built under another restore fingerprint
)

// LostCauses lists every cause of a loss.
func LostCauses() []Lost {
	return []Lost{LostSave, LostBudget, LostTooLarge, LostBacklog, LostWrite, LostRead, LostCorrupt, LostRecipe}
}

// Stats is what a store holds now and has done since Open.
type Stats struct {
	BudgetBytes  int64
	Sessions     int   // of which there is an entry, in a file or on its way to one
	Bytes        int64 // of all files, those that are about to be removed included; never above BudgetBytes but at Open
	BacklogBytes int64 // KV in memory that waits to be written

	Written int64          // files
	Hits    int64          // entries handed to Fetch
	Lost    map[Lost]int64 // every cause is present; the map is the caller's
	Faults  int64          // calls that the file system refused
}

type counts struct {
	written, hits, faults int64
	lost                  map[Lost]int64
}

func (c *counts) init() {
	c.lost = make(map[Lost]int64)
	for _, cause := range LostCauses() {
		c.lost[cause] = 0
	}
}

// Stats is consistent: all its numbers are of one moment. Those of a nil Store are zero.
func (s *Store) Stats() Stats {
	if s == nil {
		var none counts
		none.init()
		return Stats{Lost: none.lost}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{
		BudgetBytes: s.o.BudgetBytes, Sessions: len(s.byKey), Bytes: s.disk, BacklogBytes: s.backlog,
		Written: s.counts.written, Hits: s.counts.hits, Lost: maps.Clone(s.counts.lost), Faults: s.counts.faults,
	}
}

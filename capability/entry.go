package capability

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/meshnet/node/schemas"
)

// Entry is what is known of a node. The advertisement is shared by all who ask: it must not be changed.
type Entry struct {
	Ad   *schemas.Advertisement
	Seen time.Time // when the last news of it came
}

// sighting is a node in the table.
type sighting struct {
	Entry

	// A start of the node that ended, and when that was heard. What it said before may come later still.
	ended   schemas.Boot
	endedAt time.Time
}

// straggle is how long news of a start that ended may be on the way.
const straggle = 2 * time.Second

// table is the nodes by their id. It has a fixed bound. It is not safe for concurrent use.
type table struct {
	limit int
	nodes map[schemas.Node]*sighting
}

// add takes an advertisement, and says whether it was news.
func (t *table) add(ad *schemas.Advertisement, now time.Time) bool {
	s := t.nodes[ad.Node]
	if s == nil {
		if !t.makeRoom(now) {
			return false
		}
		t.nodes[ad.Node] = &sighting{Entry: Entry{ad, now}}
		return true
	}
	if s.ended == ad.Boot && now.Sub(s.endedAt) < straggle {
		return false
	}
	if s.Ad != nil {
		if s.Ad.Boot == ad.Boot && ad.Generation <= s.Ad.Generation {
			return false
		}
		if s.Ad.Boot != ad.Boot {
			s.ended, s.endedAt = s.Ad.Boot, now
		}
	}
	s.Entry = Entry{ad, now}
	return true
}

// remove forgets a node that ended, and says whether it was there.
func (t *table) remove(node schemas.Node, now time.Time) bool {
	s := t.nodes[node]
	if s == nil || s.Ad == nil {
		return false
	}
	s.ended, s.endedAt = s.Ad.Boot, now
	s.Ad = nil
	return true
}

// makeRoom drops whoever is unseen longest where the table is full; never one that was seen lately.
func (t *table) makeRoom(now time.Time) bool {
	if len(t.nodes) < t.limit {
		return true
	}
	var oldest schemas.Node
	seen := now
	for node, s := range t.nodes {
		if s.Seen.Before(seen) {
			oldest, seen = node, s.Seen
		}
	}
	if oldest.IsZero() || now.Sub(seen) < Silence {
		return false
	}
	delete(t.nodes, oldest)
	return true
}

// get is a node that did not end.
func (t *table) get(node schemas.Node) (Entry, bool) {
	s := t.nodes[node]
	if s == nil || s.Ad == nil {
		return Entry{}, false
	}
	return s.Entry, true
}

// all are the nodes that did not end, by name.
func (t *table) all() []Entry {
	entries := make([]Entry, 0, len(t.nodes))
	for _, s := range t.nodes {
		if s.Ad != nil {
			entries = append(entries, s.Entry)
		}
	}
	slices.SortFunc(entries, byName)
	return entries
}

// expire drops what was not heard of for so long.
func (t *table) expire(now time.Time, after time.Duration) {
	for node, s := range t.nodes {
		if now.Sub(s.Seen) >= after {
			delete(t.nodes, node)
		}
	}
}

func byName(a, b Entry) int { return strings.Compare(a.Ad.Node.String(), b.Ad.Node.String()) }

// byRoom puts first who has most room.
func byRoom(a, b Entry) int {
	return cmp.Or(
		cmp.Compare(b.Ad.Telemetry.FreeSlots, a.Ad.Telemetry.FreeSlots),
		cmp.Compare(a.Ad.Telemetry.QueueDepth, b.Ad.Telemetry.QueueDepth),
		byName(a, b),
	)
}

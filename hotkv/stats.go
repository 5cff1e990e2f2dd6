package hotkv

// Miss says why a session's KV could not be taken; the empty Hit says that it was.
type Miss string

// The causes of a miss. A session's KV is remembered by its latest loss only, and not for ever (WithMissMemory).
const (
	Hit             Miss = ""
	MissNever       Miss = "never"       // nothing was kept for it, what was kept was taken, or the cause is forgotten
	MissEvicted     Miss = "evicted"     // it made room for others
	MissEpoch       Miss = "epoch"       // it is older than the session's route, or the request is
	MissRecipe      Miss = "recipe"      // it was built under another restore fingerprint
	MissInvalidated Miss = "invalidated" // Invalidate, InvalidateAll or Close; also of KV that was taken
)

// MissCauses lists every cause of a miss.
func MissCauses() []Miss {
	return []Miss{MissNever, MissEvicted, MissEpoch, MissRecipe, MissInvalidated}
}

// Stats is what a store holds now and has done since New.
type Stats struct {
	BudgetBytes int64
	Bytes       int64 // ParkedBytes + SavedBytes, never above BudgetBytes
	ParkedBytes int64
	SavedBytes  int64
	Parked      int // entries
	Saved       int // entries
	Prefixes    int // entries whose key is a prefix's; of both kinds

	Hits      int64          // by Take
	Misses    map[Miss]int64 // by Take; every cause is present; the map is the caller's
	Evictions int64          // entries that made room for others or did not fit once saved; replaced ones not counted
}

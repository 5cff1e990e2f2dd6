package hotkv

import "time"

// Key names a session, or what prompts of several begin with: KV is never shared between two keys.
type Key struct {
	Tenant, Session string
	Prefix          [32]byte // a digest of the tokens that prompts begin with; zero for a session
}

func (k Key) isPrefix() bool { return k.Prefix != [32]byte{} }

// NoSlot is the Slot of an entry that is not parked.
const NoSlot = -1

// Entry is the KV of one idle session, either parked in the slot that computed it or saved as a State.
//
// An entry has one owner at a time. Put gives it to the store; every operation that removes it gives it
// to the caller, who then restores it or disposes of it: free its State, or release its Slot.
type Entry struct {
	Key      Key
	Epoch    uint64  // route epoch it was built under
	Recipe   string  // restore fingerprint of the engine that built it
	Tokens   []int32 // the ids whose KV it holds, from position 0 on; not changed by anyone while stored
	ExactLen int     // how far its KV came from grid prefill
	Slot     int     // the slot it is parked in; NoSlot when saved
	State    State   // the saved blob; nil when parked
	Bytes    int64   // what it counts: State.Bytes() when saved, the slot's KV bytes when parked; at least 1

	Used time.Time // when its session last ran; the store's own order is that of Put
}

// Parked says whether the KV is still in a slot. It is false for the entry that stands for "none".
func (e Entry) Parked() bool { return e.State == nil && e.Slot != NoSlot }

// none is what operations return where there is no entry: neither parked nor saved, nothing to dispose of.
var none = Entry{Slot: NoSlot}

// check says what makes e impossible to account for. It calls e.State, so no lock may be held.
func (e Entry) check() error {
	if e.State == nil {
		if e.Slot < 0 {
			return invalid("Slot", "%d names no slot and there is no State; park the entry in a slot or save it", e.Slot)
		}
	} else {
		if e.Slot != NoSlot {
			return invalid("Slot", "%d with a State; a saved entry has NoSlot (%d)", e.Slot, NoSlot)
		}
		if n := e.State.Bytes(); n != e.Bytes {
			return invalid("Bytes", "%d, but the State has %d; count what the State occupies", e.Bytes, n)
		}
		if n := e.State.Tokens(); n != len(e.Tokens) {
			return invalid("Tokens", "%d ids, but the State holds %d positions; they must be equal", len(e.Tokens), n)
		}
	}
	if e.Bytes < 1 {
		return invalid("Bytes", "%d; an entry counts at least 1 byte", e.Bytes)
	}
	return nil
}

package hotkv_test

import (
	"fmt"

	"github.com/meshnet/node/hotkv"
)

// A session's KV between two turns: parked in slot 3, saved because the slot is needed, taken by the next turn.
func Example() {
	store := hotkv.New(1 << 20)
	key := hotkv.Key{Tenant: "acme", Session: "chat-1"}
	dispose := func(entries ...hotkv.Entry) {
		for _, e := range entries {
			if e.State != nil {
				e.State.Free()
			} else if e.Parked() {
				fmt.Println("release slot", e.Slot)
			}
		}
	}

	evicted, err := store.Put(hotkv.Entry{
		Key: key, Epoch: 7, Recipe: "r1", Tokens: []int32{1, 2, 3}, ExactLen: 3, Slot: 3, Bytes: 4096,
	})
	if err != nil {
		fmt.Println(err) // the entry is still ours
		return
	}
	dispose(evicted...)

	if oldest, ok := store.OldestParked(); ok {
		state := &fakeState{bytes: 4160, tokens: 3} // the engine's copy of the slot
		evicted, ok := store.Saved(oldest.Key, oldest.Slot, state)
		if ok {
			fmt.Println("slot", oldest.Slot, "is free")
		} else {
			state.Free()
		}
		dispose(evicted...)
	}

	entry, miss := store.Take(key, 7, "r1")
	if miss != hotkv.Hit {
		fmt.Println("miss:", miss)
		dispose(entry) // stale KV, or nothing
		return
	}
	fmt.Println("restore", len(entry.Tokens), "tokens from", entry.State.Bytes(), "bytes")
	entry.State.Free()
	// Output:
	// slot 3 is free
	// restore 3 tokens from 4160 bytes
}

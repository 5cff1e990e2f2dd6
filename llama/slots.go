package llama

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"hash/crc32"
	"unsafe"

	"github.com/meshnet/node/scheduler"
)

// Save implements scheduler.Engine.
func (e *Engine) Save(slot, exactLen int) (scheduler.State, error) {
	e.enter()
	defer e.leave()
	e.checkSlot(slot)
	n := e.lengths[slot]
	if n == 0 {
		return nil, fmt.Errorf("slot %d is empty", slot)
	}
	if exactLen < 0 || exactLen > n {
		panic(fmt.Sprintf("llama: slot %d of %d tokens saved as exact to %d", slot, n, exactLen))
	}
	size := int(C.mn_slot_size(e.c, C.int32_t(slot)))
	if size == 0 {
		return nil, fmt.Errorf("slot %d: llama.cpp cannot size its state", slot)
	}
	st := newSavedState(size, &e.states)
	if st == nil {
		return nil, fmt.Errorf("slot %d: no memory for a state of %d bytes", slot, size)
	}
	var cerr C.mn_error
	payload := st.bytes[stateHeaderSize:]
	if got := int(C.mn_slot_save(e.c, C.int32_t(slot), unsafe.Pointer(&payload[0]), C.size_t(size), &cerr)); got != size {
		st.Free()
		return nil, fmt.Errorf("slot %d: llama.cpp wrote %d of %d state bytes: %s", slot, got, size, errText(&cerr))
	}
	st.tokens, st.exact = n, exactLen
	first, last := e.positions(slot)
	stateHeader{restore: e.restoreSumOf(slot), tokens: n, exact: exactLen, minPos: first, maxPos: last,
		payload: int64(size), payloadChecksum: crc32.Checksum(payload, castagnoli)}.put(st.bytes)
	return st, nil
}

// Restore implements scheduler.Engine.
func (e *Engine) Restore(slot int, state scheduler.State) error {
	e.enter()
	defer e.leave()
	e.checkSlot(slot)
	if n := e.lengths[slot]; n != 0 {
		panic(fmt.Sprintf("llama: restore into slot %d, which holds %d tokens", slot, n))
	}
	st, ok := state.(*savedState)
	if !ok {
		return fmt.Errorf("%w: it was saved by another kind of engine", scheduler.ErrStateRecipe)
	}
	h, err := checkState(st.bytes, e.opts.ContextTokens, e.restoreSumOf(slot))
	if err != nil {
		return err
	}
	var cerr C.mn_error
	payload := st.bytes[stateHeaderSize:]
	taken := bool(C.mn_slot_restore(e.c, C.int32_t(slot), unsafe.Pointer(&payload[0]), C.size_t(len(payload)), &cerr))
	if first, last := e.positions(slot); !taken || first < h.minPos || first > max(h.minPos, e.windowStart(h.tokens)) || last != h.maxPos {
		e.clear(slot)
		return fmt.Errorf("%w: positions %d to %d came back as %d to %d %s",
			scheduler.ErrStateInvalid, h.minPos, h.maxPos, first, last, errText(&cerr))
	}
	e.lengths[slot] = h.tokens
	return nil
}

// Trim implements scheduler.Engine.
func (e *Engine) Trim(slot, keep int) error {
	e.enter()
	defer e.leave()
	e.checkSlot(slot)
	n := e.lengths[slot]
	if keep < 0 || keep > n {
		panic(fmt.Sprintf("llama: trim slot %d of %d tokens to %d", slot, n, keep))
	}
	if keep == n {
		return nil
	}
	if err := e.trim(slot, keep); err != nil {
		e.clear(slot)
		return err
	}
	e.lengths[slot] = keep
	return nil
}

func (e *Engine) trim(slot, keep int) error {
	first, _ := e.positions(slot)
	// The next token at position keep looks back over a window; what is older may have been dropped already.
	if window := e.model.facts.Window; window > 0 && keep > 0 && first > e.windowStart(keep) {
		return fmt.Errorf("%w: slot %d holds positions from %d on; position %d looks back %d", scheduler.ErrTrimRefused,
			slot, first, keep, window)
	}
	if !C.mn_slot_trim(e.c, C.int32_t(slot), C.int32_t(keep)) {
		return fmt.Errorf("%w: slot %d, position %d", scheduler.ErrTrimRefused, slot, keep)
	}
	if _, last := e.positions(slot); last != keep-1 {
		return fmt.Errorf("%w: slot %d ends at %d after a trim to %d", scheduler.ErrTrimRefused, slot, last, keep)
	}
	return nil
}

// windowStart is the oldest position that a token at position at needs; saved states of a model with a window hold
// nothing older.
func (e *Engine) windowStart(at int) int {
	if e.model.facts.Window == 0 {
		return 0
	}
	return max(0, at-e.model.facts.Window)
}

// Move implements scheduler.Engine.
func (e *Engine) Move(from, to int) error {
	e.enter()
	defer e.leave()
	e.checkSlot(from)
	e.checkSlot(to)
	if e.lengths[to] != 0 || e.lengths[from] == 0 {
		panic(fmt.Sprintf("llama: move slot %d (%d tokens) to %d (%d tokens)", from, e.lengths[from], to, e.lengths[to]))
	}
	var cerr C.mn_error
	if !C.mn_slot_move(e.c, C.int32_t(from), C.int32_t(to), &cerr) {
		return errors.Join(fmt.Errorf("slot %d did not move to %d", from, to), errors.New(errText(&cerr)))
	}
	e.lengths[to], e.lengths[from] = e.lengths[from], 0
	e.bound[to] = e.bound[from]
	return nil
}

// Close implements scheduler.Engine.
func (e *Engine) Close(slot int) {
	e.enter()
	defer e.leave()
	e.checkSlot(slot)
	C.mn_sampler_close(e.c, C.int32_t(slot))
}

// Release implements scheduler.Engine.
func (e *Engine) Release(slot int) {
	e.enter()
	defer e.leave()
	e.checkSlot(slot)
	C.mn_sampler_close(e.c, C.int32_t(slot))
	e.clear(slot)
}

// positions are the first and the last position that llama.cpp holds for a slot; -1, -1 where it is empty.
func (e *Engine) positions(slot int) (first, last int) {
	span := C.mn_slot_span(e.c, C.int32_t(slot))
	return int(span.min), int(span.max)
}

func (e *Engine) clear(slot int) {
	C.mn_slot_clear(e.c, C.int32_t(slot))
	e.lengths[slot] = 0
}

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
	span := C.mn_slot_span(e.c, C.int32_t(slot))
	st.tokens, st.exact = n, exactLen
	stateHeader{restore: e.restoreSum, tokens: n, exact: exactLen, minPos: int(span.min), maxPos: int(span.max),
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
	h, err := checkState(st.bytes, e.restoreSum, e.opts.ContextTokens)
	if err != nil {
		return err
	}
	var cerr C.mn_error
	payload := st.bytes[stateHeaderSize:]
	taken := bool(C.mn_slot_restore(e.c, C.int32_t(slot), unsafe.Pointer(&payload[0]), C.size_t(len(payload)), &cerr))
	span := C.mn_slot_span(e.c, C.int32_t(slot))
	if !taken || int(span.min) != h.minPos || int(span.max) != h.maxPos {
		C.mn_slot_clear(e.c, C.int32_t(slot))
		return fmt.Errorf("%w: positions %d to %d came back as %d to %d %s",
			scheduler.ErrStateInvalid, h.minPos, h.maxPos, span.min, span.max, errText(&cerr))
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
	span := C.mn_slot_span(e.c, C.int32_t(slot))
	// The next token at position keep looks back over a window; what is older may have been dropped already.
	if window := e.model.facts.Window; keep > 0 && window > 0 && int(span.min) > max(0, keep-window) {
		return fmt.Errorf("%w: slot %d holds positions from %d on; position %d looks back %d", scheduler.ErrTrimRefused,
			slot, span.min, keep, window)
	}
	if !C.mn_slot_trim(e.c, C.int32_t(slot), C.int32_t(keep)) {
		return fmt.Errorf("%w: slot %d, position %d", scheduler.ErrTrimRefused, slot, keep)
	}
	if span = C.mn_slot_span(e.c, C.int32_t(slot)); int(span.max) != keep-1 {
		return fmt.Errorf("%w: slot %d ends at %d after a trim to %d", scheduler.ErrTrimRefused, slot, span.max, keep)
	}
	return nil
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

func (e *Engine) clear(slot int) {
	C.mn_slot_clear(e.c, C.int32_t(slot))
	e.lengths[slot] = 0
}

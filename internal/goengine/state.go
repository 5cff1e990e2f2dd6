package goengine

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"sync/atomic"

	"github.com/meshnet/node/scheduler"
)

// A saved state is a header and the cells, little-endian:
//
//	0  magic "MNGS"            8  SHA-256 of the restore fingerprint
//	4  version                40  tokens, exactLen, floor (32 bits each)
//	52 payload bytes (64)     60  CRC-32C of all before it and of the payload
const (
	stateMagic   = "MNGS"
	stateVersion = 1
	digestAt     = 8
	tokensAt     = 40
	exactLenAt   = 44
	floorAt      = 48
	payloadAt    = 52
	sumAt        = 60
	headerBytes  = 64
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// savedState implements scheduler.State.
type savedState struct {
	engine *Engine
	blob   []byte
	freed  atomic.Bool
}

func (s *savedState) Bytes() int64  { return int64(len(s.live())) }
func (s *savedState) Tokens() int   { return s.field(tokensAt) }
func (s *savedState) ExactLen() int { return s.field(exactLenAt) }
func (s *savedState) Blob() []byte  { return s.live() }

func (s *savedState) Free() {
	if s.freed.Swap(true) {
		panic("goengine: Free of a state that was freed before")
	}
	s.engine.states.Add(-1)
}

func (s *savedState) live() []byte {
	if s.freed.Load() {
		panic("goengine: use of a state after Free")
	}
	return s.blob
}

// field reads a 32-bit header field, which nobody has checked; 0 where the header is cut.
func (s *savedState) field(at int) int {
	blob := s.live()
	if len(blob) < headerBytes {
		return 0
	}
	return int(binary.LittleEndian.Uint32(blob[at:]))
}

// StateFrom makes a state of any bytes, as of one that was damaged on its way; Restore checks it. It counts
// to LiveStates. The bytes are copied. Safe for concurrent use.
func (e *Engine) StateFrom(blob []byte) scheduler.State {
	e.states.Add(1)
	return &savedState{engine: e, blob: bytes.Clone(blob)}
}

// LoadState is StateFrom of the next size bytes of r. Safe for concurrent use.
func (e *Engine) LoadState(size int64, r io.Reader) (scheduler.State, error) {
	blob := make([]byte, size)
	if _, err := io.ReadFull(r, blob); err != nil {
		return nil, fmt.Errorf("goengine: reading a state of %d bytes: %w", size, err)
	}
	e.states.Add(1)
	return &savedState{engine: e, blob: blob}, nil
}

// Blob copies the bytes of a state made by an engine of this package; it panics with another.
func Blob(state scheduler.State) []byte { return bytes.Clone(state.(*savedState).live()) }

// Save implements scheduler.Engine. An empty slot, or one that holds less than exactLen, is an error.
func (e *Engine) Save(slot, exactLen int) (scheduler.State, error) {
	s := e.slot(slot)
	e.enter(Call{Op: OpSave, Slot: slot, Pos: exactLen})
	defer e.leave()
	e.checkCount("Save", exactLen)
	if f := e.faults.strike(FaultSave, OpSave, nil, slot); f != nil {
		return nil, f.error("saving slot %d failed", slot)
	}
	if s.n == 0 || exactLen > s.n {
		return nil, fmt.Errorf("goengine: slot %d holds %d positions, cannot be saved with exactLen %d", slot, s.n, exactLen)
	}
	cells := e.cells(s)
	blob := make([]byte, headerBytes, headerBytes+len(cells)*floatBytes)
	copy(blob, stateMagic)
	digest := sha256.Sum256([]byte(e.restore(s.adapter)))
	copy(blob[digestAt:], digest[:])
	le := binary.LittleEndian
	le.PutUint32(blob[4:], stateVersion)
	le.PutUint32(blob[tokensAt:], uint32(s.n))
	le.PutUint32(blob[exactLenAt:], uint32(exactLen))
	le.PutUint32(blob[floorAt:], uint32(s.floor))
	le.PutUint64(blob[payloadAt:], uint64(len(cells)*floatBytes))
	for _, v := range cells {
		blob = le.AppendUint32(blob, math.Float32bits(v))
	}
	le.PutUint32(blob[sumAt:], checksum(blob))
	e.states.Add(1)
	return &savedState{engine: e, blob: blob}, nil
}

// restore is the restore fingerprint of a slot that is bound to an adapter.
func (e *Engine) restore(adapter int) string {
	if adapter == 0 {
		return e.prints.Restore
	}
	return e.facts.Adapters[adapter-1].Mark(e.prints.Restore)
}

// cells is the part of a slot's KV that its state needs.
func (e *Engine) cells(s *slot) []float32 {
	if e.cfg.Mode == Recurrent {
		return s.kv
	}
	size := e.cfg.cellFloats()
	return s.kv[(s.base+s.floor)*size : (s.base+s.n)*size]
}

// Restore implements scheduler.Engine. It panics where the slot holds KV. A state that is not one of this
// package's is ErrStateInvalid.
func (e *Engine) Restore(slot int, state scheduler.State) error {
	s := e.slot(slot)
	e.enter(Call{Op: OpRestore, Slot: slot, Tokens: state.Tokens()})
	defer e.leave()
	if s.n > 0 {
		panic(fmt.Sprintf("goengine: Restore into slot %d, which holds %d positions", slot, s.n))
	}
	if f := e.faults.strike(FaultRestore, OpRestore, nil, slot); f != nil {
		return f.error("restoring slot %d: %w", slot, scheduler.ErrStateInvalid)
	}
	saved, ok := state.(*savedState)
	if !ok {
		return fmt.Errorf("goengine: %T is no state of this engine: %w", state, scheduler.ErrStateInvalid)
	}
	blob := saved.live()
	tokens, floor, err := e.checkState(blob, s.adapter)
	if err != nil {
		return fmt.Errorf("goengine: slot %d: %w", slot, err)
	}
	e.empty(s)
	e.setTokens(s, tokens)
	s.floor = floor
	cells := e.cells(s)
	for i := range cells {
		cells[i] = math.Float32frombits(binary.LittleEndian.Uint32(blob[headerBytes+i*floatBytes:]))
	}
	return nil
}

// checkState verifies a state before anything is taken from it: first that it is whole, then that it fits here.
func (e *Engine) checkState(blob []byte, adapter int) (tokens, floor int, err error) {
	invalid := func(format string, args ...any) (int, int, error) {
		return 0, 0, fmt.Errorf("%w: "+format, append([]any{scheduler.ErrStateInvalid}, args...)...)
	}
	le := binary.LittleEndian
	if len(blob) < headerBytes {
		return invalid("%d bytes, the header alone has %d", len(blob), headerBytes)
	}
	if string(blob[:4]) != stateMagic || le.Uint32(blob[4:]) != stateVersion {
		return invalid("magic %q version %d, must be %q %d", blob[:4], le.Uint32(blob[4:]), stateMagic, stateVersion)
	}
	if payload := le.Uint64(blob[payloadAt:]); payload != uint64(len(blob)-headerBytes) {
		return invalid("claims %d payload bytes, has %d", payload, len(blob)-headerBytes)
	}
	if sum := checksum(blob); sum != le.Uint32(blob[sumAt:]) {
		return invalid("checksum is %08x, must be %08x", sum, le.Uint32(blob[sumAt:]))
	}
	if digest := sha256.Sum256([]byte(e.restore(adapter))); !bytes.Equal(blob[digestAt:tokensAt], digest[:]) {
		return 0, 0, fmt.Errorf("%w: this slot's is %q", scheduler.ErrStateRecipe, e.restore(adapter))
	}
	tokens, exactLen, floor := int(le.Uint32(blob[tokensAt:])), int(le.Uint32(blob[exactLenAt:])), int(le.Uint32(blob[floorAt:]))
	want := (tokens - floor) * e.cfg.cellFloats()
	if e.cfg.Mode == Recurrent {
		want = e.cfg.cellFloats()
	}
	switch {
	case tokens < 1 || tokens > e.cfg.ContextTokens:
		return invalid("%d tokens, the context has %d", tokens, e.cfg.ContextTokens)
	case exactLen > tokens || floor >= tokens:
		return invalid("exactLen %d and floor %d of %d tokens", exactLen, floor, tokens)
	case floor > 0 && (e.cfg.Mode != Window || floor > max(0, tokens+1-e.cfg.Window)):
		return invalid("positions below %d of %d are missing", floor, tokens)
	case want*floatBytes != len(blob)-headerBytes:
		return invalid("%d payload bytes, %d tokens need %d", len(blob)-headerBytes, tokens, want*floatBytes)
	}
	return tokens, floor, nil
}

func checksum(blob []byte) uint32 {
	return crc32.Update(crc32.Checksum(blob[:sumAt], castagnoli), castagnoli, blob[headerBytes:])
}

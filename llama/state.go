package llama

/*
#include <stdlib.h>
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/meshnet/node/scheduler"
)

// A saved state is this header and llama.cpp's blob. llama.cpp takes a corrupt blob without complaint, so nothing
// reaches it before the header has been checked.
//
//	0  magic "MNKV"      8  restore fingerprint   48 first position   56 payload bytes   64 CRC-32C of the payload
//	4  version           40 tokens                52 last position                      68 CRC-32C of the header before it
//	6  header bytes      44 exact_len
const (
	stateMagic      = "MNKV"
	stateVersion    = 1
	stateHeaderSize = 72
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type stateHeader struct {
	restore         [32]byte
	tokens, exact   int
	minPos, maxPos  int
	payload         int64
	payloadChecksum uint32
}

func (h stateHeader) put(b []byte) {
	copy(b, stateMagic)
	binary.LittleEndian.PutUint16(b[4:], stateVersion)
	binary.LittleEndian.PutUint16(b[6:], stateHeaderSize)
	copy(b[8:40], h.restore[:])
	binary.LittleEndian.PutUint32(b[40:], uint32(h.tokens))
	binary.LittleEndian.PutUint32(b[44:], uint32(h.exact))
	binary.LittleEndian.PutUint32(b[48:], uint32(int32(h.minPos)))
	binary.LittleEndian.PutUint32(b[52:], uint32(int32(h.maxPos)))
	binary.LittleEndian.PutUint64(b[56:], uint64(h.payload))
	binary.LittleEndian.PutUint32(b[64:], h.payloadChecksum)
	binary.LittleEndian.PutUint32(b[68:], crc32.Checksum(b[:68], castagnoli))
}

// checkState verifies a whole saved state against the context it is to go into and the restore fingerprints it may have been saved under.
func checkState(b []byte, contextTokens int, restore ...[32]byte) (stateHeader, error) {
	var h stateHeader
	invalid := func(format string, args ...any) (stateHeader, error) {
		return stateHeader{}, fmt.Errorf("%w: %s", scheduler.ErrStateInvalid, fmt.Sprintf(format, args...))
	}
	if len(b) < stateHeaderSize {
		return invalid("%d bytes are too few for a header of %d", len(b), stateHeaderSize)
	}
	if string(b[:4]) != stateMagic {
		return invalid("it does not begin with %q", stateMagic)
	}
	version, size := binary.LittleEndian.Uint16(b[4:]), binary.LittleEndian.Uint16(b[6:])
	if version != stateVersion || size != stateHeaderSize {
		return invalid("version %d with a header of %d bytes; this build reads version %d with %d", version, size, stateVersion, stateHeaderSize)
	}
	if crc32.Checksum(b[:68], castagnoli) != binary.LittleEndian.Uint32(b[68:]) {
		return invalid("the header's checksum differs")
	}
	copy(h.restore[:], b[8:40])
	h.tokens = int(binary.LittleEndian.Uint32(b[40:]))
	h.exact = int(binary.LittleEndian.Uint32(b[44:]))
	h.minPos = int(int32(binary.LittleEndian.Uint32(b[48:])))
	h.maxPos = int(int32(binary.LittleEndian.Uint32(b[52:])))
	h.payload = int64(binary.LittleEndian.Uint64(b[56:]))
	h.payloadChecksum = binary.LittleEndian.Uint32(b[64:])
	if !slices.Contains(restore, h.restore) {
		return stateHeader{}, fmt.Errorf("%w: saved under %.6x, it has to be of %.6x", scheduler.ErrStateRecipe, h.restore, restore)
	}
	if h.tokens < 1 || h.tokens > contextTokens || h.exact > h.tokens || h.maxPos != h.tokens-1 || h.minPos < 0 || h.minPos > h.maxPos {
		return invalid("%d tokens (exact to %d) at positions %d to %d do not fit a context of %d", h.tokens, h.exact, h.minPos, h.maxPos, contextTokens)
	}
	if h.payload != int64(len(b)-stateHeaderSize) {
		return invalid("%d bytes of payload; the header says %d", len(b)-stateHeaderSize, h.payload)
	}
	if crc32.Checksum(b[stateHeaderSize:], castagnoli) != h.payloadChecksum {
		return invalid("the payload's checksum differs")
	}
	return h, nil
}

// savedState is a state in C memory, outside the garbage collector. Whoever holds it frees it.
type savedState struct {
	bytes         []byte
	tokens, exact int
	live          *atomic.Int64 // the engine's count of states
}

// newSavedState allocates room for a header and a payload; nil where there is no memory.
func newSavedState(payload int, live *atomic.Int64) *savedState {
	size := stateHeaderSize + payload
	p := C.malloc(C.size_t(size))
	if p == nil {
		return nil
	}
	live.Add(1)
	return &savedState{bytes: unsafe.Slice((*byte)(p), size), live: live}
}

func (s *savedState) Bytes() int64  { return int64(len(s.bytes)) }
func (s *savedState) Tokens() int   { return s.tokens }
func (s *savedState) ExactLen() int { return s.exact }
func (s *savedState) Blob() []byte  { return s.bytes }

// LoadState reads the next size bytes of r, a state's Blob, and verifies them as Restore will, but for the slot's adapter; the errors are also
// those of r. Safe for concurrent use.
func (e *Engine) LoadState(size int64, r io.Reader) (scheduler.State, error) {
	if size < stateHeaderSize {
		return nil, fmt.Errorf("%w: %d bytes are too few for a header of %d", scheduler.ErrStateInvalid, size, stateHeaderSize)
	}
	st := newSavedState(int(size-stateHeaderSize), &e.states)
	if st == nil {
		return nil, fmt.Errorf("no memory for a state of %d bytes", size)
	}
	if _, err := io.ReadFull(r, st.bytes); err != nil {
		st.Free()
		return nil, err
	}
	h, err := checkState(st.bytes, e.opts.ContextTokens, e.restoreSums()...)
	if err != nil {
		st.Free()
		return nil, err
	}
	st.tokens, st.exact = h.tokens, h.exact
	return st, nil
}

// Free returns the memory. A second call panics: the first owner may have handed the memory on.
func (s *savedState) Free() {
	if s.bytes == nil {
		panic("llama: a saved state was freed twice")
	}
	C.free(unsafe.Pointer(&s.bytes[0]))
	s.bytes = nil
	s.live.Add(-1)
}

package llama

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/meshnet/node/scheduler"
)

// Skew makes the engine believe that a slot holds by more tokens than it does: the next call on it is one that
// llama.cpp refuses.
func (e *Engine) Skew(slot, by int) { e.lengths[slot] += by }

// Held is how many tokens the engine believes a slot to hold, and the positions that llama.cpp holds; -1, -1 is none.
func (e *Engine) Held(slot int) (tokens, first, last int) {
	first, last = e.positions(slot)
	return e.lengths[slot], first, last
}

// SwitchThreads does what the watch on step times does.
func (e *Engine) SwitchThreads(n int) { e.changeThreads(n, "a test wants it", 0) }

// Busy says whether a call is running.
func (e *Engine) Busy() bool { return e.busy.Load() }

// Enter and Leave are what every method of the driving goroutine does first and last.
func (e *Engine) Enter() { e.enter() }

// Leave ends Enter.
func (e *Engine) Leave() { e.leave() }

// StateBytes are the bytes of a saved state, to be damaged.
func StateBytes(s scheduler.State) []byte { return s.(*savedState).bytes }

// CutState makes a saved state n bytes shorter until the returned function is called.
func CutState(s scheduler.State, n int) (mend func()) {
	st := s.(*savedState)
	whole := st.bytes
	st.bytes = whole[:len(whole)-n]
	return func() { st.bytes = whole }
}

// SealState makes the length and the checksums of a damaged state right again, so that only llama.cpp can notice the damage.
func SealState(s scheduler.State) {
	b := s.(*savedState).bytes
	binary.LittleEndian.PutUint64(b[56:], uint64(len(b)-stateHeaderSize))
	binary.LittleEndian.PutUint32(b[64:], crc32.Checksum(b[stateHeaderSize:], castagnoli))
	binary.LittleEndian.PutUint32(b[68:], crc32.Checksum(b[:68], castagnoli))
}

// HeaderKVBytesPerToken is what the header of a model says a position costs.
func HeaderKVBytesPerToken(data []byte) (int64, error) {
	h, err := parseHeader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return 0, err
	}
	return h.kvBytesPerToken(), nil
}

// LimitProcess is what a conversion does first.
func LimitProcess() error { return limitProcess() }

// ConvertEnv is set for the process of a conversion.
const ConvertEnv = convertEnv

// RowKernels says whether products of quantised weights have kernels of our own. It loads the backends.
func RowKernels() bool { return loadBackends() == nil && rowKernels }

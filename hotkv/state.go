package hotkv

// State is a slot's KV as a self-describing, checksummed blob outside the engine. Whoever holds a
// State calls Free exactly once; its memory is not the garbage collector's.
type State interface {
	Bytes() int64  // size of the blob, header included
	Tokens() int   // positions it holds
	ExactLen() int // how far its KV came from grid prefill
	Blob() []byte  // all of it; not to be changed, and valid until Free
	Free()
}

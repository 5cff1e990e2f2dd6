package hotkv_test

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/meshnet/node/hotkv"
)

// fakeState stands for a saved blob and counts how often it was freed.
type fakeState struct {
	bytes  int64
	tokens int
	freed  atomic.Int32
}

func (f *fakeState) Bytes() int64  { return f.bytes }
func (f *fakeState) Tokens() int   { return f.tokens }
func (f *fakeState) ExactLen() int { return 0 }
func (f *fakeState) Blob() []byte  { return nil }
func (f *fakeState) Free()         { f.freed.Add(1) }

func session(name string) hotkv.Key { return hotkv.Key{Tenant: "acme", Session: name} }

// parked is an entry of epoch 1 and recipe "r" with 3 tokens, parked in slot.
func parked(name string, slot int, bytes int64) hotkv.Entry {
	return hotkv.Entry{
		Key: session(name), Epoch: 1, Recipe: "r", Tokens: []int32{1, 2, 3}, ExactLen: 3, Slot: slot, Bytes: bytes,
	}
}

// saved is like parked, but saved.
func saved(name string, bytes int64) hotkv.Entry {
	e := parked(name, hotkv.NoSlot, bytes)
	e.State = &fakeState{bytes: bytes, tokens: 3}
	return e
}

func atEpoch(e hotkv.Entry, epoch uint64) hotkv.Entry {
	e.Epoch = epoch
	return e
}

// mustPut puts entries that fit beside each other.
func mustPut(t *testing.T, s *hotkv.Store, entries ...hotkv.Entry) {
	t.Helper()
	for _, e := range entries {
		if evicted, err := s.Put(e); err != nil || len(evicted) != 0 {
			t.Fatalf("Put(%s) = %v, %v; want it to fit", e.Key.Session, names(evicted), err)
		}
	}
}

func names(entries []hotkv.Entry) []string {
	var out []string
	for _, e := range entries {
		out = append(out, e.Key.Session)
	}
	return out
}

func wantNames(t *testing.T, what string, got []hotkv.Entry, want ...string) {
	t.Helper()
	if !slices.Equal(names(got), want) {
		t.Errorf("%s: %v, want %v", what, names(got), want)
	}
}

func wantMiss(t *testing.T, s *hotkv.Store, name string, epoch uint64, want hotkv.Miss) {
	t.Helper()
	e, miss := s.Take(session(name), epoch, "r")
	if miss != want {
		t.Errorf("Take(%s, epoch %d): miss %q, want %q", name, epoch, miss, want)
	}
	if e.Parked() || e.State != nil {
		t.Errorf("Take(%s, epoch %d) handed over %+v, want nothing to dispose of", name, epoch, e)
	}
}

func wantBytes(t *testing.T, s *hotkv.Store, want int64) {
	t.Helper()
	if got := s.Stats().Bytes; got != want {
		t.Errorf("store holds %d bytes, want %d", got, want)
	}
}

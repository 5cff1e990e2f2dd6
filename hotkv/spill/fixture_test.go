package spill_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/hotkv/spill"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is where the states of a test live: it counts those that were not freed.
type memory struct{ live atomic.Int64 }

// state is a blob that begins with its number of tokens.
type state struct {
	memory *memory
	blob   []byte
	freed  atomic.Bool
}

func (s *state) Bytes() int64  { return int64(len(s.blob)) }
func (s *state) Tokens() int   { return int(binary.LittleEndian.Uint16(s.blob)) }
func (s *state) ExactLen() int { return 0 }
func (s *state) Blob() []byte  { return s.blob }

func (s *state) Free() {
	if s.freed.Swap(true) {
		panic("freed twice")
	}
	s.memory.live.Add(-1)
}

func (m *memory) state(blob []byte) *state {
	m.live.Add(1)
	return &state{memory: m, blob: blob}
}

func (m *memory) load(size int64, r io.Reader) (hotkv.State, error) {
	blob := make([]byte, size)
	if _, err := io.ReadFull(r, blob); err != nil {
		return nil, err
	}
	return m.state(blob), nil
}

const blobBytes = 64

func session(name string) hotkv.Key { return hotkv.Key{Tenant: "acme", Session: name} }

// entry is of epoch 1, with 3 tokens and a blob that only this content gives. It was used that many seconds after 1970.
func (m *memory) entry(name string, content byte, used int64) hotkv.Entry {
	blob := bytes.Repeat([]byte{content}, blobBytes)
	binary.LittleEndian.PutUint16(blob, 3)
	return hotkv.Entry{
		Key: session(name), Epoch: 1, Recipe: "r", Tokens: []int32{int32(content), 2, 3}, ExactLen: 2,
		Slot: hotkv.NoSlot, State: m.state(blob), Bytes: blobBytes, Used: time.Unix(used, 0),
	}
}

// oneFile is the size of the file of an entry with a name of one letter.
const oneFile = 88 + len("acme") + 1 + 3*4 + blobBytes

// rig is a store in a folder of the test's.
type rig struct {
	*testing.T
	*spill.Store
	memory memory
	dir    string
	ended  bool
	log    bytes.Buffer // read once the store has ended
}

type change func(*spill.Options)

func (r *rig) options(changes []change) spill.Options {
	o := spill.Options{
		Dir: r.dir, BudgetBytes: 1 << 20, Recipes: []string{"r", "r+adapter"}, Load: r.memory.load, ReadLimit: time.Minute,
		Log: slog.New(slog.NewTextHandler(&r.log, nil)),
	}
	for _, f := range changes {
		f(&o)
	}
	return o
}

// newRig opens a store that must have freed every state when the test is over.
func newRig(t *testing.T, changes ...change) *rig {
	t.Helper()
	r := &rig{T: t, dir: t.TempDir()}
	r.open(changes...)
	t.Cleanup(func() {
		r.end()
		if n := r.memory.live.Load(); n != 0 {
			t.Errorf("%d states were not freed", n)
		}
	})
	return r
}

func (r *rig) open(changes ...change) {
	r.Helper()
	store, err := spill.Open(r.options(changes))
	if err != nil {
		r.Fatal(err)
	}
	r.Store, r.ended = store, false
}

// end closes the store, which writes what waits; its Stats can still be read.
func (r *rig) end() {
	r.Helper()
	if r.ended {
		return
	}
	r.ended = true
	if err := r.Close(context.Background()); err != nil {
		r.Error(err)
	}
}

// reopen is a restart of the process.
func (r *rig) reopen(changes ...change) {
	r.Helper()
	r.end()
	r.open(changes...)
}

// fetch waits for the entry; ok is false where there is none, or it could not be read.
func (r *rig) fetch(key hotkv.Key, epoch uint64) (e hotkv.Entry, ok bool) {
	type result struct {
		e  hotkv.Entry
		ok bool
	}
	done := make(chan result, 1)
	if !r.Fetch(key, epoch, func(e hotkv.Entry, ok bool) { done <- result{e, ok} }) {
		return hotkv.Entry{}, false
	}
	got := <-done
	return got.e, got.ok
}

// wantHit checks that the entry comes back as it was made, bit for bit.
func (r *rig) wantHit(name string, content byte) {
	r.Helper()
	got, ok := r.fetch(session(name), 1)
	if !ok {
		r.Errorf("%s: missed, want its KV", name)
		return
	}
	want := r.memory.entry(name, content, got.Used.Unix())
	if !bytes.Equal(got.State.Blob(), want.State.Blob()) {
		r.Errorf("%s: another blob came back", name)
	}
	got.State.Free()
	want.State.Free()
	got.State, want.State = nil, nil
	if !equal(got, want) {
		r.Errorf("%s: %+v came back, want %+v", name, got, want)
	}
}

func equal(a, b hotkv.Entry) bool {
	return a.Key == b.Key && a.Epoch == b.Epoch && a.Recipe == b.Recipe && slices.Equal(a.Tokens, b.Tokens) &&
		a.ExactLen == b.ExactLen && a.Slot == b.Slot && a.Bytes == b.Bytes && a.Used.Equal(b.Used)
}

func (r *rig) wantMiss(names ...string) {
	r.Helper()
	for _, name := range names {
		if e, ok := r.fetch(session(name), 1); ok {
			e.State.Free()
			r.Errorf("%s: hit, want a miss", name)
		}
	}
}

// wantLost checks all causes: those not named must be 0.
func (r *rig) wantLost(want map[spill.Lost]int64) {
	r.Helper()
	got := r.Stats().Lost
	for _, cause := range spill.LostCauses() {
		if got[cause] != want[cause] {
			r.Errorf("%d lost by %s, want %d", got[cause], cause, want[cause])
		}
	}
}

// files are the store's own, with their paths.
func (r *rig) paths() []string {
	r.Helper()
	paths, err := filepath.Glob(filepath.Join(r.dir, "*", "*.kv*"))
	if err != nil {
		r.Fatal(err)
	}
	return paths
}

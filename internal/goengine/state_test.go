package goengine_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

const headerBytes = 64

func mustBe(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}

// saved is the state of a prompt of n tokens.
func saved(t testing.TB, cfg goengine.Config, n int) []byte {
	t.Helper()
	e := newEngine(t, cfg)
	start(t, e, 0, prompt(1, n), scheduler.DefaultSampling())
	state, err := e.Save(0, n)
	if err != nil {
		t.Fatal(err)
	}
	defer state.Free()
	return goengine.Blob(state)
}

// refused restores a blob that must be refused and leave the slot empty.
func refused(t testing.TB, e *goengine.Engine, blob []byte, want error) {
	t.Helper()
	state := e.StateFrom(blob)
	defer state.Free()
	mustBe(t, e.Restore(0, state), want)
	if e.KVBytes() != 0 {
		t.Errorf("%d KV bytes after a refused state", e.KVBytes())
	}
}

// sign makes the checksum right.
func sign(blob []byte) {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Checksum(blob[:headerBytes-4], table), table, blob[headerBytes:])
	binary.LittleEndian.PutUint32(blob[headerBytes-4:], sum)
}

func TestDamagedStateIsInvalidWhereverTheDamage(t *testing.T) {
	cfg := goengine.Config{ContextTokens: 64}
	e := newEngine(t, cfg)
	blob := saved(t, cfg, 5)
	for i := range blob {
		blob[i] ^= 0x10
		refused(t, e, blob, scheduler.ErrStateInvalid)
		blob[i] ^= 0x10
		refused(t, e, blob[:i], scheduler.ErrStateInvalid)
	}
	refused(t, e, append(blob, 0), scheduler.ErrStateInvalid)
	refused(t, e, nil, scheduler.ErrStateInvalid)
	state := e.StateFrom(blob)
	defer state.Free()
	if err := e.Restore(0, state); err != nil {
		t.Errorf("the undamaged state: %v", err)
	}
}

func TestStateOfAnotherModelIsAnotherRecipe(t *testing.T) {
	e := newEngine(t, goengine.Config{})
	for name, cfg := range map[string]goengine.Config{
		"seed": {Seed: 1}, "vocabulary": {Vocab: 600}, "mode": {Mode: goengine.Echo}, "layers": {Layers: 3},
	} {
		t.Run(name, func(t *testing.T) { refused(t, e, saved(t, cfg, 5), scheduler.ErrStateRecipe) })
	}
	for name, cfg := range map[string]goengine.Config{
		"slots": {Slots: 9}, "chunk": {PrefillChunk: 7}, "context": {ContextTokens: 64},
	} {
		t.Run(name+" do not matter", func(t *testing.T) {
			state := e.StateFrom(saved(t, cfg, 5))
			defer state.Free()
			if err := e.Restore(0, state); err != nil {
				t.Error(err)
			}
			e.Release(0)
		})
	}
}

func TestStateLargerThanTheContextIsInvalid(t *testing.T) {
	e := newEngine(t, goengine.Config{ContextTokens: 32})
	refused(t, e, saved(t, goengine.Config{}, 33), scheduler.ErrStateInvalid)
}

func TestForeignStateIsInvalid(t *testing.T) {
	e := newEngine(t, goengine.Config{})
	mustBe(t, e.Restore(0, foreign{}), scheduler.ErrStateInvalid)
}

type foreign struct{}

func (foreign) Bytes() int64  { return 100 }
func (foreign) Tokens() int   { return 1 }
func (foreign) ExactLen() int { return 1 }
func (foreign) Blob() []byte  { return nil }
func (foreign) Free()         {}

func TestFreedStateMustNotBeUsed(t *testing.T) {
	e := newEngine(t, goengine.Config{})
	start(t, e, 0, prompt(1, 5), scheduler.DefaultSampling())
	state, err := e.Save(0, 5)
	if err != nil {
		t.Fatal(err)
	}
	state.Free()
	mustPanic(t, "second Free", state.Free)
	mustPanic(t, "Bytes", func() { state.Bytes() })
	mustPanic(t, "Restore", func() { _ = e.Restore(1, state) })
	if e.LiveStates() != 0 {
		t.Errorf("%d live states, want 0", e.LiveStates())
	}
}

func TestSaveOfMissingPositionsIsAnError(t *testing.T) {
	e := newEngine(t, goengine.Config{})
	if _, err := e.Save(0, 0); err == nil {
		t.Error("an empty slot was saved")
	}
	start(t, e, 0, prompt(1, 5), scheduler.DefaultSampling())
	if _, err := e.Save(0, 6); err == nil {
		t.Error("5 positions were saved with exactLen 6")
	}
	if e.LiveStates() != 0 {
		t.Errorf("%d live states, want 0", e.LiveStates())
	}
}

// FuzzRestore gives Restore arbitrary bytes, also with a right checksum, so that the other header checks are
// reached. What is accepted must hold the positions it claims.
func FuzzRestore(f *testing.F) {
	cfg := goengine.Config{ContextTokens: 64, PrefillChunk: 8, Window: 8, Mode: goengine.Window}
	for _, n := range []int{1, 5, 60} {
		f.Add(saved(f, cfg, n), false)
		f.Add(saved(f, cfg, n), true)
	}
	f.Add([]byte("MNGS"), true)
	e := newEngine(f, cfg)
	f.Fuzz(func(t *testing.T, blob []byte, signed bool) {
		if signed && len(blob) >= headerBytes {
			sign(blob)
		}
		defer e.Release(0)
		state := e.StateFrom(blob)
		defer state.Free()
		if err := e.Restore(0, state); err != nil {
			if !errors.Is(err, scheduler.ErrStateInvalid) && !errors.Is(err, scheduler.ErrStateRecipe) {
				t.Errorf("error is neither invalid nor recipe: %v", err)
			}
			if e.KVBytes() != 0 {
				t.Errorf("%d KV bytes after %v", e.KVBytes(), err)
			}
			return
		}
		n := state.Tokens()
		if n < 1 || n > cfg.ContextTokens || state.ExactLen() > n || e.KVBytes() != e.Facts().KVBytes(n) {
			t.Fatalf("accepted %d tokens, exact %d, %d KV bytes", n, state.ExactLen(), e.KVBytes())
		}
		if n == cfg.ContextTokens {
			return
		}
		if err := e.Open(0, scheduler.DefaultSampling(), nil); err != nil {
			t.Fatal(err)
		}
		row := scheduler.Row{Pos: n, Token: 5, Index: 1, Forced: scheduler.NoToken}
		if r := e.Decode([]scheduler.Row{row})[0]; r.Outcome == scheduler.OutcomeMiss {
			t.Errorf("%d tokens were accepted, position %d is a miss", n, n)
		}
	})
}

package llama

import (
	"bytes"
	"errors"
	"hash/crc32"
	"testing"

	"github.com/meshnet/node/scheduler"
)

const stateContext = 512

var stateRecipe = [32]byte{1, 2, 3, 30: 4, 31: 5}

// savedBytes is a saved state with a made-up payload.
func savedBytes(change func(*stateHeader)) []byte {
	payload := []byte("keys and values of some positions")
	h := stateHeader{restore: stateRecipe, tokens: 100, exact: 64, minPos: 0, maxPos: 99, payload: int64(len(payload)),
		payloadChecksum: crc32.Checksum(payload, castagnoli)}
	if change != nil {
		change(&h)
	}
	b := make([]byte, stateHeaderSize, stateHeaderSize+len(payload))
	h.put(b)
	return append(b, payload...)
}

func TestWholeStateIsAccepted(t *testing.T) {
	h, err := checkState(savedBytes(nil), stateContext, stateRecipe)
	if err != nil {
		t.Fatal(err)
	}
	if h.tokens != 100 || h.exact != 64 || h.minPos != 0 || h.maxPos != 99 || h.restore != stateRecipe {
		t.Errorf("got %+v", h)
	}
}

func TestEveryFlippedBitIsNoticed(t *testing.T) {
	whole := savedBytes(nil)
	for i := range whole {
		for bit := range 8 {
			b := bytes.Clone(whole)
			b[i] ^= 1 << bit
			if _, err := checkState(b, stateContext, stateRecipe); !errors.Is(err, scheduler.ErrStateInvalid) {
				t.Fatalf("byte %d, bit %d: %v; want an invalid state", i, bit, err)
			}
		}
	}
}

func TestEveryCutIsNoticed(t *testing.T) {
	whole := savedBytes(nil)
	for n := range whole {
		if _, err := checkState(whole[:n], stateContext, stateRecipe); !errors.Is(err, scheduler.ErrStateInvalid) {
			t.Fatalf("the first %d bytes: %v; want an invalid state", n, err)
		}
	}
	if _, err := checkState(append(whole, 0), stateContext, stateRecipe); !errors.Is(err, scheduler.ErrStateInvalid) {
		t.Errorf("one byte more: %v", err)
	}
}

func TestStateOfAnotherRecipeIsNamedAsThat(t *testing.T) {
	_, err := checkState(savedBytes(func(h *stateHeader) { h.restore[31]++ }), stateContext, stateRecipe)
	if !errors.Is(err, scheduler.ErrStateRecipe) || errors.Is(err, scheduler.ErrStateInvalid) {
		t.Errorf("got %v", err)
	}
}

// Whoever can compute the checksums is not trusted either.
func TestSealedNonsenseIsRefused(t *testing.T) {
	for name, change := range map[string]func(*stateHeader){
		"no tokens":              func(h *stateHeader) { h.tokens, h.exact, h.maxPos = 0, 0, -1 },
		"beyond the context":     func(h *stateHeader) { h.tokens, h.maxPos = stateContext+1, stateContext },
		"exact beyond the end":   func(h *stateHeader) { h.exact = 101 },
		"end before the tokens":  func(h *stateHeader) { h.maxPos = 98 },
		"end after the tokens":   func(h *stateHeader) { h.maxPos = 100 },
		"negative start":         func(h *stateHeader) { h.minPos = -1 },
		"start after the end":    func(h *stateHeader) { h.minPos = 100 },
		"negative token count":   func(h *stateHeader) { h.tokens = -1 },
		"payload of another len": func(h *stateHeader) { h.payload++ },
		"negative payload":       func(h *stateHeader) { h.payload = -1 },
	} {
		if _, err := checkState(savedBytes(change), stateContext, stateRecipe); !errors.Is(err, scheduler.ErrStateInvalid) {
			t.Errorf("%s: %v; want an invalid state", name, err)
		}
	}
}

// FuzzStateHeader: nothing makes the check panic, and nothing but a state as it was saved passes it.
func FuzzStateHeader(f *testing.F) {
	whole := savedBytes(nil)
	f.Add(whole)
	f.Add([]byte{})
	f.Add(whole[:stateHeaderSize])
	f.Add(savedBytes(func(h *stateHeader) { h.payload = 1 << 62 }))
	f.Add(savedBytes(func(h *stateHeader) { h.tokens, h.maxPos = 1<<31-1, 1<<31-2 }))
	f.Add(append(bytes.Clone(whole), whole...))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := checkState(b, stateContext, stateRecipe)
		if err != nil {
			if !errors.Is(err, scheduler.ErrStateInvalid) && !errors.Is(err, scheduler.ErrStateRecipe) {
				t.Errorf("an error of another kind: %v", err)
			}
			return
		}
		again := make([]byte, stateHeaderSize)
		h.put(again)
		if !bytes.Equal(again, b[:stateHeaderSize]) || h.tokens < 1 || h.tokens > stateContext || int(h.payload) != len(b)-stateHeaderSize {
			t.Errorf("accepted %x as %+v", b, h)
		}
	})
}

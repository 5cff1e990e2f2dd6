package llama_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// wrong is an engine that does one thing wrong, once. What a sweep is for must not escape it on the real engine either.
type wrong struct {
	*llama.Engine
	t       *testing.T
	do      func(w *wrong, rows []scheduler.Row, results []scheduler.Result)
	decodes int
	done    bool

	stale   bool        // the first Release keeps the KV, and the slot's next session is put on top of it
	held    map[int]int // tokens in each slot
	shifted map[int]int // by how much positions in a stale slot are off
}

func (w *wrong) Prefill(c scheduler.Chunk) scheduler.Result {
	w.held[c.Slot] = c.Pos + len(c.Tokens)
	c.Pos += w.shifted[c.Slot]
	return w.Engine.Prefill(c)
}

func (w *wrong) Decode(rows []scheduler.Row) []scheduler.Result {
	for i := range rows {
		w.held[rows[i].Slot] = rows[i].Pos + 1
		rows[i].Pos += w.shifted[rows[i].Slot]
	}
	results := w.Engine.Decode(rows)
	w.decodes++
	if w.do != nil && !w.done && w.decodes >= 5 && len(rows) >= 2 {
		w.do(w, rows, results)
	}
	return results
}

func (w *wrong) Release(slot int) {
	if w.stale && !w.done && w.held[slot] > 0 {
		w.done = true
		w.shifted[slot] = w.held[slot]
		w.Close(slot)
		return
	}
	w.Engine.Release(slot)
	w.held[slot], w.shifted[slot] = 0, 0
}

func swapRows(w *wrong, _ []scheduler.Row, results []scheduler.Result) {
	w.done = true
	results[0], results[1] = results[1], results[0]
}

// copyCell replaces the key of one position in the first layer of one session by a neighbour's.
func copyCell(w *wrong, rows []scheduler.Row, _ []scheduler.Result) {
	const position = 5
	if min(w.held[rows[0].Slot], w.held[rows[1].Slot]) <= position {
		return
	}
	w.done = true
	mine, theirs := w.save(rows[0].Slot), w.save(rows[1].Slot)
	defer mine.Free()
	defer theirs.Free()
	if bytes.Equal(keyOf(w.t, mine, position), keyOf(w.t, theirs, position)) {
		w.t.Fatal("the neighbour has the same key there")
	}
	copy(keyOf(w.t, mine, position), keyOf(w.t, theirs, position))
	llama.SealState(mine)
	w.Engine.Release(rows[0].Slot)
	if err := w.Restore(rows[0].Slot, mine); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Open(rows[0].Slot, endless(), nil); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wrong) save(slot int) scheduler.State {
	st, err := w.Save(slot, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

// keyOf is where a state of the story model holds the key of a position in the first layer: the rows come after the
// type (F16) and the size of a row (2 KV heads × 32 × 2 bytes). It differs from a neighbour's where the tokens do.
func keyOf(t *testing.T, st scheduler.State, position int) []byte {
	const row = 2 * 32 * 2
	mark := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, 1), row)
	b := llama.StateBytes(st)
	at := bytes.Index(b, mark)
	if at < 0 {
		t.Fatal("the state has no rows of keys where they are expected")
	}
	at += len(mark) + position*row
	return b[at : at+row]
}

func endless() scheduler.Sampling {
	s := greedy()
	s.IgnoreEOG = true
	return s
}

func TestTheSweepReportsCorruptionOfTheRealEngine(t *testing.T) {
	m := story(t)
	requests := make([]scheduler.Request, 8)
	for i := range requests {
		requests[i] = scheduler.Request{Tenant: "t", Session: fmt.Sprint("s", i), MaxNewTokens: 24, Sampling: endless(),
			Prompt: promptOf(t, m, tale[5*i:], 20+i)}
	}
	for _, c := range []struct {
		what    string
		control wrong
		tokens  bool // the corruption shows in tokens, not only in bits
		corrupt bool
	}{
		{"nothing wrong", wrong{}, false, false},
		{"two rows swapped", wrong{do: swapRows}, true, true},
		{"one KV cell taken from a neighbour", wrong{do: copyCell}, false, true},
		{"stale slot", wrong{stale: true}, true, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			report, err := scheduler.Sweep(t.Context(), controlFactory(t, m, c.control), scheduler.SweepOptions{
				Requests: requests, Levels: []int{1, 4}, Settings: []scheduler.Setting{scheduler.SettingCold},
			})
			if err != nil {
				t.Fatal(err)
			}
			if *report.BitExact == c.corrupt {
				t.Errorf("bit_exact is %t", *report.BitExact)
			}
			if c.tokens && report.CorruptionFree || !c.corrupt && !report.CorruptionFree {
				t.Errorf("corruption_free is %t: %+v", report.CorruptionFree, report.Settings[0].FirstDifference)
			}
		})
	}
}

// controlFactory makes a sound engine for the reference and a wrong one for the crowd.
func controlFactory(t *testing.T, m *llama.Model, control wrong) scheduler.EngineFactory {
	return func(level int) (scheduler.Engine, func(), error) {
		e, err := llama.NewEngine(m, llama.Options{Slots: level, ContextTokens: 512, Threads: 1, Exact: true, Audit: true})
		if err != nil {
			return nil, nil, err
		}
		if level == 1 {
			return e, e.Free, nil
		}
		w := control
		w.Engine, w.t, w.held, w.shifted = e, t, make(map[int]int), make(map[int]int)
		return &w, func() {
			if (w.do != nil || w.stale) && !w.done {
				t.Error("the control did nothing")
			}
			e.Free()
		}, nil
	}
}

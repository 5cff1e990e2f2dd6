package llama

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/meshnet/node/scheduler"
)

// Open is Reopen for a turn that begins.
func (e *Engine) Open(slot int, s scheduler.Sampling, history []scheduler.Token) error {
	e.enter()
	defer e.leave()
	e.checkSlot(slot)
	if err := e.checkSampling(&s); err != nil {
		return err
	}
	params := C.mn_sampling{
		temperature:        C.float(s.Temperature),
		top_p:              C.float(s.TopP),
		min_p:              C.float(s.MinP),
		typical_p:          C.float(s.TypicalP),
		repeat_penalty:     C.float(s.RepeatPenalty),
		presence_penalty:   C.float(s.PresencePenalty),
		frequency_penalty:  C.float(s.FrequencyPenalty),
		dry_multiplier:     C.float(s.DRYMultiplier),
		dry_base:           C.float(s.DRYBase),
		xtc_probability:    C.float(s.XTCProbability),
		xtc_threshold:      C.float(s.XTCThreshold),
		top_k:              C.int32_t(s.TopK),
		penalty_last_n:     C.int32_t(s.PenaltyLastN),
		dry_allowed_length: C.int32_t(s.DRYAllowedLength),
		dry_penalty_last_n: C.int32_t(s.DRYPenaltyLastN),
		first:              C.int32_t(s.FirstIndex),
		min_new:            C.int32_t(s.MinNewTokens),
		n_probs:            C.int32_t(s.Probs),
		seed:               C.uint64_t(s.Seed),
		ignore_eog:         C.bool(s.IgnoreEOG),
	}
	biased, biases := make([]scheduler.Token, len(s.LogitBias)), make([]float32, len(s.LogitBias))
	for i, b := range s.LogitBias {
		biased[i], biases[i] = b.Token, float32(b.Bias)
	}
	var breakers []byte
	if s.DRY() {
		for _, text := range s.DRYBreakers {
			breakers = append(append(breakers, text...), 0)
		}
	}
	var cerr C.mn_error
	if !C.mn_sampler_open(e.c, C.int32_t(slot), &params, tokenPtr(history), C.int32_t(len(history)),
		tokenPtr(biased), (*C.float)(unsafe.Pointer(unsafe.SliceData(biases))), C.int32_t(len(biased)),
		(*C.char)(unsafe.Pointer(unsafe.SliceData(breakers))), C.int32_t(len(breakers)), &cerr) {
		return fmt.Errorf("slot %d: %s", slot, errText(&cerr))
	}
	return nil
}

// Reopen implements scheduler.Engine. To a penalty a token of the prompt is as one that was chosen.
func (e *Engine) Reopen(slot int, s scheduler.Sampling, history, yielded []scheduler.Token) error {
	return e.Open(slot, s, slices.Concat(history, yielded))
}

// checkSampling refuses what llama.cpp would not check.
func (e *Engine) checkSampling(s *scheduler.Sampling) error {
	if err := s.Validate(); err != nil {
		return fmt.Errorf("llama: sampling: %w", err)
	}
	for i, b := range s.LogitBias {
		if err := e.model.checkToken(b.Token); err != nil {
			return fmt.Errorf("llama: sampling: logit_bias[%d]: %w", i, err)
		}
	}
	return nil
}

func tokenPtr(tokens []scheduler.Token) *C.int32_t {
	return (*C.int32_t)(unsafe.Pointer(unsafe.SliceData(tokens)))
}

// Prefill implements scheduler.Engine.
func (e *Engine) Prefill(c scheduler.Chunk) scheduler.Result {
	e.enter()
	defer e.leave()
	e.checkSlot(c.Slot)
	e.checkRange(c.Pos, len(c.Tokens))
	if e.lengths[c.Slot] != c.Pos {
		return scheduler.Result{Outcome: scheduler.OutcomeMiss}
	}
	if err := e.use(e.bound[c.Slot]); err != nil {
		return useFailed(err)
	}
	var res C.mn_result
	rc := C.mn_prefill(e.c, C.int32_t(c.Slot), C.int32_t(c.Pos), tokenPtr(c.Tokens), C.int32_t(len(c.Tokens)),
		C.bool(c.Last), C.int32_t(c.Forced), &res)
	if rc != C.MN_OK {
		if res.status == C.MN_ROW_LOST {
			e.lengths[c.Slot] = 0
		}
		return callFailed(int(rc), c.Slot)
	}
	e.lengths[c.Slot] = c.Pos + len(c.Tokens)
	if !c.Last {
		return scheduler.Result{Outcome: scheduler.OutcomeNone}
	}
	return e.rowResult(c.Slot, &res)
}

func (e *Engine) checkRange(pos, n int) {
	if n < 1 || pos < 0 || pos+n > e.opts.ContextTokens {
		panic(fmt.Sprintf("llama: positions [%d, %d) of a context of %d", pos, pos+n, e.opts.ContextTokens))
	}
}

// Decode implements scheduler.Engine.
func (e *Engine) Decode(rows []scheduler.Row) []scheduler.Result {
	e.enter()
	defer e.leave()
	results := e.results[:len(rows)]
	e.members = e.members[:0]
	for i := range rows {
		e.checkSlot(rows[i].Slot)
		e.checkRange(rows[i].Pos, 1)
		if i > 0 && rows[i].Slot <= rows[i-1].Slot {
			panic(fmt.Sprintf("llama: rows not in slot order: %d after %d", rows[i].Slot, rows[i-1].Slot))
		}
		if e.bound[rows[i].Slot] != e.bound[rows[0].Slot] {
			panic(fmt.Sprintf("llama: slots %d and %d of one call are bound to different adapters", rows[0].Slot, rows[i].Slot))
		}
		if e.lengths[rows[i].Slot] != rows[i].Pos {
			results[i] = scheduler.Result{Outcome: scheduler.OutcomeMiss}
			continue
		}
		e.members = append(e.members, i)
	}
	began := time.Now()
	e.decode(rows, e.members, results)
	e.afterStep(len(e.members), time.Since(began))
	return results
}

// decode runs the members (indices into rows) as one call. Where the call fails it has changed nothing, and each
// half is tried by itself: in the end only rows that fail alone are given up, and the rest get their tokens.
func (e *Engine) decode(rows []scheduler.Row, members []int, results []scheduler.Result) {
	if len(members) == 0 {
		return
	}
	if err := e.use(e.bound[rows[members[0]].Slot]); err != nil {
		for _, i := range members {
			results[i] = useFailed(err)
		}
		return
	}
	e.layOut(rows, members)
	rc := int(C.mn_decode(e.c, &e.rows[0], C.int32_t(len(e.rows)), &e.cres[0]))
	e.noteLost()
	if rc == C.MN_OK {
		e.take(members, rows, results)
		return
	}
	retry := members[:0:0]
	for _, i := range members {
		lost := e.lengths[rows[i].Slot] != rows[i].Pos
		if lost || rc == C.MN_ABORTED || len(members) == 1 {
			results[i] = callFailed(rc, rows[i].Slot)
			continue
		}
		retry = append(retry, i)
	}
	half := (len(retry) + 1) / 2
	e.decode(rows, retry[:half], results)
	e.decode(rows, retry[half:], results)
}

// layOut writes the rows of a call, with padding rows where they keep the call in one piece.
func (e *Engine) layOut(rows []scheduler.Row, members []int) {
	low, high := rows[members[0]].Slot, rows[members[len(members)-1]].Slot
	first, last, fill := e.shapeFor(e.used).span(low, high, len(members), e.probes.CanPad)
	e.rows = e.rows[:0]
	next := 0
	for slot := first; slot <= last; slot++ {
		if next < len(members) && rows[members[next]].Slot == slot {
			r := &rows[members[next]]
			e.rows = append(e.rows, C.mn_row{slot: C.int32_t(slot), pos: C.int32_t(r.Pos), token: C.int32_t(r.Token),
				index: C.int32_t(r.Index), forced: C.int32_t(r.Forced)})
			next++
		} else if fill {
			e.rows = append(e.rows, C.mn_row{slot: C.int32_t(slot), pos: C.int32_t(e.lengths[slot]), forced: -1, pad: true})
		}
	}
}

// noteLost takes over which slots the call emptied because they could not be trimmed back.
func (e *Engine) noteLost() {
	for i := range e.rows {
		if e.cres[i].status == C.MN_ROW_LOST {
			e.lengths[e.rows[i].slot] = 0
			e.log.Warn("slot lost: its state could not be trimmed after a step", "slot", int(e.rows[i].slot))
		}
	}
}

// take maps the results of a call's rows to its members.
func (e *Engine) take(members []int, rows []scheduler.Row, results []scheduler.Result) {
	next := 0
	for i := range e.rows {
		if e.rows[i].pad {
			continue
		}
		m := members[next]
		next++
		e.lengths[rows[m].Slot]++
		results[m] = e.rowResult(rows[m].Slot, &e.cres[i])
	}
}

// rowResult is the outcome of a row of a call that succeeded. A slot with values that are no numbers is emptied.
func (e *Engine) rowResult(slot int, r *C.mn_result) scheduler.Result {
	res := scheduler.Result{LogitHash: uint64(r.hash), Gap: float32(r.gap)}
	switch r.status {
	case C.MN_ROW_TOKEN:
		res.Outcome, res.Token, res.EOG = scheduler.OutcomeToken, int32(r.token), bool(r.eog)
		if r.probs {
			res.Probs = e.probs(slot)
		}
	case C.MN_ROW_NAN:
		res.Outcome = scheduler.OutcomeError
		res.Err = &scheduler.EngineError{Cause: scheduler.CauseNaN, Detail: "the model's output is not a number"}
		e.scrub(slot)
	case C.MN_ROW_GRAMMAR:
		res.Outcome = scheduler.OutcomeError
		res.Err = &scheduler.EngineError{Cause: scheduler.CauseGrammar, Detail: "the grammar lets no token follow, or can be read in too many ways here"}
	default:
		res.Outcome = scheduler.OutcomeError
		res.Err = &scheduler.EngineError{Cause: scheduler.CauseSampler, Detail: "no token can be chosen: every one is masked"}
	}
	return res
}

// probs are the log-probabilities that were found when the slot's newest token was chosen.
func (e *Engine) probs(slot int) *scheduler.Probs {
	var c C.mn_probs
	C.mn_slot_probs(e.c, C.int32_t(slot), &c)
	p := &scheduler.Probs{Chosen: float64(c.chosen), Top: make([]scheduler.Prob, int(c.n))}
	for i := range p.Top {
		p.Top[i] = scheduler.Prob{Token: int32(c.tokens[i]), LogProb: float64(c.logprobs[i])}
	}
	return p
}

// scrub empties a slot that holds values which are no numbers, and overwrites them.
func (e *Engine) scrub(slot int) {
	ok := bool(C.mn_slot_scrub(e.c, C.int32_t(slot)))
	if window := e.model.facts.Window; ok && window > 0 {
		// A saved state leaves out what the window has passed; those cells are written by as many tokens as there are cells.
		ok = e.overwrite(slot, e.windowCells())
	}
	if !ok {
		e.log.Warn("values that are not numbers may be left in a slot", "slot", slot)
	}
	e.clear(slot)
}

// overwrite evaluates n tokens in an empty slot and drops them. So few at a time take an attention kernel that skips masked cells.
func (e *Engine) overwrite(slot, n int) bool {
	const few = 32
	if e.use(nil) != nil { // what was no number may be of the adapter
		return false
	}
	var tokens [few]int32
	for at := 0; at < n; at += few {
		var res C.mn_result
		rc := C.mn_prefill(e.c, C.int32_t(slot), C.int32_t(at), tokenPtr(tokens[:]), C.int32_t(min(few, n-at)), false, -1, &res)
		if rc != C.MN_OK {
			return false
		}
	}
	return true
}

// useFailed is the outcome of a row whose adapter llama.cpp does not take; nothing was evaluated.
func useFailed(err error) scheduler.Result {
	return scheduler.Result{Outcome: scheduler.OutcomeError, Err: &scheduler.EngineError{Cause: scheduler.CauseFatal, Detail: err.Error()}}
}

func callFailed(rc, slot int) scheduler.Result {
	err := &scheduler.EngineError{Cause: scheduler.CauseFatal, Detail: fmt.Sprintf("llama.cpp failed on slot %d", slot)}
	switch rc {
	case C.MN_NO_KV:
		err = &scheduler.EngineError{Cause: scheduler.CauseNoKV, Detail: fmt.Sprintf("no free KV cell in slot %d", slot)}
	case C.MN_ABORTED:
		err = &scheduler.EngineError{Cause: scheduler.CauseAborted, Detail: "the call was interrupted"}
	}
	return scheduler.Result{Outcome: scheduler.OutcomeError, Err: err}
}

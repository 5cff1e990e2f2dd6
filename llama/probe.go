package llama

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"

	"github.com/meshnet/node/scheduler"
)

// Probes are what an engine found out about its model by trying. Recurrent, hybrid and sliding-window models differ
// in all of it; what a model cannot do is never tried on a session.
type Probes struct {
	Trim           scheduler.TrimKind // how much of a sequence can be dropped
	CanPad         bool               // a padding row can be removed after the step
	BytesPerToken  int64              // KV bytes of one position
	FixedBytes     int64              // KV bytes of a slot whatever its length
	WindowBytes    int64              // KV bytes of one position beyond the attention window; BytesPerToken without one
	FlashAttention string             // what llama.cpp chose: on, off, unknown
}

// How many tokens the probe evaluates, and how far beyond a window it goes; a larger window is not probed.
const (
	probeShort    = 8
	probeLong     = 12
	largestWindow = 512
)

// probe tries the model on slot 0. It leaves every slot empty.
func (e *Engine) probe() (Probes, error) {
	p := Probes{FlashAttention: e.flashAttention(), Trim: scheduler.TrimNone}
	defer e.clear(0)
	short, err := e.probeSize(0, probeShort)
	if err != nil {
		return p, err
	}
	long, err := e.probeSize(probeShort, probeLong)
	if err != nil {
		return p, err
	}
	m := e.model.facts
	perToken := (long - short) / (probeLong - probeShort)
	p.BytesPerToken = max(0, perToken-e.cellBytes())
	if m.Recurrent || m.Hybrid {
		p.FixedBytes = max(0, short-probeShort*perToken)
	}
	p.CanPad = e.canTrim(probeLong - 1)
	if p.CanPad && e.canTrim(probeShort/2) {
		p.Trim = scheduler.TrimAny
	}
	if p.Trim == scheduler.TrimAny && m.Window > 0 {
		p.Trim = scheduler.TrimWindow
	}
	p.WindowBytes = p.BytesPerToken
	if m.Window > 0 && m.Window <= largestWindow && m.Window+2*probeLong < e.opts.ContextTokens {
		if p.WindowBytes, err = e.probeWindow(m.Window + probeLong); err != nil {
			return p, err
		}
	}
	return p, nil
}

// probeSize extends slot 0 from one length to another and returns the size of its state.
func (e *Engine) probeSize(from, to int) (int64, error) {
	const token = 0
	tokens := make([]int32, to-from)
	for i := range tokens {
		tokens[i] = token
	}
	var res C.mn_result
	rc := C.mn_prefill(e.c, 0, C.int32_t(from), tokenPtr(tokens), C.int32_t(len(tokens)), false, -1, &res)
	if rc != C.MN_OK {
		return 0, fmt.Errorf("llama.cpp failed on a prompt of %d tokens (code %d)", to, int(rc))
	}
	e.lengths[0] = to
	return int64(C.mn_slot_size(e.c, 0)), nil
}

// probeWindow measures what a position costs once older ones leave the window.
func (e *Engine) probeWindow(beyond int) (int64, error) {
	e.clear(0)
	at, err := e.probeSize(0, beyond)
	if err != nil {
		return 0, err
	}
	after, err := e.probeSize(beyond, beyond+probeLong)
	if err != nil {
		return 0, err
	}
	const caches = 2 // a model with a window has one for the layers with it, which is full here, and one for the others
	return max(0, (after-at)/probeLong-e.cellBytes()/caches), nil
}

func (e *Engine) canTrim(keep int) bool {
	if !C.mn_slot_trim(e.c, 0, C.int32_t(keep)) {
		return false
	}
	_, last := e.positions(0)
	return last == keep-1
}

// cellBytes is what llama.cpp writes beside K and V for each position of a state: position, count and id of the
// sequence; with multi-axis RoPE two axes and the token. A model with a window writes two caches.
func (e *Engine) cellBytes() int64 {
	const plain, axes = 12, 12
	const ropeM, ropeIM = 8, 40 // GGML_ROPE_TYPE_MROPE, _IMROPE
	if e.model.facts.Recurrent {
		return 0
	}
	n := int64(plain)
	if r := e.ropeType(); r == ropeM || r == ropeIM {
		n += axes
	}
	if e.model.facts.Window > 0 {
		n *= 2
	}
	return n
}

func (e *Engine) ropeType() int {
	var f C.mn_model_facts
	C.mn_model_facts_get(e.model.c, &f)
	return int(f.rope_type)
}

func (e *Engine) flashAttention() string {
	var f C.mn_engine_facts
	C.mn_engine_facts_get(e.c, &f)
	switch f.flash {
	case C.MN_FLASH_ON:
		return "on"
	case C.MN_FLASH_OFF:
		return "off"
	default:
		return "unknown"
	}
}

package llama

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"runtime"
	"slices"
	"time"
)

// How long calibration measures: steps a candidate, and the time after which no further candidate is begun.
const (
	calibrationSteps  = 7
	calibrationBudget = 2 * time.Second
	calibrationRows   = 8
	calibrationGain   = 0.8 // more threads must take this share of the time at most: fewer are less easily disturbed
)

// calibrate picks the thread count whose decode steps are fastest. ggml's threads wait for each other by spinning, so
// more of them are slower wherever cores are few, shared or throttled; only a measurement knows. It leaves every slot empty.
func (e *Engine) calibrate() error {
	best, bestTime := 1, time.Duration(0)
	began := time.Now()
	for _, n := range threadCandidates(allowedProcessors()) {
		if err := e.setThreads(n); err != nil {
			return err
		}
		t, err := e.measureStep()
		if err != nil {
			return err
		}
		e.log.Debug("thread calibration", "threads", n, "step", t)
		if bestTime == 0 || float64(t) < float64(bestTime)*calibrationGain {
			best, bestTime = n, t
		}
		if time.Since(began) > calibrationBudget {
			break
		}
	}
	e.watch.expect(min(calibrationRows, e.opts.Slots), bestTime)
	return e.setThreads(best)
}

// allowedProcessors respects the affinity mask and, through the Go runtime, a control group's quota.
func allowedProcessors() int { return min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) }

// threadCandidates are the powers of two up to the allowed processors, and all of them.
func threadCandidates(processors int) []int {
	var list []int
	for n := 1; n < processors; n *= 2 {
		list = append(list, n)
	}
	return append(list, processors)
}

// measureStep is the median time of a decode step of a few rows on short contexts.
func (e *Engine) measureStep() (time.Duration, error) {
	rows := min(calibrationRows, e.opts.Slots)
	var times []time.Duration
	for step := range calibrationSteps {
		e.rows = e.rows[:0]
		for slot := range rows {
			e.rows = append(e.rows, C.mn_row{slot: C.int32_t(slot), pos: C.int32_t(step), forced: 0})
		}
		began := time.Now()
		if rc := C.mn_decode(e.c, &e.rows[0], C.int32_t(rows), &e.cres[0]); rc != C.MN_OK {
			return 0, errors.New("llama.cpp failed while its threads were calibrated")
		}
		times = append(times, time.Since(began))
	}
	for slot := range rows {
		e.clear(slot)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

func (e *Engine) setThreads(n int) error {
	var cerr C.mn_error
	if !C.mn_set_threads(e.c, C.int(n), &cerr) {
		return errors.New(errText(&cerr))
	}
	e.threads.Store(int32(n))
	return nil
}

// afterStep feeds the watch and follows its advice. Under Exact the thread count is part of the recipe and stays.
func (e *Engine) afterStep(rows int, took time.Duration) {
	full := e.facts.Threads
	if full < 2 || e.opts.Exact || rows == 0 {
		return
	}
	switch e.watch.step(time.Now(), rows, took) {
	case adviceFallBack:
		e.changeThreads(1, "decode steps became slow: other work competes for the processors; falling back", took)
	case adviceRecover:
		e.changeThreads(full, "trying all compute threads again", took)
	case adviceStay:
	}
}

func (e *Engine) changeThreads(n int, why string, took time.Duration) {
	if err := e.setThreads(n); err != nil {
		e.log.Warn("thread count not changed", "threads", n, "error", err)
		return
	}
	e.log.Warn(why, "threads", n, "step", took)
}

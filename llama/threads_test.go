package llama_test

import (
	"runtime"
	"testing"

	"github.com/meshnet/node/llama"
)

func TestCalibrationLeavesTheSlotsEmpty(t *testing.T) {
	r := &rig{t: t, model: story(t)}
	var err error
	if r.Engine, err = llama.NewEngine(r.model, llama.Options{Slots: 3, ContextTokens: 256}); err != nil {
		t.Fatal(err)
	}
	defer r.Free()
	if n := r.Facts().Threads; n < 1 || n > runtime.NumCPU() || r.Threads() != n {
		t.Errorf("%d threads of %d processors, %d in use", n, runtime.NumCPU(), r.Threads())
	}
	for slot := range 3 {
		r.checkEmpty(slot)
	}
}

func TestThreadsChangeUnderARunningSession(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256, Threads: 2})
	want := r.generate(0, greedy(), r.prompt(tale, 40), 9).out
	s := r.begin(0, greedy(), r.prompt(tale, 40))
	for _, n := range []int{1, 2, 1, 2} {
		r.SwitchThreads(n)
		if got := r.Threads(); got != n {
			t.Errorf("%d threads in use, want %d", got, n)
		}
		r.steps(2, s)
	}
	equal(t, "tokens", s.out, want)
	if got := r.Facts().Threads; got != 2 {
		t.Errorf("the facts changed to %d threads", got)
	}
}

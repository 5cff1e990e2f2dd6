package llama_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/cpu"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/models"
)

// bitsEnv names, in a process that a test starts, the model whose logits it shall print the hashes of.
const bitsEnv = "MESHNET_TEST_BITS"

// Kernels are chosen once a process, so each choice has a process of its own.
func TestRowKernelsHaveTheBitsOfLlamaCpps(t *testing.T) {
	if name, weights, ok := strings.Cut(os.Getenv(bitsEnv), " "); ok {
		printBits(t, name, weights)
		return
	}
	if runtime.GOARCH != "amd64" || !cpu.X86.HasAVX2 {
		t.Skip("this processor has no row kernels")
	}
	if state := kernelsInUse(t, ""); state != "true" {
		t.Fatalf("row kernels in use: %s; this processor has AVX2", state)
	}
	sets := []string{"off", "avx2"}
	if cpu.X86.HasAVX512VNNI && cpu.X86.HasAVX512DQ {
		sets = append(sets, "avx512")
	}
	for _, c := range []struct {
		model string
		from  int // the first set that is comparable
	}{
		{models.StoryName + " ", 0}, {"tiny q8_0", 0}, {"tiny q4_k_m", 0},
		{"tiny q4_0", 1}, // llama.cpp rearranges these, and then sums them in another order
	} {
		var want string
		for i, set := range sets[c.from:] {
			got := bitsWith(t, set, c.model)
			if i == 0 {
				want = got
			} else if got != want {
				t.Errorf("model %s with %s:\n%s\nwith %s:\n%s", c.model, set, got, sets[c.from], want)
			}
		}
	}
}

// printBits runs sessions alone and three at once, with a prompt of several chunks.
func printBits(t *testing.T, name, weights string) {
	fmt.Println("KERNELS", llama.RowKernels())
	if name == "" {
		return
	}
	r := newRig(t, shared.get(t, name, weights), llama.Options{Slots: 3, ContextTokens: 256, PrefillChunk: 64, Audit: true})
	var crowd []*session
	for slot := range 3 {
		crowd = append(crowd, r.begin(slot, greedy(), r.prompt(tale, 20+50*slot)))
	}
	r.steps(12, crowd...)
	r.steps(4, crowd[1])
	for _, s := range crowd {
		fmt.Printf("BITS %x\n", s.hashes)
	}
}

func bitsWith(t *testing.T, set, model string) string {
	t.Helper()
	lines := strings.Split(childOutput(t, set, model), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "BITS") })
	if len(lines) != 3 {
		t.Fatalf("model %s with %s printed %d sessions, want 3", model, set, len(lines))
	}
	return strings.Join(lines, "\n")
}

func kernelsInUse(t *testing.T, set string) string {
	t.Helper()
	for line := range strings.Lines(childOutput(t, set, " ")) {
		if state, ok := strings.CutPrefix(line, "KERNELS "); ok {
			return strings.TrimSpace(state)
		}
	}
	return "unknown"
}

func childOutput(t *testing.T, set, model string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRowKernelsHaveTheBitsOfLlamaCpps$")
	c.Env = append(os.Environ(), bitsEnv+"="+model, llama.RowKernelsEnv+"="+set)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("model %s with %s: %v\n%s", model, set, err, out)
	}
	return string(out)
}

func TestUnknownRowKernelsAreRefused(t *testing.T) {
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), listDevicesEnv+"=1", llama.RowKernelsEnv+"=sse")
	out, err := c.CombinedOutput()
	if err == nil || !strings.Contains(string(out), `MESHNET_ROW_KERNELS is "sse"; use off, avx2 or avx512, or leave it empty`) {
		t.Errorf("error %v, output %s", err, out)
	}
}

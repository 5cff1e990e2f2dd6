package llama_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/meshnet/node/internal/gguf"
	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/models"
)

func tryLoad(src llama.Source) error {
	m, err := llama.Load(context.Background(), src, llama.LoadOptions{})
	if err == nil {
		m.Free()
	}
	return err
}

func TestMissingFileIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "absent.gguf")
	err := tryLoad(llama.FromFile(path))
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

func TestAPipeIsNoModelAndNobodyWaitsForItsOtherEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe.gguf")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip("no named pipes here:", err)
	}
	err := tryLoad(llama.FromFile(path))
	if err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("got %v", err)
	}
}

func TestFolderIsNoModel(t *testing.T) {
	err := tryLoad(llama.FromFile(t.TempDir()))
	if err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("got %v", err)
	}
}

func TestDamagedFilesAreFormatErrors(t *testing.T) {
	whole := models.Story()
	change := func(at int, with ...byte) []byte {
		b := bytes.Clone(whole)
		copy(b[at:], with)
		return b
	}
	const tensorCount, pairCount = 8, 16 // file positions
	huge := binary.LittleEndian.AppendUint64(nil, 1<<62)
	cases := map[string][]byte{
		"empty":               {},
		"three bytes":         whole[:3],
		"wrong magic":         change(0, []byte("GGML")...),
		"unknown version":     change(4, 99),
		"cut in the preamble": whole[:20],
		"cut in the header":   whole[:9000],
		"cut in the data":     whole[:len(whole)-1000],
		"huge tensor count":   change(tensorCount, huge...),
		"huge pair count":     change(pairCount, huge...),
	}
	for name, data := range cases {
		t.Run(name, func(t *testing.T) {
			fromBytes := tryLoad(llama.FromBytes("damaged", data))
			path := filepath.Join(t.TempDir(), "damaged.gguf")
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			for from, err := range map[string]error{"bytes": fromBytes, "file": tryLoad(llama.FromFile(path))} {
				var format *gguf.FormatError
				if !errors.As(err, &format) || !strings.HasPrefix(err.Error(), "model damaged: ") {
					t.Errorf("from %s: got %v; want a format error that names the model", from, err)
				}
			}
		})
	}
}

func TestModelThatLlamaCannotBuildIsOneError(t *testing.T) {
	data := models.Story()
	at := bytes.Index(data, []byte("blk.3.ffn_up.weight"))
	copy(data[at:], "blk.3.ffn_UP.weight")
	err := tryLoad(llama.FromBytes("no tensor", data))
	if err == nil || !strings.Contains(err.Error(), "model no tensor: llama.cpp cannot load this model") ||
		!strings.Contains(err.Error(), "blk.3.ffn_up.weight") {
		t.Errorf("got %v; want an error that names the missing tensor", err)
	}
}

func TestEncoderIsRefusedWithTheReason(t *testing.T) {
	src := llama.FromFile(testmodel.Path(t, "encoder", "f16"))
	err := tryLoad(src)
	var unsupported *llama.UnsupportedError
	if !errors.As(err, &unsupported) {
		t.Fatalf("got %v", err)
	}
	want := "model " + src.Name + " cannot be served: its attention looks at what comes after a token too (an embedding or encoder model)"
	if err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func TestCancelledLoadEndsWithTheContextsError(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var seen progress
	m, err := llama.Load(ctx, llama.FromBytes("story", models.Story()), llama.LoadOptions{Progress: seen.add})
	if m != nil || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "loading was cancelled") {
		t.Errorf("got %v, %v", m, err)
	}
	for _, fraction := range seen.all() {
		if fraction == 1 {
			t.Error("a cancelled load reported that it was done")
		}
	}
}

func TestProgressEndsAtOne(t *testing.T) {
	var seen progress
	m, err := llama.Load(context.Background(), llama.FromBytes("story", models.Story()), llama.LoadOptions{Progress: seen.add})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	all := seen.all()
	if len(all) == 0 || all[len(all)-1] != 1 {
		t.Fatalf("reported %v; want 1 at the end", all)
	}
	for i, fraction := range all {
		if fraction < 0 || fraction > 1 || i > 0 && fraction < all[i-1] {
			t.Errorf("reported %v; want a rising series in [0, 1]", all)
		}
	}
}

type progress struct {
	mu        sync.Mutex
	fractions []float64
}

func (p *progress) add(fraction float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fractions = append(p.fractions, fraction)
}

func (p *progress) all() []float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fractions
}

func TestModelIsNotFreedUnderAnEngine(t *testing.T) {
	m, err := llama.Load(context.Background(), llama.FromBytes("story", models.Story()), llama.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := llama.NewEngine(m, llama.Options{Threads: 1, Slots: 1, ContextTokens: 256})
	if err != nil {
		t.Fatal(err)
	}
	if got := mustPanic(t, m.Free); !strings.Contains(got, "while 1 engines use it") {
		t.Errorf("panicked with %q", got)
	}
	e.Free()
	e.Free()
	m.Free()
	m.Free()
}

// TestLoadUseFreeKeepsMemoryFlat sees what leaks 50 kB a round or more: a model, a context, a saved state, a thread's
// stack. A leak grows memory in every window of rounds; the allocators' own pools grow it in some.
func TestLoadUseFreeKeepsMemoryFlat(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("resident memory is read from /proc")
	}
	const warmUp, windows, window, mostGrowth = 20, 3, 60, 3 << 20
	data := models.Story()
	rounds := func(n int) (grown int64) {
		before := residentBytes(t)
		for range n {
			loadUseFree(t, data)
		}
		return residentBytes(t) - before
	}
	rounds(warmUp)
	var grown []int64
	for range windows {
		grown = append(grown, rounds(window))
	}
	if least := slices.Min(grown); least > mostGrowth {
		t.Errorf("each %d rounds grew resident memory, by %v bytes; the limit is %d", window, grown, mostGrowth)
	}
}

func loadUseFree(t *testing.T, data []byte) {
	t.Helper()
	m, err := llama.Load(context.Background(), llama.FromBytes("story", data), llama.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	e, err := llama.NewEngine(m, llama.Options{Threads: 1, Slots: 2, ContextTokens: 256})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Free()
	r := &rig{Engine: e, t: t, model: m}
	s := r.begin(0, warm(1), r.prompt(tale, 20))
	r.steps(2, s)
	st := r.save(0)
	defer st.Free()
	r.restore(1, st)
}

func residentBytes(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

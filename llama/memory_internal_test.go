package llama

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/meshnet/node/internal/gguf"
)

// write puts files under a new folder and returns it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestFieldOfAListOfNumbers(t *testing.T) {
	const sample = "MemTotal:       16316412 kB\nMemFree:          912340 kB\nMemAvailable:    8123456 kB\nBroken:\nWords: many kB\nLess: -4 kB\n"
	path := filepath.Join(write(t, map[string]string{"meminfo": sample}), "meminfo")
	for name, want := range map[string]int64{"MemAvailable:": 8123456, "MemFree:": 912340, "Broken:": 0, "Words:": 0, "Less:": 0, "Absent:": 0} {
		if got := field(path, name); got != want {
			t.Errorf("%s %d, want %d", name, got, want)
		}
	}
	if got := field(path+"-absent", "MemAvailable:"); got != 0 {
		t.Errorf("a missing file says %d", got)
	}
}

func TestControlGroupsFreeMemory(t *testing.T) {
	cases := map[string]struct {
		self  string
		files map[string]string
		want  int64
	}{
		"limit minus use": {"0::/pod\n", map[string]string{"pod/memory.max": "1000\n", "pod/memory.current": "300\n"}, 700},
		"file cache is free": {"0::/pod\n", map[string]string{"pod/memory.max": "1000\n", "pod/memory.current": "900\n",
			"pod/memory.stat": "anon 300\nfile 600\ninactive_file 200\nactive_file 400\n"}, 700},
		"parent is tighter": {"0::/slice/pod\n", map[string]string{"slice/pod/memory.max": "1000\n", "slice/pod/memory.current": "300\n",
			"slice/memory.max": "2000\n", "slice/memory.current": "1900\n"}, 100},
		"only the parent has a limit": {"0::/slice/pod\n", map[string]string{"slice/pod/memory.max": "max\n", "slice/memory.max": "50\n"}, 50},
		"own name space":              {"0::/\n", map[string]string{"memory.max": "1000\n", "memory.current": "1\n"}, 999},
		"beside version 1":            {"4:memory:/a\n0::/pod\n", map[string]string{"pod/memory.max": "7\n"}, 7},
		"beyond the limit":            {"0::/pod\n", map[string]string{"pod/memory.max": "100\n", "pod/memory.current": "300\n"}, 1},
		"no limit":                    {"0::/pod\n", map[string]string{"pod/memory.max": "max\n", "pod/memory.current": "300\n"}, 0},
		"version 1 only":              {"4:memory:/a\n", map[string]string{"a/memory.max": "100\n"}, 0},
		"no file":                     {"0::/pod\n", nil, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			self := filepath.Join(write(t, map[string]string{"self": c.self}), "self")
			if got := cgroupFree(write(t, c.files), self); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
	if got := cgroupFree(t.TempDir(), filepath.Join(t.TempDir(), "absent")); got != 0 {
		t.Errorf("without a control group: %d", got)
	}
}

func TestMemoryErrorSaysHowLargeEachPartIs(t *testing.T) {
	const mib = 1 << 20
	err := &MemoryError{Weights: 100 * mib, KV: 400 * mib, Scratch: 28 * mib, Available: 300 * mib, Slots: 8, ContextTokens: 4352}
	want := "the node needs 528 MiB (weights 100, KV 400 for 8 slots of 4352 tokens, scratch 28) and 300 MiB are free; " +
		"use fewer slots, a shorter context or a smaller model"
	if err.Error() != want {
		t.Errorf("got %q\nwant %q", err, want)
	}
	err.Adapters = 12 * mib
	want = "the node needs 540 MiB (weights 100, adapters 12, KV 400 for 8 slots of 4352 tokens, scratch 28) and 300 MiB are free; " +
		"use fewer slots, a shorter context, fewer adapters or a smaller model"
	if err.Error() != want {
		t.Errorf("got %q\nwant %q", err, want)
	}
}

func TestAdaptersBeyondTheFreeMemoryAreRefusedBeforeTheyAreLoaded(t *testing.T) {
	const mib = 1 << 20
	of := func(name string, size uint64) *adapter {
		return &adapter{file: AdapterFile{Name: name, Path: name + ".gguf"},
			header: &header{Header: &gguf.Header{Tensors: []gguf.Tensor{{Name: "a", Type: typeF32, Dims: []uint64{size / 4}}}}}}
	}
	adapters := []*adapter{of("a", 3*mib), of("b", 4*mib), of("c", 5*mib)}
	for free, want := range map[int64]string{
		0: "", 12 * mib: "",
		12*mib - 1: "adapter c (c.gguf) cannot be used: with those before it it takes 12 MiB and 11 MiB are free; load fewer or smaller adapters",
		7*mib - 1:  "adapter b (b.gguf) cannot be used: with those before it it takes 7 MiB and 6 MiB are free; load fewer or smaller adapters",
	} {
		got := ""
		if err := checkAdapterMemory(adapters, free); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("with %d bytes free: %q, want %q", free, got, want)
		}
	}
}

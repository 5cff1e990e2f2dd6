package llama_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/gguf"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/models"
	"github.com/meshnet/node/scheduler"
)

func TestFactsOfTheStoryModel(t *testing.T) {
	want := llama.ModelFacts{
		Name: "Meshnet Stories 1M", Architecture: "llama", Quantisation: "Q8_0",
		Parameters: 918656, Bytes: 979456,
		ContextTokens: 2048, LongestPiece: 9, VocabTokens: 1024, EmbeddingSize: 128, Layers: 4,
		AddsBOS: true, BOS: 1, EOS: 2,
	}
	got := story(t).Facts()
	if !strings.HasPrefix(got.Description, "llama ") {
		t.Errorf("description %q; want the architecture first", got.Description)
	}
	if got.Description = ""; got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestEngineFactsOfTheStoryModel(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 3, ContextTokens: 300, PrefillChunk: 128, Audit: true})
	const layers, kvHeads, headSize, keyAndValue, half = 4, 2, 32, 2, 2
	want := scheduler.Facts{
		Slots: 3, ContextTokens: 300, BytesPerToken: layers * kvHeads * headSize * keyAndValue * half,
		VocabTokens: 1024, PrefillChunk: 128, WeightBytes: 979456, LastLayer: 3, Head: true, Tail: true,
		Trim: scheduler.TrimAny, CanPad: true, Audit: true, Threads: 1,
	}
	if got := r.Facts(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	probes := llama.Probes{Trim: scheduler.TrimAny, CanPad: true, BytesPerToken: 1024, WindowBytes: 1024, FlashAttention: "on"}
	if got := r.Probes(); got != probes {
		t.Errorf("probes %+v\nwant %+v", got, probes)
	}
	if got := r.Threads(); got != 1 {
		t.Errorf("%d threads, want 1", got)
	}
	for slot := range 3 {
		if n, first, last := r.Held(slot); n != 0 || first != -1 || last != -1 {
			t.Errorf("slot %d is not empty after the probes: %d tokens, positions %d to %d", slot, n, first, last)
		}
	}
}

func TestHeaderEstimateEqualsProbedBytes(t *testing.T) {
	got, err := llama.HeaderKVBytesPerToken(models.Story())
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 64})
	if want := r.Facts().BytesPerToken; !reflect.DeepEqual(got, want) {
		t.Errorf("the header says %d bytes a position, the probe %d", got, want)
	}
}

func TestDefaultsOfOptions(t *testing.T) {
	r := newRig(t, story(t), llama.Options{})
	f := r.Facts()
	if f.Slots != 8 || f.ContextTokens != 2048 || f.PrefillChunk != 256 || f.Exact || f.Audit {
		t.Errorf("got %+v", f)
	}
}

func TestOptionsOutOfRangeAreNamed(t *testing.T) {
	cases := map[string]struct {
		o     llama.Options
		field string
		value int64
	}{
		"slots below 1":               {llama.Options{Slots: -1}, "slots", -1},
		"slots above 256":             {llama.Options{Slots: 257}, "slots", 257},
		"context too short":           {llama.Options{ContextTokens: 15}, "context", 15},
		"context beyond the model's":  {llama.Options{ContextTokens: 2049}, "context", 2049},
		"chunk beyond the context":    {llama.Options{ContextTokens: 256, PrefillChunk: 257}, "prefill chunk", 257},
		"chunk negative":              {llama.Options{PrefillChunk: -1}, "prefill chunk", -1},
		"batch negative":              {llama.Options{BatchTokens: -5}, "batch tokens", -5},
		"threads negative":            {llama.Options{Threads: -1}, "threads", -1},
		"threads beyond llama's 512":  {llama.Options{Threads: 513}, "threads", 513},
		"batch beyond all the memory": {llama.Options{BatchTokens: 1<<20 + 1}, "batch tokens", 1<<20 + 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := llama.NewEngine(story(t), c.o)
			var option *llama.OptionError
			if !errors.As(err, &option) || option.Field != c.field || option.Value != c.value {
				t.Errorf("got %v; want an error of %s with the value %d", err, c.field, c.value)
			}
		})
	}
}

func TestNodeBeyondItsMemorySaysHowLargeEachPartIs(t *testing.T) {
	const slots, padded, perToken = 8, 2304, 1024 // 2048 and room for a padding row, in blocks of 256
	_, err := llama.NewEngine(story(t), llama.Options{Threads: 1, Slots: slots, MemoryBytes: 8 << 20})
	var memory *llama.MemoryError
	if !errors.As(err, &memory) {
		t.Fatalf("got %v", err)
	}
	if memory.Weights != 979456 || memory.KV != slots*padded*perToken || memory.Available != 8<<20 ||
		memory.Slots != slots || memory.ContextTokens != padded || memory.Scratch <= 0 {
		t.Errorf("got %+v", *memory)
	}
	need := memory.Weights + memory.KV + memory.Scratch
	if _, err := llama.NewEngine(story(t), llama.Options{Threads: 1, Slots: slots, MemoryBytes: need - 1}); err == nil {
		t.Error("a budget one byte too small was accepted")
	}
	newRig(t, story(t), llama.Options{Slots: slots, MemoryBytes: need})
}

func TestAdaptersCountAmongTheNodesMemory(t *testing.T) {
	pair := func(in, out int64) int64 { return 4 * (2*in + 4*out) } // of rank 4, A in F16 and B in F32
	layer := 2*pair(64, 64) + 2*pair(64, 32) + 2*pair(64, 192) + pair(192, 64)
	adapter := 2 * layer
	m := adaptedModel(t, "tiny", "f16")
	_, err := llama.NewEngine(m, llama.Options{Threads: 1, Slots: 2, ContextTokens: 256, MemoryBytes: 1})
	var memory *llama.MemoryError
	if !errors.As(err, &memory) {
		t.Fatalf("got %v", err)
	}
	if memory.Adapters != 4*adapter {
		t.Errorf("adapters take %d bytes, want %d", memory.Adapters, 4*adapter)
	}
	need := memory.Weights + memory.Adapters + memory.KV + memory.Scratch
	if _, err := llama.NewEngine(m, llama.Options{Threads: 1, Slots: 2, ContextTokens: 256, MemoryBytes: need - 1}); err == nil {
		t.Error("a budget one byte too small was accepted")
	}
	r := newRig(t, m, llama.Options{Slots: 2, ContextTokens: 256, MemoryBytes: need})
	if got := r.Facts().WeightBytes; got != memory.Weights+memory.Adapters {
		t.Errorf("the weights are told as %d bytes, want %d with the adapters", got, memory.Weights+memory.Adapters)
	}
}

// prints are the fingerprints of a fresh engine with the options; the unset ones are small.
func prints(t *testing.T, m *llama.Model, o llama.Options) scheduler.Fingerprints {
	t.Helper()
	if o.Slots == 0 {
		o.Slots = 2
	}
	if o.ContextTokens == 0 {
		o.ContextTokens = 256
	}
	r := newRig(t, m, o)
	p := r.Fingerprints()
	form := regexp.MustCompile(`^[0-9a-f]{32}$`)
	if !form.MatchString(p.Restore) || !form.MatchString(p.Exact) || p.Restore == p.Exact {
		t.Fatalf("fingerprints %+v; want two different ones of 32 hex digits", p)
	}
	return p
}

func TestFingerprintsAreTheSameForEqualEngines(t *testing.T) {
	base := prints(t, story(t), llama.Options{})
	if again := prints(t, loadBytes(t, models.Story()), llama.Options{}); again != base {
		t.Errorf("got %+v, want %+v", again, base)
	}
}

func TestOptionsThatChangeBitsChangeOnlyTheExactFingerprint(t *testing.T) {
	base := prints(t, story(t), llama.Options{})
	for name, o := range map[string]llama.Options{
		"threads": {Threads: 2},
		"chunk":   {PrefillChunk: 64, BatchTokens: 256},
		"batch":   {BatchTokens: 64},
		"exact":   {Exact: true},
	} {
		got := prints(t, story(t), o)
		if got.Restore != base.Restore {
			t.Errorf("%s: the restore fingerprint changed", name)
		}
		if got.Exact == base.Exact {
			t.Errorf("%s: the exact fingerprint did not change", name)
		}
	}
}

func TestContextLengthChangesNoFingerprint(t *testing.T) {
	a := prints(t, story(t), llama.Options{ContextTokens: 256})
	if b := prints(t, story(t), llama.Options{ContextTokens: 512}); a != b {
		t.Errorf("%+v and %+v", a, b)
	}
}

func TestWhatMakesStatesUnloadableChangesTheRestoreFingerprint(t *testing.T) {
	base := prints(t, story(t), llama.Options{})
	if got := prints(t, story(t), llama.Options{Slots: 3}); got.Restore == base.Restore {
		t.Error("another number of streams has the same restore fingerprint")
	}
	if got := prints(t, random(t, "tiny"), llama.Options{}); got.Restore == base.Restore {
		t.Error("another model has the same restore fingerprint")
	}
}

// Two trainings of one architecture have equal headers; their KV must not be mixed up. One changed byte in any tensor is enough.
func TestOtherWeightsUnderTheSameHeaderChangeTheRestoreFingerprint(t *testing.T) {
	seen := map[string]string{prints(t, story(t), llama.Options{}).Restore: "nothing"}
	data := models.Story()
	h, err := gguf.ReadHeader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 1, 9, 17, len(h.Tensors) - 1} {
		tensor := h.Tensors[i]
		changed := bytes.Clone(data)
		changed[h.DataOffset+int64(tensor.Offset)+8] ^= 1
		p := prints(t, loadBytes(t, changed), llama.Options{})
		if other, ok := seen[p.Restore]; ok {
			t.Errorf("a change of %s has the restore fingerprint of a change of %s", tensor.Name, other)
		}
		seen[p.Restore] = fmt.Sprint(tensor.Name)
	}
}

func TestDevicesIncludeTheProcessor(t *testing.T) {
	devices, err := llama.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if d.Name == "CPU" && d.Description != "" {
			return
		}
	}
	t.Errorf("devices %v; want one named CPU", devices)
}

func TestVersionIsThatOfTheLibrary(t *testing.T) {
	if v := llama.Version(); !regexp.MustCompile(`^\d+\.\d+\.\d+`).MatchString(v) {
		t.Errorf("version %q", v)
	}
}

package llama

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryError says that a node does not fit its machine, and how large each part of it is. All sizes are bytes.
type MemoryError struct {
	Weights, Adapters    int64
	KV, Scratch          int64
	Available            int64
	Slots, ContextTokens int // of the KV: streams and padded positions
}

func (e *MemoryError) Error() string {
	const mib = 1 << 20
	adapters, fewer := "", ""
	if e.Adapters > 0 {
		adapters, fewer = fmt.Sprintf("adapters %d, ", e.Adapters/mib), ", fewer adapters"
	}
	return fmt.Sprintf("the node needs %d MiB (weights %d, %sKV %d for %d slots of %d tokens, scratch %d) and %d MiB are free; "+
		"use fewer slots, a shorter context%s or a smaller model",
		(e.Weights+e.Adapters+e.KV+e.Scratch)/mib, e.Weights/mib, adapters, e.KV/mib, e.Slots, e.ContextTokens, e.Scratch/mib, e.Available/mib, fewer)
}

// checkMemory refuses a context that would not fit. The weights are loaded already, and on Linux they are pages of
// the model file that the kernel can drop and read again; what is new is the KV and the scratch. The adapters are loaded too, into
// memory that is no longer free.
func checkMemory(m *Model, o Options, streams, ctxSeq int) error {
	free := o.MemoryBytes
	if free == 0 {
		free = availableMemory()
	}
	need := &MemoryError{
		Weights: m.facts.Bytes, Adapters: adapterBytes(m.adapters), KV: m.header.kvBytesPerToken() * int64(streams) * int64(ctxSeq),
		Scratch: scratchBytes(m, o, streams), Available: free, Slots: streams, ContextTokens: ctxSeq,
	}
	used := need.KV + need.Scratch
	if o.MemoryBytes != 0 {
		used += need.Weights + need.Adapters // an explicit budget is for the whole node
	}
	if free > 0 && used > free {
		return need
	}
	return nil
}

// adapterBytes is what adapters occupy once they are loaded. llama.cpp copies them into memory.
func adapterBytes(adapters []*adapter) int64 {
	sum := int64(0)
	for _, a := range adapters {
		for _, t := range a.header.Tensors {
			n, _ := t.Bytes() // readAdapters refuses types of which it is unknown
			sum += int64(n)
		}
	}
	return sum
}

// checkAdapterMemory refuses adapters that do not fit the memory that is free before they are loaded; 0 is unknown. It names the
// first that does not.
func checkAdapterMemory(adapters []*adapter, free int64) error {
	for i, a := range adapters {
		if need := adapterBytes(adapters[:i+1]); free > 0 && need > free {
			const mib = 1 << 20
			return &AdapterError{a.file.Name, a.file.Path, fmt.Sprintf(
				"with those before it it takes %d MiB and %d MiB are free; load fewer or smaller adapters", need/mib, free/mib)}
		}
	}
	return nil
}

// scratchBytes estimates the compute buffers: the activations of one batch, the logits of every stream and the
// candidates of one draw.
func scratchBytes(m *Model, o Options, streams int) int64 {
	const float, candidate, residuals = 4, 12, 24
	batch := int64(max(o.BatchTokens, streams))
	return batch*int64(m.facts.EmbeddingSize)*float*residuals +
		int64(streams)*int64(m.facts.VocabTokens)*float*2 + int64(m.facts.VocabTokens)*candidate
}

// kvBytesPerToken is what the header says a position of F16 KV costs: an upper bound, since layers with a window or
// without attention cost less. Zero where the model has no attention.
func (h *header) kvBytesPerToken() int64 {
	const half = 2
	arch := h.Architecture()
	key := func(name string) int64 {
		n, _ := h.Uint(arch + "." + name)
		return int64(min(n, 1<<31))
	}
	heads := key("attention.head_count")
	if heads == 0 {
		return 0
	}
	kvHeads := key("attention.head_count_kv")
	if kvHeads == 0 {
		kvHeads = heads
	}
	keyLen, valueLen := key("attention.key_length"), key("attention.value_length")
	if keyLen == 0 {
		keyLen = key("embedding_length") / heads
	}
	if valueLen == 0 {
		valueLen = keyLen
	}
	return key("block_count") * kvHeads * (keyLen + valueLen) * half
}

// availableMemory is what the machine, or the control group this process runs in, has free; 0 where that is unknown.
func availableMemory() int64 {
	free := field("/proc/meminfo", "MemAvailable:") << 10
	if limit := cgroupFree("/sys/fs/cgroup", "/proc/self/cgroup"); limit > 0 && (free == 0 || limit < free) {
		free = limit
	}
	return free
}

// field is the number after a name in a file of "name number …" lines; 0 without one.
func field(path, name string) int64 {
	file, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer file.Close() //nolint:errcheck // only read from
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != name {
			continue
		}
		if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil && n >= 0 {
			return n
		}
	}
	return 0
}

// cgroupFree is what the version 2 control group of this process, and every one above it, leaves free; 0 without one or
// without a limit. The file cache counts as free: the kernel gives it up when memory is asked for.
func cgroupFree(root, self string) int64 {
	data, err := os.ReadFile(self)
	if err != nil {
		return 0
	}
	_, path, found := strings.Cut(strings.TrimSpace(string(data)), "0::")
	if !found {
		return 0
	}
	least := int64(0)
	for path = filepath.Clean("/" + path); ; path = filepath.Dir(path) {
		if free := groupFree(filepath.Join(root, path)); free > 0 && (least == 0 || free < least) {
			least = free
		}
		if path == "/" {
			return least
		}
	}
}

// groupFree is limit minus use of one control group, at least 1; 0 without a limit.
func groupFree(group string) int64 {
	limit := readBytes(filepath.Join(group, "memory.max"))
	if limit == 0 {
		return 0
	}
	stat := filepath.Join(group, "memory.stat")
	cache := field(stat, "inactive_file") + field(stat, "active_file")
	return max(limit-readBytes(filepath.Join(group, "memory.current"))+cache, 1)
}

// readBytes reads a file that holds one number; 0 where it does not.
func readBytes(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

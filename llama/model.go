package llama

/*
#include "shim.h"
#include <stdlib.h>
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/meshnet/node/internal/gbnf"
)

// Model is a loaded model and its vocabulary. Its methods are safe for concurrent use, except Free.
type Model struct {
	c       *C.mn_model
	facts   ModelFacts
	header  *header
	fast    bool         // LoadOptions.Fast
	engines atomic.Int32 // engines that still use it

	adapters   []*adapter              // constant once it is loaded
	vocabulary func() *gbnf.Vocabulary // for grammars; made when it is first asked for
}

// ModelFacts describe a model.
type ModelFacts struct {
	Name          string // general.name, or the source's name
	Architecture  string
	Description   string // llama.cpp's one-line description
	Quantisation  string
	Parameters    uint64
	Bytes         int64 // size of the weights
	ContextTokens int   // the context it was trained for
	VocabTokens   int
	LongestPiece  int // bytes of the longest token, control tokens included
	EmbeddingSize int
	Layers        int
	Window        int // sliding attention window in tokens; 0 is none
	Recurrent     bool
	Hybrid        bool
	AddsBOS       bool
	BOS, EOS      int32  // -1 where there is none
	ChatTemplate  string // Jinja; empty where there is none
}

// LoadOptions are optional; the zero value loads on the CPU, silently.
type LoadOptions struct {
	GPULayers int // layers to offload; negative is all

	// Fast takes llama.cpp's fastest kernels even where they round differently for another number of rows, so that a
	// session's tokens may depend on how many others run: K-quants are rearranged in memory, which speeds up crowds and
	// prefill, and a lone row of a model with F16 weights is not padded. Other models are as fast without it.
	Fast bool

	Adapters []AdapterFile // that requests may choose; without one the model is as if none were loaded

	Progress func(fraction float64) // called, also from another goroutine but never twice at once, while loading; with 1 where it succeeded
}

// UnsupportedError says why a file that llama.cpp can read cannot be served.
type UnsupportedError struct {
	Source string
	Reason string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("model %s cannot be served: %s", e.Source, e.Reason)
}

// Load reads a model. Cancelling the context ends the load soon. Errors name the source and the reason; a
// model that cannot generate is an *UnsupportedError, an adapter that does not fit it an *AdapterError.
func Load(ctx context.Context, src Source, o LoadOptions) (*Model, error) {
	if err := loadBackends(); err != nil {
		return nil, err
	}
	h, err := readHeader(src)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", src.Name, err)
	}
	adapters, err := readAdapters(h, o.Adapters)
	if err != nil {
		return nil, err
	}
	c, err := loadWatched(ctx, src, o, h.repacks(o.Fast))
	if err != nil {
		return nil, err
	}
	m := &Model{c: c, header: h, fast: o.Fast}
	m.facts = m.readFacts(src, h)
	m.vocabulary = sync.OnceValue(m.readVocabulary)
	if reason := m.unsupported(); reason != "" {
		m.Free()
		return nil, &UnsupportedError{Source: src.Name, Reason: reason}
	}
	if err := m.loadAdapters(adapters); err != nil {
		m.Free()
		return nil, err
	}
	return m, nil
}

// loadWatched runs the load and, beside it, a watcher that reports progress and passes on cancellation.
func loadWatched(ctx context.Context, src Source, o LoadOptions, repack bool) (*C.mn_model, error) {
	progress := (*C.mn_progress)(C.calloc(1, C.size_t(unsafe.Sizeof(C.mn_progress{}))))
	defer C.free(unsafe.Pointer(progress))
	if ctx.Err() != nil {
		progress.cancel = 1 // for certain, not only if the watcher is quicker than the load
	}
	done, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		watchLoad(ctx, progress, o.Progress, done)
	}()
	c, err := load(src, o.GPULayers, repack, progress)
	close(done)
	<-watched
	if err != nil {
		return nil, errors.Join(ctx.Err(), fmt.Errorf("model %s: %w", src.Name, err))
	}
	if o.Progress != nil {
		o.Progress(1)
	}
	return c, nil
}

func load(src Source, gpuLayers int, repack bool, progress *C.mn_progress) (*C.mn_model, error) {
	var path *C.char
	fd := C.int(-1)
	if src.data == nil {
		path = C.CString(src.path)
		defer C.free(unsafe.Pointer(path))
	} else {
		file, err := inMemoryFile(src.data)
		if err != nil {
			return nil, fmt.Errorf("embedded model: %w", err)
		}
		defer file.Close() //nolint:errcheck // nothing was written through this descriptor that could be lost
		fd = C.int(file.Fd())
	}
	var cerr C.mn_error
	c := C.mn_model_load(path, fd, C.int(gpuLayers), C.bool(repack), progress, &cerr)
	if c == nil {
		return nil, errors.New(errText(&cerr))
	}
	return c, nil
}

func watchLoad(ctx context.Context, progress *C.mn_progress, report func(float64), done <-chan struct{}) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	cancelled := ctx.Done()
	for {
		select {
		case <-done:
			return
		case <-cancelled:
			atomic.StoreUint32((*uint32)(&progress.cancel), 1)
			cancelled = nil
		case <-tick.C:
			if report != nil {
				report(float64(atomic.LoadUint32((*uint32)(&progress.permille))) / 1000)
			}
		}
	}
}

func (m *Model) readFacts(src Source, h *header) ModelFacts {
	var f C.mn_model_facts
	C.mn_model_facts_get(m.c, &f)
	facts := ModelFacts{
		Name:          src.Name,
		Architecture:  h.Architecture(),
		Description:   C.GoString(&f.description[0]),
		Quantisation:  C.GoString(&f.ftype[0]),
		Parameters:    uint64(f.n_params),
		Bytes:         int64(f.size_bytes),
		ContextTokens: int(f.n_ctx_train),
		VocabTokens:   int(f.n_vocab),
		LongestPiece:  int(f.longest_piece),
		EmbeddingSize: int(f.n_embd),
		Layers:        int(f.n_layer),
		Window:        int(f.n_swa),
		Recurrent:     bool(f.is_recurrent),
		Hybrid:        bool(f.is_hybrid),
		AddsBOS:       bool(f.add_bos),
		BOS:           int32(f.bos),
		EOS:           int32(f.eos),
	}
	if name, ok := h.Text("general.name"); ok && name != "" {
		facts.Name = name
	}
	if t := C.mn_model_chat_template(m.c); t != nil {
		facts.ChatTemplate = C.GoString(t)
	}
	return facts
}

// unsupported is the reason for which the model cannot generate, or "".
func (m *Model) unsupported() string {
	var f C.mn_model_facts
	C.mn_model_facts_get(m.c, &f)
	switch {
	case m.header.encodes():
		return "its attention looks at what comes after a token too (an embedding or encoder model)"
	case !bool(f.has_decoder):
		return "it has no decoder (an embedding or encoder model)"
	case bool(f.has_encoder):
		return "it is an encoder-decoder model; only decoders are served"
	case bool(f.is_diffusion):
		return "it is a diffusion model; only models that generate token by token are served"
	case !bool(f.has_vocab):
		return "it carries no vocabulary"
	case f.n_ctx_train <= 0:
		return "it declares no context length"
	default:
		return ""
	}
}

// Facts describe the model; constant.
func (m *Model) Facts() ModelFacts { return m.facts }

// Identity is a hash of the model's header and a sample of each of its tensors, in hex: equal for equal files, however
// they are loaded.
func (m *Model) Identity() string { return m.header.identity }

// Free unloads the model. Its engines must have been freed before; it panics otherwise.
func (m *Model) Free() {
	if n := m.engines.Load(); n != 0 {
		panic(fmt.Sprintf("llama: model freed while %d engines use it", n))
	}
	C.mn_model_free(m.c)
	m.c = nil
}

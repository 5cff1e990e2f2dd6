package llama

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/meshnet/node/scheduler"
)

// makeFingerprints fixes what the engine's KV depends on. Restore: what makes a saved state loadable and its content
// meaningful. Exact: also what makes its bits come out the same.
func (e *Engine) makeFingerprints() error {
	hw, err := hardware()
	if err != nil {
		return err
	}
	m := e.model.facts
	e.restoreSum = sha256.Sum256(fmt.Appendf(nil, "meshnet-kv-1\nmodel %s\nlayers 0-%d\nkv f16 f16 flash %s full windows %t\nstreams %d\nrope %d\nllama.cpp %s\n",
		e.model.header.identity, m.Layers-1, e.probes.FlashAttention, e.fullWindows(), e.shape.streams, e.ropeType(), Version()))
	exact := sha256.Sum256(fmt.Appendf(nil, "%x\nhardware %s\nthreads %d\nchunk %d cut %d\nbatch %d\nexact %t\nfast %t\n",
		e.restoreSum, hw, e.facts.Threads, e.opts.PrefillChunk, e.leastChunk, e.opts.BatchTokens, e.opts.Exact, e.model.fast))
	const bytes = 16
	e.prints = scheduler.Fingerprints{
		Restore: hex.EncodeToString(e.restoreSum[:bytes]),
		Exact:   hex.EncodeToString(exact[:bytes]),
	}
	return nil
}

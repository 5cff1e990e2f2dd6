package llama

import (
	"bytes"
	"fmt"

	"github.com/meshnet/node/scheduler"
)

// tile is from how many rows on ggml's CPU backend takes its attention in tiles (ggml_fa_tile_config::Q), in which no row depends on
// the others. A shorter chunk takes another path, whose bits differ and whose rows take many times as long.
const tile = 64

// What the probe evaluates: in one chunk, and cut in two. The cut is no multiple of a tile or of four, so that kernels that take rows by
// tiles or by fours are found out, whose remainder goes another way.
const (
	cutPrompt = 2*tile + 3
	cutAt     = tile + 3
)

// probeCuts is Facts.LeastChunk: whether the model's KV has the same bits however a prompt is cut into chunks of a tile and more. Where one
// prompt would prove too little, it is not tried: with recurrent layers, which may go through a chunk by parts of their own, and with other
// devices than the CPU, whose kernels may depend on the position too. Nor is it where a chunk is too short to be cut, or is cut into calls of
// another length. It leaves slot 0 empty.
func (e *Engine) probeCuts() (int, error) {
	m, o := e.model.facts, e.opts
	devices, err := Devices()
	if err != nil {
		return 0, err
	}
	if len(devices) > 1 || m.Recurrent || m.Hybrid || o.PrefillChunk < cutPrompt || o.BatchTokens < o.PrefillChunk {
		return 0, nil
	}
	tokens := make([]scheduler.Token, cutPrompt)
	for i := range tokens {
		tokens[i] = scheduler.Token((i*7919 + 1) % m.VocabTokens)
	}
	defer e.Release(0)
	whole, err := e.stateOf(tokens)
	if err != nil {
		return 0, err
	}
	defer whole.Free()
	parts, err := e.stateOf(tokens[:cutAt], tokens[cutAt:])
	if err != nil {
		return 0, err
	}
	defer parts.Free()
	if !bytes.Equal(whole.Blob()[stateHeaderSize:], parts.Blob()[stateHeaderSize:]) {
		e.log.Debug("KV depends on where a prompt is cut into chunks: prompts share whole chunks only")
		return 0, nil
	}
	return tile, nil
}

// stateOf is the KV of a prompt in slot 0 that is evaluated in these chunks.
func (e *Engine) stateOf(chunks ...[]scheduler.Token) (scheduler.State, error) {
	e.Release(0)
	pos := 0
	for _, tokens := range chunks {
		if res := e.Prefill(scheduler.Chunk{Pos: pos, Tokens: tokens, Forced: scheduler.NoToken}); res.Outcome != scheduler.OutcomeNone {
			return nil, fmt.Errorf("llama.cpp failed on a prompt of %d tokens: %w", pos+len(tokens), res.Err)
		}
		pos += len(tokens)
	}
	return e.Save(0, 0)
}

package main

import (
	"errors"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/models"
)

// modelFlags choose the model and how it computes.
type modelFlags struct {
	Model     string   `help:"GGUF model; the embedded story model without it." type:"path" default:"" placeholder:"FILE"`
	LoRA      []string `help:"LoRA adapter that requests may choose by NAME; repeatable." name:"lora" placeholder:"NAME=FILE[:SCALE]"`
	Ctx       int      `help:"Context of a session in tokens; default: the model's own, at most 4096." placeholder:"N"`
	Threads   int      `help:"Compute threads; default: the fastest number, measured at start." placeholder:"N"`
	GPULayers int      `help:"Layers to offload to a GPU; -1 is all, default: none." name:"gpu-layers" placeholder:"N"`
	Chunk     int      `help:"Prompt tokens that are computed at once; default: 256." name:"prefill-chunk" placeholder:"N"`
	Fast      bool     `help:"Take the fastest kernels for K-quants and F16 weights, although tokens may then depend on the crowd."`
	Exact     bool     `help:"Pad decode batches so that bits do not depend on the crowd; a lone session is about 15 % slower."`
}

func (f *modelFlags) source() llama.Source {
	if f.Model == "" {
		return llama.FromBytes(models.StoryName, models.Story())
	}
	return llama.FromFile(f.Model)
}

// load reads the model.
func (f *modelFlags) load(env *environment) (*llama.Model, error) {
	adapters, err := f.adapterFiles()
	if err != nil {
		return nil, err
	}
	src := f.source()
	model, err := llama.Load(env.ctx, src, llama.LoadOptions{
		GPULayers: f.GPULayers,
		Fast:      f.Fast,
		Adapters:  adapters,
		Progress: func(fraction float64) {
			env.status.set("loading %s: %.0f %%", src.Name, 100*fraction)
		},
	})
	env.status.set("making the engine ready")
	if env.ctx.Err() != nil {
		if err == nil {
			model.Free()
		}
		return nil, errCancelled
	}
	return model, err
}

// engineOptions are the flags as the engine takes them.
func (f *modelFlags) engineOptions(env *environment) llama.Options {
	return llama.Options{
		ContextTokens: f.Ctx,
		PrefillChunk:  f.Chunk,
		Threads:       f.Threads,
		Exact:         f.Exact,
		Logger:        env.log,
	}
}

// newEngine makes an engine and tells wrong flags from other failures.
func newEngine(env *environment, model *llama.Model, o llama.Options) (*llama.Engine, error) {
	if o.Threads == 0 {
		env.status.set("measuring the fastest number of threads")
	}
	engine, err := llama.NewEngine(model, o)
	var wrong *llama.OptionError
	if errors.As(err, &wrong) {
		return nil, &exitError{exitUsage, err}
	}
	return engine, err
}

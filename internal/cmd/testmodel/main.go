// Command testmodel writes a GGUF model or LoRA adapter with random weights, for tests and measurements.
package main

import (
	"github.com/alecthomas/kong"

	"github.com/meshnet/node/internal/testmodel"
)

type options struct {
	Shape string `required:"" help:"Name of the shape, such as 135m, tiny, mamba, swa; a wrong one lists them all."`
	Type  string `default:"f16" enum:"f16,q4_0,q8_0,q4_k_m" help:"Type of the weights: ${enum}."`
	LoRA  int    `name:"lora" placeholder:"RANK" help:"Write a LoRA adapter of this rank for models of the shape, in place of a model."`
	Seed  uint64 `default:"1" help:"Same seed, same weights."`
	Out   string `arg:"" name:"out.gguf" type:"path" help:"File to write."`
}

// Run writes the model.
func (o *options) Run() error {
	shape, err := testmodel.Lookup(o.Shape)
	if err != nil {
		return err
	}
	if o.LoRA != 0 {
		return testmodel.WriteAdapter(o.Out, shape, o.Seed, o.LoRA)
	}
	return testmodel.File(o.Out, shape, o.Seed, o.Type)
}

func main() {
	var o options
	context := kong.Parse(&o, kong.Name("testmodel"), kong.Description("Writes a GGUF model with random weights."))
	context.FatalIfErrorf(context.Run())
}

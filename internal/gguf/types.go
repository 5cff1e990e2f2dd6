package gguf

import "fmt"

// Type is the type of a metadata value.
type Type uint32

// The types of metadata values, as the format numbers them.
const (
	Uint8 Type = iota
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Float32
	Bool
	String
	Array
	Uint64
	Int64
	Float64
)

var typeNames = [...]string{"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string",
	"array", "uint64", "int64", "float64"}

var scalarBytes = map[Type]int64{Uint8: 1, Int8: 1, Uint16: 2, Int16: 2, Uint32: 4, Int32: 4, Float32: 4, Bool: 1,
	Uint64: 8, Int64: 8, Float64: 8}

func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// TensorType is how a tensor's weights are stored, as ggml numbers it.
type TensorType uint32

// The tensor types written by this project's own tools; ReadHeader knows the sizes of all others too.
const (
	TensorF32 TensorType = 0
	TensorF16 TensorType = 1
)

type tensorFormat struct {
	name          string
	blockElements uint64
	blockBytes    uint64
}

// tensorFormats are the types of llama.cpp 0.5.0. A later release may add more: a tensor of an unknown type
// is left for llama.cpp to judge, only its offset is checked.
var tensorFormats = map[TensorType]tensorFormat{
	0: {"F32", 1, 4}, 1: {"F16", 1, 2}, 30: {"BF16", 1, 2}, 28: {"F64", 1, 8},
	24: {"I8", 1, 1}, 25: {"I16", 1, 2}, 26: {"I32", 1, 4}, 27: {"I64", 1, 8},
	2: {"Q4_0", 32, 18}, 3: {"Q4_1", 32, 20}, 6: {"Q5_0", 32, 22}, 7: {"Q5_1", 32, 24},
	8: {"Q8_0", 32, 34}, 9: {"Q8_1", 32, 36},
	10: {"Q2_K", 256, 84}, 11: {"Q3_K", 256, 110}, 12: {"Q4_K", 256, 144}, 13: {"Q5_K", 256, 176},
	14: {"Q6_K", 256, 210}, 15: {"Q8_K", 256, 292},
	16: {"IQ2_XXS", 256, 66}, 17: {"IQ2_XS", 256, 74}, 22: {"IQ2_S", 256, 82},
	18: {"IQ3_XXS", 256, 98}, 21: {"IQ3_S", 256, 110}, 19: {"IQ1_S", 256, 50}, 29: {"IQ1_M", 256, 56},
	20: {"IQ4_NL", 32, 18}, 23: {"IQ4_XS", 256, 136},
	34: {"TQ1_0", 256, 54}, 35: {"TQ2_0", 256, 66},
	39: {"MXFP4", 32, 17}, 40: {"NVFP4", 64, 36}, 41: {"Q1_0", 128, 18}, 42: {"Q2_0", 64, 18},
}

func (t TensorType) String() string {
	if f, ok := tensorFormats[t]; ok {
		return f.name
	}
	return fmt.Sprintf("tensor type %d", uint32(t))
}

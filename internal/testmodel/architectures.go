package testmodel

import (
	"fmt"
	"math"

	"github.com/meshnet/node/internal/gguf"
)

// How strongly the parts of a model act, tuned by running the models. The first layer turns a token and what
// it attends to into a vector of size 1 in the residual stream. What all other parts add together is of size
// contextSize: enough to decide between the favourites, and so little that the rounding noise of another
// batch size is not amplified from layer to layer.
const (
	// embeddingSize is the deviation of the embeddings, small beside what the layers add: else a model whose
	// output matrix is its embedding matrix would repeat its last token for ever.
	embeddingSize = 0.005
	// embeddingSpread makes some tokens likelier than others, which widens the gap between the best two. Much
	// more of it, and the text is made of few tokens.
	embeddingSpread = 0.3
	// quietToken scales the embeddings of all tokens that are not text, so that greedy text hardly ever holds one.
	quietToken = 0.3
	// logitSize is the deviation of the logits of a token of usual likelihood.
	logitSize = 4.0
	// scoreSize is the deviation of attention scores: large enough that a few cells matter much, whatever the length of the context.
	scoreSize = 2.5
	// firstMixing is the influence of the context in the first layer, relative to the token's own.
	firstMixing = 2.0
	contextSize = 0.25

	normEpsilon = 1e-6 // small beside the square of a quiet token's embedding
	convWidth   = 4
	stepRank    = 16 // of a recurrent layer's step sizes
)

// tensor is a tensor to be written. Rows are made one at a time.
type tensor struct {
	name string
	dims []int // fastest-varying first, as in the file
	kind gguf.TensorType
	fill fillRow
}

func (t tensor) rows() int {
	n := 1
	for _, d := range t.dims[1:] {
		n *= d
	}
	return n
}

// pair is a metadata entry; the value is a string, uint32, float32, bool, []string, []float32, []int32 or []uint32.
type pair struct {
	key   string
	value any
}

// plan collects the parts of a model's file.
type plan struct {
	shape   Shape
	meta    []pair
	tensors []tensor
}

func newPlan(shape Shape) (*plan, error) {
	p := &plan{shape: shape}
	p.set("general.architecture", shape.Arch)
	p.set("general.name", "Meshnet test model "+shape.Name)
	p.set("general.description", "Random weights for tests; says nothing meaningful.")
	p.set("general.license", "Apache-2.0")
	p.set("general.file_type", uint32(1)) // mostly F16
	p.hyperparameters()
	p.vocabulary()
	switch shape.Arch {
	case "llama", "mamba", "gemma3", "jamba":
		p.decoder()
	case "bert":
		p.encoder()
	default:
		return nil, fmt.Errorf("testmodel: architecture %q is not known here", shape.Arch)
	}
	return p, nil
}

func (p *plan) set(key string, value any) { p.meta = append(p.meta, pair{key, value}) }

func (p *plan) hyperparameters() {
	s := p.shape
	set := func(key string, value any) { p.set(s.Arch+"."+key, value) }
	set("context_length", uint32(s.Context))
	set("embedding_length", uint32(s.Dim))
	set("block_count", uint32(s.Layers))
	set("feed_forward_length", uint32(s.FFN))
	set("vocab_size", uint32(s.Vocab))
	set("attention.head_count", uint32(s.Heads))
	switch {
	case s.AttnPeriod > 0:
		heads := make([]uint32, s.Layers)
		for i := range heads {
			if s.attends(i) {
				heads[i] = uint32(s.KVHeads)
			}
		}
		set("attention.head_count_kv", heads)
	case s.Heads > 0:
		set("attention.head_count_kv", uint32(s.KVHeads))
		set("rope.dimension_count", uint32(s.headDim()))
		set("rope.freq_base", float32(10000))
	}
	if s.Arch == "bert" {
		set("attention.layer_norm_epsilon", float32(normEpsilon))
		set("attention.causal", false)
	} else {
		set("attention.layer_norm_rms_epsilon", float32(normEpsilon))
	}
	if s.Window > 0 {
		set("attention.key_length", uint32(s.headDim()))
		set("attention.value_length", uint32(s.headDim()))
		set("attention.sliding_window", uint32(s.Window))
		set("attention.sliding_window_pattern", uint32(2))
	}
	if s.StateSize > 0 {
		set("ssm.conv_kernel", uint32(convWidth))
		set("ssm.inner_size", uint32(2*s.Dim))
		set("ssm.state_size", uint32(s.StateSize))
		set("ssm.time_step_rank", uint32(stepRank))
	}
}

func (p *plan) vocabulary() {
	v := buildVocabulary(p.shape)
	p.set("tokenizer.ggml.model", "llama")
	p.set("tokenizer.ggml.pre", "default")
	p.set("tokenizer.ggml.tokens", v.pieces)
	p.set("tokenizer.ggml.scores", v.scores)
	p.set("tokenizer.ggml.token_type", v.kinds)
	p.set("tokenizer.ggml.unknown_token_id", uint32(unknownID))
	p.set("tokenizer.ggml.bos_token_id", uint32(bosID))
	p.set("tokenizer.ggml.eos_token_id", uint32(eosID))
	p.set("tokenizer.ggml.add_bos_token", true)
	p.set("tokenizer.ggml.add_eos_token", false)
	if p.shape.Arch == "bert" {
		p.set("tokenizer.ggml.token_type_count", uint32(1))
	}
	switch {
	case p.shape.Template != "":
		p.set("tokenizer.chat_template", p.shape.Template)
	case p.shape.Chat:
		p.set("tokenizer.chat_template", chatTemplate)
	}
	p.matrix("token_embd", p.shape.Dim, p.shape.Vocab, func(row int, dst []float32, random *stream) {
		size := embeddingSize * math.Exp(embeddingSpread*float64(random.normal()))
		if v.kinds[row] != kindNormal {
			size *= quietToken
		}
		normal(float32(size))(row, dst, random)
	})
}

// matrix adds an F16 weight that turns vectors of size in into vectors of size out.
func (p *plan) matrix(name string, in, out int, fill fillRow) {
	p.tensors = append(p.tensors, tensor{name + ".weight", []int{in, out}, gguf.TensorF16, fill})
}

// vector adds an F32 tensor, of one or more dimensions. Norms, biases and the small parts of recurrent layers are never F16.
func (p *plan) vector(name string, fill fillRow, dims ...int) {
	p.tensors = append(p.tensors, tensor{name, dims, gguf.TensorF32, fill})
}

func (p *plan) norm(name string, size float64) {
	p.vector(name+".weight", constant(float32(size)), p.shape.Dim)
}

// decoder adds the tensors of every decoder: what differs is the kind of each layer.
func (p *plan) decoder() {
	s := p.shape
	p.norm("output_norm", logitSize/(embeddingSize*math.Sqrt(float64(s.Dim))))
	stream := 1.0
	if s.Arch == "gemma3" {
		stream = math.Sqrt(float64(s.Dim)) // its embeddings are multiplied by that
	}
	contextGain := stream * contextSize / math.Sqrt(float64(2*s.Layers-1))
	for i := range s.Layers {
		block := fmt.Sprintf("blk.%d.", i)
		p.norm(block+"attn_norm", 1)
		mixing := contextGain
		switch {
		case s.FFN == 0:
			mixing = stream
		case i == 0:
			mixing = stream * embeddingSize * firstMixing
		}
		if s.attends(i) {
			p.attention(block, mixing)
		} else {
			p.recurrence(block, mixing)
		}
		if s.FFN > 0 {
			gain := contextGain
			if i == 0 {
				gain = stream
			}
			p.norm(block+"ffn_norm", 1)
			p.feedForward(block, gain)
		}
	}
}

func (p *plan) attention(block string, gain float64) {
	s := p.shape
	kvDim := s.KVHeads * s.headDim()
	score := math.Sqrt(scoreSize)
	if s.Arch == "gemma3" {
		p.vector(block+"attn_q_norm.weight", constant(float32(score)), s.headDim())
		p.vector(block+"attn_k_norm.weight", constant(float32(score)), s.headDim())
		p.norm(block+"post_attention_norm", gain)
		gain = 1
		score = 1
	}
	p.matrix(block+"attn_q", s.Dim, s.Dim, projection(s.Dim, score))
	p.matrix(block+"attn_k", s.Dim, kvDim, projection(s.Dim, score))
	p.matrix(block+"attn_v", s.Dim, kvDim, projection(s.Dim, 1))
	p.matrix(block+"attn_output", s.Dim, s.Dim, projection(s.Dim, gain))
}

func (p *plan) feedForward(block string, gain float64) {
	s := p.shape
	p.matrix(block+"ffn_gate", s.Dim, s.FFN, projection(s.Dim, 1.5))
	p.matrix(block+"ffn_up", s.Dim, s.FFN, projection(s.Dim, 1))
	if s.Arch == "gemma3" {
		p.norm(block+"post_ffw_norm", gain)
		gain = 1
	}
	p.matrix(block+"ffn_down", s.FFN, s.Dim, projection(s.FFN, gain))
}

// recurrence adds a Mamba layer. Its decay rates and step sizes are those that Mamba models start their
// training with: memories of ten to a thousand tokens.
func (p *plan) recurrence(block string, gain float64) {
	s := p.shape
	inner := 2 * s.Dim
	const shortest, longest = 1e-3, 1e-1
	p.matrix(block+"ssm_in", s.Dim, 2*inner, projection(s.Dim, 1.5))
	p.vector(block+"ssm_conv1d.weight", normal(0.6), convWidth, inner)
	p.vector(block+"ssm_conv1d.bias", normal(0.1), inner)
	p.matrix(block+"ssm_x", inner, stepRank+2*s.StateSize, projection(inner, 2))
	p.matrix(block+"ssm_dt", stepRank, inner, projection(stepRank, 0.5))
	p.vector(block+"ssm_dt.bias", func(_ int, dst []float32, random *stream) {
		for i := range dst {
			step := shortest * math.Pow(longest/shortest, random.uniform())
			dst[i] = float32(math.Log(math.Expm1(step))) // softplus of it is step
		}
	}, inner)
	p.vector(block+"ssm_a", func(_ int, dst []float32, _ *stream) {
		for i := range dst {
			dst[i] = -float32(i + 1)
		}
	}, s.StateSize, inner)
	p.vector(block+"ssm_d", constant(1), inner)
	p.matrix(block+"ssm_out", inner, s.Dim, projection(inner, 2*gain))
	if s.Arch == "jamba" {
		p.vector(block+"ssm_dt_norm.weight", constant(1), stepRank)
		p.vector(block+"ssm_b_norm.weight", constant(1), s.StateSize)
		p.vector(block+"ssm_c_norm.weight", constant(1), s.StateSize)
	}
}

func (p *plan) encoder() {
	s := p.shape
	layerNorm := func(name string) {
		p.norm(name, 1)
		p.vector(name+".bias", constant(0), s.Dim)
	}
	p.matrix("position_embd", s.Dim, s.Context, normal(embeddingSize))
	layerNorm("token_embd_norm")
	for i := range s.Layers {
		block := fmt.Sprintf("blk.%d.", i)
		p.attention(block, 1)
		layerNorm(block + "attn_output_norm")
		p.matrix(block+"ffn_up", s.Dim, s.FFN, projection(s.Dim, 1))
		p.matrix(block+"ffn_down", s.FFN, s.Dim, projection(s.FFN, 1))
		layerNorm(block + "layer_output_norm")
	}
}

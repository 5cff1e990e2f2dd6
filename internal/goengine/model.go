package goengine

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
)

const (
	floatBytes = 4
	normEps    = 1e-5
	ropeBase   = 10000
	// decay is what Mode Recurrent keeps of its state at each position.
	decay = 0.95

	// Gains over the usual 1/√n scale of the weights. They make attention pick positions instead of
	// averaging them and spread the logits, so that a wrong KV cell changes the tokens, not only the last bits.
	gainQK     = 1.6
	gainOut    = 2
	gainFFN    = 1
	gainLogits = 3
)

type layer struct {
	wq, wk, wv, wo   []float32 // row-major, one row an output
	gate, up, down   []float32
	attNorm, ffnNorm []float32
}

// model is the weights, constant after newModel, and the scratch memory of one forward pass, which
// belongs to the engine call that runs.
type model struct {
	cfg       Config
	embedding []float32 // [vocab][dim]
	head      []float32 // [vocab][dim]
	headNorm  []float32
	layers    []layer
	shifts    [][]float32 // [adapter][dim], added to every embedding; the first, of no adapter, is empty
	tooShort  []float32   // added to every embedding in a chunk that is too short
	cos, sin  []float32   // [position][headDim/2]

	x, norm, q, att, proj []float32 // dim each
	key, value            []float32 // kvDim each
	hidden, up            []float32 // ffn each
	scores                []float32 // one a position, spare cells included
}

func newModel(cfg Config) *model {
	rng := rand.New(rand.NewPCG(cfg.Seed, 0x6d657368))
	normal := func(n int, std float64) []float32 {
		w := make([]float32, n)
		for i := range w {
			w[i] = float32(rng.NormFloat64() * std)
		}
		return w
	}
	matrix := func(out, in int, gain float64) []float32 { return normal(out*in, gain/math.Sqrt(float64(in))) }
	norm := func() []float32 {
		w := normal(cfg.Dim, 0.1)
		for i := range w {
			w[i]++
		}
		return w
	}
	m := &model{cfg: cfg, embedding: normal(cfg.Vocab*cfg.Dim, 1)}
	for range cfg.Layers {
		m.layers = append(m.layers, layer{
			wq: matrix(cfg.Dim, cfg.Dim, gainQK), wk: matrix(cfg.kvDim(), cfg.Dim, gainQK),
			wv: matrix(cfg.kvDim(), cfg.Dim, 1), wo: matrix(cfg.Dim, cfg.Dim, gainOut),
			gate: matrix(cfg.FFN, cfg.Dim, gainFFN), up: matrix(cfg.FFN, cfg.Dim, gainFFN),
			down: matrix(cfg.Dim, cfg.FFN, gainFFN), attNorm: norm(), ffnNorm: norm(),
		})
	}
	m.shifts = append(m.shifts, nil)
	for _, name := range cfg.Adapters {
		m.shifts = append(m.shifts, shift(cfg, name))
	}
	m.tooShort = shift(cfg, "too short a chunk")
	m.head, m.headNorm = matrix(cfg.Vocab, cfg.Dim, gainLogits), norm()
	m.makeRope()
	m.x, m.norm, m.q = make([]float32, cfg.Dim), make([]float32, cfg.Dim), make([]float32, cfg.Dim)
	m.att, m.proj = make([]float32, cfg.Dim), make([]float32, cfg.Dim)
	m.key, m.value = make([]float32, cfg.kvDim()), make([]float32, cfg.kvDim())
	m.hidden, m.up = make([]float32, cfg.FFN), make([]float32, cfg.FFN)
	m.scores = make([]float32, cfg.ContextTokens+spareCells)
	return m
}

// shift is what an adapter adds: about as large as an embedding, so that another adapter's KV changes the tokens.
func shift(cfg Config, name string) []float32 {
	h := fnv.New64a()
	h.Write([]byte(name))
	rng := rand.New(rand.NewPCG(cfg.Seed, h.Sum64()))
	w := make([]float32, cfg.Dim)
	for i := range w {
		w[i] = float32(rng.NormFloat64())
	}
	return w
}

func (m *model) makeRope() {
	half := m.cfg.headDim() / 2
	m.cos = make([]float32, m.cfg.ContextTokens*half)
	m.sin = make([]float32, m.cfg.ContextTokens*half)
	for pos := range m.cfg.ContextTokens {
		for i := range half {
			angle := float64(pos) * math.Pow(ropeBase, -float64(i)/float64(half))
			m.cos[pos*half+i], m.sin[pos*half+i] = float32(math.Cos(angle)), float32(math.Sin(angle))
		}
	}
}

func (m *model) weightBytes() int64 {
	n := len(m.embedding) + len(m.head) + len(m.headNorm)
	for _, l := range m.layers {
		n += len(l.wq) + len(l.wk) + len(l.wv) + len(l.wo) + len(l.gate) + len(l.up) + len(l.down)
		n += len(l.attNorm) + len(l.ffnNorm)
	}
	return int64(n) * floatBytes
}

// forward evaluates token at the slot's next position and leaves the residual stream in m.x. It is the
// one path of prefill and decode, one token at a time, so that a position's bits depend on nothing else but whether its chunk is too
// short.
func (m *model) forward(s *slot, token int, short bool) {
	if m.cfg.Mode == Echo {
		s.kv[s.next()*m.cfg.cellFloats()] = float32(token)
		return
	}
	dim := m.cfg.Dim
	copy(m.x, m.embedding[token*dim:(token+1)*dim])
	add(m.x, m.shifts[s.adapter])
	if short {
		add(m.x, m.tooShort)
	}
	for i := range m.layers {
		l := &m.layers[i]
		rmsNorm(m.norm, m.x, l.attNorm)
		matVec(m.q, l.wq, m.norm)
		if m.cfg.Mode == Recurrent {
			m.recur(s, i)
		} else {
			m.attend(s, i)
		}
		matVec(m.proj, l.wo, m.att)
		add(m.x, m.proj)

		rmsNorm(m.norm, m.x, l.ffnNorm)
		matVec(m.hidden, l.gate, m.norm)
		matVec(m.up, l.up, m.norm)
		for j, g := range m.hidden {
			m.hidden[j] = g / (1 + exp(-g)) * m.up[j]
		}
		matVec(m.proj, l.down, m.hidden)
		add(m.x, m.proj)
	}
}

// attend stores the position's key and value and attends to the cells the mode can see.
//
//go:norace
func (m *model) attend(s *slot, layer int) {
	kvDim, hd, cell := m.cfg.kvDim(), m.cfg.headDim(), m.cfg.cellFloats()
	offset := layer * 2 * kvDim
	own := s.kv[s.next()*cell+offset:][:2*kvDim]
	matVec(own[:kvDim], m.layers[layer].wk, m.norm)
	matVec(own[kvDim:], m.layers[layer].wv, m.norm)
	m.rotate(m.q, s.n)
	m.rotate(own[:kvDim], s.n)

	first, last := 0, s.next()
	if m.cfg.Mode == Window {
		first = max(0, last+1-m.cfg.Window)
	}
	group := m.cfg.Heads / m.cfg.KVHeads
	scale := float32(1 / math.Sqrt(float64(hd)))
	scores := m.scores[:last+1-first]
	for h := range m.cfg.Heads {
		q, out := m.q[h*hd:(h+1)*hd], m.att[h*hd:(h+1)*hd]
		key := offset + h/group*hd
		for i := range scores {
			at := (first+i)*cell + key
			scores[i] = dot(q, s.kv[at:at+hd]) * scale
		}
		softmax(scores)
		clear(out)
		for i, weight := range scores {
			at := (first+i)*cell + key + kvDim
			for j, v := range s.kv[at : at+hd] {
				out[j] += weight * v
			}
		}
	}
}

// recur is Mode Recurrent's attend: each KV head's state decays and takes in key ⊗ value.
func (m *model) recur(s *slot, layer int) {
	kvDim, hd := m.cfg.kvDim(), m.cfg.headDim()
	key, value := m.key, m.value
	matVec(key, m.layers[layer].wk, m.norm)
	matVec(value, m.layers[layer].wv, m.norm)
	states := s.kv[layer*kvDim*hd:][:kvDim*hd]
	for i, k := range key {
		row := states[i*hd : (i+1)*hd]
		for j, v := range value[i/hd*hd : (i/hd+1)*hd] {
			row[j] = row[j]*decay + k*v
		}
	}
	group := m.cfg.Heads / m.cfg.KVHeads
	clear(m.att)
	for i, q := range m.q {
		head := i / hd
		row := states[(head/group*hd+i%hd)*hd:][:hd]
		for j, v := range row {
			m.att[head*hd+j] += q * v
		}
	}
	rmsNorm(m.att, m.att, nil)
}

// logits fills row from what forward left.
func (m *model) logits(s *slot, row []float32) {
	if m.cfg.Mode == Echo {
		m.echo(s, row)
		return
	}
	rmsNorm(m.norm, m.x, m.headNorm)
	matVec(row, m.head, m.norm)
	row[m.cfg.EOG] += m.cfg.EOGBias
}

// echo makes the token that the prompt holds next the only likely one. It is read from the slot's first
// cells, whoever wrote them.
func (m *model) echo(s *slot, row []float32) {
	const likely = 20
	at := max(0, s.n-s.sampler.promptTokens)
	for i := range row {
		row[i] = -float32(i) / maxVocab // no two equal, so that Gap means something
	}
	row[m.cfg.EOG] += m.cfg.EOGBias
	row[int(s.kv[at*m.cfg.cellFloats()])] = likely
}

// rotate applies the rotary embedding of position pos to adjacent pairs of each head.
func (m *model) rotate(v []float32, pos int) {
	half := m.cfg.headDim() / 2
	cos, sin := m.cos[pos*half:(pos+1)*half], m.sin[pos*half:(pos+1)*half]
	for head := 0; head < len(v); head += 2 * half {
		for i := range half {
			a, b := v[head+2*i], v[head+2*i+1]
			v[head+2*i], v[head+2*i+1] = a*cos[i]-b*sin[i], a*sin[i]+b*cos[i]
		}
	}
}

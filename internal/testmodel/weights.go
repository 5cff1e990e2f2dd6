package testmodel

import (
	"hash/fnv"
	"math"
)

// stream is a SplitMix64 generator. One row of one tensor has one stream, so that any row can be made on its own.
type stream struct{ state uint64 }

// rowStream returns the stream of a row of a named tensor.
func rowStream(seed uint64, name string, row int) stream {
	h := fnv.New64a()
	h.Write([]byte(name))
	return stream{mix(mix(seed^h.Sum64()) + uint64(row))}
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (s *stream) next() uint64 {
	s.state += 0x9e3779b97f4a7c15
	return mix(s.state)
}

// normal returns an approximately normal value of mean 0 and deviation 1: the sum of four uniform ones, which
// ends at ±3.5 and costs one step of the generator.
func (s *stream) normal() float32 {
	const mean, perDeviation = 4 * 65535.0 / 2, 1.0 / 37837.23
	z := s.next()
	sum := z&0xffff + z>>16&0xffff + z>>32&0xffff + z>>48
	return (float32(sum) - mean) * perDeviation
}

// uniform returns a value in [0, 1).
func (s *stream) uniform() float64 { return float64(s.next()>>11) / (1 << 53) }

// fillRow makes one row of a tensor's weights.
type fillRow func(row int, dst []float32, random *stream)

func constant(v float32) fillRow {
	return func(_ int, dst []float32, _ *stream) {
		for i := range dst {
			dst[i] = v
		}
	}
}

func normal(deviation float32) fillRow {
	return func(_ int, dst []float32, random *stream) {
		for i := range dst {
			dst[i] = deviation * random.normal()
		}
	}
}

// projection keeps the size of what it is applied to: inputs of deviation 1 give outputs of deviation gain.
func projection(inputs int, gain float64) fillRow {
	return normal(float32(gain / math.Sqrt(float64(inputs))))
}

// half returns v in IEEE half precision, rounded to nearest even. Weights are small: what is too large
// becomes infinity, and what is too small for a normal number is rounded as a subnormal one.
func half(v float32) uint16 {
	b := math.Float32bits(v)
	sign := uint16(b >> 16 & 0x8000)
	exponent := int(b>>23&0xff) - 127 + 15
	mantissa := b & 0x7fffff
	switch {
	case exponent >= 31:
		return sign | 0x7c00
	case exponent <= -11:
		return sign
	case exponent <= 0:
		return sign | uint16(roundEven(mantissa|0x800000, uint(14-exponent)))
	default:
		// A mantissa rounded up to 1.0 carries into the exponent, as it should.
		return sign | uint16(uint32(exponent)<<10+roundEven(mantissa, 13))
	}
}

// roundEven drops the lowest bits of m, rounding to nearest, ties to even.
func roundEven(m uint32, bits uint) uint32 {
	kept, rest, tie := m>>bits, m&(1<<bits-1), uint32(1)<<(bits-1)
	if rest > tie || rest == tie && kept&1 == 1 {
		kept++
	}
	return kept
}

package goengine

import "math"

var nan = float32(math.NaN())

// matVec sets out = w·x, w having len(out) rows of len(x).
func matVec(out, w, x []float32) {
	n := len(x)
	for i := range out {
		out[i] = dot(w[i*n:(i+1)*n], x)
	}
}

// dot sums in four lanes: a single one would wait for each addition. The order is fixed, and so are the bits.
func dot(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	b = b[:len(a)]
	i := 0
	for ; i+4 <= len(a); i += 4 {
		x, y := a[i:i+4:i+4], b[i:i+4:i+4]
		s0 += x[0] * y[0]
		s1 += x[1] * y[1]
		s2 += x[2] * y[2]
		s3 += x[3] * y[3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return (s0 + s1) + (s2 + s3)
}

func add(x, y []float32) {
	for i, v := range y {
		x[i] += v
	}
}

// rmsNorm sets out = x / rms(x), times weight where there is one. out may be x.
func rmsNorm(out, x, weight []float32) {
	scale := float32(1 / math.Sqrt(float64(dot(x, x)/float32(len(x)))+normEps))
	for i, v := range x {
		out[i] = v * scale
	}
	for i, w := range weight {
		out[i] *= w
	}
}

func softmax(x []float32) {
	top := x[0]
	for _, v := range x[1:] {
		top = max(top, v)
	}
	var sum float32
	for i, v := range x {
		x[i] = exp(v - top)
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
}

func exp(x float32) float32 { return float32(math.Exp(float64(x))) }

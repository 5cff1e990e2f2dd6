package goengine

import "math"

// matVec sets out = w·x, w having len(out) rows of len(x). It takes four rows at a time, because a lone
// sum waits for each of its additions; every row is summed in the order of x, however many there are.
//
// The inner loops are not instrumented for the race detector, which would slow them down tenfold and more: what they
// touch belongs to the engine, whose guard catches concurrent use.
//
//go:norace
func matVec(out, w, x []float32) {
	n := len(x)
	i := 0
	for ; i+4 <= len(out); i += 4 {
		w0, w1, w2, w3 := w[i*n:][:n], w[(i+1)*n:][:n], w[(i+2)*n:][:n], w[(i+3)*n:][:n]
		var s0, s1, s2, s3 float32
		for j, v := range x {
			s0 += w0[j] * v
			s1 += w1[j] * v
			s2 += w2[j] * v
			s3 += w3[j] * v
		}
		out[i], out[i+1], out[i+2], out[i+3] = s0, s1, s2, s3
	}
	for ; i < len(out); i++ {
		out[i] = dot(w[i*n:][:n], x)
	}
}

//go:norace
func dot(a, b []float32) float32 {
	var sum float32
	b = b[:len(a)]
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
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

//go:norace
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

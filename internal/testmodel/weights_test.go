package testmodel

import (
	"math"
	"strings"
	"testing"
)

func TestHalfPrecisionRoundsToNearestEven(t *testing.T) {
	for v, want := range map[float32]uint16{
		0: 0, 1: 0x3c00, -2: 0xc000, 65504: 0x7bff, 65520: 0x7c00, 1e9: 0x7c00, -1e9: 0xfc00,
		1 + 1.0/2048: 0x3c00, 1 + 3.0/2048: 0x3c02, // ties
		1 + 1.01/2048:        0x3c01,
		2 - 1.0/4096:         0x4000, // carries into the exponent
		1.0 / (1 << 14):      0x0400, // the smallest normal number
		1.0 / (1 << 24):      0x0001, // the smallest number
		1.0 / (1 << 25):      0,      // a tie with zero
		1.01 / (1 << 25):     0x0001, // above the tie
		1023.9 / (1 << 24):   0x0400, // a subnormal number that rounds up to a normal one
		float32(math.Inf(1)): 0x7c00,
	} {
		if got := half(v); got != want {
			t.Errorf("half(%v) = %#04x, want %#04x", v, got, want)
		}
	}
	if got := half(float32(math.Copysign(0, -1))); got != 0x8000 {
		t.Errorf("half(-0) = %#04x", got)
	}
}

func TestWeightsHaveTheDeviationTheyClaim(t *testing.T) {
	const n = 100_000
	random := rowStream(1, "tensor", 0)
	var sum, squares float64
	for range n {
		v := float64(random.normal())
		sum, squares = sum+v, squares+v*v
	}
	mean, deviation := sum/n, math.Sqrt(squares/n)
	if math.Abs(mean) > 0.02 || math.Abs(deviation-1) > 0.01 {
		t.Errorf("mean %.3f deviation %.3f, want 0 and 1", mean, deviation)
	}
}

func TestRowsTensorsAndSeedsHaveTheirOwnWeights(t *testing.T) {
	seen := make(map[uint64]bool)
	for _, s := range []stream{rowStream(1, "a", 0), rowStream(1, "a", 1), rowStream(1, "b", 0), rowStream(2, "a", 0)} {
		first := s.next()
		if seen[first] {
			t.Fatal("two streams start alike")
		}
		seen[first] = true
	}
}

func TestTokenizerReachesEveryPieceByMergingPairs(t *testing.T) {
	for _, shape := range Shapes() {
		v := buildVocabulary(shape)
		if len(v.pieces) != shape.Vocab || len(v.scores) != shape.Vocab || len(v.kinds) != shape.Vocab {
			t.Errorf("%s: %d pieces, %d scores, %d kinds, want %d", shape.Name, len(v.pieces), len(v.scores), len(v.kinds), shape.Vocab)
		}
		for i, piece := range v.pieces {
			runes := []rune(piece)
			if v.kinds[i] != kindNormal || len(runes) == 1 {
				continue
			}
			joined := false
			for cut := 1; cut < len(runes) && !joined; cut++ {
				joined = v.seen[string(runes[:cut])] && v.seen[string(runes[cut:])]
			}
			if !joined {
				t.Errorf("%s: piece %q is no join of two others", shape.Name, piece)
			}
		}
	}
}

func TestChatShapesHaveControlTokensAndATemplate(t *testing.T) {
	for _, shape := range Shapes() {
		p, err := newPlan(shape)
		if err != nil {
			t.Fatal(err)
		}
		template := ""
		for _, m := range p.meta {
			if m.key == "tokenizer.chat_template" {
				template = m.value.(string)
			}
		}
		v := buildVocabulary(shape)
		for _, token := range []string{"<|im_start|>", "<|im_end|>"} {
			if v.seen[token] != shape.Chat || strings.Contains(template, token) != shape.Chat {
				t.Errorf("%s: token %s %v, template %q, want chat %v", shape.Name, token, v.seen[token], template, shape.Chat)
			}
		}
	}
}

package gbnf

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// runeRange is the characters from low to high.
type runeRange struct{ low, high rune }

// normalised sorts ranges and joins those that touch. It is never nil.
func normalised(ranges []runeRange) []runeRange {
	out := []runeRange{}
	slices.SortFunc(ranges, func(a, b runeRange) int { return cmp.Compare(a.low, b.low) })
	for _, r := range ranges {
		switch last := len(out) - 1; {
		case r.low > r.high:
		case last >= 0 && r.low <= out[last].high+1:
			out[last].high = max(out[last].high, r.high)
		default:
			out = append(out, r)
		}
	}
	return out
}

// complement is every character that is not in normalised ranges.
func complement(ranges []runeRange) []runeRange {
	out := []runeRange{}
	next := rune(0)
	for _, r := range ranges {
		if r.low > next {
			out = append(out, runeRange{next, r.low - 1})
		}
		next = r.high + 1
	}
	if next <= utf8.MaxRune {
		out = append(out, runeRange{next, utf8.MaxRune})
	}
	return out
}

// Surrogates are numbers that are no characters, and in no UTF-8 text.
const firstSurrogate, lastSurrogate = 0xD800, 0xDFFF

// alphabet divides all characters into classes that no set of a grammar tells apart. Class i begins at starts[i].
type alphabet struct {
	starts []rune
	ascii  [utf8.RuneSelf]int32
}

func newAlphabet(sets [][]runeRange) *alphabet {
	a := &alphabet{starts: []rune{0, firstSurrogate, lastSurrogate + 1}}
	for _, set := range sets {
		for _, r := range set {
			a.starts = append(a.starts, r.low, r.high+1)
		}
	}
	slices.Sort(a.starts)
	a.starts = slices.Compact(a.starts)
	for c := range a.ascii {
		a.ascii[c] = a.find(rune(c))
	}
	return a
}

func (a *alphabet) class(r rune) int32 {
	if r < utf8.RuneSelf {
		return a.ascii[r]
	}
	return a.find(r)
}

func (a *alphabet) find(r rune) int32 {
	i, found := slices.BinarySearch(a.starts, r)
	if !found {
		i--
	}
	return int32(i)
}

// classRange is the classes from low to high.
type classRange struct{ low, high int32 }

// members is the classes of a set, in order. A set has no class for each character: a grammar may have thousands of both.
func (a *alphabet) members(set []runeRange) []classRange {
	var in []classRange
	add := func(low, high rune) {
		if low <= high {
			in = append(in, classRange{a.find(low), a.find(high)})
		}
	}
	for _, r := range set {
		add(r.low, min(r.high, firstSurrogate-1))
		add(max(r.low, lastSurrogate+1), r.high)
	}
	return in
}

// takes says whether a class is in a set.
func takes(set []classRange, class int32) bool {
	const few = 8
	if len(set) > few {
		i, found := slices.BinarySearchFunc(set, class, func(r classRange, class int32) int { return cmp.Compare(r.low, class) })
		return found || i > 0 && class <= set[i-1].high
	}
	for _, r := range set {
		if class >= r.low && class <= r.high {
			return true
		}
	}
	return false
}

// Except is a set, as a grammar spells it, without some characters. The error is a *SyntaxError.
func Except(set string, without ...rune) (rest string, err error) {
	p := &parser{src: []byte(set)}
	defer p.giveUp(&err)
	ranges := p.set()
	for _, r := range without {
		ranges = append(complement(ranges), runeRange{r, r})
		ranges = complement(normalised(ranges))
	}
	var out strings.Builder
	for _, r := range ranges {
		fmt.Fprintf(&out, `\U%08X-\U%08X`, r.low, r.high)
	}
	return "[" + out.String() + "]", nil
}

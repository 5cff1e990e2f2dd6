package bench

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// MaxLength bounds the tokens of a prompt or an answer: a prompt's ids have to fit one request.
const MaxLength = 65_280

// Lengths is a uniform distribution of whole numbers from Min to Max, both included. Equal ones are a fixed length.
type Lengths struct{ Min, Max int }

// UnmarshalText reads "64" or "64-192".
func (l *Lengths) UnmarshalText(text []byte) error {
	low, high, isRange := strings.Cut(string(text), "-")
	if !isRange {
		high = low
	}
	var err1, err2 error
	l.Min, err1 = strconv.Atoi(strings.TrimSpace(low))
	l.Max, err2 = strconv.Atoi(strings.TrimSpace(high))
	switch {
	case err1 != nil || err2 != nil:
		return fmt.Errorf("%q is no length; write 64, or 64-192 for all lengths between", text)
	case l.Min < 1 || l.Max > MaxLength:
		return fmt.Errorf("%s tokens; use 1 to %d", text, MaxLength)
	case l.Min > l.Max:
		return fmt.Errorf("the range %s begins at %d and ends at %d; write the smaller number first", text, l.Min, l.Max)
	}
	return nil
}

// MarshalText is what UnmarshalText reads.
func (l Lengths) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

func (l Lengths) String() string {
	if l.Min == l.Max {
		return strconv.Itoa(l.Min)
	}
	return fmt.Sprintf("%d-%d", l.Min, l.Max)
}

func (l Lengths) draw(random *rand.Rand) int { return l.Min + random.IntN(l.Max-l.Min+1) }

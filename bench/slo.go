package bench

import (
	"fmt"
	"strings"
	"time"
)

// SLO is what a request has to keep to count as goodput. A zero limit is none.
type SLO struct {
	TTFT time.Duration // to the first text
	TPOT time.Duration // mean time of an output token after the first
	ITL  time.Duration // every gap between two pieces of text
	E2EL time.Duration // to the end
}

// limits are the fields by the names they have on the command line.
func (s *SLO) limits() []struct {
	name  string
	limit *time.Duration
} {
	return []struct {
		name  string
		limit *time.Duration
	}{{"ttft", &s.TTFT}, {"tpot", &s.TPOT}, {"itl", &s.ITL}, {"e2el", &s.E2EL}}
}

// UnmarshalText reads limits as "ttft=200ms,itl=50ms".
func (s *SLO) UnmarshalText(text []byte) error {
	*s = SLO{}
next:
	for part := range strings.SplitSeq(string(text), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		for _, known := range s.limits() {
			if known.name != name {
				continue
			}
			limit, err := time.ParseDuration(value)
			switch {
			case err != nil || limit <= 0:
				return fmt.Errorf("%s of %q is no limit; write a time like 200ms or 1.5s", name, part)
			case *known.limit != 0:
				return fmt.Errorf("%s is there twice, as %s and as %s", name, *known.limit, limit)
			}
			*known.limit = limit
			continue next
		}
		return fmt.Errorf("%q names no latency; the names are ttft, tpot, itl and e2el, as in ttft=200ms,itl=50ms", part)
	}
	return nil
}

// MarshalText is what UnmarshalText reads; nothing where there is no limit.
func (s SLO) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s SLO) String() string {
	var parts []string
	for _, l := range s.limits() {
		if *l.limit != 0 {
			parts = append(parts, l.name+"="+l.limit.String())
		}
	}
	return strings.Join(parts, ",")
}

// met says whether a completed request kept every limit.
func (s *SLO) met(r *Record) bool {
	within := func(d, limit time.Duration) bool { return limit == 0 || d <= limit }
	for _, gap := range r.Gaps {
		if !within(gap, s.ITL) {
			return false
		}
	}
	return within(r.First, s.TTFT) && within(r.TPOT(), s.TPOT) && within(r.End, s.E2EL)
}

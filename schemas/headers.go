package schemas

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// The headers of a request that was moved or copied between lanes.
const (
	HeaderFrom = "Mesh-From" // stream sequences of the copies before this one, oldest first, with commas
	HeaderBorn = "Mesh-Born" // stream timestamp of the first copy, Unix milliseconds
	HeaderHops = "Mesh-Hops" // how often it was moved
	HeaderFit  = "Mesh-Fit"  // "1": moved to this lane because it fits only there
	HeaderTwin = "Mesh-Twin" // stream sequence of the request that this is a copy of, and which waits on in its lane
)

const (
	// MaxHops is how often a request may be moved; one that was moved more often is rejected.
	MaxHops = 3

	maxHopsRead   = 1000 // a header with more is not believed
	maxLineage    = 16
	maxHeaderSize = 512
)

// Route is what the headers say of a request's moves. The zero value is that of a request that was never moved or copied.
type Route struct {
	From []uint64  // stream sequences of the copies before this one, oldest first
	Born time.Time // stream timestamp of the first copy, whole milliseconds; zero if this is the first
	Hops int
	Fit  bool
	Twin uint64 // stream sequence of the request that this is a copy of; 0 for none
}

// ParseRoute reads the headers of a request; nats.Header fits. Absent ones are zero. The error is a
// *FieldError with the header as its field.
func ParseRoute(header map[string][]string) (Route, error) {
	var r Route
	if s, err := single(header, HeaderFrom); err != nil {
		return Route{}, err
	} else if s != "" {
		if r.From, err = parseLineage(s); err != nil {
			return Route{}, err
		}
	}
	if s, err := single(header, HeaderBorn); err != nil {
		return Route{}, err
	} else if s != "" {
		ms, ok := parseDecimal(s)
		if !ok || ms < 1 || ms > maxUnixMS {
			return Route{}, fieldError(HeaderBorn, shown(s), "Unix milliseconds in [1, %d]", int64(maxUnixMS))
		}
		r.Born = time.UnixMilli(int64(ms))
	}
	if s, err := single(header, HeaderHops); err != nil {
		return Route{}, err
	} else if s != "" {
		hops, ok := parseDecimal(s)
		if !ok || hops > maxHopsRead {
			return Route{}, fieldError(HeaderHops, shown(s), "a decimal in [0, %d]", maxHopsRead)
		}
		r.Hops = int(hops)
	}
	if s, err := single(header, HeaderFit); err != nil {
		return Route{}, err
	} else if s != "" {
		if s != "1" {
			return Route{}, fieldError(HeaderFit, shown(s), "1 or absent")
		}
		r.Fit = true
	}
	if s, err := single(header, HeaderTwin); err != nil {
		return Route{}, err
	} else if s != "" {
		seq, ok := parseDecimal(s)
		if !ok || seq == 0 {
			return Route{}, fieldError(HeaderTwin, shown(s), "a stream sequence")
		}
		r.Twin = seq
	}
	return r, nil
}

// single is the one value of a header, "" if absent.
func single(header map[string][]string, name string) (string, error) {
	values := header[name]
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", fieldError(name, strconv.Itoa(len(values))+" values", "one value")
	case values[0] == "" || len(values[0]) > maxHeaderSize:
		return "", fieldError(name, shown(values[0]), "1 to %d bytes long", maxHeaderSize)
	}
	return values[0], nil
}

func parseLineage(s string) ([]uint64, error) {
	var from []uint64
	for word := range strings.SplitSeq(s, ",") {
		seq, ok := parseDecimal(word)
		if !ok || seq == 0 || len(from) == maxLineage {
			return nil, fieldError(HeaderFrom, shown(s), "at most %d stream sequences with commas between them", maxLineage)
		}
		from = append(from, seq)
	}
	return from, nil
}

// Set writes the headers into header, which is not nil; nats.Header fits. What is zero is left out, and
// removed where it was.
func (r Route) Set(header map[string][]string) {
	put := func(name, value string, present bool) {
		delete(header, name)
		if present {
			header[name] = []string{value}
		}
	}
	words := make([]string, len(r.From))
	for i, seq := range r.From {
		words[i] = strconv.FormatUint(seq, 10)
	}
	put(HeaderFrom, strings.Join(words, ","), len(words) > 0)
	put(HeaderBorn, strconv.FormatInt(r.Born.UnixMilli(), 10), !r.Born.IsZero())
	put(HeaderHops, strconv.Itoa(r.Hops), r.Hops > 0)
	put(HeaderFit, "1", r.Fit)
	put(HeaderTwin, strconv.FormatUint(r.Twin, 10), r.Twin > 0)
}

// Moved is the route of the copy that a move publishes, where this copy has stream sequence seq and was stored at
// that time. fit says that the move is for feasibility.
func (r Route) Moved(seq uint64, stored time.Time, fit bool) Route {
	from := append(slices.Clone(r.From), seq)
	if len(from) > maxLineage {
		from = from[len(from)-maxLineage:]
	}
	return Route{From: from, Born: r.BornAt(stored), Hops: r.Hops + 1, Fit: fit, Twin: r.Twin}
}

// Copied is the route of a copy that is published while this one, of stream sequence seq and stored at that time, stays where it
// is. Neither descends from the other: what one of them has begun the other leaves alone.
func (r Route) Copied(seq uint64, stored time.Time) Route {
	return Route{From: r.From, Born: r.BornAt(stored), Hops: r.Hops, Twin: seq}
}

// BornAt is when the request was first stored, in whole milliseconds, for a copy stored at that time. A
// header cannot make a request younger than its copy.
func (r Route) BornAt(stored time.Time) time.Time {
	stored = time.UnixMilli(stored.UnixMilli())
	if r.Born.IsZero() || r.Born.After(stored) {
		return stored
	}
	return r.Born
}

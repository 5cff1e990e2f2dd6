package schemas

import "math"

// What the guard lets pass, whatever the message.
const (
	MaxDepth = 16      // containers within each other
	MaxNodes = 1 << 16 // keys and values, containers included
	MaxKeys  = 64      // keys of one map
)

// Guard says why bytes must not be given to a msgpack decoder; "" is that they may. Such a decoder
// allocates what a length claims and recurses as deep as the bytes say; what passes here holds one complete value
// whose every length is true, whose maps have string keys, each once, and which is within the limits above.
//
// It does not allocate, does not recurse, and its time is bounded by the bytes and MaxNodes. The size of a
// message is its caller's to check, before.
func Guard(data []byte) RejectReason {
	if uint64(len(data)) > math.MaxUint32 {
		return RejectTooLarge
	}
	g := guard{data: data, nodes: 1}
	for {
		if reason := g.step(); reason != "" {
			return reason
		}
		for g.depth > 0 && g.stack[g.depth-1].left == 0 {
			g.depth--
		}
		if g.depth == 0 {
			break
		}
	}
	if g.at != len(data) {
		return RejectTrailing
	}
	return ""
}

// guard is a walk over a value; it lives on the stack of Guard.
type guard struct {
	data  []byte
	at    int
	nodes uint64 // met or announced
	depth int
	stack [MaxDepth]container
}

// container is an array or a map that the walk is in.
type container struct {
	left  int // keys and values to come
	isMap bool
	seen  int // keys so far
	keys  [MaxKeys]span
}

// span is where a key's text is.
type span struct{ from, to uint32 }

// step walks over one key or value. Of a container that is its head only.
func (g *guard) step() RejectReason {
	h, reason := readHead(g.data, g.at)
	if reason != "" {
		return reason
	}
	var in *container
	isKey := false
	if g.depth > 0 {
		in = &g.stack[g.depth-1]
		isKey = in.isMap && in.left%2 == 0
		in.left--
	}
	if isKey && h.kind != headString {
		return RejectKeyType
	}
	switch h.kind {
	case headString, headBytes:
		if h.n > uint64(len(g.data)-h.next) {
			return RejectTruncated
		}
		g.at = h.next + int(h.n)
		if isKey {
			return g.key(in, span{uint32(h.next), uint32(g.at)})
		}
	case headArray:
		return g.push(h, h.n, false)
	case headMap:
		return g.push(h, 2*h.n, true)
	default:
		g.at = h.next
	}
	return ""
}

// push enters a container of so many keys and values.
func (g *guard) push(h head, items uint64, isMap bool) RejectReason {
	g.nodes += items
	switch {
	case items > uint64(len(g.data)-h.next): // each takes a byte at least
		return RejectTruncated
	case g.nodes > MaxNodes:
		return RejectTooManyNodes
	case isMap && h.n > MaxKeys:
		return RejectTooManyKeys
	case g.depth == MaxDepth:
		return RejectTooDeep
	}
	c := &g.stack[g.depth]
	c.left, c.isMap, c.seen = int(items), isMap, 0
	g.depth++
	g.at = h.next
	return ""
}

// key remembers a key of a map, and refuses one that was there.
func (g *guard) key(in *container, key span) RejectReason {
	text := g.data[key.from:key.to]
	for _, k := range in.keys[:in.seen] {
		if k.to-k.from == key.to-key.from && string(g.data[k.from:k.to]) == string(text) {
			return RejectDuplicateKey
		}
	}
	in.keys[in.seen] = key
	in.seen++
	return ""
}

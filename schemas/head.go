package schemas

import "encoding/binary"

// headKind is what a msgpack value is.
type headKind uint8

const (
	headNil headKind = iota
	headBool
	headUint // an integer that is not negative, whatever its format
	headNegative
	headFloat
	headString
	headBytes
	headArray
	headMap
)

func (k headKind) String() string {
	return [...]string{"nil", "a boolean", "an integer", "a negative integer", "a float", "a string", "bytes", "an array", "a map"}[k]
}

// head is the beginning of a msgpack value.
type head struct {
	kind headKind
	n    uint64 // of strings and bytes: their length; of containers: their elements; of integers: the value, as 64 bits
	next int    // offset behind what the head covers: the whole value, except for strings, bytes and containers
}

// readHead reads the head at an offset. It does not look at what follows the head.
func readHead(data []byte, at int) (head, RejectReason) {
	if at >= len(data) {
		return head{}, RejectTruncated
	}
	code := data[at]
	at++
	switch {
	case code <= 0x7f:
		return head{headUint, uint64(code), at}, ""
	case code <= 0x8f:
		return head{headMap, uint64(code & 0x0f), at}, ""
	case code <= 0x9f:
		return head{headArray, uint64(code & 0x0f), at}, ""
	case code <= 0xbf:
		return head{headString, uint64(code & 0x1f), at}, ""
	case code >= 0xe0:
		return head{headNegative, uint64(int64(int8(code))), at}, ""
	}
	format := formats[code-0xc0]
	if format.reject != "" {
		return head{}, format.reject
	}
	if len(data)-at < format.size {
		return head{}, RejectTruncated
	}
	n := bigEndian(data[at : at+format.size])
	h := head{format.kind, n, at + format.size}
	if format.signed {
		shift := 64 - 8*format.size
		signed := int64(n<<shift) >> shift
		h.n = uint64(signed)
		if signed < 0 {
			h.kind = headNegative
		}
	}
	return h, ""
}

// format is what the codes from 0xc0 to 0xdf mean.
type format struct {
	kind   headKind
	size   int // bytes after the code that belong to the head
	signed bool
	reject RejectReason
}

var formats = [32]format{
	{kind: headNil},
	{reject: RejectBadCode},
	{kind: headBool}, {kind: headBool},
	{kind: headBytes, size: 1}, {kind: headBytes, size: 2}, {kind: headBytes, size: 4},
	{reject: RejectExtension}, {reject: RejectExtension}, {reject: RejectExtension},
	{kind: headFloat, size: 4}, {kind: headFloat, size: 8},
	{kind: headUint, size: 1}, {kind: headUint, size: 2}, {kind: headUint, size: 4}, {kind: headUint, size: 8},
	{kind: headUint, size: 1, signed: true}, {kind: headUint, size: 2, signed: true},
	{kind: headUint, size: 4, signed: true}, {kind: headUint, size: 8, signed: true},
	{reject: RejectExtension}, {reject: RejectExtension}, {reject: RejectExtension}, {reject: RejectExtension}, {reject: RejectExtension},
	{kind: headString, size: 1}, {kind: headString, size: 2}, {kind: headString, size: 4},
	{kind: headArray, size: 2}, {kind: headArray, size: 4},
	{kind: headMap, size: 2}, {kind: headMap, size: 4},
}

func bigEndian(b []byte) uint64 {
	switch len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(b))
	case 4:
		return uint64(binary.BigEndian.Uint32(b))
	case 8:
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

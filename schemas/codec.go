package schemas

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"

	"github.com/vmihailenco/msgpack/v5"
)

// Limits of encoded messages, in bytes.
const (
	MaxEventBytes         = 64 << 10
	MaxWorkBytes          = 16 << 10
	MaxLedgerBytes        = MaxEventBytes + MaxWorkBytes + 4<<10
	MaxControlBytes       = 1 << 10
	MaxTurnRequestBytes   = 8 << 10
	MaxTurnReplyBytes     = MaxEventBytes + 16<<10
	MaxAdvertisementBytes = 64 << 10
	MaxNodeReplyBytes     = 1 << 20
)

// message is what every message can do; *T has it for each T that Encode and Decode take.
type message[T any] interface {
	*T
	stamp()     // sets what is the same in all of its kind
	limit() int // of its bytes
	Validate() error
}

func (*Request) limit() int       { return MaxRequestBytes }
func (*Started) limit() int       { return MaxEventBytes }
func (*Tokens) limit() int        { return MaxEventBytes }
func (*Keepalive) limit() int     { return MaxEventBytes }
func (*Final) limit() int         { return MaxEventBytes }
func (*WorkRecord) limit() int    { return MaxWorkBytes }
func (*LedgerRecord) limit() int  { return MaxLedgerBytes }
func (*Control) limit() int       { return MaxControlBytes }
func (*TurnRequest) limit() int   { return MaxTurnRequestBytes }
func (*TurnReply) limit() int     { return MaxTurnReplyBytes }
func (*Advertisement) limit() int { return MaxAdvertisementBytes }
func (*NodeReply) limit() int     { return MaxNodeReplyBytes }

// Encode validates a message and writes it. Equal messages have equal bytes. V, and Kind of an event, are
// set in what is written; m itself stays as it is. The error is a *FieldError or a *TooLargeError.
func Encode[T any, M message[T]](m *T) ([]byte, error) {
	c := *m
	M(&c).stamp()
	if err := M(&c).Validate(); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(&buf)
	enc.UseCompactInts(true)
	if err := enc.Encode(&c); err != nil {
		return nil, fmt.Errorf("encode %s: %w", messageName[T](), err)
	}
	if limit := M(&c).limit(); buf.Len() > limit {
		return nil, &TooLargeError{Message: messageName[T](), Bytes: buf.Len(), Limit: limit}
	}
	return buf.Bytes(), nil
}

// Decode reads a message from bytes that anyone may have written: Decode[Request](data). The message holds
// no reference to data. The error is a *DecodeError.
func Decode[T any, M message[T]](data []byte) (*T, error) {
	limit := M(new(T)).limit()
	if err := guarded(messageName[T](), data, limit); err != nil {
		return nil, err
	}
	return decodeGuarded[T, M](data)
}

// guarded checks all that does not depend on the fields of a message.
func guarded(name string, data []byte, limit int) error {
	if len(data) > limit {
		return &DecodeError{name, RejectTooLarge, &TooLargeError{Message: name, Bytes: len(data), Limit: limit}}
	}
	if reason := Guard(data); reason != "" {
		return &DecodeError{name, reason, nil}
	}
	if root, _ := readHead(data, 0); root.kind != headMap {
		return &DecodeError{name, RejectBadType, fieldError("message", root.kind, "%s", shapeObject)}
	}
	v, found := lookup(data, "v")
	switch {
	case found && v.kind == headUint && v.n != ProtocolVersion:
		return &DecodeError{name, RejectVersion, &VersionError{Got: v.n, Want: ProtocolVersion}}
	case found && v.kind == headNegative:
		return &DecodeError{name, RejectInvalid, fieldError("v", int64(v.n), "%d", ProtocolVersion)}
	}
	return nil
}

func decodeGuarded[T any, M message[T]](data []byte) (*T, error) {
	fail := func(reason RejectReason, err error) (*T, error) {
		return nil, &DecodeError{messageName[T](), reason, err}
	}
	if _, bad := shapeFor[T]().check(data, 0); bad != nil {
		return fail(bad.reason, bad.field)
	}
	m := new(T)
	if err := msgpack.Unmarshal(data, m); err != nil {
		return fail(invalid(err, RejectBadType), err)
	}
	if err := M(m).Validate(); err != nil {
		return fail(invalid(err, RejectInvalid), err)
	}
	return m, nil
}

// invalid is the reason for a field that is not valid, and another one for any other error.
func invalid(err error, other RejectReason) RejectReason {
	var field *FieldError
	switch {
	case !errors.As(err, &field):
		return other
	case field.Unsupported:
		return RejectUnsupported
	}
	return RejectInvalid
}

// DecodeEvent reads an event of whatever kind. The error is a *DecodeError.
func DecodeEvent(data []byte) (Event, error) {
	const name = "Event"
	if err := guarded(name, data, MaxEventBytes); err != nil {
		return nil, err
	}
	h, found := lookup(data, "kind")
	switch {
	case !found:
		return nil, &DecodeError{name, RejectInvalid, checkWord("kind", EventKind(""), EventKinds())}
	case h.kind != headString:
		return nil, &DecodeError{name, RejectBadType, fieldError("kind", h.kind, "%s", shapeString)}
	}
	switch kind := EventKind(data[h.next : h.next+int(h.n)]); kind {
	case KindStarted:
		return decodeEvent[Started](data)
	case KindToken:
		return decodeEvent[Tokens](data)
	case KindKeepalive:
		return decodeEvent[Keepalive](data)
	case KindFinal:
		return decodeEvent[Final](data)
	default:
		return nil, &DecodeError{name, RejectInvalid, checkWord("kind", kind, EventKinds())}
	}
}

// decodeEvent keeps a nil *T from becoming an Event that is not nil.
func decodeEvent[T any, M interface {
	message[T]
	Event
}](data []byte) (Event, error) {
	m, err := decodeGuarded[T, M](data)
	if err != nil {
		return nil, err
	}
	return M(m), nil
}

// DecodeTurnID reads only which turn a Request is about, of whatever version and however invalid the rest, so that
// its refusal can be told. The error is a *DecodeError.
func DecodeTurnID(data []byte) (TurnID, error) {
	const name = "turn id"
	if reason := Guard(data); reason != "" {
		return TurnID{}, &DecodeError{name, reason, nil}
	}
	root, _ := readHead(data, 0)
	if root.kind != headMap {
		return TurnID{}, &DecodeError{name, RejectBadType, fieldError("message", root.kind, "%s", shapeObject)}
	}
	if _, bad := shapeFor[turnFields]().check(data, 0); bad != nil {
		return TurnID{}, &DecodeError{name, bad.reason, bad.field}
	}
	var f turnFields
	if err := msgpack.Unmarshal(data, &f); err != nil {
		return TurnID{}, &DecodeError{name, invalid(err, RejectBadType), err}
	}
	return TurnID(f), nil
}

// turnFields are the fields of a message that make a TurnID.
type turnFields struct {
	Tenant  Tenant  `msgpack:"tenant"`
	Session Session `msgpack:"session"`
	Turn    Turn    `msgpack:"turn"`
}

func messageName[T any]() string { return reflect.TypeFor[T]().Name() }

func shownSize(b []byte) string { return fmt.Sprintf("%d bytes long", len(b)) }

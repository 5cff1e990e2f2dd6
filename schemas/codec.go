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
	MaxTurnRequestBytes   = 4 << 10
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
	m := new(T)
	fail := func(reason RejectReason, err error) (*T, error) {
		return nil, &DecodeError{Message: messageName[T](), Reason: reason, Err: err}
	}
	if limit := M(m).limit(); len(data) > limit {
		return fail(RejectTooLarge, &TooLargeError{Message: messageName[T](), Bytes: len(data), Limit: limit})
	}
	if err := msgpack.Unmarshal(data, m); err != nil {
		return fail(rejectReason(err, RejectBadType), err)
	}
	if err := M(m).Validate(); err != nil {
		return fail(rejectReason(err, RejectInvalid), err)
	}
	return m, nil
}

// rejectReason is the reason of a field that is not valid, else another.
func rejectReason(err error, other RejectReason) RejectReason {
	var field *FieldError
	switch {
	case !errors.As(err, &field):
		return other
	case field.Unsupported:
		return RejectUnsupported
	}
	return RejectInvalid
}

func messageName[T any]() string { return reflect.TypeFor[T]().Name() }

func shownSize(b []byte) string { return fmt.Sprintf("%d bytes long", len(b)) }

// DecodeEvent reads an event of whatever kind. The error is a *DecodeError.
func DecodeEvent(data []byte) (Event, error) {
	var head struct {
		Kind EventKind `msgpack:"kind"`
	}
	if err := msgpack.Unmarshal(data, &head); err != nil {
		return nil, &DecodeError{Message: "Event", Reason: RejectBadType, Err: err}
	}
	switch head.Kind {
	case KindStarted:
		return decodeEvent[Started](data)
	case KindToken:
		return decodeEvent[Tokens](data)
	case KindKeepalive:
		return decodeEvent[Keepalive](data)
	case KindFinal:
		return decodeEvent[Final](data)
	}
	return nil, &DecodeError{Message: "Event", Reason: RejectInvalid, Err: checkWord("kind", head.Kind, EventKinds())}
}

// decodeEvent keeps a nil *T from becoming an Event that is not nil.
func decodeEvent[T any, M interface {
	message[T]
	Event
}](data []byte) (Event, error) {
	m, err := Decode[T, M](data)
	if err != nil {
		return nil, err
	}
	return M(m), nil
}

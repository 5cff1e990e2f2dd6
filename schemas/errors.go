package schemas

import (
	"fmt"
	"strconv"
)

// FieldError says which field of a message, or which name, is not valid.
type FieldError struct {
	Field string // its path in snake_case, such as "sampling.top_p" or "token_ids[3]"
	Value string // as it was given, shortened
	Limit string // what holds for a valid value
	// Unsupported says that the field is known and reserved, but that this version does not serve it.
	Unsupported bool
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s is %s; it must be %s", e.Field, e.Value, e.Limit)
}

func fieldError(field string, value any, limit string, args ...any) *FieldError {
	return &FieldError{Field: field, Value: fmt.Sprint(value), Limit: fmt.Sprintf(limit, args...)}
}

// RejectReason is why a payload was refused. The set is closed, so that it can be the label of a metric.
type RejectReason string

// The reject reasons. All but the last four are the guard's.
const (
	RejectTooLarge     RejectReason = "too-large"         // more bytes than the message may have
	RejectTruncated    RejectReason = "truncated"         // a length is more than the bytes that remain; also an empty payload
	RejectTrailing     RejectReason = "trailing-bytes"    // bytes after the value
	RejectTooDeep      RejectReason = "too-deep"          // more than MaxDepth containers within each other
	RejectTooManyNodes RejectReason = "too-many-nodes"    // more than MaxNodes keys and values
	RejectTooManyKeys  RejectReason = "too-many-keys"     // a map with more than MaxKeys keys
	RejectExtension    RejectReason = "extension"         // a msgpack extension type
	RejectBadCode      RejectReason = "bad-code"          // 0xc1, which msgpack never uses
	RejectKeyType      RejectReason = "key-type"          // a map key that is not a string
	RejectDuplicateKey RejectReason = "duplicate-key"     // a key twice in a map
	RejectVersion      RejectReason = "version"           // written for another version of the protocol
	RejectBadType      RejectReason = "bad-type"          // a field of another type, or no map at all
	RejectInvalid      RejectReason = "invalid-field"     // a field that is missing or out of its range
	RejectUnsupported  RejectReason = "unsupported-field" // a field that this version does not serve
)

// RejectReasons lists every reject reason.
func RejectReasons() []RejectReason {
	return []RejectReason{RejectTooLarge, RejectTruncated, RejectTrailing, RejectTooDeep, RejectTooManyNodes, RejectTooManyKeys,
		RejectExtension, RejectBadCode, RejectKeyType, RejectDuplicateKey, RejectVersion, RejectBadType, RejectInvalid, RejectUnsupported}
}

// DecodeError is why a payload is not a message.
type DecodeError struct {
	Message string       // the message it should have been, such as "Request"
	Reason  RejectReason // from the closed set
	Err     error        // a *FieldError, a *VersionError or a *TooLargeError, where there is one
}

func (e *DecodeError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("not a %s: %s", e.Message, e.Reason)
	}
	return fmt.Sprintf("not a valid %s (%s): %v", e.Message, e.Reason, e.Err)
}

func (e *DecodeError) Unwrap() error { return e.Err }

// TooLargeError says that a payload is larger than its message may be.
type TooLargeError struct {
	Message string
	Bytes   int
	Limit   int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s is %d bytes; at most %d are allowed: send less", e.Message, e.Bytes, e.Limit)
}

// VersionError says that a message was written for another version of the protocol.
type VersionError struct {
	Got  uint64
	Want int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("v is %d; this program speaks version %d: update the older side", e.Got, e.Want)
}

// shownBytes is how much of a value an error repeats.
const shownBytes = 40

// shown is a string from outside, quoted and shortened for an error.
func shown(s string) string {
	if len(s) <= shownBytes {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("%s… (%d bytes)", strconv.Quote(s[:shownBytes]), len(s))
}

package schemas

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// maxUnixMS is the end of the year 9999.
const maxUnixMS = 253402300799999

// Hash is the SHA-256 of a request's payload. The zero value is none. JSON shows it in hexadecimal.
type Hash [sha256.Size]byte

// PayloadHash is the hash of a request as it was published, byte by byte.
func PayloadHash(payload []byte) Hash { return sha256.Sum256(payload) }

// IsZero says whether it is none.
func (h Hash) IsZero() bool { return h == Hash{} }

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText is how JSON writes a hash.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText is how JSON reads a hash. The error is a *FieldError.
func (h *Hash) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(h) {
		return fieldError("payload_hash", shown(string(text)), "%d hexadecimal digits", 2*len(h))
	}
	copy(h[:], b)
	return nil
}

// EncodeMsgpack writes the hash as bytes.
func (h Hash) EncodeMsgpack(e *msgpack.Encoder) error { return e.EncodeBytes(h[:]) }

// DecodeMsgpack reads bytes. The error is a *FieldError.
func (h *Hash) DecodeMsgpack(d *msgpack.Decoder) error {
	b, err := d.DecodeBytes()
	if err != nil {
		return err
	}
	if len(b) != len(h) {
		return fieldError("payload_hash", fmt.Sprintf("%d bytes long", len(b)), "%d bytes long", len(h))
	}
	copy(h[:], b)
	return nil
}

// LedgerRecord is the value of a turn in the ledger; no value is the turn's absence. Exactly one of Running and Done is set.
type LedgerRecord struct {
	Versioned
	Running *RunningRecord `msgpack:"running,omitempty" json:"running,omitempty"`
	Done    *DoneRecord    `msgpack:"done,omitempty" json:"done,omitempty"`
}

// RunningRecord is a claimed turn.
type RunningRecord struct {
	Node        Node   `msgpack:"node" json:"node"`
	Boot        Boot   `msgpack:"boot" json:"boot"`
	Attempt     int    `msgpack:"attempt" json:"attempt"`
	ReqSeq      uint64 `msgpack:"req_seq" json:"req_seq"` // stream sequence of the request's copy that holds the claim
	Cancel      bool   `msgpack:"cancel" json:"cancel"`
	DeadlineMS  int64  `msgpack:"deadline_ms" json:"deadline_ms"` // Unix milliseconds
	PayloadHash Hash   `msgpack:"payload_hash" json:"payload_hash"`

	// What tells a turn that kills its workers: takeovers in a row before which no new token came, and the index
	// of the last token when the last of them was counted (-1: none).
	TakeoversWithoutToken int `msgpack:"takeovers_without_token" json:"takeovers_without_token"`
	LastIndex             int `msgpack:"last_index" json:"last_index"`
	// Waiting: its owner has not begun to evaluate, because the turn runs only where nothing else does; its loss is no sign
	// of poison.
	Waiting bool `msgpack:"waiting,omitempty" json:"waiting,omitempty"`

	// HandedOver: its owner drained and gave it up; the next takeover is no sign of poison.
	HandedOver bool `msgpack:"handed_over,omitempty" json:"handed_over,omitempty"`
}

// DoneRecord is a turn that has ended.
type DoneRecord struct {
	Reason      EndReason `msgpack:"reason" json:"reason"`
	Attempt     int       `msgpack:"attempt" json:"attempt"`                              // 0: never claimed
	Final       []byte    `msgpack:"final" json:"final"`                                  // the exact bytes to publish
	Work        []byte    `msgpack:"work,omitempty" json:"work,omitempty"`                // likewise; none for a turn that was never claimed
	PayloadHash Hash      `msgpack:"payload_hash,omitempty" json:"payload_hash,omitzero"` // none where it ended before its request was seen
}

// Validate says which field is not valid. The error is a *FieldError.
func (r *LedgerRecord) Validate() error {
	switch {
	case r.Running != nil && r.Done == nil:
		return r.Running.validate()
	case r.Running == nil && r.Done != nil:
		return r.Done.validate()
	case r.Running == nil:
		return fieldError("running", "missing, as is done", "exactly one of the two")
	}
	return fieldError("running", "there, as is done", "exactly one of the two")
}

func (r *RunningRecord) validate() error {
	if r.ReqSeq == 0 {
		return fieldError("running.req_seq", 0, "at least 1")
	}
	return first(
		r.Node.require(), r.Boot.require(),
		checkInt("running.attempt", int64(r.Attempt), 1, maxAttempt),
		checkInt("running.deadline_ms", r.DeadlineMS, 1, maxUnixMS),
		checkInt("running.takeovers_without_token", int64(r.TakeoversWithoutToken), 0, maxAttempt),
		checkInt("running.last_index", int64(r.LastIndex), -1, maxCount),
	)
}

func (r *DoneRecord) validate() error {
	return first(
		checkWord("done.reason", r.Reason, EndReasons()),
		checkInt("done.attempt", int64(r.Attempt), 0, maxAttempt),
		checkSize("done.final", len(r.Final), 1, MaxEventBytes),
		checkSize("done.work", len(r.Work), 0, MaxWorkBytes),
	)
}

// checkSize bounds bytes that another decoder reads.
func checkSize(field string, n, least, most int) error {
	if !(n >= least && n <= most) {
		return fieldError(field, fmt.Sprintf("%d bytes long", n), "%d to %d bytes long", least, most)
	}
	return nil
}

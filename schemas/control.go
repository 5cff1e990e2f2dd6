package schemas

import "slices"

// ControlKind is what a Control message tells. The set is closed.
type ControlKind string

// The control kinds.
const (
	ControlHeartbeat ControlKind = "heartbeat" // the client is there
	ControlPoke      ControlKind = "poke"      // the ledger has news: read it
)

// ControlKinds lists every control kind.
func ControlKinds() []ControlKind { return []ControlKind{ControlHeartbeat, ControlPoke} }

// Valid says whether it is one of the set.
func (k ControlKind) Valid() bool { return slices.Contains(ControlKinds(), k) }

// Control goes to the owner of a turn. It decides nothing: losing one costs time only.
type Control struct {
	Versioned
	Kind ControlKind `msgpack:"kind" json:"kind"`
}

// Validate says which field is not valid. The error is a *FieldError.
func (c *Control) Validate() error { return checkWord("kind", c.Kind, ControlKinds()) }

// TurnOp is what a TurnRequest asks for. The set is closed.
type TurnOp string

// The turn operations.
const (
	OpCancel TurnOp = "cancel"
	OpStatus TurnOp = "status"
)

// TurnOps lists every turn operation.
func TurnOps() []TurnOp { return []TurnOp{OpCancel, OpStatus} }

// Valid says whether it is one of the set.
func (o TurnOp) Valid() bool { return slices.Contains(TurnOps(), o) }

// TurnRequest asks any worker about a turn, or to cancel it.
type TurnRequest struct {
	Versioned
	Op      TurnOp  `msgpack:"op" json:"op"`
	Tenant  Tenant  `msgpack:"tenant" json:"tenant"` // that of the subject
	Session Session `msgpack:"session" json:"session"`
	Turn    Turn    `msgpack:"turn" json:"turn"`
}

// ID is the turn in question.
func (r *TurnRequest) ID() TurnID { return TurnID{r.Tenant, r.Session, r.Turn} }

// Agrees says whether it was asked where it belongs. The error is a *FieldError.
func (r *TurnRequest) Agrees(tenant Tenant) error {
	if r.Tenant != tenant {
		return fieldError("tenant", shown(r.Tenant.String()), "that of the subject, %s", tenant)
	}
	return nil
}

// Validate says which field is not valid. The error is a *FieldError.
func (r *TurnRequest) Validate() error {
	return first(checkWord("op", r.Op, TurnOps()), r.Tenant.require(), r.Session.require())
}

// TurnState is where a turn stands in the ledger. The set is closed.
type TurnState string

// The turn states.
const (
	StateAbsent  TurnState = "absent"  // waiting, unknown, or forgotten
	StateRunning TurnState = "running" // claimed
	StateDone    TurnState = "done"
)

// TurnStates lists every turn state.
func TurnStates() []TurnState { return []TurnState{StateAbsent, StateRunning, StateDone} }

// Valid says whether it is one of the set.
func (s TurnState) Valid() bool { return slices.Contains(TurnStates(), s) }

// CancelOutcome says which swap of the ledger won when a turn was to be cancelled. The set is closed.
type CancelOutcome string

// The cancel outcomes. The first two promise that the turn ends cancelled, if it is not over its deadline by then.
const (
	CancelEnded   CancelOutcome = "ended"    // it was not claimed yet, and is done{cancelled} now
	CancelMarked  CancelOutcome = "marked"   // it is running, and its owner will end it
	CancelTooLate CancelOutcome = "too-late" // it had ended before: Reason says how
)

// CancelOutcomes lists every cancel outcome.
func CancelOutcomes() []CancelOutcome {
	return []CancelOutcome{CancelEnded, CancelMarked, CancelTooLate}
}

// Valid says whether it is one of the set.
func (o CancelOutcome) Valid() bool { return slices.Contains(CancelOutcomes(), o) }

// TurnReply answers a TurnRequest with what the ledger holds after it.
type TurnReply struct {
	Versioned
	Op      TurnOp        `msgpack:"op" json:"op"`
	Outcome CancelOutcome `msgpack:"outcome,omitempty" json:"outcome,omitempty"` // of cancel
	State   TurnState     `msgpack:"state,omitempty" json:"state,omitempty"`     // absent only with Error

	// Of a running turn.
	Attempt    int   `msgpack:"attempt,omitempty" json:"attempt,omitempty"` // of a done one too
	Node       Node  `msgpack:"node,omitempty" json:"node,omitzero"`
	Cancel     bool  `msgpack:"cancel,omitempty" json:"cancel,omitempty"`           // it is marked
	DeadlineMS int64 `msgpack:"deadline_ms,omitempty" json:"deadline_ms,omitempty"` // Unix milliseconds

	// Of a done turn.
	Reason EndReason `msgpack:"reason,omitempty" json:"reason,omitempty"`
	Final  []byte    `msgpack:"final,omitempty" json:"final,omitempty"` // the ledger's bytes: Decode[Final] reads them

	// Error: nothing was done, for this reason.
	Error *ErrorDetail `msgpack:"error,omitempty" json:"error,omitempty"`
}

func (r *TurnReply) stamp() {
	r.Versioned.stamp()
	r.Error = r.Error.clipped()
}

// Validate says which field is not valid. The error is a *FieldError.
func (r *TurnReply) Validate() error {
	if err := checkOptional("op", r.Op, TurnOps()); err != nil {
		return err
	}
	if r.Error != nil {
		return r.Error.validate("error.")
	}
	if r.Op == OpCancel {
		if err := checkWord("outcome", r.Outcome, CancelOutcomes()); err != nil {
			return err
		}
	} else if r.Outcome != "" {
		return fieldError("outcome", shown(string(r.Outcome)), "absent where op is not %s", OpCancel)
	}
	if err := checkWord("state", r.State, TurnStates()); err != nil {
		return err
	}
	return r.validateState()
}

func (r *TurnReply) validateState() error {
	if (r.State == StateDone) != (r.Reason != "") {
		return fieldError("reason", shown(string(r.Reason)), "there where state is %s, and only there", StateDone)
	}
	if (r.State == StateDone) != (len(r.Final) > 0) {
		return fieldError("final", shownSize(r.Final), "there where state is %s, and only there", StateDone)
	}
	return first(
		checkOptional("reason", r.Reason, EndReasons()),
		checkSize("final", len(r.Final), 0, MaxEventBytes),
		checkInt("attempt", int64(r.Attempt), 0, maxAttempt),
		checkInt("deadline_ms", r.DeadlineMS, 0, maxUnixMS),
	)
}

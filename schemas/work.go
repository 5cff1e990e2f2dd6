package schemas

// WorkRecord is what accounting gets: one for each turn that was claimed, whatever came of it.
type WorkRecord struct {
	Versioned
	Tenant      Tenant    `msgpack:"tenant" json:"tenant"`
	Session     Session   `msgpack:"session" json:"session"`
	Turn        Turn      `msgpack:"turn" json:"turn"`
	Node        Node      `msgpack:"node" json:"node"`
	Model       Model     `msgpack:"model" json:"model"`
	Attempt     int       `msgpack:"attempt" json:"attempt"` // the one that ended it
	Reason      EndReason `msgpack:"reason" json:"reason"`
	Finish      Finish    `msgpack:"finish,omitempty" json:"finish,omitempty"`
	Cause       Cause     `msgpack:"cause,omitempty" json:"cause,omitempty"`
	Billable    bool      `msgpack:"billable" json:"billable"` // only completed turns are
	Usage       Usage     `msgpack:"usage" json:"usage"`
	Timings     Timings   `msgpack:"timings" json:"timings"`
	StartedMS   int64     `msgpack:"started_ms" json:"started_ms"`   // the claim of that attempt, Unix milliseconds
	FinishedMS  int64     `msgpack:"finished_ms" json:"finished_ms"` // Unix milliseconds
	PayloadHash Hash      `msgpack:"payload_hash" json:"payload_hash"`
}

// ID is the turn the work was done for.
func (w *WorkRecord) ID() TurnID { return TurnID{w.Tenant, w.Session, w.Turn} }

// Validate says which field is not valid. The error is a *FieldError.
func (w *WorkRecord) Validate() error {
	return first(
		w.Tenant.require(), w.Session.require(), w.Node.require(), w.Model.require(),
		checkAttempt(w.Attempt, 1),
		checkEnd(w.Reason, w.Finish, w.Cause),
		w.validateBillable(),
		w.Usage.validate(),
		w.Timings.validate(),
		checkInt("started_ms", w.StartedMS, 1, maxUnixMS),
		checkInt("finished_ms", w.FinishedMS, 1, maxUnixMS),
	)
}

func (w *WorkRecord) validateBillable() error {
	if want := w.Reason.Billable(); w.Billable != want {
		return fieldError("billable", w.Billable, "%t where reason is %s", want, w.Reason)
	}
	return nil
}

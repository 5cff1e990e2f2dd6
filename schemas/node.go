package schemas

import (
	"fmt"
	"slices"
)

// NodeVerb is what an operator asks of a node; it is the last word of the subject. The set is closed.
type NodeVerb string

// The node verbs. Their requests have no payload.
const (
	VerbStatus   NodeVerb = "status"
	VerbSessions NodeVerb = "sessions"
	VerbDrain    NodeVerb = "drain"
	VerbUndrain  NodeVerb = "undrain"
)

// NodeVerbs lists every node verb.
func NodeVerbs() []NodeVerb { return []NodeVerb{VerbStatus, VerbSessions, VerbDrain, VerbUndrain} }

// Valid says whether it is one of the set.
func (v NodeVerb) Valid() bool { return slices.Contains(NodeVerbs(), v) }

// MaxSessions bounds the sessions of a NodeReply.
const MaxSessions = 1024

// NodeReply answers an operator.
type NodeReply struct {
	Versioned
	Node          Node           `msgpack:"node" json:"node"`
	Verb          NodeVerb       `msgpack:"verb" json:"verb"`
	State         NodeState      `msgpack:"state" json:"state"`                                     // after the verb
	Advertisement *Advertisement `msgpack:"advertisement,omitempty" json:"advertisement,omitempty"` // of status
	Sessions      []SessionInfo  `msgpack:"sessions,omitempty" json:"sessions,omitempty"`           // of sessions
	Truncated     bool           `msgpack:"truncated,omitempty" json:"truncated,omitempty"`         // there are more sessions
	Error         *ErrorDetail   `msgpack:"error,omitempty" json:"error,omitempty"`                 // it was not done, for this reason
}

// SessionPhase is what a session is at. The set is closed.
type SessionPhase string

// The session phases.
const (
	PhaseWaiting SessionPhase = "waiting" // accepted, without a slot
	PhaseActive  SessionPhase = "active"  // prefilling or decoding
)

// SessionPhases lists every session phase.
func SessionPhases() []SessionPhase { return []SessionPhase{PhaseWaiting, PhaseActive} }

// Valid says whether it is one of the set.
func (p SessionPhase) Valid() bool { return slices.Contains(SessionPhases(), p) }

// SessionInfo is one live turn of a node.
type SessionInfo struct {
	Tenant    Tenant       `msgpack:"tenant" json:"tenant"`
	Session   Session      `msgpack:"session" json:"session"`
	Turn      Turn         `msgpack:"turn" json:"turn"`
	Attempt   int          `msgpack:"attempt" json:"attempt"`
	Phase     SessionPhase `msgpack:"phase" json:"phase"`
	LastIndex int          `msgpack:"last_index" json:"last_index"` // of its last token; -1 before the first
	AgeMS     int64        `msgpack:"age_ms" json:"age_ms"`         // since the claim
}

func (r *NodeReply) stamp() {
	r.Versioned.stamp()
	r.Error = r.Error.clipped()
	if r.Advertisement != nil {
		ad := *r.Advertisement
		ad.stamp()
		r.Advertisement = &ad
	}
}

// Validate says which field is not valid. The error is a *FieldError.
func (r *NodeReply) Validate() error {
	if err := first(
		r.Node.require(),
		checkWord("verb", r.Verb, NodeVerbs()),
		checkWord("state", r.State, NodeStates()),
		checkInt("sessions (their number)", int64(len(r.Sessions)), 0, MaxSessions),
	); err != nil {
		return err
	}
	for i := range r.Sessions {
		if err := r.Sessions[i].validate(fmt.Sprintf("sessions[%d].", i)); err != nil {
			return err
		}
	}
	if r.Advertisement != nil {
		if err := r.Advertisement.validate("advertisement."); err != nil {
			return err
		}
	}
	if r.Error != nil {
		return r.Error.validate("error.")
	}
	return nil
}

func (s *SessionInfo) validate(path string) error {
	return first(
		s.Tenant.require(), s.Session.require(),
		checkInt(path+"attempt", int64(s.Attempt), 1, maxAttempt),
		checkWord(path+"phase", s.Phase, SessionPhases()),
		checkInt(path+"last_index", int64(s.LastIndex), -1, maxCount),
		checkInt(path+"age_ms", s.AgeMS, 0, maxUnixMS),
	)
}

package scheduler

import (
	"fmt"
	"time"
)

// Reason is the closed set of answers to a submission. The values are wire strings.
type Reason string

// The reasons. The first two mean that the turn will run.
const (
	Admitted              Reason = "admitted"                // holds a place among the active sessions
	Queued                Reason = "queued"                  // holds a place in the bounded queue
	RejectedQueueFull     Reason = "rejected-queue-full"     // no place now; waiting helps
	RejectedKVBudget      Reason = "rejected-kv-budget"      // would not fit the KV budget even alone
	RejectedScratchBudget Reason = "rejected-scratch-budget" // one session's scratch exceeds the budget
	RejectedDuplicate     Reason = "rejected-duplicate"      // this very turn is live
	RejectedInvalid       Reason = "rejected-invalid"        // a field is out of its range
	RejectedContext       Reason = "rejected-context"        // prompt and new tokens exceed a slot's context
	RejectedStaleEpoch    Reason = "rejected-stale-epoch"    // the session's route has moved on
	RejectedDraining      Reason = "rejected-draining"       // the node is shutting down
	RejectedModel         Reason = "rejected-model"          // another model; never produced by this package
	RejectedDeadline      Reason = "rejected-deadline"       // the deadline has passed, or cannot be met at the speeds measured
)

// Reasons lists every reason, in the order of their declaration.
func Reasons() []Reason {
	return []Reason{
		Admitted, Queued, RejectedQueueFull, RejectedKVBudget, RejectedScratchBudget, RejectedDuplicate,
		RejectedInvalid, RejectedContext, RejectedStaleEpoch, RejectedDraining, RejectedModel, RejectedDeadline,
	}
}

// Decision is the answer to a submission.
type Decision struct {
	Key    TurnKey
	Reason Reason
	Detail Detail // of a rejection
	// RetryAfter is how long waiting is likely to help; zero where it does not.
	RetryAfter time.Duration
}

// Detail says what a rejection was about, for machines and for people.
type Detail struct {
	Field     string // the request's, as a path, or the budget's; "" where none applies
	Needed    int64  // in the field's unit
	Available int64
	Message   string // what happened, what the limit was, what to do
}

// Accepted says whether the turn will run: exactly one Ending follows.
func (d Decision) Accepted() bool { return d.Reason == Admitted || d.Reason == Queued }

// Running says whether the turn holds a place among the active sessions.
func (d Decision) Running() bool { return d.Reason == Admitted }

// Rejected says whether the turn was refused: nothing follows.
func (d Decision) Rejected() bool { return !d.Accepted() }

func (d Decision) String() string {
	if d.Detail.Message == "" {
		return fmt.Sprintf("turn %s %s", d.Key, d.Reason)
	}
	return fmt.Sprintf("turn %s %s: %s", d.Key, d.Reason, d.Detail.Message)
}

// EndReason is the closed set of ways in which a turn ends. All but Interrupted are wire strings.
type EndReason string

// The end reasons.
const (
	Completed   EndReason = "completed"   // Ending.Finish says how; the only billable one
	CacheMiss   EndReason = "cache-miss"  // Ending.Miss says why
	Cancelled   EndReason = "cancelled"   // by its client
	Failed      EndReason = "failed"      // Ending.Cause says why
	Interrupted EndReason = "interrupted" // by Interrupt, or its saved KV was lost; another attempt goes on with it, nothing has ended for the client
)

// Finish is how a completed turn finished. The values are wire strings.
type Finish string

// The finishes.
const (
	FinishStop       Finish = "stop"        // the model ended it
	FinishStopString Finish = "stop-string" // Request.Stop said so
	FinishLength     Finish = "length"      // MaxNewTokens reached
)

// FailCause is why a turn failed. The values are wire strings.
type FailCause string

// The fail causes.
const (
	FailDeadline      FailCause = "deadline"
	FailHeartbeatLost FailCause = "heartbeat-lost" // by Cancel only
	FailEngine        FailCause = "engine"         // Ending.Detail has the engine's words
	FailStalled       FailCause = "stalled"        // the engine did not answer within Config.StallAfter
	FailWorkerLost    FailCause = "worker-lost"    // by Cancel only
	FailSuperseded    FailCause = "superseded"     // the session's route has a higher epoch
)

// FailCauses lists every fail cause.
func FailCauses() []FailCause {
	return []FailCause{FailDeadline, FailHeartbeatLost, FailEngine, FailStalled, FailWorkerLost, FailSuperseded}
}

func (c FailCause) valid() bool {
	for _, known := range FailCauses() {
		if c == known {
			return true
		}
	}
	return false
}

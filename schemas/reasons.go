package schemas

import (
	"fmt"
	"slices"
	"strings"
)

// Reason is the answer to a submission. The set is closed.
type Reason string

// The reasons. The first two mean that the turn will run.
const (
	Admitted              Reason = "admitted"
	Queued                Reason = "queued"
	RejectedQueueFull     Reason = "rejected-queue-full"
	RejectedKVBudget      Reason = "rejected-kv-budget"
	RejectedScratchBudget Reason = "rejected-scratch-budget"
	RejectedDuplicate     Reason = "rejected-duplicate"
	RejectedInvalid       Reason = "rejected-invalid"
	RejectedContext       Reason = "rejected-context"
	RejectedStaleEpoch    Reason = "rejected-stale-epoch"
	RejectedDraining      Reason = "rejected-draining"
	RejectedModel         Reason = "rejected-model"
	RejectedDeadline      Reason = "rejected-deadline"
)

// Reasons lists every reason.
func Reasons() []Reason {
	return []Reason{Admitted, Queued, RejectedQueueFull, RejectedKVBudget, RejectedScratchBudget, RejectedDuplicate, RejectedInvalid,
		RejectedContext, RejectedStaleEpoch, RejectedDraining, RejectedModel, RejectedDeadline}
}

// Valid says whether it is one of the set.
func (r Reason) Valid() bool { return slices.Contains(Reasons(), r) }

// Rejected says whether it is a refusal.
func (r Reason) Rejected() bool { return r.Valid() && r != Admitted && r != Queued }

// EndReason is how a turn ended. The set is closed.
type EndReason string

// The end reasons.
const (
	Completed EndReason = "completed"  // with a Finish; the only billable one
	CacheMiss EndReason = "cache-miss" // it required hot KV, and there was none: ErrorDetail.Miss
	Cancelled EndReason = "cancelled"
	Failed    EndReason = "failed"   // with a Cause
	Rejected  EndReason = "rejected" // it never ran: ErrorDetail.Reason
)

// EndReasons lists every end reason.
func EndReasons() []EndReason { return []EndReason{Completed, CacheMiss, Cancelled, Failed, Rejected} }

// Valid says whether it is one of the set.
func (r EndReason) Valid() bool { return slices.Contains(EndReasons(), r) }

// Billable says whether the work of such a turn may be billed.
func (r EndReason) Billable() bool { return r == Completed }

// Finish is how a completed turn finished. The set is closed.
type Finish string

// The finishes.
const (
	FinishStop       Finish = "stop"        // the model ended it
	FinishStopString Finish = "stop-string" // a stop string of the request came up
	FinishLength     Finish = "length"      // max_new_tokens reached
)

// Finishes lists every finish.
func Finishes() []Finish { return []Finish{FinishStop, FinishStopString, FinishLength} }

// Valid says whether it is one of the set.
func (f Finish) Valid() bool { return slices.Contains(Finishes(), f) }

// Cause is why a turn failed. The set is closed.
type Cause string

// The causes.
const (
	CauseDeadline      Cause = "deadline"
	CauseHeartbeatLost Cause = "heartbeat-lost"
	CauseEngine        Cause = "engine"
	CauseStalled       Cause = "stalled"
	CauseWorkerLost    Cause = "worker-lost"
	CauseSuperseded    Cause = "superseded"
)

// Causes lists every cause.
func Causes() []Cause {
	return []Cause{CauseDeadline, CauseHeartbeatLost, CauseEngine, CauseStalled, CauseWorkerLost, CauseSuperseded}
}

// Valid says whether it is one of the set.
func (c Cause) Valid() bool { return slices.Contains(Causes(), c) }

// Miss is why a session's KV was not hot. The set is closed.
type Miss string

// The misses.
const (
	MissNever       Miss = "never"       // nothing was kept
	MissEvicted     Miss = "evicted"     // it made room for others
	MissEpoch       Miss = "epoch"       // it is older than the session's route
	MissRecipe      Miss = "recipe"      // it was built by another recipe
	MissInvalidated Miss = "invalidated" // it was dropped
)

// Misses lists every miss.
func Misses() []Miss {
	return []Miss{MissNever, MissEvicted, MissEpoch, MissRecipe, MissInvalidated}
}

// Valid says whether it is one of the set.
func (m Miss) Valid() bool { return slices.Contains(Misses(), m) }

// word is one of a closed set of wire strings.
type word interface {
	~string
	Valid() bool
}

// checkWord is the error of a field that must hold one of a closed set.
func checkWord[W word](field string, w W, all []W) error {
	if w.Valid() {
		return nil
	}
	if w == "" {
		return fieldError(field, "missing", "%s", oneOf(all))
	}
	return fieldError(field, shown(string(w)), "%s", oneOf(all))
}

// oneOf spells a closed set for an error.
func oneOf[W ~string](all []W) string {
	words := make([]string, len(all))
	for i, w := range all {
		words[i] = string(w)
	}
	return fmt.Sprintf("one of %s", strings.Join(words, ", "))
}

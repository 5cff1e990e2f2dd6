package bench

import (
	"context"
	"errors"
	"fmt"
)

// Target is a system that is measured. It is safe for concurrent use.
type Target interface {
	// Name is what reports call it.
	Name() string
	// Generate sends one request and reads its answer to the end, telling the listener what comes when it comes. It
	// returns soon after ctx ends, and leaves nothing running for it. An error is a *Failure where its reason is known.
	Generate(ctx context.Context, job *Job, l *Listener) (Answer, error)
}

// Answer is what a system says of a request that completed.
type Answer struct {
	Text         string
	PromptTokens int // as the system counted them
	CachedTokens int // of those, that it did not have to compute
	OutputTokens int
	Estimated    bool // the system did not count OutputTokens: they are the pieces of text that came
}

// Failure is a request that did not complete.
type Failure struct {
	Reason string // from a small set, to be counted by
	Detail string // what was said of this one
}

func (f *Failure) Error() string { return f.Reason + ": " + f.Detail }

// The reasons that do not depend on the system. Those of a mesh are its wire's, those of a peer in peer.go.
const (
	reasonTimeout     = "timeout"     // Options.Timeout
	reasonStalled     = "stalled"     // Options.Stall
	reasonInterrupted = "interrupted" // the whole run was
	reasonNoText      = "no-text"     // it ended well, and no character came: there is nothing to time
	reasonOther       = "other"
)

// What ends a request from within.
var (
	errTimeout = errors.New("the answer was not complete in time")
	errStalled = errors.New("no more text came")
)

// failureOf is why a request ended, with an error and with the cause for which its context ended, if it has.
func failureOf(err, cause error) *Failure {
	var known *Failure
	switch {
	case errors.Is(cause, errTimeout):
		return &Failure{reasonTimeout, cause.Error()}
	case errors.Is(cause, errStalled):
		return &Failure{reasonStalled, cause.Error()}
	case cause != nil:
		return &Failure{reasonInterrupted, cause.Error()}
	case errors.As(err, &known):
		return known
	default:
		return &Failure{reasonOther, fmt.Sprint(err)}
	}
}

package client

import (
	"fmt"

	"github.com/meshnet/node/schemas"
)

// TurnError is a turn that ended, and not as completed. Unwrap gives the *schemas.ErrorDetail where there is one.
type TurnError struct {
	ID    schemas.TurnID
	Final schemas.Final // Reason, Cause and Error are the wire's

	// Overdue is a turn that nobody cancelled but this client, because it had not ended a while after its deadline. Most
	// often no node serves its model.
	Overdue bool
}

func (e *TurnError) Error() string {
	text := fmt.Sprintf("turn %s ended %s", e.ID, e.Final.Reason)
	if e.Final.Cause != "" {
		text += fmt.Sprintf(" (%s)", e.Final.Cause)
	}
	if e.Overdue {
		text += ": it had not ended by its deadline; is there a node that serves its model?"
	}
	if e.Final.Error != nil {
		text += ": " + e.Final.Error.Error()
	}
	return text
}

func (e *TurnError) Unwrap() error {
	if e.Final.Error == nil {
		return nil
	}
	return e.Final.Error
}

// IncompleteError is a turn that ended, and of which tokens were lost for good: the mesh keeps them for a quarter of an hour, in memory.
type IncompleteError struct {
	ID     schemas.TurnID
	Tokens int // that came, from the first on
	Final  schemas.Final
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("incomplete: turn %s has %d tokens, and after token %d some are lost", e.ID, e.Final.Count, e.Tokens)
}

// QuotaError is a lane that takes no more requests of a tenant until some of those in it have ended. The request was not taken.
type QuotaError struct {
	Tenant schemas.Tenant
	Model  schemas.Model
	Lane   schemas.Lane
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("quota: tenant %s has as many requests as it may have in lane %s of model %s; let some end, or ask for retries",
		e.Tenant, e.Lane, e.Model)
}

// UnreachableError is a mesh that does not answer. What was submitted may run all the same: Attach finds out.
type UnreachableError struct {
	ID    schemas.TurnID
	Doing string // what was not answered
	Err   error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("unreachable: %s of turn %s: %v", e.Doing, e.ID, e.Err)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

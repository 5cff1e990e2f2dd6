package hotkv

import (
	"errors"
	"fmt"
)

// ErrClosed is returned by Put after Close.
var ErrClosed = errors.New("hot KV store is closed: dispose of the entry")

// TooLargeError refuses an entry that exceeds the whole budget by itself.
type TooLargeError struct {
	Key                Key
	Bytes, BudgetBytes int64
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("hot KV of session %q of tenant %q needs %d bytes, the budget is %d: raise the budget or do not keep it",
		e.Key.Session, e.Key.Tenant, e.Bytes, e.BudgetBytes)
}

// StaleEpochError refuses an entry that was built under an older route epoch than its session's fence.
type StaleEpochError struct {
	Key          Key
	Epoch, Fence uint64
}

func (e *StaleEpochError) Error() string {
	return fmt.Sprintf("hot KV of session %q of tenant %q has route epoch %d, the session is at %d: dispose of the entry",
		e.Key.Session, e.Key.Tenant, e.Epoch, e.Fence)
}

// InvalidEntryError refuses an entry that contradicts itself: a mistake of the caller.
type InvalidEntryError struct{ Field, Detail string }

func (e *InvalidEntryError) Error() string {
	return fmt.Sprintf("hot KV entry: %s: %s", e.Field, e.Detail)
}

func invalid(field, format string, args ...any) error {
	return &InvalidEntryError{Field: field, Detail: fmt.Sprintf(format, args...)}
}

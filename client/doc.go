// Package client asks a mesh for text: it submits turns, streams their tokens, goes on with a stream that broke off,
// cancels, and says which nodes there are.
//
// A turn is named by its tenant, session and number, and runs at most once whatever is retried, here or by its
// caller: submitting it again yields its outcome again. What the network loses on the way to a Stream is read again from the
// mesh, so that the text of a stream that ended without an error is the worker's to the last byte.
//
// Errors say with errors.As what they are: *schemas.FieldError a field that is not valid (nothing was sent),
// *schemas.TooLargeError, *QuotaError, *TurnError a turn that ended otherwise than completed, *IncompleteError, and
// *UnreachableError.
package client

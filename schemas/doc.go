// Package schemas is the wire: every message, subject, header and store name of the mesh, their limits,
// and how bytes become messages and messages bytes.
//
// Nothing that comes from outside is used before it passed here. Names are typed and can be made only by
// their Parse functions, so that a subject cannot be built from an unchecked string. Decode checks, in this
// order: the size; the msgpack structure (Guard), without allocating; the protocol version; the type of each
// field and that none is missing; and the values (Validate). What it refuses it refuses with a *DecodeError, whose
// Reason is from a closed set and which names the field where there is one.
//
// The wire format is msgpack maps with string keys. A field that the tables here mark as optional (omitempty)
// may be absent or nil; every other one must be there. Fields that are not known are ignored. Integers may
// have any msgpack width; a number that must be whole is never read from a float. Strings must be UTF-8.
//
// The package knows no network: it imports neither NATS nor anything else of this module.
package schemas

//go:generate go run ./internal/docgen . ../docs/schemas

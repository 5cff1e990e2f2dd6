// Package worker is the service that makes a model a node of the mesh: it pulls requests from JetStream, runs
// them on one scheduler, streams their tokens, and sees to it that every turn has exactly one outcome.
//
// What may happen to a turn is decided by package ledger alone; what may be on the wire is said by package
// schemas. This package holds every NATS word: streams, consumers, leases, acks. It never runs a turn that it has
// not claimed in the ledger, never acks a request whose turn is not done there, and never lets the
// goroutine that drives the engine wait for the network.
package worker

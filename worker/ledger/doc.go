// Package ledger holds the rules by which the workers of a mesh decide what happens to a turn.
//
// The ledger keeps one compare-and-swap register per turn: absent, then running, then done. It alone
// decides: deliveries, acks and liveness only say who should look at it next. The functions here are
// those decisions. They take what was read (a [Record], a [Message], the worker's own state) and say
// what to write and what to do; they never read a clock, never do I/O and keep no state, so that
// every interleaving of them can be explored (model_test.go does).
//
// What the caller owes the rules:
//
//   - Every write is a swap: Create where [Record.Rev] is 0, else Update expecting exactly that revision.
//   - After a conflict or an unclear answer the register is read again, and [Settle] (for arrivals and
//     cancels) or [AfterConflict] (for the owner of a running turn) says what the answer was.
//   - Arrivals of one turn are handled one at a time on a worker. A session counts as held from before
//     its claim is written until its last swap is settled.
//   - A request is acked only after the final and the work record of its done record were published,
//     or after a moved copy of it was acknowledged by the stream.
//   - A session whose lease is lost sends nothing more: no final, no ack, no nak.
package ledger

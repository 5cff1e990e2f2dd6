//go:build race

package ledger_test

// raceEnabled makes the exploration smaller: it has one goroutine, and the detector slows it tenfold.
const raceEnabled = true

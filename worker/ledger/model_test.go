package ledger_test

import (
	"os"
	"testing"

	"pgregory.net/rapid"
)

// largeModel is the environment variable that asks for the large scenarios too (minutes, some GB).
const largeModel = "MESHNET_LEDGER_MODEL"

type size uint8

const (
	small  size = iota // seconds under the race detector
	medium             // seconds without it
	large              // on demand
)

var scenarios = []struct {
	name    string
	size    size
	workers int
	faults  faults
}{
	{"crash, lease loss, cancel", small, 2, faults{crash: 1, lease: 1, cancel: 1, tokens: 1}},
	{"move, crash, lease loss", small, 2, faults{move: 1, crash: 1, lease: 1, tokens: 1}},
	{"unclear answer, lagging read, crash", small, 2, faults{doubt: 1, lag: 1, crash: 1, cancel: 1}},
	{"poison and drain", small, 2, faults{crash: 5, drain: 1, tokens: 1}},
	{"poison, cancel, unclear answer", medium, 2, faults{crash: 5, cancel: 1, doubt: 1}},
	{"infeasible, deadline, cancel", small, 2, faults{reject: 1, tick: 1, cancel: 1, crash: 1}},
	{"purge, crash, both kinds of duplicate", medium, 2, faults{purge: 1, tick: 2, crash: 1, dup: 1, otherDup: 1}},
	{"two crashes, two lease losses, cancel", medium, 2, faults{crash: 2, lease: 2, cancel: 1}},
	{"move, crash, both kinds of duplicate", medium, 2, faults{move: 1, crash: 1, dup: 1, otherDup: 1}},
	{"two moves, crash, lease loss", medium, 2, faults{move: 2, crash: 1, lease: 1}},
	{"two unclear answers, lagging read, lease loss", medium, 2, faults{doubt: 2, lag: 1, lease: 1, cancel: 1}},
	{"deadlines, cancel, duplicate, lease loss", medium, 2, faults{tick: 2, cancel: 1, dup: 1, lease: 1}},
	{"move, unclear answer, lease loss, drain", medium, 2, faults{move: 1, doubt: 1, lease: 1, drain: 1}},
	{"three workers: crash, lease loss, cancel", medium, 3, faults{crash: 1, lease: 1, cancel: 1}},
	{"move, lease losses, cancel, crash", large, 2, faults{move: 1, lease: 2, cancel: 1, crash: 1}},
	{"three workers: move, crash, lease loss, cancel", large, 3, faults{move: 1, crash: 1, lease: 1, cancel: 1}},
	{"move, unclear answer, crash, lease loss, cancel", large, 2, faults{move: 1, doubt: 1, crash: 1, lease: 1, cancel: 1}},
	{"unclear, lagging, crash, lease loss, drain, cancel", large, 2,
		faults{doubt: 1, lag: 1, crash: 1, lease: 1, drain: 1, cancel: 1}},
	{"duplicate, unclear answer, crash, lease loss, tokens", large, 2,
		faults{dup: 1, doubt: 1, crash: 1, lease: 1, tokens: 1}},
	{"poison, drain, move", large, 2, faults{crash: 4, drain: 1, move: 1, tokens: 1}},
}

// What holds in every world is in check_test.go; that every world has a way to its end, in explore_test.go.
func TestEveryTurnEndsOnceWhateverHappens(t *testing.T) {
	total := 0
	for _, s := range scenarios {
		if s.size == large && os.Getenv(largeModel) == "" || s.size == medium && (raceEnabled || testing.Short()) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			x := explore(realRules(), newWorld(s.workers, s.faults), 40_000_000)
			if x.bad != "" {
				t.Fatal(x)
			}
			if !x.full {
				t.Fatalf("more than %d states: not explored in full", x.states)
			}
			t.Logf("%d states", x.states)
			total += x.states
		})
	}
	t.Logf("%d states in all", total)
}

// A walk draws from bounds that no exhaustive search can reach; where it stops, a way to the end is looked for.
func TestEveryTurnEndsOnceOnRandomWalks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := func(name string, most uint8) uint8 { return rapid.Uint8Range(0, most).Draw(t, name) }
		w := newWorld(rapid.IntRange(2, maxWorkers).Draw(t, "workers"), faults{
			crash: budget("crash", 5), lease: budget("lease", 4), doubt: budget("doubt", 4),
			lag: budget("lag", 4), move: budget("move", 3), dup: budget("dup", 2),
			otherDup: budget("otherDup", 1), cancel: budget("cancel", 1), tick: budget("tick", 2),
			drain: budget("drain", 2), reject: budget("reject", 1), tokens: budget("tokens", 2),
			purge: budget("purge", 1),
		})
		var trace []string
		fail := func(bad string) { t.Fatal(exploration{bad: bad, trace: trace}) }
		for range rapid.IntRange(50, 200).Draw(t, "steps") {
			worlds, steps, bad := successors(w)
			if len(worlds) == 0 {
				break
			}
			i := rapid.IntRange(0, len(worlds)-1).Draw(t, "step")
			if steps[i].fault && rapid.IntRange(0, 3).Draw(t, "rare") > 0 {
				continue // so that faults are left for later
			}
			w, trace = worlds[i], append(trace, steps[i].String())
			if bad[i] != "" {
				fail(bad[i])
			}
		}
		if bad := findEnd(w); bad != "" {
			fail(bad)
		}
	})
}

package ledger_test

import (
	"fmt"

	"github.com/meshnet/node/worker/ledger"
)

// A worker claims a turn and dies; the request is delivered to another one, which takes over and
// ends it. Whatever copy of the request turns up later only repeats the outcome.
func Example() {
	register := ledger.Record{}
	swap := func(rec ledger.Record) {
		if rec.Rev == register.Rev {
			rec.Rev++
			register = rec
		}
	}
	msg := ledger.Message{Seq: 7, PayloadHash: hash, Deadline: deadline, Deliveries: 1, LastIndex: -1}

	d := ledger.Arrive(register, msg, ledger.Self{Node: "a", Boot: "a1"}, epoch)
	swap(d.Write)
	fmt.Println(d.Action, register.Attempt)

	msg.Deliveries, msg.LastIndex = 2, 4 // node a streamed five tokens
	d = ledger.Arrive(register, msg, ledger.Self{Node: "b", Boot: "b1"}, epoch)
	swap(d.Write)
	fmt.Println(d.Action, register.Attempt, "after token", register.LastIndex)

	d = ledger.End(register, ledger.Outcome{Reason: "completed"})
	swap(d.Write.WithOutcome([]byte("final"), []byte("work record")))
	fmt.Println(d.Action, d.Outcome.Node, register.Reason)

	d = ledger.Arrive(register, msg, ledger.Self{Node: "a", Boot: "a2"}, epoch)
	fmt.Printf("%v %s\n", d.Action, d.Write.Final)
	// Output:
	// claim 1
	// takeover 2 after token 4
	// finish b completed
	// republish final
}

// Package scheduler admits generation requests within a node's budgets and runs the admitted ones
// together, one batch a tick, through one Engine.
//
// It knows no network, no files and no C: requests come in by Submit, tokens and endings go out by Tick's
// Report and TakeResults, the model is an Engine, and time is a clock it is given. It starts no
// goroutine. What it guarantees:
//
//   - Admission is bounded: what cannot fit is refused with a Reason and the numbers behind it, before
//     anything is tokenised; what fits but not yet waits in a bounded queue.
//   - A session is activated only when its whole generation fits beside the others', and is then never evicted for capacity.
//   - Tenants share by deficit round robin over tokens, with weights. One that holds no place gets the next, where need be by
//     suspending another's session: that is saved, queued again and goes on with the same tokens.
//   - Decode comes first in every tick and prefill is bounded, so that no prompt stalls running sessions.
//   - Every accepted turn ends exactly once, with one Ending, whatever the engine does.
package scheduler

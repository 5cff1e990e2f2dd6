// Package bench measures a mesh under load through its own client, and beside it, in turns, a server with OpenAI's
// completions API. Both get the same prompts, lengths, seeds and arrival times, and both are timed by the same code at
// the same place: when their text reaches the caller. docs/bench.md defines every number.
//
// It starts no server and changes nothing in a mesh but the turns it submits, which it cancels when it is interrupted.
package bench

// Package sim runs a mesh of up to thousands of workers on a virtual clock, without a model, a network or a goroutine, to see how the
// design behaves at sizes that nobody has at hand.
//
// What decides is the real code: every worker has a scheduler.Scheduler (admission, queue, fairness between tenants, suspension,
// deadlines, and with it hotkv's store of idle sessions), and every arrival, takeover and end of a turn is decided by worker/ledger.
//
// What is modelled:
//
//   - The engine: its calls take what Speeds says, and yield tokens without a meaning.
//   - The bus: the stream of requests with its quota by tenant and lane, each lane in order and what comes back first, fetches that are
//     served in turns and expire, leases that run out, naks with delay. It takes any number of messages: they are counted, and each way takes
//     a fixed time. See bus.go.
//   - The worker around the scheduler: places, the pull loop, the own lane, looks for guests, moves, seats. That code is one with its
//     I/O, so node.go follows its rules and not its lines.
//   - The registry: a node that died is taken for alive for capability.Silence, by everyone alike.
//   - Clients: they submit, try again where a quota is used up, and go to the lane of the node that kept their session.
//
// Not modelled: a slow, partitioned or restarted server, lost events, clients that cancel or fail, prompts that begin alike, adapters,
// KV on disk, the time that a worker's own code takes beside the engine's.
package sim

package sim

import "time"

// Kind is what messages on the bus are for.
type Kind int

// The kinds of messages.
const (
	Requests Kind = iota // published into a lane, and delivered from it
	Fetches              // asked for and expired
	Ledger               // reads and swaps
	Events               // of turns: published, confirmed, and delivered to one reader
	Leases               // beats, acks and naks
	Guests               // looks past the lane's head: questions, deliveries and naks
	Records              // of work
	kinds
)

// String is the kind's name in a report.
func (k Kind) String() string {
	return [kinds]string{"requests", "fetches", "ledger", "events", "leases", "guests", "records"}[k]
}

// How many messages the server takes and sends for what is done.
const (
	msgPublish  = 2 // a message into a stream, and the confirmation
	msgDelivery = 1
	msgFetch    = 1
	msgExpiry   = 1
	msgRead     = 2 // of the ledger
	msgSwap     = 2
	msgEvent    = 2 // published, and delivered to its reader
	msgConfirm  = 1 // of a round of events: the last one asks for it
	msgAsk      = 2 // a question to the server, and its answer
	msgAck      = 2 // answered
	msgNak      = 1
	msgBeat     = msgAsk + msgRead
)

// traffic counts what goes over the bus.
type traffic struct {
	by      [kinds]int64
	seconds []int64 // of all kinds, by second
	writes  int64   // into stores that are kept in files
	swaps   int64   // of those, into the ledger
}

func (t *traffic) count(now time.Duration, kind Kind, messages int) {
	t.by[kind] += int64(messages)
	second := int(now / time.Second)
	for len(t.seconds) <= second {
		t.seconds = append(t.seconds, 0)
	}
	t.seconds[second] += int64(messages)
}

func (t *traffic) total() (n int64) {
	for _, of := range t.by {
		n += of
	}
	return n
}

// peak is the most in one second.
func (t *traffic) peak() (most int64) {
	for _, n := range t.seconds {
		most = max(most, n)
	}
	return most
}

// Kinds are all of them.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

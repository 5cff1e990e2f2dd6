package worker

import "github.com/nats-io/nats.go/jetstream"

// WrapLedger puts something between the service and its ledger. Nobody may be using the ledger meanwhile.
func (s *Service) WrapLedger(wrap func(jetstream.KeyValue) jetstream.KeyValue) {
	s.ledger.kv = wrap(s.ledger.kv)
}

// Package capability is what nodes tell of themselves, and what is known of them: Snapshot puts a node's facts and
// load into an Advertisement, an Advertiser publishes it, and a Registry keeps what all nodes publish.
//
// It decides nothing. Who is alive matters for routing and rescue only; who may run a turn is the ledger's affair.
package capability

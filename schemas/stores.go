package schemas

import "strings"

// RequestStream is the name of the stream that keeps requests until their turns are done.
func (p Prefix) RequestStream() string { return p.store("MESH_REQ") }

// EventStream is the name of the stream that keeps events for those who read later.
func (p Prefix) EventStream() string { return p.store("MESH_TOK") }

// WorkStream is the name of the stream that keeps work records.
func (p Prefix) WorkStream() string { return p.store("MESH_WORK") }

// TurnBucket is the name of the key-value bucket that is the ledger. Its keys are TurnID.Key.
func (p Prefix) TurnBucket() string { return p.store("MESH_TURNS") }

// NodeBucket is the name of the key-value bucket of live nodes. Its keys are node ids.
func (p Prefix) NodeBucket() string { return p.store("MESH_NODES") }

// store names a store so that no two prefixes share one: a prefix has no underscore of its own.
func (p Prefix) store(name string) string {
	if p.s == "" {
		return name
	}
	return name + "_" + strings.ReplaceAll(p.s, ".", "_")
}

// SharedConsumer is the name of the consumer of Shared(model).
func SharedConsumer(model Model) string { return "req-" + model.token() }

// OwnConsumer is the name of the consumer of Own(node).
func OwnConsumer(node Node) string { return "node-" + node.token() }

// ParseOwnConsumer says whose consumer it is; false for the name of any other consumer.
func ParseOwnConsumer(name string) (Node, bool) {
	rest, ok := strings.CutPrefix(name, "node-")
	if !ok {
		return Node{}, false
	}
	node, err := ParseNode(rest)
	return node, err == nil
}

package schemas

import (
	"strings"
)

// DefaultPrefix begins every subject unless another one is configured.
const DefaultPrefix = "mesh.v1"

const (
	maxPrefixBytes  = 128
	maxSubjectBytes = 1024 // of a subject that is parsed; none that is built comes near it
)

// Prefix begins every subject of a mesh, and is part of its store names where it is not the default. The zero value is
// DefaultPrefix. It is comparable.
type Prefix struct{ s string }

// ParsePrefix checks a prefix: words of A-Z a-z 0-9 - with dots between them. (No underscore: it stands for
// the dot in store names.) The error is a *FieldError.
func ParsePrefix(s string) (Prefix, error) {
	if len(s) > maxPrefixBytes {
		return Prefix{}, fieldError("prefix", shown(s), "at most %d bytes long", maxPrefixBytes)
	}
	for word := range strings.SplitSeq(s, ".") {
		if !validName(word) || strings.Contains(word, "_") {
			return Prefix{}, fieldError("prefix", shown(s), "words of A-Z a-z 0-9 - with dots between them, such as %s", DefaultPrefix)
		}
	}
	if s == DefaultPrefix {
		return Prefix{}, nil
	}
	return Prefix{s}, nil
}

func (p Prefix) String() string {
	if p.s == "" {
		return DefaultPrefix
	}
	return p.s
}

// The first word after the prefix.
const (
	areaRequest    = "req"
	areaTokens     = "tok"
	areaControl    = "ctl"
	areaTurn       = "turn"
	areaCapability = "cap"
	areaNode       = "node"
	areaWork       = "work"
)

func (p Prefix) join(area string, tokens ...string) string {
	return p.String() + "." + area + "." + strings.Join(tokens, ".")
}

// Request is where a client publishes a Request, and a worker moves one to.
func (p Prefix) Request(model Model, lane Lane, tenant Tenant) string {
	return p.join(areaRequest, model.token(), lane.String(), tenant.token())
}

// Tokens is where a worker publishes a turn's events.
func (p Prefix) Tokens(id TurnID) string {
	return p.join(areaTokens, id.Tenant.token(), id.Session.token(), id.Turn.String())
}

// Control is where the owner of a turn listens for Control messages.
func (p Prefix) Control(id TurnID) string {
	return p.join(areaControl, id.Tenant.token(), id.Session.token(), id.Turn.String())
}

// Turn is where a TurnRequest of a tenant is asked.
func (p Prefix) Turn(tenant Tenant) string { return p.join(areaTurn, tenant.token()) }

// Capability is where a node publishes its Advertisement.
func (p Prefix) Capability(node Node) string { return p.join(areaCapability, node.token()) }

// Node is where an operator asks a node. The answer is a NodeReply.
func (p Prefix) Node(node Node, verb NodeVerb) string {
	if !verb.Valid() {
		panic("schemas: a subject needs a known node verb, and this one is " + shown(string(verb)))
	}
	return p.join(areaNode, node.token(), string(verb))
}

// Work is where the work record of a turn is published by the node that ended it.
func (p Prefix) Work(id TurnID, node Node) string {
	return p.join(areaWork, id.Tenant.token(), node.token(), id.Session.token(), id.Turn.String())
}

// The filters below hold wildcards: they are for subscriptions, consumers and streams.

// Shared matches the requests in the lane that every worker of a model reads.
func (p Prefix) Shared(model Model) string { return p.join(areaRequest, model.token(), anyLane, "*") }

// Own matches the requests in a node's own lane, of whatever model.
func (p Prefix) Own(node Node) string { return p.join(areaRequest, "*", node.token(), "*") }

// Requests matches every request.
func (p Prefix) Requests() string { return p.join(areaRequest, "*", "*", "*") }

// Events matches every event of every turn.
func (p Prefix) Events() string { return p.join(areaTokens, "*", "*", "*") }

// Turns matches the turn requests of every tenant.
func (p Prefix) Turns() string { return p.join(areaTurn, "*") }

// Capabilities matches every advertisement.
func (p Prefix) Capabilities() string { return p.join(areaCapability, "*") }

// WorkOf matches the work record of a turn, whichever node ended it.
func (p Prefix) WorkOf(id TurnID) string {
	return p.join(areaWork, id.Tenant.token(), "*", id.Session.token(), id.Turn.String())
}

// WorkRecords matches every work record.
func (p Prefix) WorkRecords() string { return p.join(areaWork, "*", "*", "*", "*") }

// RequestSubject is what the subject of a Request says.
type RequestSubject struct {
	Model  Model
	Lane   Lane
	Tenant Tenant
}

// ParseRequest reads a subject made by Request. The error is a *FieldError.
func (p Prefix) ParseRequest(subject string) (RequestSubject, error) {
	parts, err := p.split(subject, areaRequest, 3, "<model>.<lane>.<tenant>")
	if err != nil {
		return RequestSubject{}, err
	}
	var s RequestSubject
	if s.Model, err = ParseModel(parts[0]); err != nil {
		return RequestSubject{}, err
	}
	if s.Lane, err = ParseLane(parts[1]); err != nil {
		return RequestSubject{}, err
	}
	if s.Tenant, err = ParseTenant(parts[2]); err != nil {
		return RequestSubject{}, err
	}
	return s, nil
}

// ParseTokens reads a subject made by Tokens. The error is a *FieldError.
func (p Prefix) ParseTokens(subject string) (TurnID, error) { return p.parseTurn(subject, areaTokens) }

// ParseControl reads a subject made by Control. The error is a *FieldError.
func (p Prefix) ParseControl(subject string) (TurnID, error) {
	return p.parseTurn(subject, areaControl)
}

func (p Prefix) parseTurn(subject, area string) (TurnID, error) {
	parts, err := p.split(subject, area, 3, "<tenant>.<session>.<turn>")
	if err != nil {
		return TurnID{}, err
	}
	return parseTurnID(parts[0], parts[1], parts[2])
}

// ParseTurn reads a subject made by Turn. The error is a *FieldError.
func (p Prefix) ParseTurn(subject string) (Tenant, error) {
	parts, err := p.split(subject, areaTurn, 1, "<tenant>")
	if err != nil {
		return Tenant{}, err
	}
	return ParseTenant(parts[0])
}

// ParseCapability reads a subject made by Capability. The error is a *FieldError.
func (p Prefix) ParseCapability(subject string) (Node, error) {
	parts, err := p.split(subject, areaCapability, 1, "<node>")
	if err != nil {
		return Node{}, err
	}
	return ParseNode(parts[0])
}

// ParseNode reads a subject made by Node. The error is a *FieldError.
func (p Prefix) ParseNode(subject string) (Node, NodeVerb, error) {
	parts, err := p.split(subject, areaNode, 2, "<node>.<verb>")
	if err != nil {
		return Node{}, "", err
	}
	node, err := ParseNode(parts[0])
	if err != nil {
		return Node{}, "", err
	}
	verb := NodeVerb(parts[1])
	if !verb.Valid() {
		return Node{}, "", fieldError("verb", shown(parts[1]), "%s", oneOf(NodeVerbs()))
	}
	return node, verb, nil
}

// ParseWork reads a subject made by Work. The error is a *FieldError.
func (p Prefix) ParseWork(subject string) (TurnID, Node, error) {
	parts, err := p.split(subject, areaWork, 4, "<tenant>.<node>.<session>.<turn>")
	if err != nil {
		return TurnID{}, Node{}, err
	}
	node, err := ParseNode(parts[1])
	if err != nil {
		return TurnID{}, Node{}, err
	}
	id, err := parseTurnID(parts[0], parts[2], parts[3])
	if err != nil {
		return TurnID{}, Node{}, err
	}
	return id, node, nil
}

// split cuts a subject of one area into its n tokens.
func (p Prefix) split(subject, area string, n int, form string) ([]string, error) {
	rest, ok := strings.CutPrefix(subject, p.String()+"."+area+".")
	if ok && len(subject) <= maxSubjectBytes {
		if parts := strings.SplitN(rest, ".", n+1); len(parts) == n {
			return parts, nil
		}
	}
	return nil, fieldError("subject", shown(subject), "%s.%s.%s", p, area, form)
}

package schemas

import (
	"strconv"
	"strings"

	"github.com/vmihailenco/msgpack/v5"
)

// MaxNameBytes bounds every name.
const MaxNameBytes = 64

const nameLimit = "1 to 64 of the characters A-Z a-z 0-9 _ -"

// Name is a checked name: 1 to 64 of A-Z a-z 0-9 _ -. It is made only by the Parse function of its kind (and by
// decoding, which calls it), so that one that is not zero is always safe in a subject. The zero value
// is no name. Names are comparable.
type Name[K nameKind] struct{ s string }

// Tenant is who a request belongs to.
type Tenant = Name[tenantKind]

// Session is a conversation, named by its client, unique within its tenant.
type Session = Name[sessionKind]

// Node is a worker's id. "any" is none.
type Node = Name[nodeKind]

// Model is the name under which a model is served.
type Model = Name[modelKind]

// Adapter is the name of a LoRA adapter that nodes have loaded beside a model.
type Adapter = Name[adapterKind]

// Boot is one start of a node.
type Boot = Name[bootKind]

// Nonce tells one submit call from another of the same turn.
type Nonce = Name[nonceKind]

// nameKind tells the kinds of names apart, and gives errors the name of the field.
type nameKind interface {
	field() string
	reserved() string // a word that is no name of this kind; "" is none
}

type (
	tenantKind  struct{}
	sessionKind struct{}
	nodeKind    struct{}
	modelKind   struct{}
	adapterKind struct{}
	bootKind    struct{}
	nonceKind   struct{}
)

func (tenantKind) field() string     { return "tenant" }
func (sessionKind) field() string    { return "session" }
func (nodeKind) field() string       { return "node" }
func (modelKind) field() string      { return "model" }
func (adapterKind) field() string    { return "adapter" }
func (bootKind) field() string       { return "boot" }
func (nonceKind) field() string      { return "nonce" }
func (tenantKind) reserved() string  { return "" }
func (sessionKind) reserved() string { return "" }
func (nodeKind) reserved() string    { return anyLane }
func (modelKind) reserved() string   { return "" }
func (adapterKind) reserved() string { return "" }
func (bootKind) reserved() string    { return "" }
func (nonceKind) reserved() string   { return "" }

// ParseTenant checks a tenant's name. The error is a *FieldError.
func ParseTenant(s string) (Tenant, error) { return parseName[tenantKind](s) }

// ParseSession checks a session's name. The error is a *FieldError.
func ParseSession(s string) (Session, error) { return parseName[sessionKind](s) }

// ParseNode checks a node's id. The error is a *FieldError.
func ParseNode(s string) (Node, error) { return parseName[nodeKind](s) }

// ParseModel checks a model's name. The error is a *FieldError.
func ParseModel(s string) (Model, error) { return parseName[modelKind](s) }

// ParseAdapter checks an adapter's name. The error is a *FieldError.
func ParseAdapter(s string) (Adapter, error) { return parseName[adapterKind](s) }

// ParseBoot checks the id of a node's start. The error is a *FieldError.
func ParseBoot(s string) (Boot, error) { return parseName[bootKind](s) }

// ParseNonce checks a nonce. The error is a *FieldError.
func ParseNonce(s string) (Nonce, error) { return parseName[nonceKind](s) }

// Must is for names that are constants of the program: it panics where Parse returned an error.
func Must[T any](v T, err error) T {
	if err != nil {
		panic("schemas: " + err.Error())
	}
	return v
}

func parseName[K nameKind](s string) (Name[K], error) {
	var kind K
	if !validName(s) {
		return Name[K]{}, fieldError(kind.field(), shown(s), nameLimit)
	}
	if s == kind.reserved() {
		return Name[K]{}, fieldError(kind.field(), shown(s), "another word: this one is reserved")
	}
	return Name[K]{s}, nil
}

func validName(s string) bool {
	if len(s) < 1 || len(s) > MaxNameBytes {
		return false
	}
	for i := range len(s) {
		if !nameByte(s[i]) {
			return false
		}
	}
	return true
}

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

func (n Name[K]) String() string { return n.s }

// IsZero says whether this is no name.
func (n Name[K]) IsZero() bool { return n.s == "" }

// MarshalText is how JSON writes a name.
func (n Name[K]) MarshalText() ([]byte, error) { return []byte(n.s), nil }

// UnmarshalText is how JSON reads a name. The error is a *FieldError.
func (n *Name[K]) UnmarshalText(text []byte) (err error) {
	*n, err = parseName[K](string(text))
	return err
}

// EncodeMsgpack writes the name as a string.
func (n Name[K]) EncodeMsgpack(e *msgpack.Encoder) error { return e.EncodeString(n.s) }

// DecodeMsgpack reads a string and checks it. The error is a *FieldError.
func (n *Name[K]) DecodeMsgpack(d *msgpack.Decoder) error {
	s, err := d.DecodeString()
	if err != nil {
		return err
	}
	*n, err = parseName[K](s)
	return err
}

// require is the error of a name that a message must have and has not.
func (n Name[K]) require() error {
	if n.IsZero() {
		var kind K
		return fieldError(kind.field(), "missing", nameLimit)
	}
	return nil
}

// token is the name as a part of a subject. A zero name would change the subject's shape, and is a bug of
// the caller: every message that was decoded or encoded has its names.
func (n Name[K]) token() string {
	if n.IsZero() {
		var kind K
		panic("schemas: a subject needs a " + kind.field() + ", and this one was never parsed")
	}
	return n.s
}

// Turn numbers the requests of a session.
type Turn uint64

// ParseTurn reads a decimal without sign or leading zeros. The error is a *FieldError.
func ParseTurn(s string) (Turn, error) {
	n, ok := parseDecimal(s)
	if !ok {
		return 0, fieldError("turn", shown(s), "a decimal below 2^64 without sign or leading zeros")
	}
	return Turn(n), nil
}

func (t Turn) String() string { return strconv.FormatUint(uint64(t), 10) }

// parseDecimal reads the one spelling that FormatUint gives a number.
func parseDecimal(s string) (uint64, bool) {
	if len(s) == 0 || len(s) > 20 || s[0] == '0' && len(s) > 1 || s[0] == '+' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}

// TurnID names a turn for ever. It is comparable.
type TurnID struct {
	Tenant  Tenant
	Session Session
	Turn    Turn
}

// String is how people read it: tenant/session/turn.
func (id TurnID) String() string {
	return id.Tenant.String() + "/" + id.Session.String() + "/" + id.Turn.String()
}

// Key is the turn's key in the ledger: tenant.session.turn.
func (id TurnID) Key() string {
	return id.Tenant.token() + "." + id.Session.token() + "." + id.Turn.String()
}

// ParseTurnKey reads a key of the ledger. The error is a *FieldError.
func ParseTurnKey(key string) (TurnID, error) {
	parts := strings.Split(key, ".")
	if len(key) > 3*MaxNameBytes || len(parts) != 3 {
		return TurnID{}, fieldError("key", shown(key), "<tenant>.<session>.<turn>")
	}
	return parseTurnID(parts[0], parts[1], parts[2])
}

func parseTurnID(tenant, session, turn string) (id TurnID, err error) {
	if id.Tenant, err = ParseTenant(tenant); err != nil {
		return TurnID{}, err
	}
	if id.Session, err = ParseSession(session); err != nil {
		return TurnID{}, err
	}
	if id.Turn, err = ParseTurn(turn); err != nil {
		return TurnID{}, err
	}
	return id, nil
}

// anyLane is the lane that every worker of a model reads.
const anyLane = "any"

// Lane is where a request waits. The zero value is the lane that every worker of the model reads. It is comparable.
type Lane struct{ node Node }

// AnyLane is the lane that every worker of the model reads.
var AnyLane = Lane{}

// NodeLane is the lane that one node reads.
func NodeLane(node Node) Lane { return Lane{node} }

// ParseLane reads "any" or a node's id. The error is a *FieldError.
func ParseLane(s string) (Lane, error) {
	if s == anyLane {
		return AnyLane, nil
	}
	node, err := ParseNode(s)
	if err != nil {
		return Lane{}, fieldError("lane", shown(s), "any, or a node: "+nameLimit)
	}
	return Lane{node}, nil
}

// Node is the node whose lane it is; false for the lane of all.
func (l Lane) Node() (Node, bool) { return l.node, !l.node.IsZero() }

func (l Lane) String() string {
	if l.node.IsZero() {
		return anyLane
	}
	return l.node.String()
}

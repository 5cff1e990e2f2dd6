package schemas

import (
	"fmt"
	"slices"
)

// NodeState is whether a node takes work. The set is closed.
type NodeState string

// The node states.
const (
	NodeStarting NodeState = "starting"
	NodeReady    NodeState = "ready"
	NodeDraining NodeState = "draining"
)

// NodeStates lists every node state.
func NodeStates() []NodeState { return []NodeState{NodeStarting, NodeReady, NodeDraining} }

// Valid says whether it is one of the set.
func (s NodeState) Valid() bool { return slices.Contains(NodeStates(), s) }

// Advertisement is what a node serves and how loaded it is.
type Advertisement struct {
	Versioned
	Node       Node      `msgpack:"node" json:"node"`
	Boot       Boot      `msgpack:"boot" json:"boot"`
	Generation uint64    `msgpack:"generation" json:"generation"` // of this boot, rising; a lower one than seen is old news
	State      NodeState `msgpack:"state" json:"state"`
	Version    string    `msgpack:"version" json:"version"` // of the program
	Model      ModelInfo `msgpack:"model" json:"model"`
	// MaxSessionTokens is how long prompt and new tokens of one turn may be together.
	MaxSessionTokens int          `msgpack:"max_session_tokens" json:"max_session_tokens"`
	Features         []string     `msgpack:"features,omitempty" json:"features,omitempty"` // names of what not every node can
	Telemetry        Telemetry    `msgpack:"telemetry" json:"telemetry"`
	Certificate      *Certificate `msgpack:"certificate,omitempty" json:"certificate,omitempty"` // of the last sweep; nil: none was made
}

// ModelInfo is the model a node serves.
type ModelInfo struct {
	Name          Model        `msgpack:"name" json:"name"`
	Fingerprints  Fingerprints `msgpack:"fingerprints" json:"fingerprints"`
	Architecture  string       `msgpack:"architecture" json:"architecture"`
	Parameters    int64        `msgpack:"parameters" json:"parameters"`
	Quantisation  string       `msgpack:"quantisation" json:"quantisation"`
	ContextTokens int          `msgpack:"context_tokens" json:"context_tokens"` // of a slot
	VocabTokens   int          `msgpack:"vocab_tokens" json:"vocab_tokens"`
	FirstLayer    int          `msgpack:"first_layer" json:"first_layer"`
	LastLayer     int          `msgpack:"last_layer" json:"last_layer"`
	Head          bool         `msgpack:"head" json:"head"` // owns the embedding
	Tail          bool         `msgpack:"tail" json:"tail"` // owns the output head
	Probes        Probes       `msgpack:"probes" json:"probes"`

	Adapters []AdapterInfo `msgpack:"adapters,omitempty" json:"adapters,omitempty"` // that requests may choose
}

// AdapterInfo is a LoRA adapter that a node has loaded.
type AdapterInfo struct {
	Name        Adapter `msgpack:"name" json:"name"`
	Fingerprint string  `msgpack:"fingerprint" json:"fingerprint"` // of its file and scale: equal for equal ones, whatever their names
}

// Fingerprints are the recipe of a node's KV: where restore is equal a saved state loads, where exact is
// equal its bits are equal too.
type Fingerprints struct {
	Restore string `msgpack:"restore" json:"restore"`
	Exact   string `msgpack:"exact" json:"exact"`
}

// Probes are what a node found out about its model by trying.
type Probes struct {
	Trim           string `msgpack:"trim" json:"trim"`       // how much of a sequence can be dropped: any, window, none
	CanPad         bool   `msgpack:"can_pad" json:"can_pad"` // a padding row can be removed
	BytesPerToken  int64  `msgpack:"bytes_per_token" json:"bytes_per_token"`
	FixedBytes     int64  `msgpack:"fixed_bytes" json:"fixed_bytes"`         // KV of a slot whatever its length
	WindowBytes    int64  `msgpack:"window_bytes" json:"window_bytes"`       // KV of a position beyond the attention window
	FlashAttention string `msgpack:"flash_attention" json:"flash_attention"` // on, off, unknown
}

// Certificate is the outcome of a sweep: what a crowd changed.
type Certificate struct {
	MadeMS           int64  `msgpack:"made_ms" json:"made_ms"` // Unix milliseconds
	Levels           []int  `msgpack:"levels" json:"levels"`   // sessions at once
	Requests         int    `msgpack:"requests" json:"requests"`
	CorruptionFree   bool   `msgpack:"corruption_free" json:"corruption_free"`         // every token came out the same
	BitExact         *bool  `msgpack:"bit_exact,omitempty" json:"bit_exact,omitempty"` // every logit too; nil: not looked at
	ExactFingerprint string `msgpack:"exact_fingerprint" json:"exact_fingerprint"`     // of the recipe it holds for
}

const (
	maxAdTextBytes = 256 // of a string of an advertisement
	maxFeatures    = 64
	// MaxAdapters bounds the adapters of a node.
	MaxAdapters = 64
	maxLevels   = 64
)

func (a *Advertisement) stamp() { a.Versioned.stamp(); a.Telemetry.round() }

// Validate says which field is not valid. The error is a *FieldError.
func (a *Advertisement) Validate() error { return a.validate("") }

// validate leaves words that another version may know more of (features, trim) to the reader.
func (a *Advertisement) validate(path string) error {
	if err := first(
		a.Node.require(), a.Boot.require(),
		checkWord(path+"state", a.State, NodeStates()),
		checkText(path+"version", a.Version, 0, maxAdTextBytes),
		a.Model.validate(path+"model."),
		checkCount(path+"max_session_tokens", a.MaxSessionTokens),
		checkInt(path+"features (their number)", int64(len(a.Features)), 0, maxFeatures),
		a.Telemetry.validate(path+"telemetry."),
	); err != nil {
		return err
	}
	for i, feature := range a.Features {
		if err := checkText(fmt.Sprintf("%sfeatures[%d]", path, i), feature, 1, MaxNameBytes); err != nil {
			return err
		}
	}
	if a.Certificate != nil {
		return a.Certificate.validate(path + "certificate.")
	}
	return nil
}

// Serves says whether requests may choose an adapter; that they may choose none is certain.
func (m *ModelInfo) Serves(adapter Adapter) bool {
	return adapter.IsZero() || slices.ContainsFunc(m.Adapters, func(a AdapterInfo) bool { return a.Name == adapter })
}

func (m *ModelInfo) validate(path string) error {
	for i, a := range m.Adapters {
		if err := first(a.Name.require(), checkText(fmt.Sprintf("%sadapters[%d].fingerprint", path, i), a.Fingerprint, 0, maxAdTextBytes)); err != nil {
			return err
		}
	}
	return first(
		checkInt(path+"adapters (their number)", int64(len(m.Adapters)), 0, MaxAdapters),
		m.Name.require(),
		checkText(path+"fingerprints.restore", m.Fingerprints.Restore, 0, maxAdTextBytes),
		checkText(path+"fingerprints.exact", m.Fingerprints.Exact, 0, maxAdTextBytes),
		checkText(path+"architecture", m.Architecture, 0, maxAdTextBytes),
		checkText(path+"quantisation", m.Quantisation, 0, maxAdTextBytes),
		checkBytes(path+"parameters", m.Parameters),
		checkCount(path+"context_tokens", m.ContextTokens),
		checkCount(path+"vocab_tokens", m.VocabTokens),
		checkCount(path+"first_layer", m.FirstLayer),
		checkCount(path+"last_layer", m.LastLayer),
		checkText(path+"probes.trim", m.Probes.Trim, 0, maxAdTextBytes),
		checkBytes(path+"probes.bytes_per_token", m.Probes.BytesPerToken),
		checkBytes(path+"probes.fixed_bytes", m.Probes.FixedBytes),
		checkBytes(path+"probes.window_bytes", m.Probes.WindowBytes),
		checkText(path+"probes.flash_attention", m.Probes.FlashAttention, 0, maxAdTextBytes),
	)
}

func (c *Certificate) validate(path string) error {
	for i, level := range c.Levels {
		if err := checkInt(fmt.Sprintf("%slevels[%d]", path, i), int64(level), 1, maxCount); err != nil {
			return err
		}
	}
	return first(
		checkInt(path+"made_ms", c.MadeMS, 1, maxUnixMS),
		checkInt(path+"levels (their number)", int64(len(c.Levels)), 1, maxLevels),
		checkCount(path+"requests", c.Requests),
		checkText(path+"exact_fingerprint", c.ExactFingerprint, 0, maxAdTextBytes),
	)
}

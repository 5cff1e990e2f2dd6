package capability

import (
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// Identity is what stays the same for one start of a node.
type Identity struct {
	Node     schemas.Node
	Boot     schemas.Boot
	Version  string // of the program
	Features []string

	Model        schemas.Model
	Architecture string
	Parameters   int64
	Quantisation string

	// What the engine's facts do not hold of its probes.
	WindowBytes    int64  // KV of a position beyond the attention window
	FlashAttention string // on, off, unknown
}

// Moment is what a node is like now.
type Moment struct {
	State        schemas.NodeState
	Telemetry    scheduler.Telemetry
	Facts        scheduler.Facts
	Fingerprints scheduler.Fingerprints

	MaxActiveSessions int // the effective active cap
	FreeSlots         int // sessions that could become active now
	MaxQueueDepth     int
	MaxSessionTokens  int // prompt and new tokens of one turn; 0 is the context

	Certificate *schemas.Certificate // of the last sweep; nil: none was made
}

// Snapshot is the advertisement of a node at a moment. Its generation is the Advertiser's.
func Snapshot(id *Identity, m *Moment) *schemas.Advertisement {
	maxTokens := m.MaxSessionTokens
	if maxTokens == 0 {
		maxTokens = m.Facts.ContextTokens
	}
	return &schemas.Advertisement{
		Node: id.Node, Boot: id.Boot,
		State:   m.State,
		Version: id.Version,
		Model: schemas.ModelInfo{
			Name:         id.Model,
			Fingerprints: schemas.Fingerprints{Restore: m.Fingerprints.Restore, Exact: m.Fingerprints.Exact},
			Architecture: id.Architecture, Parameters: id.Parameters, Quantisation: id.Quantisation,
			ContextTokens: m.Facts.ContextTokens, VocabTokens: m.Facts.VocabTokens,
			FirstLayer: m.Facts.FirstLayer, LastLayer: m.Facts.LastLayer,
			Head: m.Facts.Head, Tail: m.Facts.Tail, Adapters: adapters(m.Facts),
			Probes: schemas.Probes{
				Trim: string(m.Facts.Trim), CanPad: m.Facts.CanPad,
				BytesPerToken: m.Facts.BytesPerToken, FixedBytes: m.Facts.FixedBytes,
				WindowBytes: id.WindowBytes, FlashAttention: id.FlashAttention,
			},
		},
		MaxSessionTokens: maxTokens,
		Features:         id.Features,
		Telemetry:        telemetry(m),
		Certificate:      m.Certificate,
	}
}

// adapters are those of an engine, whose names are names of the mesh.
func adapters(f scheduler.Facts) []schemas.AdapterInfo {
	var infos []schemas.AdapterInfo
	for _, a := range f.Adapters {
		infos = append(infos, schemas.AdapterInfo{Name: schemas.Must(schemas.ParseAdapter(a.Name)), Fingerprint: a.Recipe})
	}
	return infos
}

func telemetry(m *Moment) schemas.Telemetry {
	t := &m.Telemetry
	return schemas.Telemetry{
		ActiveSessions: t.ActiveSessions, MaxActiveSessions: m.MaxActiveSessions, FreeSlots: max(0, m.FreeSlots),
		QueueDepth: t.QueueDepth, MaxQueueDepth: m.MaxQueueDepth,

		BatchOccupancyLast: t.BatchOccupancyLast, BatchOccupancyAvg: t.BatchOccupancyAvg, BatchOccupancyMax: t.BatchOccupancyMax,

		WeightBytes:  t.WeightBytes,
		KVTotalBytes: t.KVTotalBytes, KVBudgetBytes: t.KVBudgetBytes, KVReservedBytes: t.KVReservedBytes, KVPressure: t.KVPressure,
		ScratchUsedBytes: t.ScratchUsedBytes, ScratchBudgetBytes: t.ScratchBudgetBytes, ScratchPressure: t.ScratchPressure,

		PrefillTokensTotal: t.PrefillTokensTotal, DecodeTokensTotal: t.DecodeTokensTotal, CachedTokensTotal: t.CachedTokensTotal,
		PrefillTokensPerSec: t.PrefillTokensPerSec, DecodeTokensPerSec: t.DecodeTokensPerSec,
		PrefillTokensPerSec10s: t.PrefillTokensPerSec10s, DecodeTokensPerSec10s: t.DecodeTokensPerSec10s,

		RejectedAdmissionsTotal: t.RejectedAdmissionsTotal, RejectedByReason: counts(t.RejectedByReason),
		CompletedSessions: t.CompletedSessions, CancelledSessions: t.CancelledSessions,
		FailedSessions: t.FailedSessions, CacheMissSessions: t.CacheMissSessions,

		SuspendedSessions: t.SuspendedSessions, SuspendedBytes: t.SuspendedBytes, SuspensionsTotal: t.SuspensionsTotal,
		HotSessions: t.HotSessions, HotBytes: t.HotBytes, HotHitsTotal: t.HotHitsTotal, HotMissesTotal: counts(t.HotMissesTotal),
		PrefixHitsTotal: t.PrefixHitsTotal, PrefixTokensTotal: t.PrefixTokensTotal,
		HotEvictionsTotal: t.HotEvictionsTotal, SpillSessions: t.SpillSessions, SpillBytes: t.SpillBytes,
		SpillWrittenTotal: t.SpillWrittenTotal, SpillHitsTotal: t.SpillHitsTotal, SpillLostTotal: counts(t.SpillLostTotal),

		Ticks: t.Ticks, LastTickAgeMS: t.LastTickAgeMS, Threads: t.Threads,
	}
}

func counts[K ~string](by map[K]int64) schemas.Counts {
	c := make(schemas.Counts, len(by))
	for key, n := range by {
		c[string(key)] = n
	}
	return c
}

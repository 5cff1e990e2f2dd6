package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/client"
	"github.com/meshnet/node/schemas"
)

// Serving is what the nodes that serve a model have in common.
type Serving struct {
	Nodes            int
	VocabTokens      int // of the smallest vocabulary
	MaxSessionTokens int // prompt and answer together, of the node that takes most
}

// FindModel looks which live nodes serve a model.
func FindModel(ctx context.Context, c *client.Client, model string) (Serving, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return Serving{}, err
	}
	var s Serving
	for _, n := range serving(nodes, model) {
		if s.Nodes == 0 || n.Model.VocabTokens < s.VocabTokens {
			s.VocabTokens = n.Model.VocabTokens
		}
		s.Nodes++
		s.MaxSessionTokens = max(s.MaxSessionTokens, n.MaxSessionTokens)
	}
	if s.Nodes == 0 {
		return s, fmt.Errorf("none of the %d nodes of the mesh serves the model %q; `worker nodes` lists them", len(nodes), model)
	}
	return s, nil
}

// Occupied is what the nodes of a model say now of their occupancy.
func Occupied(ctx context.Context, c *client.Client, model string) (Occupancy, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return Occupancy{}, err
	}
	var o Occupancy
	for _, n := range serving(nodes, model) {
		o.ActiveSessions += n.Telemetry.ActiveSessions
		o.QueueDepth += n.Telemetry.QueueDepth
		o.KVBytes += n.Telemetry.KVTotalBytes
	}
	return o, nil
}

func serving(nodes []capability.Entry, model string) []*schemas.Advertisement {
	var ads []*schemas.Advertisement
	for _, n := range nodes {
		if n.Ad.Model.Name.String() == model && time.Since(n.Seen) < capability.Silence {
			ads = append(ads, n.Ad)
		}
	}
	return ads
}

package client

import (
	"context"
	"sync"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/schemas"
)

// hotLimit bounds the sessions whose node is remembered.
const hotLimit = 4096

type sessionKey struct {
	tenant  schemas.Tenant
	session schemas.Session
}

// hotNodes remembers which node kept a session's KV. It is safe for concurrent use.
type hotNodes struct {
	mu    sync.Mutex
	nodes map[sessionKey]schemas.Node
}

// ended takes note of a session's last final.
func (h *hotNodes) ended(id schemas.TurnID, final *schemas.Final) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := sessionKey{id.Tenant, id.Session}
	if !final.Kept {
		delete(h.nodes, key)
		return
	}
	if h.nodes == nil {
		h.nodes = make(map[sessionKey]schemas.Node)
	}
	if len(h.nodes) >= hotLimit {
		for other := range h.nodes { // any: a wrong lane costs a prefill
			delete(h.nodes, other)
			break
		}
	}
	h.nodes[key] = final.Node
}

func (h *hotNodes) of(id schemas.TurnID) schemas.Node {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.nodes[sessionKey{id.Tenant, id.Session}]
}

// lane is that of the node that keeps the session's KV, if it is alive and takes turns, else that of all.
func (c *Client) lane(ctx context.Context, r *schemas.Request, hint schemas.Node) schemas.Lane {
	node := c.hot.of(r.ID())
	if node.IsZero() {
		node = hint
	}
	if node.IsZero() {
		return schemas.AnyLane
	}
	registry, err := c.nodes()
	if err != nil {
		return schemas.AnyLane
	}
	ctx, cancel := context.WithTimeout(ctx, registryWait)
	defer cancel()
	if part.Ready(ctx, registry) != nil {
		return schemas.AnyLane
	}
	entry, ok := registry.Node(node)
	if !ok || !registry.Live(node, capability.Silence) || entry.Ad.State != schemas.NodeReady || entry.Ad.Model.Name != r.Model {
		return schemas.AnyLane
	}
	return schemas.NodeLane(node)
}

package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/meshnet/node/hotkv/spill"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// kvFlags are those of KV that sessions share and that is kept on disk.
type kvFlags struct {
	KVSpill       string    `help:"Folder for KV of idle sessions that memory has no room for; it is hot again after a restart. None without it." name:"kv-spill" type:"path" default:"" placeholder:"DIR"`
	KVSpillBudget byteCount `help:"What that KV may take on disk." name:"kv-spill-budget" default:"16GiB" placeholder:"BYTES"`
	SharePrefixes string    `help:"Between which sessions prompts that begin alike are evaluated once: of one tenant (tenant), all (all), or none (none)." name:"share-prefixes" enum:"none,tenant,all" default:"tenant" placeholder:"WHOSE"`
}

// sharing is what --share-prefixes says.
func (c *kvFlags) sharing() scheduler.Sharing {
	switch c.SharePrefixes {
	case "tenant":
		return scheduler.ShareTenant
	case "all":
		return scheduler.ShareAll
	default:
		return scheduler.ShareNothing
	}
}

// spillLimit is how long a node that ends may take to write what is hot.
const spillLimit = 10 * time.Second

// checkSpill is what can be said before there is an engine.
func (c *kvFlags) checkSpill(hot *byteCount) error {
	switch {
	case c.KVSpillBudget < 1:
		return usageError("--kv-spill-budget is %d bytes; give at least 1, or leave --kv-spill out", c.KVSpillBudget)
	case c.KVSpill != "" && hot != nil && *hot == 0:
		return usageError("--kv-spill with a --hot-budget of 0 would write nothing: only what memory has kept goes to disk; give room for a session at least")
	}
	return nil
}

// openSpill opens the store for an engine; nil without the flag. Whoever calls it calls closeSpill, once the service has ended.
func (c *kvFlags) openSpill(env *environment, engine *llama.Engine) (*spill.Store, error) {
	if c.KVSpill == "" {
		return nil, nil
	}
	store, err := spill.Open(spill.Options{
		Dir: c.KVSpill, BudgetBytes: int64(c.KVSpillBudget), Recipes: scheduler.Recipes(engine), Exact: engine.Fingerprints().Exact,
		Load: engine.LoadState, Log: env.log,
	})
	if errors.Is(err, spill.ErrInUse) {
		return nil, &exitError{exitUsage, err}
	}
	return store, err
}

// closeSpill writes what was hot until the end. What there is no time for is only a miss later.
func closeSpill(log *slog.Logger, store *spill.Store) {
	ctx, cancel := context.WithTimeout(context.Background(), spillLimit)
	defer cancel()
	if err := store.Close(ctx); err != nil {
		log.Warn("not all idle sessions' KV is on disk", "error", err)
	}
}

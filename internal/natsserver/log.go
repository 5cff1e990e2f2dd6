package natsserver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
)

// bridge takes the server's log lines to slog. What a server says of its daily life is of interest only to who
// looks for a fault, so notices go out at debug level.
type bridge struct {
	log *slog.Logger

	mu    sync.Mutex
	fatal string // the first; the server goes on after one as if nothing were, and says so nowhere else
}

var _ server.Logger = (*bridge)(nil)

func newBridge(log *slog.Logger) *bridge {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &bridge{log: log}
}

func (b *bridge) put(level slog.Level, format string, v []any) {
	if ctx := context.Background(); b.log.Enabled(ctx, level) {
		b.log.Log(ctx, level, fmt.Sprintf(format, v...))
	}
}

// Noticef implements server.Logger.
func (b *bridge) Noticef(format string, v ...any) { b.put(slog.LevelDebug, format, v) }

// Warnf implements server.Logger.
func (b *bridge) Warnf(format string, v ...any) { b.put(slog.LevelWarn, format, v) }

// Errorf implements server.Logger.
func (b *bridge) Errorf(format string, v ...any) { b.put(slog.LevelError, format, v) }

// Debugf implements server.Logger. The server is not asked for these.
func (b *bridge) Debugf(format string, v ...any) { b.put(slog.LevelDebug, format, v) }

// Tracef implements server.Logger. The server is not asked for these.
func (b *bridge) Tracef(format string, v ...any) { b.put(slog.LevelDebug, format, v) }

// Fatalf implements server.Logger. It ends nothing: Start looks for what it noted.
func (b *bridge) Fatalf(format string, v ...any) {
	b.put(slog.LevelError, format, v)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fatal == "" {
		b.fatal = fmt.Sprintf(format, v...)
	}
}

// failure is what Fatalf noted first, or nothing.
func (b *bridge) failure() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fatal
}

package natsserver

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"
)

// room is how much must be writable before a server is restarted for it.
const room = 1 << 20

// Mend looks every so often, until ctx ends, whether a write has failed. A store takes no more of them after that for as
// long as the server runs, though a disk that was full have room again: as soon as the data folder does, the server is
// restarted. A restart that failed is tried again.
func (s *Server) Mend(ctx context.Context, every time.Duration) {
	log := s.opts.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for said := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		broken := s.broken()
		if broken == nil {
			said = false
			continue
		}
		if err := s.takesWrites(); err != nil {
			if !said {
				log.Error("the NATS server's data folder takes no writes, and no turn can end: make room", "dir", s.opts.Dir, "error", err)
			}
			said = true
			continue
		}
		log.Warn("the NATS server is restarted: its stores gave up after a write that failed", "error", broken)
		if err := s.Restart(); errors.Is(err, ErrStopped) {
			return
		} else if err != nil {
			log.Error("the NATS server does not start again; it is tried again", "error", err)
		}
	}
}

// broken says why the server needs a restart; nil if it needs none.
func (s *Server) broken() error {
	err := s.Healthy()
	if err == nil || s.current() != nil && !strings.Contains(err.Error(), "write error") {
		return nil // whatever else it is will pass
	}
	return err
}

// takesWrites tries whether the data folder has room.
func (s *Server) takesWrites() error {
	file, err := os.CreateTemp(s.opts.Dir, "room-")
	if err != nil {
		return err
	}
	_, err = file.Write(make([]byte, room))
	return errors.Join(err, file.Sync(), file.Close(), os.Remove(file.Name()))
}

package client

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/meshnet/node/internal/fold"
	"github.com/meshnet/node/schemas"
)

// A final that is of an attempt whose start was not heard may stand for other tokens than those that were.
func TestDoubtEndsWithALookAtTheStoreOrInTime(t *testing.T) {
	failed := &schemas.Final{Reason: schemas.Failed, Cause: schemas.CauseDeadline, Attempt: 2, Count: 1}
	completed := &schemas.Final{Reason: schemas.Completed, Finish: schemas.FinishStop, Attempt: 2, Count: 1}
	var turn *TurnError
	var lost *IncompleteError
	for _, c := range []struct {
		claim     string
		final     *schemas.Final
		confirmed bool
		read      bool
		after     time.Duration
		done      bool
		is        func(error) bool
	}{
		{"it stays open at first", completed, false, true, openGap - 1, false, func(err error) bool { return err == nil }},
		{"the store ends it at once", completed, true, true, 0, true, func(err error) bool { return errors.Is(err, io.EOF) }},
		{"a store that does not answer is waited for", completed, false, false, unreadGap - 1, false, func(err error) bool { return err == nil }},
		{"without the store a completed turn is incomplete at last", completed, false, false, unreadGap, true, func(err error) bool { return errors.As(err, &lost) }},
		{"where the store has no more a completed turn is incomplete", completed, false, true, openGap, true, func(err error) bool { return errors.As(err, &lost) }},
		{"and another one is what it is", failed, false, true, openGap, true, func(err error) bool { return errors.As(err, &turn) && !errors.As(err, &lost) }},
	} {
		t.Run(c.claim, func(t *testing.T) {
			turn, lost = nil, nil
			s := &Stream{c: &Client{}, fold: fold.From(0)}
			for _, e := range []schemas.Event{&schemas.Started{Attempt: 1}, &schemas.Tokens{Attempt: 1, TokenIDs: []int64{1}, Text: "a"}, c.final} {
				s.fold.ApplyLive(e)
			}
			now := time.Unix(1, 0)
			s.watch.finalAt, s.watch.confirmed = now, c.confirmed
			if c.read {
				s.watch.readAt = now
			}
			if done, err := s.ended(now.Add(c.after)); done != c.done || !c.is(err) {
				t.Errorf("ended: %t, %v", done, err)
			}
		})
	}
}

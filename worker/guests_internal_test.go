package worker

import (
	"testing"
	"time"
)

// However many workers are full, the lane is looked through as often as eight of them would.
func TestManyWorkersShareTheLooksOfEight(t *testing.T) {
	for _, c := range []struct {
		vain, serving int
		want          time.Duration
	}{
		{0, 0, 250 * time.Millisecond}, // none is known yet
		{0, 1, 250 * time.Millisecond},
		{0, 8, 250 * time.Millisecond},
		{0, 12, 375 * time.Millisecond},
		{0, 1000, 31250 * time.Millisecond},
		{3, 8, 2 * time.Second},
		{9, 16, 4 * time.Second},
	} {
		if got := lookEvery(250*time.Millisecond, c.vain, c.serving); got != c.want {
			t.Errorf("%d in vain, %d serve: every %s, want %s", c.vain, c.serving, got, c.want)
		}
	}
}

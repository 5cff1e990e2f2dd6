package parttest

import (
	"testing"
	"time"
)

// SetPatience shortens what the checks wait for, until the test ends.
func SetPatience(t *testing.T, d time.Duration) {
	before := patience
	patience = d
	t.Cleanup(func() { patience = before })
}

//go:build !linux

package llama

import "time"

// limitProcess leaves it at the time that the parent waits.
func limitProcess(time.Duration) error { return nil }

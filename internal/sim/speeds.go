package sim

import (
	_ "embed" // the measured speeds
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

//go:embed speeds.json
var measured []byte

// Speeds are what the calls of an engine take on a node of factor 1.
type Speeds struct {
	Command string `json:"command"` // that measured them
	Model   string `json:"model"`
	Machine string `json:"machine"`

	Steps         []Step  `json:"steps"` // by rows, rising
	PrefillMS     float64 `json:"prefill_ms_per_token"`
	CopyMS        float64 `json:"save_and_restore_ms_per_token"`
	BytesPerToken int64   `json:"kv_bytes_per_token"`
}

// Step is what one decode step takes.
type Step struct {
	Rows int     `json:"rows"`
	MS   float64 `json:"ms"`
}

// Measured are the speeds in speeds.json.
func Measured() *Speeds {
	s, err := ParseSpeeds(measured)
	if err != nil {
		panic(err) // the file is part of the program
	}
	return s
}

// ParseSpeeds reads a file of speeds.
func ParseSpeeds(data []byte) (*Speeds, error) {
	var s Speeds
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("speeds: %w", err)
	}
	if len(s.Steps) == 0 || s.PrefillMS <= 0 || s.CopyMS < 0 || s.BytesPerToken < 1 {
		return nil, errors.New("speeds: steps, prefill_ms_per_token and kv_bytes_per_token must be there and above 0")
	}
	rows := 0
	for _, step := range s.Steps {
		if step.Rows <= rows || step.MS <= 0 {
			return nil, fmt.Errorf("speeds: a step of %d rows and %g ms; rows must rise, and both be above 0", step.Rows, step.MS)
		}
		rows = step.Rows
	}
	return &s, nil
}

// step is what a decode step of so many rows takes: between two measured ones in proportion, beyond the last as much a row as that one.
func (s *Speeds) step(rows int) time.Duration {
	var below Step
	for _, step := range s.Steps {
		if rows <= step.Rows {
			if below.Rows == 0 {
				return milliseconds(step.MS)
			}
			part := float64(rows-below.Rows) / float64(step.Rows-below.Rows)
			return milliseconds(below.MS + part*(step.MS-below.MS))
		}
		below = step
	}
	return milliseconds(below.MS * float64(rows) / float64(below.Rows))
}

// prefill is what so many tokens of a prompt take.
func (s *Speeds) prefill(tokens int) time.Duration {
	return milliseconds(s.PrefillMS * float64(tokens))
}

// copied is what saving, or restoring, so many tokens takes.
func (s *Speeds) copied(tokens int) time.Duration {
	return milliseconds(s.CopyMS / 2 * float64(tokens))
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

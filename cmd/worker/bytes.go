package main

import (
	"fmt"
	"strconv"
	"strings"
)

// byteCount is a flag of bytes: a number, with KiB, MiB or GiB behind it if wanted.
type byteCount int64

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *byteCount) UnmarshalText(text []byte) error {
	number, unit := string(text), int64(1)
	for suffix, factor := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if rest, ok := strings.CutSuffix(number, suffix); ok {
			number, unit = strings.TrimSpace(rest), factor
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > (1<<62)/unit {
		return fmt.Errorf("%q is no number of bytes; write 1073741824, 1024MiB or 1GiB", text)
	}
	*b = byteCount(n * unit)
	return nil
}

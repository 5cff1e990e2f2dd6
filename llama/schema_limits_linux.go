package llama

import (
	"fmt"
	"os"
	"syscall"
)

const (
	convertProcessorTime = 2         // seconds
	convertMemory        = 512 << 20 // bytes beyond what the process has at its start
)

// limitProcess bounds what this process may use from now on.
func limitProcess() error {
	stat, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	var pages uint64
	if _, err := fmt.Sscan(string(stat), &pages); err != nil {
		return fmt.Errorf("/proc/self/statm: %w", err)
	}
	memory := pages*uint64(os.Getpagesize()) + convertMemory
	for resource, limit := range map[int]uint64{syscall.RLIMIT_CPU: convertProcessorTime, syscall.RLIMIT_AS: memory, syscall.RLIMIT_CORE: 0} {
		if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limiting the conversion: %w", err)
		}
	}
	return nil
}

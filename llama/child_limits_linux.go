package llama

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// childMemory is what a child may take beyond what it has at its start, in bytes.
const childMemory = 512 << 20

// limitProcess bounds what this process may use from now on. A processor time of 0 is not bounded.
func limitProcess(processorTime time.Duration) error {
	stat, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	var pages uint64
	if _, err := fmt.Sscan(string(stat), &pages); err != nil {
		return fmt.Errorf("/proc/self/statm: %w", err)
	}
	limits := map[int]uint64{syscall.RLIMIT_AS: pages*uint64(os.Getpagesize()) + childMemory, syscall.RLIMIT_CORE: 0}
	if processorTime > 0 {
		limits[syscall.RLIMIT_CPU] = uint64(processorTime / time.Second)
	}
	for resource, limit := range limits {
		if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limiting a child: %w", err)
		}
	}
	return nil
}

package llama

import (
	"slices"
	"testing"
)

func TestThreadCandidatesArePowersOfTwoAndAll(t *testing.T) {
	for processors, want := range map[int][]int{1: {1}, 2: {1, 2}, 3: {1, 2, 3}, 4: {1, 2, 4}, 6: {1, 2, 4, 6}, 64: {1, 2, 4, 8, 16, 32, 64}} {
		if got := threadCandidates(processors); !slices.Equal(got, want) {
			t.Errorf("%d processors: %v, want %v", processors, got, want)
		}
	}
}

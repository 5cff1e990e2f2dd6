package scheduler

// Sampling is how tokens are chosen from logits. The zero value is not valid; start from DefaultSampling.
type Sampling struct {
	Temperature      float64 // 0 is greedy; [0, 2]
	TopK             int     // 0 is off; [0, 1<<20]
	TopP             float64 // 1 is off; (0, 1]
	MinP             float64 // 0 is off; [0, 1]
	RepeatPenalty    float64 // 1 is off; (0, 2]
	PresencePenalty  float64 // 0 is off; [-2, 2]
	FrequencyPenalty float64 // 0 is off; [-2, 2]
	PenaltyLastN     int     // tokens the penalties look back; [0, 4096]
	Seed             uint64  // every draw is a function of (Seed, token index, purpose)
	IgnoreEOG        bool    // end-of-generation tokens are never chosen
}

// DefaultSampling is greedy, with every filter and penalty off.
func DefaultSampling() Sampling {
	return Sampling{TopP: 1, RepeatPenalty: 1, PenaltyLastN: 64}
}

package scheduler

// This file says where prompts are cut into chunks, and what of their KV is bit for bit what a prompt has cold.
//
// Where only equal cuts come out equal (LeastChunk is 0), the cuts are the grid, and KV is exact up to the last of them that two
// prompts have in common. Where chunks of LeastChunk tokens and more come out alike wherever the cuts are, no chunk is shorter, so that
// KV is exact up to any position, and a prompt may go on from there with at least so many tokens.

// cut is where the chunk ends that begins at pos, on the way to target: a whole chunk further, or so much less that what remains to
// the target is no chunk that is too short. It depends on nothing else that goes on.
func (f Facts) cut(pos, target int) int {
	if f.LeastChunk == 0 {
		return min(floorGrid(pos, f.PrefillChunk)+f.PrefillChunk, target)
	}
	end := min(pos+f.PrefillChunk, target)
	if left := target - end; left > 0 && left < f.LeastChunk {
		end = target - f.LeastChunk
	}
	return end
}

// rest is how many tokens a prompt evaluates at least on top of KV that is to be as good as cold: its last, whose logits are needed, or a
// chunk that is not too short.
func (f Facts) rest() int { return max(1, f.LeastChunk) }

// unit is between how many tokens prompts are compared, and may be cut to share KV.
func (f Facts) unit() int {
	if f.LeastChunk == 0 {
		return f.PrefillChunk
	}
	return (f.LeastChunk + 15) / 16
}

// exactUpTo is how much of n tokens of KV, of which exactLen are exact, a prompt may go on from as if it were cold.
func (f Facts) exactUpTo(n, exactLen, prompt int) int {
	if f.LeastChunk == 0 {
		return floorGrid(min(n, exactLen), f.PrefillChunk)
	}
	return max(0, min(n, exactLen, prompt-f.LeastChunk))
}

// exactAfter is how far KV is exact once a prompt was evaluated on top of cached positions of KV that was exact up to exactLen. A prompt
// that is too short for a chunk has bits of its own, which are of no use to a longer one.
func (f Facts) exactAfter(prompt, cached, exactLen int) int {
	if cached == f.exactUpTo(cached, exactLen, prompt) && prompt >= f.LeastChunk {
		return prompt
	}
	return min(exactLen, cached)
}

func floorGrid(n, chunk int) int { return n - n%chunk }

package scheduler

// Tenants is how many tenants are remembered.
func (s *Scheduler) Tenants() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tenants)
}

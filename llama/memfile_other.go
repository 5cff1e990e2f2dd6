//go:build !linux

package llama

import "os"

// inMemoryFile puts bytes into a temporary file that is unlinked at once; closing it frees them.
func inMemoryFile(data []byte) (*os.File, error) {
	file, err := os.CreateTemp("", "meshnet-model-*.gguf")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, err
	}
	return filled(file, data)
}

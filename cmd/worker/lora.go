package main

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/schemas"
)

// adapterFiles reads the --lora flags, each NAME=FILE or NAME=FILE:SCALE. What follows the last colon is a scale only where it
// is a number.
func (f *modelFlags) adapterFiles() ([]llama.AdapterFile, error) {
	if n := len(f.LoRA); n > schemas.MaxAdapters {
		return nil, usageError("--lora is given %d times; a node has at most %d adapters", n, schemas.MaxAdapters)
	}
	var files []llama.AdapterFile
	seen := make(map[string]bool)
	for _, text := range f.LoRA {
		name, path, ok := strings.Cut(text, "=")
		if !ok || path == "" {
			return nil, usageError("--lora %q: give NAME=FILE or NAME=FILE:SCALE", text)
		}
		if _, err := schemas.ParseAdapter(name); err != nil {
			return nil, usageError("--lora %q: %v", text, err)
		}
		if seen[name] {
			return nil, usageError("--lora %q: the name is given twice", text)
		}
		seen[name] = true
		file := llama.AdapterFile{Name: name, Path: path, Scale: 1}
		if i := strings.LastIndexByte(path, ':'); i > 0 {
			if scale, err := strconv.ParseFloat(path[i+1:], 32); err == nil {
				file.Path, file.Scale = path[:i], float32(scale)
			}
		}
		if !(file.Scale >= -llama.MaxAdapterScale && file.Scale <= llama.MaxAdapterScale) {
			return nil, usageError("--lora %q: the scale must be in [-%d, %d]", text, llama.MaxAdapterScale, llama.MaxAdapterScale)
		}
		path, err := filepath.Abs(file.Path)
		if err != nil {
			return nil, err
		}
		file.Path = path
		files = append(files, file)
	}
	return files, nil
}

package testmodel

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/testmodel/quantize"
)

// WeightTypes are the types of weights that File and Path make.
var WeightTypes = []string{"f16", "q4_0", "q8_0", "q4_k_m"}

// testSeed is the seed of all models that Path gives out.
const testSeed = 1

// File writes a model with weights of the given type to path, replacing what is there at once when all is
// done. The folder must exist; it holds an F16 copy for a moment.
func File(path string, shape Shape, seed uint64, weights string) (err error) {
	if !slices.Contains(WeightTypes, weights) {
		return fmt.Errorf("testmodel: weights of type %q are not supported; there are %s", weights, strings.Join(WeightTypes, ", "))
	}
	// Beside its place, so that the last step is a rename within one file system. Every process has its own.
	work, err := os.MkdirTemp(filepath.Dir(path), ".testmodel-*")
	if err != nil {
		return fmt.Errorf("testmodel: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	done := filepath.Join(work, "f16.gguf")
	if err := Write(done, shape, seed); err != nil {
		return err
	}
	if weights != "f16" {
		from := done
		done = filepath.Join(work, weights+".gguf")
		if err := quantize.File(from, done, weights); err != nil {
			return fmt.Errorf("testmodel: %w", err)
		}
	}
	if err := os.Rename(done, path); err != nil {
		return fmt.Errorf("testmodel: %w", err)
	}
	return nil
}

// Path returns the path of a model of a named shape, with weights of one of WeightTypes. It is made on first
// use and kept in the user's cache folder for all later tests, which must not change it. Safe with any number of
// test processes at once. It fails the test if the model cannot be made.
func Path(tb testing.TB, shape, weights string) string {
	tb.Helper()
	s, err := Lookup(shape)
	if err != nil {
		tb.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		tb.Fatal(err)
	}
	dir := filepath.Join(cache, "meshnet", "models")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(dir, cacheName(s, testSeed, weights))
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := File(path, s, testSeed, weights); err != nil {
		tb.Fatal(err)
	}
	return path
}

// cacheName changes with everything that the file's bytes depend on.
func cacheName(s Shape, seed uint64, weights string) string {
	recipe := fmt.Sprintf("%d %+v %d", generation, s, seed)
	if weights != "f16" {
		recipe += " " + quantize.Version()
	}
	return fmt.Sprintf("%s-%.16x-%s.gguf", s.Name, sha256.Sum256([]byte(recipe)), weights)
}

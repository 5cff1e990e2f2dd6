package quantize_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/testmodel/quantize"
)

func TestUnknownWeightTypeIsRefusedByName(t *testing.T) {
	err := quantize.File("in", "out", "q3_x")
	if err == nil || !strings.Contains(err.Error(), `"q3_x"`) {
		t.Fatal(err)
	}
}

func TestFileThatIsNoModelIsRefusedWithTheQuantisersReason(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "in.gguf"), filepath.Join(dir, "out.gguf")
	if err := os.WriteFile(from, []byte("not a model"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := quantize.File(from, to, "q8_0")
	if err == nil || !strings.Contains(err.Error(), "failed to load model") {
		t.Fatal(err)
	}
	if _, err := os.Stat(to); !os.IsNotExist(err) {
		t.Errorf("an output was left behind: %v", err)
	}
}

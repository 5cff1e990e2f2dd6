package models_test

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/meshnet/node/models"
)

// What the model card states. A retrained model changes both, and every recorded output with them.
const (
	cardBytes  = 1_004_384
	cardSHA256 = "d0c25ca89853c2adcb2b639cb92114b59c145f636938fb789b737dcdcea95088"
)

func TestStoryIsTheModelOfTheCard(t *testing.T) {
	data := models.Story()
	if len(data) != cardBytes {
		t.Errorf("the embedded model has %d bytes, its card says %d", len(data), cardBytes)
	}
	sum := sha256.Sum256(data)
	if got := hex.EncodeToString(sum[:]); got != cardSHA256 {
		t.Errorf("the embedded model has sha256 %s, its card says %s", got, cardSHA256)
	}
}

func TestChangingAStoryChangesNoOther(t *testing.T) {
	first := models.Story()
	first[0] ^= 0xff
	if second := models.Story(); string(second[:4]) != "GGUF" {
		t.Errorf("after a change to an earlier copy the model starts with %q, want %q", second[:4], "GGUF")
	}
}

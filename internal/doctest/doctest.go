// Package doctest ties what a document says to the code that makes it true.
package doctest

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// Says fails the test for each claim that a document does not make, word by word. How its lines are broken does not
// matter. Who changes a constant so learns where the document has it.
func Says(t testing.TB, document string, claims ...string) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	flat := flatten(string(text))
	for _, claim := range claims {
		if !strings.Contains(flat, flatten(claim)) {
			t.Errorf("%s does not say %q", document, claim)
		}
	}
}

func flatten(text string) string { return strings.Join(strings.Fields(text), " ") }

// Grouped spells a number with a comma between thousands: 65,536.
func Grouped(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

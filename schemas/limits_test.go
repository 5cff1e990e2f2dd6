package schemas_test

import (
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/doctest"
	"github.com/meshnet/node/schemas"
)

const protocol = "../docs/protocol.md"

// power spells 2ⁿ.
func power(n int) string {
	var b strings.Builder
	b.WriteString("2")
	for _, digit := range fmt.Sprint(bits.Len(uint(n)) - 1) {
		b.WriteRune([]rune("⁰¹²³⁴⁵⁶⁷⁸⁹")[digit-'0'])
	}
	return b.String()
}

func TestProtocolDocumentHasTheLimitsOfTheMessages(t *testing.T) {
	doctest.Says(t, protocol,
		fmt.Sprintf("the protocol version, %d. Another version is refused", schemas.ProtocolVersion),
		fmt.Sprintf("are 1 to %d of the characters", schemas.MaxNameBytes),
		fmt.Sprintf("more than %d containers within each other, %s keys and values, or %d keys in a map",
			schemas.MaxDepth, doctest.Grouped(schemas.MaxNodes), schemas.MaxKeys),
		fmt.Sprintf("the whole conversation, 1 to %s bytes", doctest.Grouped(schemas.MaxPromptBytes)),
		fmt.Sprintf("1 to %s ids in [0, %s−1]", doctest.Grouped(schemas.MaxPromptTokens), power(schemas.MaxTokenID+1)),
		fmt.Sprintf("`max_new_tokens` | int | [1, %s]", power(schemas.MaxNewTokens)),
		fmt.Sprintf("`deadline_ms` | int, %d | [0, %d]", schemas.DefaultDeadline.Milliseconds(), schemas.MaxDeadline.Milliseconds()),
		fmt.Sprintf("`heartbeat_ms` | int, 0 | [%d, %d]", schemas.MinHeartbeat.Milliseconds(), schemas.MaxHeartbeat.Milliseconds()),
		fmt.Sprintf("A request has at most %d MiB (%s bytes)", schemas.MaxRequestBytes>>20, doctest.Grouped(schemas.MaxRequestBytes)),
		fmt.Sprintf("`final` 0 if no worker ever took the turn up). At most %d KiB", schemas.MaxEventBytes>>10),
		fmt.Sprintf("`token_ids`, 1 to %d", schemas.MaxEventTokens),
	)
}

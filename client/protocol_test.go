package client

import (
	"fmt"
	"testing"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/internal/doctest"
)

func TestProtocolDocumentHasTheClientsPeriods(t *testing.T) {
	doctest.Says(t, "../docs/protocol.md",
		fmt.Sprintf("leave about %d bytes for the headers", headerRoom),
		fmt.Sprintf("Wait at most %.0f s for the acknowledgement", publishAttempt.Seconds()),
		fmt.Sprintf("growing pauses (%d ms to %.0f s)", firstRetry.Milliseconds(), lastRetry.Seconds()),
		fmt.Sprintf("| %d with \"per subject\" in its text |", storeFailed),
		fmt.Sprintf("after %.0f s call it unreachable", noStream.Seconds()),
		fmt.Sprintf("advertisement is not older than %.0f s", capability.Silence.Seconds()),
		fmt.Sprintf("`mesh.v1.turn.<tenant>`, %.0f s for an answer", answer.Seconds()),
		fmt.Sprintf("A gap that is open %.0f s after the final", openGap.Seconds()),
		fmt.Sprintf("Nothing heard for %.0f s: ask `status`", silence.Seconds()),
		fmt.Sprintf("No responders twice, %.0f s apart", askAgain.Seconds()),
		fmt.Sprintf("%.0f s after the deadline without a final: ask `cancel`", overdue.Seconds()),
		fmt.Sprintf("After %.0f s more: `unreachable`", lastWait.Seconds()),
	)
}

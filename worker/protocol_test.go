package worker

import (
	"fmt"
	"testing"

	"github.com/meshnet/node/internal/doctest"
)

func TestProtocolDocumentHasThePeriodsOfStoresAndEvents(t *testing.T) {
	var periods Periods
	periods.setDefaults()
	doctest.Says(t, "../docs/protocol.md",
		fmt.Sprintf("names it for %.0f hours", turnTTL.Hours()),
		fmt.Sprintf("or forgotten after %.0f h", turnTTL.Hours()),
		fmt.Sprintf("stream `MESH_TOK`, %.0f minutes, in memory", eventMaxAge.Minutes()),
		fmt.Sprintf("read the turn from `MESH_TOK` (%.0f minutes)", eventMaxAge.Minutes()),
		fmt.Sprintf("Tokens are kept in memory for %.0f minutes", eventMaxAge.Minutes()),
		fmt.Sprintf("bucket `MESH_NODES`, %.0f seconds", nodeTTL.Seconds()),
		fmt.Sprintf("The server drops what it has had, for %.0f minutes", duplicateWindow.Minutes()),
		fmt.Sprintf("as many requests in this lane as it may (%d unless configured)", defaultQuota),
		fmt.Sprintf("Every %.0f s in which nothing else is said", periods.Keepalive.Seconds()),
	)
}

package natsservertest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/meshnet/node/internal/natsserver"
)

// childOptions is the environment variable that makes a test binary a server: the options as JSON.
const childOptions = "MESHNET_TEST_NATS_SERVER"

// A test binary that StartProcess started again never gets to its tests: it is the server.
func init() {
	if options := os.Getenv(childOptions); options != "" {
		if err := serve([]byte(options), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// serve runs a server, writes its URL in one line, and then answers each line of in with one line. It ends with
// in, which also ends when the test's process does, whatever that dies of.
func serve(options []byte, in io.Reader, out io.Writer) error {
	var opts natsserver.Options
	if err := json.Unmarshal(options, &opts); err != nil {
		return err
	}
	server, err := natsserver.Start(opts)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, server.ClientURL())
	for lines := bufio.NewScanner(in); lines.Scan(); {
		fmt.Fprintln(out, answer(server, lines.Text()))
	}
	return server.Shutdown()
}

// What a server can be asked.
const (
	askMeta   = "leads-meta"
	askStream = "leads-stream" // followed by the stream's name
	askHealth = "healthy"

	yes, no = "yes", "no"
)

func answer(server *natsserver.Server, question string) string {
	verb, stream, _ := strings.Cut(question, " ")
	good := false
	switch verb {
	case askMeta:
		good = server.LeadsMeta()
	case askStream:
		good = server.LeadsStream("", stream)
	case askHealth:
		good = server.Healthy() == nil
	}
	if good {
		return yes
	}
	return no
}

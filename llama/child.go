package llama

import (
	"os"
	"os/signal"
	"syscall"
)

// Parts of llama.cpp's common library can be made to crash, to eat memory and to run for ever: the template engine by the model's
// template and by what clients send it, the conversion of schemas by the schema. They run in children: this program again,
// with limits.

// childEnv asks this program to be a child, and says which.
const childEnv = "MESHNET_CHILD"

// The children.
const (
	childSchema = "schema"
	childChat   = "chat"
)

// ServeIfChild makes a process that this package started do its work and exit; every other one goes on.
func ServeIfChild() {
	kind := os.Getenv(childEnv)
	if kind == "" {
		return
	}
	// Ctrl-C reaches children, too. When they end is their parent's to say.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	switch kind {
	case childSchema:
		os.Exit(convertSchema(os.Stdin, os.Stdout, os.Stderr))
	case childChat:
		os.Exit(serveTemplate(os.Stdin, os.Stdout))
	}
}

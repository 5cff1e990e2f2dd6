// Package natsserver runs a NATS server with JetStream inside this process, for a worker that is given no
// other one, for the demo and for tests. Everything that it acknowledged is on disk: each write to a file
// store is synced. It knows nothing of the mesh's streams.
package natsserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
)

// DefaultPort is where NATS servers listen, and this one too unless told otherwise.
const DefaultPort = server.DEFAULT_PORT

// RandomPort asks for any free port.
const RandomPort = server.RANDOM_PORT

var (
	// ErrDirInUse is in the error of Start when another server has its data in the same folder.
	ErrDirInUse = errors.New("the data folder is in use")
	// ErrPortInUse is in the error of Start when something listens on the port already.
	ErrPortInUse = errors.New("the port is in use")
)

// Options say where a server keeps its data and listens. The zero value serves 127.0.0.1:4222 from the
// user's state folder.
type Options struct {
	Dir  string // of the data, made if missing and locked; DefaultDir()
	Host string // to listen on; 127.0.0.1
	Port int    // DefaultPort, or RandomPort
	Name string // of the server; one is drawn

	MaxPayloadBytes int // of one message; 0 is what the configuration file says, else 1 MiB

	// ConfigFile is a NATS server configuration, for users, permissions, TLS and limits. Dir, Host, Port, and what
	// this package promises of JetStream win over what it says.
	ConfigFile string

	Cluster *Cluster // nil is a server that stands alone

	Log *slog.Logger `json:"-"` // warnings and errors, and the rest at debug level; nil is nowhere
}

// Cluster makes a server one of several that keep replicas for each other.
type Cluster struct {
	Name   string
	Port   int      // for the other servers, on the server's Host
	Routes []string // nats:// URLs of the other servers' cluster ports; its own may be among them
}

// DefaultDir is meshnet/nats in the user's state folder: $XDG_STATE_HOME, else ~/.local/state.
func DefaultDir() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) { // unset, or against the XDG specification
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no folder for the server's data: %w; set HOME or XDG_STATE_HOME, or name a folder", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "meshnet", "nats"), nil
}

// complete fills in the defaults.
func (o *Options) complete() error {
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if o.Port == 0 {
		o.Port = DefaultPort
	}
	if o.Dir == "" {
		dir, err := DefaultDir()
		if err != nil {
			return err
		}
		o.Dir = dir
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("the data folder %q: %w", o.Dir, err)
	}
	o.Dir = dir
	if !(o.Port == RandomPort || o.Port >= 1 && o.Port <= 65535) {
		return fmt.Errorf("port is %d, want 1 to 65535, or %d for any free one", o.Port, RandomPort)
	}
	if !(o.MaxPayloadBytes >= 0 && o.MaxPayloadBytes <= server.MAX_PAYLOAD_MAX_SIZE) {
		return fmt.Errorf("the largest payload is %d bytes, want 0 to %d", o.MaxPayloadBytes, server.MAX_PAYLOAD_MAX_SIZE)
	}
	return nil
}

// address is what a server with these options listens on.
func (o *Options) address() string { return net.JoinHostPort(o.Host, strconv.Itoa(max(o.Port, 0))) }

// native is the same in the server's own words.
func (o *Options) native() (*server.Options, error) {
	opts := &server.Options{}
	if o.ConfigFile != "" {
		if err := opts.ProcessConfigFile(o.ConfigFile); err != nil {
			return nil, fmt.Errorf("the server configuration %s: %w", o.ConfigFile, err)
		}
	}
	opts.Host, opts.Port = o.Host, o.Port
	opts.JetStream, opts.StoreDir, opts.SyncAlways = true, o.Dir, true
	opts.DisableJetStreamBanner = true
	opts.NoSigs = true // signals belong to the program
	if o.Name != "" {
		opts.ServerName = o.Name
	}
	if o.MaxPayloadBytes > 0 {
		opts.MaxPayload = int32(o.MaxPayloadBytes)
	}
	if c := o.Cluster; c != nil {
		opts.Cluster.Name, opts.Cluster.Host, opts.Cluster.Port = c.Name, o.Host, c.Port
		opts.Routes = server.RoutesFromStr(strings.Join(c.Routes, ","))
		if opts.ServerName == "" {
			return nil, errors.New("a server of a cluster needs a name")
		}
	}
	return opts, nil
}

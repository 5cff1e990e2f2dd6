package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// natsFlags say which NATS servers to use, and as whom.
type natsFlags struct {
	NATS          string `help:"Servers, separated by commas; default: 127.0.0.1:4222, where worker run has one of its own." name:"nats" placeholder:"URL"`
	Creds         string `help:"Credentials file with a JWT and its seed." type:"existingfile" placeholder:"FILE"`
	NKey          string `help:"File with an NKey seed." name:"nkey" type:"existingfile" placeholder:"FILE"`
	User          string `help:"User name." placeholder:"NAME"`
	Password      string `help:"Password of the user." placeholder:"WORD"`
	Token         string `help:"Token to connect with." placeholder:"WORD"`
	TLSCA         string `help:"Certificates of the authorities to trust; default: those of the system." name:"tls-ca" type:"existingfile" placeholder:"FILE"`
	TLSCert       string `help:"Own certificate." name:"tls-cert" type:"existingfile" placeholder:"FILE"`
	TLSKey        string `help:"Key of the own certificate." name:"tls-key" type:"existingfile" placeholder:"FILE"`
	InboxPrefix   string `help:"Subject prefix of answers, where permissions ask for one." placeholder:"SUBJECT"`
	SubjectPrefix string `help:"Subject prefix of the mesh." default:"mesh.v1" placeholder:"SUBJECT"`
}

const connectTimeout = 5 * time.Second

// url is where to connect: the embedded server of a worker on this machine, unless told otherwise.
func (f *natsFlags) url() string {
	if f.NATS == "" {
		return nats.DefaultURL
	}
	return f.NATS
}

// options are the flags as the NATS client takes them.
func (f *natsFlags) options() ([]nats.Option, error) {
	var options []nats.Option
	if f.Creds != "" {
		options = append(options, nats.UserCredentials(f.Creds))
	}
	if f.NKey != "" {
		option, err := nats.NkeyOptionFromSeed(f.NKey)
		if err != nil {
			return nil, usageError("--nkey: %v", err)
		}
		options = append(options, option)
	}
	if f.User != "" {
		options = append(options, nats.UserInfo(f.User, f.Password))
	}
	if f.Token != "" {
		options = append(options, nats.Token(f.Token))
	}
	if f.TLSCA != "" {
		options = append(options, nats.RootCAs(f.TLSCA))
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		return nil, usageError("--tls-cert and --tls-key go together")
	}
	if f.TLSCert != "" {
		options = append(options, nats.ClientCert(f.TLSCert, f.TLSKey))
	}
	if f.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(f.InboxPrefix))
	}
	return options, nil
}

func (f *natsFlags) prefix() (schemas.Prefix, error) {
	prefix, err := schemas.ParsePrefix(f.SubjectPrefix)
	if err != nil {
		return prefix, usageError("--subject-prefix: %v", err)
	}
	return prefix, nil
}

// connect connects to the servers. Ctrl-C ends the wait for one that does not answer; the attempt then lasts as long
// as the process.
func (f *natsFlags) connect(env *environment, options []nats.Option) (*nats.Conn, error) {
	type result struct {
		nc  *nats.Conn
		err error
	}
	env.status.set("connecting to NATS")
	defer env.status.clear()
	connected := make(chan result, 1)
	go func() {
		nc, err := nats.Connect(f.url(), options...)
		connected <- result{nc, err}
	}()
	select {
	case <-env.ctx.Done():
		return nil, errCancelled
	case r := <-connected:
		var unreadable *url.Error
		if errors.As(r.err, &unreadable) { // it quotes the URL
			r.err = unreadable.Err
		}
		if r.err != nil {
			return nil, fmt.Errorf("cannot connect to NATS at %s: %w; start a worker with `worker run`, or name your servers with --nats", worker.WithoutPasswords(f.url()), r.err)
		}
		return r.nc, nil
	}
}

// permissionError ends a command that may not ask what it has to, or hear the answer. The server says so only beside
// what was asked, which would wait for ever.
type permissionError struct{ err error }

func (e *permissionError) Error() string {
	return fmt.Sprintf("%v; are --user, --tenant and --inbox-prefix those of one tenant?", e.err)
}

func (e *permissionError) Unwrap() error { return e.err }

// vital says that the server denied one of the mesh's subjects, or the inbox, without which no answer comes. What it denies of
// JetStream only costs comfort.
func (f *natsFlags) vital(err error) bool {
	return errors.Is(err, nats.ErrPermissionViolation) && !strings.Contains(err.Error(), `"$`)
}

// client connects and makes a mesh client; done closes both.
func (f *natsFlags) client(env *environment) (c *client.Client, done func(), err error) {
	prefix, err := f.prefix()
	if err != nil {
		return nil, nil, err
	}
	options, err := f.options()
	if err != nil {
		return nil, nil, err
	}
	var deny context.CancelCauseFunc
	env.ctx, deny = context.WithCancelCause(env.ctx)
	options = append(options, nats.Name("worker command line"), nats.Timeout(connectTimeout), nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			env.log.Debug("nats", "error", err)
			if f.vital(err) {
				deny(&permissionError{err})
			}
		}))
	nc, err := f.connect(env, options)
	if err != nil {
		return nil, nil, err
	}
	c, err = client.New(nc, client.WithPrefix(prefix), client.WithLog(env.log))
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return c, func() {
		c.Close()
		nc.Close()
	}, nil
}

package natsserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stream makes a stream that is kept in a file or in memory.
func stream(t *testing.T, conn *nats.Conn, name string, storage jetstream.StorageType) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, Storage: storage}); err != nil {
		t.Fatal(err)
	}
	return js
}

func publish(t *testing.T, js jetstream.JetStream, subject string, n int) {
	t.Helper()
	for i := range n {
		if _, err := js.Publish(t.Context(), subject, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
}

func messages(t *testing.T, js jetstream.JetStream, name string) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := js.Stream(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

func TestRestartKeepsURLAndFilesButNotMemory(t *testing.T) {
	server := natsservertest.Start(t, natsserver.Options{})
	url := server.ClientURL()
	reconnected := make(chan struct{}, 1)
	conn := natsservertest.Connect(t, url, nats.ReconnectHandler(func(*nats.Conn) { reconnected <- struct{}{} }))
	js := stream(t, conn, "FILE", jetstream.FileStorage)
	stream(t, conn, "MEMORY", jetstream.MemoryStorage)
	publish(t, js, "FILE.x", 3)
	publish(t, js, "MEMORY.x", 3)
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if server.ClientURL() != url {
		t.Errorf("the URL is %s after Restart, was %s", server.ClientURL(), url)
	}
	<-reconnected
	if got := messages(t, js, "FILE"); got != 3 {
		t.Errorf("%d messages are in the file store after Restart, want 3", got)
	}
	if _, err := js.Stream(t.Context(), "MEMORY"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("the memory stream after Restart: %v, want %v", err, jetstream.ErrStreamNotFound)
	}
	if err := server.Healthy(); err != nil {
		t.Errorf("Healthy after Restart: %v", err)
	}
}

func TestSecondServerInAFolderIsToldWhoHasIt(t *testing.T) {
	dir := t.TempDir()
	first := natsservertest.Start(t, natsserver.Options{Dir: dir})
	_, err := natsserver.Start(natsserver.Options{Dir: dir, Port: natsserver.RandomPort})
	if !errors.Is(err, natsserver.ErrDirInUse) {
		t.Fatalf("Start = %v, want ErrDirInUse", err)
	}
	for _, want := range []string{dir, first.ClientURL(), fmt.Sprint("process ", os.Getpid()), "choose another folder"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q does not say %q", err, want)
		}
	}
	if err := first.Restart(); err != nil {
		t.Fatal(err)
	}
	if _, err = natsserver.Start(natsserver.Options{Dir: dir, Port: natsserver.RandomPort}); !errors.Is(err, natsserver.ErrDirInUse) {
		t.Errorf("Start after the first one's Restart = %v, want ErrDirInUse", err)
	}
	if err := first.Shutdown(); err != nil {
		t.Fatal(err)
	}
	natsservertest.Start(t, natsserver.Options{Dir: dir})
}

func TestTakenPortIsAnErrorThatNamesIt(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dir := t.TempDir()
	port := listener.Addr().(*net.TCPAddr).Port
	_, err = natsserver.Start(natsserver.Options{Dir: dir, Port: port})
	if !errors.Is(err, natsserver.ErrPortInUse) || !strings.Contains(err.Error(), listener.Addr().String()) {
		t.Fatalf("Start = %v, want ErrPortInUse with the address %s", err, listener.Addr())
	}
	natsservertest.Start(t, natsserver.Options{Dir: dir}) // the folder is free again
}

func TestShutdownIsFinalAndSafeTwice(t *testing.T) {
	server := natsservertest.Start(t, natsserver.Options{})
	if err := server.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(); !errors.Is(err, natsserver.ErrStopped) {
		t.Errorf("Restart after Shutdown = %v, want ErrStopped", err)
	}
	if err := server.Healthy(); err == nil {
		t.Error("a server that was shut down says that it is healthy")
	}
	if err := server.Shutdown(); err != nil {
		t.Errorf("the second Shutdown = %v, want nil", err)
	}
}

func TestOptionsThatCannotWorkAreNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("port: {"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		opts natsserver.Options
		want string
	}{
		"port":               {natsserver.Options{Port: 65536}, "port is 65536"},
		"payload":            {natsserver.Options{MaxPayloadBytes: -1}, "largest payload is -1"},
		"configuration":      {natsserver.Options{ConfigFile: file}, file},
		"no configuration":   {natsserver.Options{ConfigFile: file + "2"}, file + "2"},
		"folder in a file":   {natsserver.Options{Dir: filepath.Join(file, "dir")}, file},
		"cluster needs name": {natsserver.Options{Cluster: &natsserver.Cluster{Name: "c", Port: 1}}, "needs a name"},
		"host of another":    {natsserver.Options{Host: "192.0.2.1", Port: 4222}, "192.0.2.1:4222"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.opts.Dir == "" {
				c.opts.Dir = t.TempDir()
			}
			if c.opts.Port == 0 {
				c.opts.Port = natsserver.RandomPort
			}
			server, err := natsserver.Start(c.opts)
			if err == nil {
				_ = server.Shutdown()
				t.Fatal("it starts")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("Start = %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestWhatTheServerCannotSurviveIsStartsError(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "jetstream"), nil, 0o600); err != nil { // a file where its store goes
		t.Fatal(err)
	}
	_, err := natsserver.Start(natsserver.Options{Dir: dir, Port: natsserver.RandomPort})
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "JetStream") {
		t.Fatalf("Start = %v, want an error that names JetStream and %s", err, dir)
	}
}

func TestRestartThatFailedCanBeTriedAgain(t *testing.T) {
	server := natsservertest.Start(t, natsserver.Options{})
	store := filepath.Join(server.Dir(), "jetstream")
	if err := os.Rename(store, store+"-away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(store, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(); err == nil {
		t.Fatal("it restarts without its data")
	}
	if server.Healthy() == nil {
		t.Error("a server that is down says that it is healthy")
	}
	if err := errors.Join(os.Remove(store), os.Rename(store+"-away", store)); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(); err != nil {
		t.Fatalf("the second Restart: %v", err)
	}
	natsservertest.Connect(t, server.ClientURL())
}

func TestPayloadLimitIsTheServersLimit(t *testing.T) {
	server := natsservertest.Start(t, natsserver.Options{MaxPayloadBytes: 2 << 20})
	if got := natsservertest.Connect(t, server.ClientURL()).MaxPayload(); got != 2<<20 {
		t.Errorf("the server announces %d bytes, want %d", got, 2<<20)
	}
}

func TestConfigurationFileAddsUsersAndCannotMoveTheServer(t *testing.T) {
	config := filepath.Join(t.TempDir(), "nats.conf")
	text := `port: 1
host: "192.0.2.1"
jetstream { store_dir: "/nonexistent", sync_interval: "5m" }
authorization { user: "u", password: "p" }`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	server := natsservertest.Start(t, natsserver.Options{ConfigFile: config})
	if _, err := nats.Connect(server.ClientURL()); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("connecting without a password: %v, want %v", err, nats.ErrAuthorization)
	}
	conn := natsservertest.Connect(t, server.ClientURL(), nats.UserInfo("u", "p"))
	publish(t, stream(t, conn, "S", jetstream.FileStorage), "S.x", 1)
	if _, err := os.Stat(filepath.Join(server.Dir(), "jetstream")); err != nil {
		t.Errorf("the data is not in the folder that was asked for: %v", err)
	}
}

func TestDefaultDirIsTheUsersStateFolder(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/state")
	if dir, err := natsserver.DefaultDir(); dir != "/state/meshnet/nats" || err != nil {
		t.Errorf("DefaultDir = %q, %v; want /state/meshnet/nats", dir, err)
	}
	t.Setenv("HOME", "/home/u")
	for _, relative := range []string{"", "state"} {
		t.Setenv("XDG_STATE_HOME", relative)
		if dir, err := natsserver.DefaultDir(); dir != "/home/u/.local/state/meshnet/nats" || err != nil {
			t.Errorf("with XDG_STATE_HOME=%q DefaultDir = %q, %v; want /home/u/.local/state/meshnet/nats", relative, dir, err)
		}
	}
	t.Setenv("HOME", "")
	if dir, err := natsserver.DefaultDir(); err == nil {
		t.Errorf("without a home DefaultDir = %q, want an error", dir)
	}
}

func TestLogIsQuietUntilSomethingIsWrong(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	server := natsservertest.Start(t, natsserver.Options{Log: log})
	natsservertest.Connect(t, server.ClientURL())
	if err := server.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if text.Len() > 0 {
		t.Errorf("a server that ran well logged:\n%s", &text)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "jetstream"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := natsserver.Start(natsserver.Options{Dir: dir, Port: natsserver.RandomPort, Log: log}); err == nil {
		t.Fatal("it starts")
	}
	if !strings.Contains(text.String(), "level=ERROR") {
		t.Errorf("a server that did not start logged no error, but %q", &text)
	}
}

package natsserver_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
)

// whenLogged is closed once a line of a log holds a word.
type whenLogged struct {
	word string
	once sync.Once
	said chan struct{}
}

func (w *whenLogged) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.word) {
		w.once.Do(func() { close(w.said) })
	}
	return len(p), nil
}

// limitFiles lets no file of this process grow beyond size until the function it returns is called: a full disk.
func limitFiles(t *testing.T, size uint64) (lift func()) {
	t.Helper()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	limit := was
	limit.Cur = size
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	lift = sync.OnceFunc(func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(lift)
	return lift
}

func TestAServerWhoseDiskWasFullTakesWritesAgainOnceThereIsRoom(t *testing.T) {
	full := &whenLogged{word: "takes no writes", said: make(chan struct{})}
	server := natsservertest.Start(t, natsserver.Options{Log: slog.New(slog.NewTextHandler(full, nil))})
	conn := natsservertest.Connect(t, server.ClientURL())
	js := stream(t, conn, "FILE", jetstream.FileStorage)
	publish(t, js, "FILE.x", 3)

	lift := limitFiles(t, 4<<10)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := conn.Publish("FILE.x", make([]byte, 64<<10)); err != nil { // the server says nothing of what it could not store
		t.Fatal(err)
	}
	var mending sync.WaitGroup
	mend, stop := context.WithCancel(ctx)
	mending.Go(func() { server.Mend(mend, 10*time.Millisecond) })
	defer mending.Wait()
	defer stop()
	<-full.said
	lift()
	again := func() error {
		short, cancel := context.WithTimeout(ctx, time.Second) // one that came too early is never answered
		defer cancel()
		_, err := js.Publish(short, "FILE.x", []byte("again"), jetstream.WithRetryAttempts(0))
		return err
	}
	for err := again(); err != nil; err = again() {
		if ctx.Err() != nil {
			t.Fatalf("with room again: %v", err)
		}
	}
	if got := messages(t, js, "FILE"); got != 4 {
		t.Errorf("%d messages are in the store, want the 3 from before and the one from after", got)
	}
}

package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/schemas"
)

const nodeExample = "../../examples/node"

// nodeClient is the folder with the Node.js example and the packages it needs. They are installed once, as the lock
// file pins them, in the user's cache folder.
func nodeClient(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: the Node.js client was not run", program)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	key := sha256.New()
	files := map[string][]byte{}
	for _, name := range []string{"package.json", "package-lock.json", "client.mjs"} {
		if files[name], err = os.ReadFile(filepath.Join(nodeExample, name)); err != nil {
			t.Fatal(err)
		}
	}
	key.Write(files["package.json"])
	key.Write(files["package-lock.json"])
	installed := filepath.Join(cache, "meshnet", "node", fmt.Sprintf("%x", key.Sum(nil)[:8]))
	if _, err := os.Stat(installed); err != nil {
		npmInstall(t, installed, files)
	}
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(installed, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "client.mjs", files["client.mjs"])
	return dir
}

// npmInstall makes a folder with the packages, all at once, so that a broken installation is never taken for a whole one.
func npmInstall(t *testing.T, installed string, files map[string][]byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(installed), 0o755); err != nil {
		t.Fatal(err)
	}
	making, err := os.MkdirTemp(filepath.Dir(installed), "making-") //nolint:usetesting // it is renamed, which needs the same file system
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(making) //nolint:errcheck // it is in the cache
	write(t, making, "package.json", files["package.json"])
	write(t, making, "package-lock.json", files["package-lock.json"])
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	npm.Dir = making
	if output, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, output)
	}
	if err := os.Rename(making, installed); err != nil {
		if _, there := os.Stat(installed); there != nil { // else another test run was quicker
			t.Fatal(err)
		}
	}
}

func write(t *testing.T, dir, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// runNode runs the Node.js client in its folder and returns what it wrote and its exit code.
func runNode(t *testing.T, dir, url string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{"client.mjs"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "NATS_URL="+url, "MESHNET_TENANT="+nodeTenant, "MAX_TOKENS=40")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if ctx.Err() != nil || cmd.ProcessState == nil {
		t.Fatalf("node: %v\n%s", err, errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

const nodeTenant = "acme"

const nodePrompt = "Once upon a time there was a small fox."

func TestTheNodeJSClientReadsTheSameTextAsTheGoClient(t *testing.T) {
	dir := nodeClient(t)
	server := natsservertest.Start(t, natsserver.Options{})
	startWorker(t, server.ClientURL(), "a", "--name", "m")
	c := meshClient(t, server.ClientURL())
	want, err := generate(t, c, client.Request{Tenant: nodeTenant, Session: "go", Turn: 1, Model: "m", Prompt: nodePrompt, MaxNewTokens: 40}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want.Text == "" {
		t.Fatal("the Go client read no text")
	}
	for _, claim := range []string{"streamed", "submitted again"} {
		got, log, code := runNode(t, dir, server.ClientURL(), "m", nodePrompt, "js", "1")
		if code != 0 || got != want.Text {
			t.Errorf("%s: exit %d\nnode: %q\ngo:   %q\n%s", claim, code, got, want.Text, log)
		}
	}
	refused, log, code := runNode(t, dir, server.ClientURL(), "m", strings.Repeat("fox ", 10_000), "long", "1")
	if code != 1 || refused != "" || !strings.Contains(log, "rejected") {
		t.Errorf("a prompt that fits no node: exit %d, %q, %s", code, refused, log)
	}
}

func TestATenantsPermissionsAreEnoughForTheNodeJSClient(t *testing.T) {
	dir := nodeClient(t)
	for _, user := range []string{"WORKER", "OPERATOR", "ACME", "GLOBEX"} {
		t.Setenv("MESH_"+user+"_PASSWORD", "secret-"+user)
	}
	permissions, err := filepath.Abs("../../deploy/nats/permissions.conf")
	if err != nil {
		t.Fatal(err)
	}
	server := natsservertest.Start(t, natsserver.Options{ConfigFile: permissions})
	startWorker(t, server.ClientURL(), "a", "--name", "m", "--user", "worker", "--password", "secret-WORKER")
	t.Setenv("NATS_USER", nodeTenant)
	t.Setenv("NATS_PASSWORD", "secret-ACME")
	first, log, code := runNode(t, dir, server.ClientURL(), "m", nodePrompt, "js", "1")
	if code != 0 || first == "" {
		t.Fatalf("exit %d, %q\n%s", code, first, log)
	}
	if again, log, code := runNode(t, dir, server.ClientURL(), "m", nodePrompt, "js", "1"); code != 0 || again != first {
		t.Errorf("read from the stream: exit %d, %q; want %q\n%s", code, again, first, log)
	}
}

// scripted is the example's turn as a worker that publishes these events, the stored ones before anybody listens.
func scripted(t *testing.T, dir string, stored, live []schemas.Event) (stdout, stderr string, code int) {
	t.Helper()
	server := natsservertest.Start(t, natsserver.Options{})
	conn := natsservertest.Connect(t, server.ClientURL())
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var prefix schemas.Prefix
	for name, subject := range map[string]string{prefix.RequestStream(): prefix.Requests(), prefix.EventStream(): prefix.Events()} {
		if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{subject}, Storage: jetstream.MemoryStorage}); err != nil {
			t.Fatal(err)
		}
	}
	id := schemas.TurnID{Tenant: schemas.Must(schemas.ParseTenant(nodeTenant)), Session: schemas.Must(schemas.ParseSession("js")), Turn: 1}
	publish := func(events []schemas.Event) {
		for _, e := range events {
			if _, err := js.Publish(ctx, prefix.Tokens(id), encoded(t, e)); err != nil {
				t.Error(err)
			}
		}
	}
	publish(stored)
	sub, err := conn.Subscribe(prefix.Requests(), func(*nats.Msg) { publish(live) })
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code = runNode(t, dir, server.ClientURL(), "m", "text", "js", "1")
	if err := sub.Unsubscribe(); err != nil {
		t.Error(err)
	}
	return stdout, stderr, code
}

func encoded(t *testing.T, event schemas.Event) []byte {
	t.Helper()
	var data []byte
	var err error
	switch e := event.(type) {
	case *schemas.Started:
		data, err = schemas.Encode(e)
	case *schemas.Tokens:
		data, err = schemas.Encode(e)
	case *schemas.Keepalive:
		data, err = schemas.Encode(e)
	case *schemas.Final:
		data, err = schemas.Encode(e)
	}
	if err != nil {
		t.Error(err)
	}
	return data
}

func TestTheNodeJSClientFoldsAttemptsDuplicatesAndGaps(t *testing.T) {
	dir := nodeClient(t)
	node := schemas.Must(schemas.ParseNode("a"))
	started := func(attempt, resume int) schemas.Event {
		return &schemas.Started{Attempt: attempt, Node: node, ResumeIndex: resume, PromptTokens: 1}
	}
	tokens := func(attempt, index int, text string) schemas.Event {
		return &schemas.Tokens{Attempt: attempt, Index: index, TokenIDs: make([]int64, len(text)), Text: text}
	}
	final := func(attempt, count int) schemas.Event {
		return &schemas.Final{Reason: schemas.Completed, Finish: schemas.FinishLength, Attempt: attempt, Count: count, Node: node}
	}
	cancelled := &schemas.Final{Reason: schemas.Cancelled, Attempt: 1, Count: 2, Node: node}
	begun := []schemas.Event{started(1, 0), tokens(1, 0, "ab"), tokens(1, 2, "cd")}
	for _, c := range []struct {
		claim        string
		stored, live []schemas.Event
		text         string
		code         int
	}{
		{"known indexes do not count", nil, []schemas.Event{started(1, 0), tokens(1, 0, "ab"), tokens(1, 0, "ab"), tokens(1, 2, "c"), final(1, 3)}, "abc", 0},
		{"the new tokens of an event known in part count", nil, []schemas.Event{started(1, 0), tokens(1, 0, "ab"), tokens(1, 2, "c"), tokens(1, 2, "cd"), final(1, 4)}, "abcd", 0},
		{"lower attempts do not count", nil, append(slices.Clone(begun), started(2, 4), tokens(1, 4, "X"), tokens(2, 4, "e"), final(2, 5)), "abcde", 0},
		{"void text is told apart from what stands", nil, append(slices.Clone(begun), started(2, 2), tokens(2, 2, "CD"), final(2, 4)), "abcd\nabCD", 0},
		{"what was missed is read from the stream", begun, []schemas.Event{tokens(1, 4, "e"), final(1, 5)}, "abcde", 0},
		{"a takeover after a gap, too", begun, []schemas.Event{started(2, 4), tokens(2, 4, "e"), final(2, 5)}, "abcde", 0},
		{"lost tokens are an error", nil, []schemas.Event{started(1, 0), tokens(1, 1, "b"), final(1, 2)}, "", 1},
		{"a cancelled turn is an error", nil, []schemas.Event{started(1, 0), tokens(1, 0, "ab"), cancelled}, "ab", 1},
	} {
		t.Run(c.claim, func(t *testing.T) {
			got, log, code := scripted(t, dir, c.stored, c.live)
			if got != c.text || code != c.code {
				t.Errorf("exit %d, %q; want %d, %q\n%s", code, got, c.code, c.text, log)
			}
		})
	}
}

// A lock file with addresses binds its users to one registry.
func TestTheNodeJSLockFileNamesNoRegistry(t *testing.T) {
	lock, err := os.ReadFile(filepath.Join(nodeExample, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	if found := regexp.MustCompile(`https?://[^"]*|"resolved"`).Find(lock); found != nil {
		t.Errorf("package-lock.json has %s; npm install --omit-lockfile-registry-resolved writes none", found)
	}
}

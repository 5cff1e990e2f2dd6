package natsservertest

import (
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Direction is a set of the ways that bytes flow through a Proxy.
type Direction int

// The two ways, and both.
const (
	ToServer Direction = 1 << iota
	ToClient
	BothWays = ToServer | ToClient
)

// Proxy passes TCP connections on to a server until it is told to break them. Its methods are safe for
// concurrent use.
type Proxy struct {
	target   string
	listener net.Listener
	owned    sync.WaitGroup // every goroutine of the proxy

	mu      sync.Mutex // guards what follows
	state   proxyState
	changed chan struct{} // closed and replaced when state changes
	pairs   map[*pair]struct{}
	closed  bool
}

type proxyState struct {
	cut     bool
	stalled Direction
	delay   time.Duration
}

// pair is one connection through the proxy.
type pair struct {
	client, server net.Conn
	gone           chan struct{}
	once           sync.Once
}

func (p *pair) close() {
	p.once.Do(func() {
		close(p.gone)
		_ = p.client.Close()
		if p.server != nil {
			_ = p.server.Close()
		}
	})
}

// reset closes both ends so that what is under way is lost.
func (p *pair) reset() {
	for _, conn := range []net.Conn{p.client, p.server} {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
	}
	p.close()
}

// StartProxy puts a proxy before the server at a nats:// URL.
func StartProxy(t testing.TB, serverURL string) *Proxy {
	t.Helper()
	parsed, err := url.Parse(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: parsed.Host, listener: listener, changed: make(chan struct{}), pairs: map[*pair]struct{}{}}
	p.owned.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// URL is where clients connect to get to the server through the proxy. A client has to ignore the addresses
// that the server tells it of (nats.IgnoreDiscoveredServers), or it may find its way around.
func (p *Proxy) URL() string { return "nats://" + p.listener.Addr().String() }

// Cut resets all connections, and each new one, until Heal.
func (p *Proxy) Cut() {
	p.change(func(s *proxyState) { s.cut = true })
	p.mu.Lock()
	defer p.mu.Unlock()
	for pair := range p.pairs {
		pair.reset()
	}
}

// Stall lets no byte through in a direction, and keeps what comes for later; connections stay open, and
// neither end learns of it. Other directions are as before.
func (p *Proxy) Stall(d Direction) { p.change(func(s *proxyState) { s.stalled |= d }) }

// Delay lets every byte through so much later, in both directions. Zero ends that.
func (p *Proxy) Delay(d time.Duration) { p.change(func(s *proxyState) { s.delay = d }) }

// Heal ends Cut, Stall and Delay. What was kept goes through.
func (p *Proxy) Heal() { p.change(func(s *proxyState) { *s = proxyState{} }) }

// Connections is how many go through the proxy now.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pairs)
}

func (p *Proxy) change(f func(*proxyState)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.state)
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) now() (proxyState, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state, p.changed
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Cut()
	p.owned.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.owned.Go(func() { p.pass(client) })
	}
}

// pass runs one connection.
func (p *Proxy) pass(client net.Conn) {
	this := &pair{client: client, gone: make(chan struct{})}
	defer this.close()
	if state, _ := p.now(); state.cut {
		this.reset()
		return
	}
	server, err := net.DialTimeout("tcp", p.target, patience)
	if err != nil {
		return
	}
	this.server = server
	if !p.add(this) {
		return
	}
	defer p.remove(this)
	var both sync.WaitGroup
	both.Go(func() { p.copy(this, client, server, ToServer) })
	both.Go(func() { p.copy(this, server, client, ToClient) })
	both.Wait()
}

// add is false when the proxy was cut or closed since.
func (p *Proxy) add(this *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.cut || p.closed {
		return false
	}
	p.pairs[this] = struct{}{}
	return true
}

func (p *Proxy) remove(this *pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pairs, this)
}

// chunk is some bytes, and when they came.
type chunk struct {
	bytes []byte
	came  time.Time
}

// copy passes bytes on in one direction. Reading goes on while writing waits, so that a delay does not become
// a limit of throughput.
func (p *Proxy) copy(this *pair, from, to net.Conn, d Direction) {
	chunks := make(chan chunk, 4096)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer this.close() // first, so that the reader ends
	reader.Go(func() {
		defer close(chunks)
		for {
			buffer := make([]byte, 16<<10)
			n, err := from.Read(buffer)
			if n > 0 {
				select {
				case chunks <- chunk{buffer[:n], time.Now()}:
				case <-this.gone:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for c := range chunks {
		if !p.pause(this, c.came, d) {
			return
		}
		if _, err := to.Write(c.bytes); err != nil {
			return
		}
	}
}

// pause waits until bytes that came at some time may go on; false is never.
func (p *Proxy) pause(this *pair, came time.Time, d Direction) bool {
	for {
		state, changed := p.now()
		var due <-chan time.Time
		if state.stalled&d == 0 {
			wait := time.Until(came.Add(state.delay))
			if wait <= 0 {
				return true
			}
			due = time.After(wait)
		}
		select {
		case <-due:
		case <-changed:
		case <-this.gone:
			return false
		}
	}
}

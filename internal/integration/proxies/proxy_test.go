package proxies

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/process"
	"github.com/muster-fleet/muster/internal/testenv"
)

// With envListen, this program is not a test but an HTTP proxy at that address. envAnswer is the status code of all its answers; if it
// is empty, the proxy connects.
const (
	envListen = "MUSTER_TEST_PROXY_LISTEN"
	envAnswer = "MUSTER_TEST_PROXY_ANSWER"
)

// serveProxy serves only CONNECT, and connects every name to this machine. Nothing else resolves these names, so a connection to one of
// them went through the proxy.
func serveProxy(address, answer string) error {
	code, _ := strconv.Atoi(answer)
	server := &http.Server{Addr: address, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.Host)
		if code != 0 || r.Method != http.MethodConnect {
			http.Error(w, "no", max(code, http.StatusBadRequest))
			return
		}
		if err := tunnel(w, r.Host); err != nil {
			fmt.Println(err)
		}
	})}
	return server.ListenAndServe()
}

func tunnel(w http.ResponseWriter, host string) error {
	_, port, err := net.SplitHostPort(host)
	if err != nil {
		return err
	}
	there, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		http.Error(w, "cannot connect", http.StatusBadGateway)
		return err
	}
	defer there.Close()
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	defer here.Close()
	if _, err := io.WriteString(here, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return err
	}
	go func() { _, _ = io.Copy(there, buffered); _ = there.Close() }()
	_, err = io.Copy(here, there)
	return err
}

// proxy is an HTTP proxy whose address stays the same when another process replaces it.
type proxy struct {
	t       *testing.T
	address string
	log     string
	running *process.Process
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	p := &proxy{t: t, address: testenv.UnusedAddress(t), log: filepath.Join(t.TempDir(), "proxy.log")}
	p.answers("")
	t.Cleanup(func() { p.dies() })
	return p
}

func (p *proxy) url() string { return "http://" + p.address }

// answers replaces the proxy by one that answers with this status. Existing connections end.
func (p *proxy) answers(status string) {
	p.t.Helper()
	p.dies()
	self, err := os.Executable()
	require.NoError(p.t, err)
	p.running, err = process.Start(process.Command{
		Path: self, Env: append(os.Environ(), envListen+"="+p.address, envAnswer+"="+status), Log: p.log,
	})
	require.NoError(p.t, err)
	testenv.Eventually(p.t, func() (bool, string) {
		connection, err := net.Dial("tcp", p.address)
		if err == nil {
			_ = connection.Close()
		}
		return err == nil, fmt.Sprint(err)
	})
}

// dies kills the proxy.
func (p *proxy) dies() {
	if p.running.Alive() {
		p.running.Kill()
	}
}

// asked returns the number of requests for a host.
func (p *proxy) asked(host string) (count int) {
	p.t.Helper()
	file, err := os.Open(p.log)
	require.NoError(p.t, err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if method, asked, found := strings.Cut(lines.Text(), " "); found && method == http.MethodConnect && asked == host {
			count++
		}
	}
	return count
}

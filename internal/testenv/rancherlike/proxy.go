package rancherlike

import (
	"crypto/tls"
	"fmt"
	"io"
	"log" //nolint:depguard // net/http takes this one only
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"github.com/muster-fleet/muster/internal/testenv"
)

// tunnelPrefix is the path below which the server has the API of each managed cluster.
const tunnelPrefix = "/k8s/clusters/"

// Proxy is the server's address, through which agents reach the hub's API, and the hub reaches members.
type Proxy struct {
	// Agents and Tunnel inject faults into the two directions.
	Agents, Tunnel Switch

	server *httptest.Server
	ca     []byte
	hub    http.Handler

	mutex   sync.Mutex
	members map[string]*tunnel // by the server's name of a cluster
	strays  []string
}

// tunnel forwards requests with the server's own token to a member.
type tunnel struct {
	token   string
	handler http.Handler
	calls   atomic.Int64
}

// Calls is the number of requests to a member, including those with a fault.
func (p *Proxy) Calls(name string) int64 {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.members[name].calls.Load()
}

// NewProxy starts a server with a certificate authority of its own, until the test ends.
func NewProxy(t testing.TB, hub *testenv.Cluster) *Proxy {
	t.Helper()
	certificate, ca := newCertificate(t)
	// Bearer tokens are forwarded. Client certificates are not, because the connection to the hub is another one.
	toHub := rest.Config{Host: hub.URL(), TLSClientConfig: rest.TLSClientConfig{CAData: hub.CA()}}
	p := &Proxy{ca: ca, hub: reverse(t, &toHub, ""), members: map[string]*tunnel{}}
	p.server = httptest.NewUnstartedServer(p)
	p.server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.server.EnableHTTP2 = true
	p.server.StartTLS()
	t.Cleanup(func() {
		p.server.CloseClientConnections() // otherwise Close waits for open watches
		p.server.Close()
	})
	return p
}

// newCertificate also returns the authority of the certificate, which is a new one each time.
func newCertificate(t testing.TB) (tls.Certificate, []byte) {
	t.Helper()
	chain, key, err := certutil.GenerateSelfSignedCertKey("rancher.example", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(chain, key)
	require.NoError(t, err)
	const begin = "-----BEGIN CERTIFICATE-----"
	return pair, []byte(begin + string(chain[strings.LastIndex(string(chain), begin)+len(begin):]))
}

// URL is the setting server-url, CA the setting cacerts.
func (p *Proxy) URL() string { return p.server.URL }

// CA is the authority of the server's certificate.
func (p *Proxy) CA() []byte { return p.ca }

// Strays are the requests that such a server does not forward: paths that Kubernetes does not have, client certificates, and upgrades of
// connections.
func (p *Proxy) Strays() []string {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return slices.Clone(p.strays)
}

// serve adds a member.
func (p *Proxy) serve(t testing.TB, name, token string, member *testenv.Cluster) {
	t.Helper()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.members[name] = &tunnel{token: token, handler: reverse(t, member.RESTConfig(), tunnelPrefix+name)}
}

// ServeHTTP forwards a request to the hub or to a member.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if len(r.TLS.PeerCertificates) > 0 || r.Header.Get("Upgrade") != "" {
		p.stray(r)
	}
	switch {
	case strings.HasPrefix(r.URL.Path, tunnelPrefix):
		p.toMember(w, r)
	case isKubernetes(r.URL.Path):
		if !p.Agents.interrupt(w, r) {
			p.hub.ServeHTTP(w, r)
		}
	default:
		p.stray(r)
		http.NotFound(w, r)
	}
}

func isKubernetes(path string) bool {
	return slices.ContainsFunc([]string{"/api", "/apis", "/openapi", "/version"}, func(root string) bool {
		return path == root || strings.HasPrefix(path, root+"/")
	})
}

func (p *Proxy) stray(r *http.Request) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.strays = append(p.strays, fmt.Sprintf("%s %s, %d client certificates, Upgrade %q",
		r.Method, r.URL.Path, len(r.TLS.PeerCertificates), r.Header.Get("Upgrade")))
}

func (p *Proxy) toMember(w http.ResponseWriter, r *http.Request) {
	name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, tunnelPrefix), "/")
	p.mutex.Lock()
	member := p.members[name]
	p.mutex.Unlock()
	if member != nil {
		member.calls.Add(1)
	}
	p.Tunnel.linger(r)
	if p.Tunnel.interrupt(w, r) {
		return
	}
	if member == nil || r.Header.Get("Authorization") != "Bearer "+member.token {
		Fault{Code: http.StatusUnauthorized, ContentType: typeJSON, Body: `{"type":"error","status":"401","message":"must authenticate"}`}.answer(w)
		return
	}
	// The member does not know the server's token. The request has the rights of the server.
	r.Header.Del("Authorization")
	member.handler.ServeHTTP(w, r)
}

func reverse(t testing.TB, target *rest.Config, prefix string) http.Handler {
	t.Helper()
	address, err := url.Parse(target.Host)
	require.NoError(t, err)
	transport, err := rest.TransportFor(target)
	require.NoError(t, err)
	return http.StripPrefix(prefix, &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(address) },
		Transport:     transport,
		FlushInterval: -1, // for watches
		ErrorLog:      log.New(io.Discard, "", 0),
	})
}

// Package transport makes the connections between hub and members, in both directions. Which authorities count is a matter of
// each connection: nothing is kept in the environment or in variables that a whole process would share.
package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Proxy chooses the proxy for a request; nil means none.
type Proxy func(*http.Request) (*url.URL, error)

// New has client-go's defaults, HTTP/2 with pings among them, so that a dead connection is noticed. It is not client-go's shared
// transport, which lives as long as the process. A nil proxy means the one of the environment: HTTPS_PROXY, HTTP_PROXY and
// NO_PROXY, which nothing bypasses but addresses of this machine.
func New(config *tls.Config, proxy Proxy) *http.Transport {
	return utilnet.SetTransportDefaults(&http.Transport{
		TLSClientConfig: config, Proxy: proxy, OnProxyConnectResponse: checkProxy,
	})
}

// ProxyError is the refusal of a proxy to lead on.
type ProxyError struct {
	// Address is the proxy's, without user and password.
	Address string
	// Code is its answer, an HTTP status.
	Code int
}

// Error names the proxy: its answer alone, say "Forbidden", would be taken for one of the server behind it.
func (e *ProxyError) Error() string {
	text := fmt.Sprintf("the proxy %s answers %d %s", e.Address, e.Code, http.StatusText(e.Code))
	switch e.Code {
	case http.StatusProxyAuthRequired:
		return text + "; put user and password into the proxy's address"
	case http.StatusForbidden:
		return text + "; have it allow this address, or name the address in NO_PROXY"
	}
	return text
}

func checkProxy(_ context.Context, proxy *url.URL, _ *http.Request, answer *http.Response) error {
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	return &ProxyError{Address: proxy.Scheme + "://" + proxy.Host, Code: answer.StatusCode}
}

// ViaProxy says whether a connection failed on the way to the proxy, not behind it.
func ViaProxy(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "proxyconnect"
}

// RefuseRedirect is for http.Client.CheckRedirect. It keeps the token at the address it was given for: it would be sent along
// to wherever a redirect points.
func RefuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Steady refuses redirects where the http.Client is somebody else's, as those that libraries make from a rest.Config.
type Steady struct{ Next http.RoundTripper }

// RoundTrip passes the request on.
func (s Steady) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := s.Next.RoundTrip(request)
	if err == nil {
		response.Header.Del("Location") // without it there is nothing to follow
	}
	return response, err
}

// WrappedRoundTripper lets others find the transport below, to close its connections for one.
func (s Steady) WrappedRoundTripper() http.RoundTripper { return s.Next }

// Package transport opens the connections between hub and members, in both directions. Each connection has its own trusted
// authorities; these do not depend on environment variables or on package variables such as http.DefaultTransport. The proxy may come from the environment.
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
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Proxy chooses the proxy for a request; a nil URL means no proxy.
type Proxy func(*http.Request) (*url.URL, error)

// New returns a transport with client-go's defaults, such as HTTP/2 pings that detect a dead connection. It does not use
// client-go's shared transports, which exist as long as the process. A nil proxy means the environment's: HTTPS_PROXY, HTTP_PROXY
// and NO_PROXY; addresses of this machine always bypass the proxy.
func New(config *tls.Config, proxy Proxy) *http.Transport {
	return utilnet.SetTransportDefaults(&http.Transport{
		TLSClientConfig: config, Proxy: proxy, OnProxyConnectResponse: checkProxy, MaxResponseHeaderBytes: maxHeaders,
	})
}

// ProxyError means that a proxy refused to connect.
type ProxyError struct {
	// Address is the address of the proxy without user and password.
	Address string
	// Code is the HTTP status of its answer.
	Code int
}

// Error names the proxy: "Forbidden" alone would look like an answer of the server behind it.
func (e *ProxyError) Error() string {
	text := fmt.Sprintf("the proxy %s answers %d %s", e.Address, e.Code, http.StatusText(e.Code))
	switch e.Code {
	case http.StatusProxyAuthRequired:
		return text + "; put user and password into the proxy's address"
	case http.StatusForbidden:
		return text + "; configure the proxy to allow the address of the server, or name that address in NO_PROXY"
	}
	return text
}

func checkProxy(_ context.Context, proxy *url.URL, _ *http.Request, answer *http.Response) error {
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	return &ProxyError{Address: proxy.Scheme + "://" + proxy.Host, Code: answer.StatusCode}
}

// IsProxyUnreachable reports whether the connection to the proxy itself failed.
func IsProxyUnreachable(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "proxyconnect"
}

// RefuseRedirect is a function for http.Client.CheckRedirect. A redirect would send the token to another address.
func RefuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Sender sends a request through a transport.
type Sender func(next http.RoundTripper, request *http.Request) (*http.Response, error)

// Wrap returns a transport that sends requests with the Sender, through next. It is a function for rest.Config.Wrap.
func (s Sender) Wrap(next http.RoundTripper) http.RoundTripper { return wrapper{next, s} }

type wrapper struct {
	next http.RoundTripper
	send Sender
}

// RoundTrip sends the request.
func (w wrapper) RoundTrip(request *http.Request) (*http.Response, error) {
	return w.send(w.next, request)
}

// WrappedRoundTripper lets client-go reach the transport to close its connections.
func (w wrapper) WrappedRoundTripper() http.RoundTripper { return w.next }

// NoRedirects returns a transport that removes the target of a redirect from the answer. It is for an http.Client that a library creates, for
// example from a rest.Config.
func NoRedirects(next http.RoundTripper) http.RoundTripper {
	return Sender(func(next http.RoundTripper, request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err == nil {
			response.Header.Del("Location")
		}
		return response, err
	}).Wrap(next)
}

// Names in the kubeconfigs that Kubeconfig returns. Other components read them too.
const (
	kubeconfigCluster = "cluster"
	KubeconfigUser    = "user"
	kubeconfigContext = "default"
)

// Kubeconfig returns a kubeconfig for a server with this CA. The user has no credential if the token is empty.
func Kubeconfig(server string, ca []byte, token, namespace string) ([]byte, error) {
	return clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{kubeconfigCluster: {Server: server, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{KubeconfigUser: {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{kubeconfigContext: {Cluster: kubeconfigCluster, AuthInfo: KubeconfigUser, Namespace: namespace}},
		CurrentContext: kubeconfigContext,
	})
}

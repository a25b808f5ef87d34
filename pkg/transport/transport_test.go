package transport

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

func serve(t *testing.T, handle http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handle)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func trusting(server *httptest.Server) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// get returns the body of the response.
func get(t *testing.T, client *http.Client, address string) (string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	require.NoError(t, err)
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body), nil
}

func TestNewTrustsItsOwnAuthoritiesOnly(t *testing.T) {
	a := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
	trusts, doubts := New(trusting(a), nil), New(&tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}, nil)
	defer trusts.CloseIdleConnections()
	for range 2 { // each client is used before and after the other
		answer, err := get(t, &http.Client{Transport: trusts}, a.URL)
		require.NoError(t, err)
		assert.Equal(t, "HTTP/2.0", answer)
		_, err = get(t, &http.Client{Transport: doubts}, a.URL)
		var unknown x509.UnknownAuthorityError
		require.ErrorAs(t, err, &unknown)
	}
}

// proxied returns the error of a request through a proxy that answers with the handler.
func proxied(t *testing.T, answer http.HandlerFunc) error {
	t.Helper()
	proxy := httptest.NewServer(answer)
	defer proxy.Close()
	return through(t, proxy.URL)
}

func through(t *testing.T, proxy string) error {
	t.Helper()
	address, err := url.Parse(proxy)
	require.NoError(t, err)
	address.User = url.UserPassword("user", "MARKER-password")
	transport := New(&tls.Config{MinVersion: tls.VersionTLS12}, func(*http.Request) (*url.URL, error) { return address, nil })
	defer transport.CloseIdleConnections()
	_, err = get(t, &http.Client{Transport: transport}, "https://hub.invalid")
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "MARKER")
	return err
}

func TestProxyError(t *testing.T) {
	for code, want := range map[int]string{
		http.StatusForbidden:         "answers 403 Forbidden; configure the proxy to allow the address of the server, or name that address in NO_PROXY",
		http.StatusProxyAuthRequired: "answers 407 Proxy Authentication Required; put user and password into the proxy's address",
		http.StatusBadGateway:        "answers 502 Bad Gateway",
	} {
		err := proxied(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
		var refused *ProxyError
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, code, refused.Code)
		require.ErrorContains(t, err, "the proxy http://127.0.0.1:")
		require.ErrorContains(t, err, want)
		assert.False(t, IsProxyUnreachable(err), "the connection to the proxy itself worked")
	}
}

func TestIsProxyUnreachable(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	assert.True(t, IsProxyUnreachable(through(t, "http://"+listener.Addr().String())))
	assert.False(t, IsProxyUnreachable(proxied(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })))
	assert.False(t, IsProxyUnreachable(errors.New("else")))
	transport := New(&tls.Config{MinVersion: tls.VersionTLS12}, nil)
	_, err = get(t, &http.Client{Transport: transport}, "https://"+listener.Addr().String())
	assert.False(t, IsProxyUnreachable(err))
}

func TestNoRedirectsAndRefuseRedirect(t *testing.T) {
	strayed := false
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { strayed = true })
	for _, code := range []int{301, 302, 303, 307, 308} {
		server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(code)
		})
		config := trusting(server)
		config.RootCAs.AddCert(elsewhere.Certificate())
		wrapped, err := rest.HTTPWrappersForConfig(&rest.Config{BearerToken: "MARKER"}, NoRedirects(New(config, nil)))
		require.NoError(t, err)
		for _, client := range []*http.Client{
			{Transport: wrapped},
			{Transport: New(config, nil), CheckRedirect: RefuseRedirect},
		} {
			_, err = get(t, client, server.URL)
			require.NoError(t, err)
		}
	}
	assert.False(t, strayed)
	below := New(&tls.Config{MinVersion: tls.VersionTLS12}, nil)
	assert.Same(t, below, NoRedirects(below).(utilnet.RoundTripperWrapper).WrappedRoundTripper())
}

package rancherlike

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProxy(t *testing.T) {
	certificate, ca := newCertificate(t)
	p := &Proxy{ca: ca, hub: echo("hub"), members: map[string]*tunnel{
		"c-1": {token: "u-1:secret", handler: http.StripPrefix(tunnelPrefix+"c-1", echo("member"))},
	}}
	p.server = httptest.NewUnstartedServer(p)
	p.server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert}
	p.server.StartTLS()
	t.Cleanup(p.server.Close)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(p.CA()), "its authority is no certificate")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}

	get := func(path, token string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL()+path, http.NoBody)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(body)
	}
	requireAnswer := func(path, token string, code int, body string) {
		gotCode, got := get(path, token)
		require.Equal(t, code, gotCode, path)
		require.Contains(t, got, body, path)
	}

	requireAnswer("/api/v1/namespaces", "jwt", http.StatusOK, "hub /api/v1/namespaces Bearer jwt")
	requireAnswer("/version", "jwt", http.StatusOK, "hub /version")
	requireAnswer("/k8s/clusters/c-1/api/v1", "u-1:secret", http.StatusOK, "member /api/v1 ")
	requireAnswer("/k8s/clusters/c-1/api/v1", "jwt", http.StatusUnauthorized, "must authenticate")
	requireAnswer("/k8s/clusters/c-2/api/v1", "u-1:secret", http.StatusUnauthorized, "must authenticate")
	require.Empty(t, p.Strays())
	requireAnswer("/healthz", "jwt", http.StatusNotFound, "")
	requireAnswer("/apiary", "jwt", http.StatusNotFound, "")
	require.Len(t, p.Strays(), 2)

	for _, fault := range AgentFaults() {
		p.Agents.Break(fault)
		requireAnswer("/api/v1/namespaces", "jwt", fault.Code, fault.Body)
		answered, _ := p.Agents.Answered()
		require.Equal(t, 1, answered)
		requireAnswer("/k8s/clusters/c-1/api", "u-1:secret", http.StatusOK, "member")
	}
	p.Agents.Mend()
	requireAnswer("/api/v1/namespaces", "jwt", http.StatusOK, "hub")
}

func echo(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, name+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
	})
}

package main

import (
	"bufio"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProxy(t *testing.T) {
	next := make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Authorization")+" "+r.URL.RequestURI()+"\n")
		w.(http.Flusher).Flush()
		<-next
		_, _ = io.WriteString(w, "the end\n")
	}))
	t.Cleanup(server.Close)
	handler, err := proxy(server.URL, caFile(t, server))
	require.NoError(t, err)
	front := httptest.NewServer(handler)
	t.Cleanup(front.Close)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+"/api?watch=1", nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer token")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body := bufio.NewReader(response.Body)
	line, err := body.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "Bearer token /api?watch=1\n", line)
	close(next)
	line, err = body.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "the end\n", line)
}

func TestProxyErrors(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	empty := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	_, err := proxy(server.URL, empty)
	require.ErrorContains(t, err, "has no certificate")
	_, err = proxy(server.URL, "/nowhere")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestRunArguments(t *testing.T) {
	require.ErrorContains(t, run([]string{"one"}), "expected 5 arguments")
}

func caFile(t *testing.T, server *httptest.Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.crt")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(path, block, 0o600))
	return path
}

package transport

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const testLimit = 1 << 20

// hostile are servers that want the process to keep more than it should.
var hostile = map[string]struct {
	answer http.HandlerFunc
	want   string // part of the error; HTTP/2 names no cause when headers are too large
}{
	"endless body": {want: "larger than 1024 kB", answer: func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}},
	"body one byte too large, of known length": {want: "larger than 1024 kB", answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(testLimit+1))
		_, _ = w.Write(make([]byte, testLimit+1))
	}},
	"decompression bomb": {want: "larger than 1024 kB", answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		for range 64 {
			_, _ = z.Write(make([]byte, 1<<20))
		}
	}},
	"one huge header": {want: "header", answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X", strings.Repeat("x", 2*maxHeaders))
	}},
	"many headers": {want: "header", answer: func(w http.ResponseWriter, _ *http.Request) {
		for i := range 2 * maxHeaders / 32 {
			w.Header().Set(fmt.Sprintf("X-%d", i), "00000000000000000000000000")
		}
	}},
	"body that never ends, a byte at a time": {want: "timeout", answer: func(w http.ResponseWriter, r *http.Request) {
		for {
			_, _ = w.Write([]byte{' '})
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				panic(http.ErrAbortHandler) // a client that closes its connection could still read a proper end of the body
			case <-time.After(10 * time.Millisecond):
			}
		}
	}},
}

func TestLimited(t *testing.T) {
	for name, server := range hostile {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(name+", "+protocol+": an error, and no more memory than the limit", func(t *testing.T) {
				t.Parallel()
				patience := time.Minute
				if server.want == "timeout" {
					patience = time.Second
				}
				read, err := readLimited(t, server.answer, protocol, "", patience)
				var network net.Error
				switch want := server.want; {
				case want == "timeout":
					require.ErrorAs(t, err, &network)
					assert.True(t, network.Timeout())
				case want == "header" && protocol == "HTTP/2.0":
					require.ErrorContains(t, err, "connection error")
				default:
					require.ErrorContains(t, err, want)
				}
				assert.LessOrEqual(t, read, testLimit)
			})
		}
	}
	t.Run("body as large as the limit: read", func(t *testing.T) {
		read, err := readLimited(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, testLimit)) }, "HTTP/2.0", "", time.Minute)
		require.NoError(t, err)
		assert.Equal(t, testLimit, read)
	})
	t.Run("watch: not limited as a whole", func(t *testing.T) {
		read, err := readLimited(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2*testLimit)) }, "HTTP/2.0", "?watch=true", time.Minute)
		require.NoError(t, err)
		assert.Equal(t, 2*testLimit, read)
	})
	t.Run("the transport below is found", func(t *testing.T) {
		below := New(&tls.Config{MinVersion: tls.VersionTLS12}, nil)
		assert.Same(t, below, Limited{Next: below}.WrappedRoundTripper())
	})
}

// readLimited returns how many bytes of the body were read before its end or an error.
func readLimited(t *testing.T, answer http.HandlerFunc, protocol, query string, timeout time.Duration) (int, error) {
	t.Helper()
	var server *httptest.Server
	if protocol == "HTTP/2.0" {
		server = serve(t, answer)
	} else {
		server = httptest.NewTLSServer(answer)
		t.Cleanup(server.Close)
	}
	connections := New(trusting(server), nil)
	t.Cleanup(connections.CloseIdleConnections)
	client := &http.Client{Transport: Limited{Next: connections, Body: ResponseLimits{Bytes: testLimit}}, Timeout: timeout}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+query, http.NoBody)
	require.NoError(t, err)
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	require.Equal(t, protocol, response.Proto)
	body, err := io.ReadAll(response.Body)
	return len(body), err
}

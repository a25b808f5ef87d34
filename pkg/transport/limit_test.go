package transport

import (
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
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
	var tooLarge *TooLargeError
	if errors.As(err, &tooLarge) {
		// Without an error, client-go would read on for ever.
		_, again := response.Body.Read(make([]byte, 1))
		assert.Equal(t, err, again)
	}
	return len(body), err
}

// Each event of a watch is limited, and the watch as a whole is not.
func TestLimitedEvents(t *testing.T) {
	limits := Limited{Body: ResponseLimits{Bytes: testLimit, Values: 1000}, Event: ResponseLimits{Bytes: 1000, Values: 100}}
	event := `{"a":"` + strings.Repeat(`}{\"`, 100) + `","b":[{"c":{}}]}` + "\n"
	for name, row := range map[string]struct {
		body, want string
		status     int
	}{
		"many events":                       {body: strings.Repeat(event, 5000)},
		"many lists":                        {body: strings.Repeat("[[1,2],[3]] ", 5000)},
		"an event as large as the limits":   {body: strings.Repeat(`{"a":"`+strings.Repeat("x", 992)+`"}`, 3)},
		"one byte more":                     {body: event + `{"a":"` + strings.Repeat("x", 993) + `"}` + event, want: "the event of the watch is larger than 0 kB"},
		"an event that does not end":        {body: event + `{"a":"` + strings.Repeat("x", 1000), want: "event of the watch"},
		"as many values as the limit":       {body: strings.Repeat("["+strings.Repeat("1,", 99)+"1]", 3)},
		"one value more":                    {body: "[" + strings.Repeat("1,", 100) + "1]", want: "more than 100 values"},
		"spaces between events":             {body: event + strings.Repeat(" ", 1001), want: "event of the watch"},
		"values that are neither":           {body: strings.Repeat("1 ", 501), want: "event of the watch"},
		"a bracket too many":                {body: "]" + strings.Repeat("[]", 501), want: "event of the watch"},
		"an error is limited as a response": {body: strings.Repeat("{}", 1001), status: http.StatusInternalServerError, want: "the response is larger than 1024 kB or has more than 1000 values"},
		"an error may be larger":            {body: `{"a":"` + strings.Repeat("x", 2000) + `"}`, status: http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(cmp.Or(row.status, http.StatusOK))
				_, _ = io.WriteString(w, row.body)
			})
			l := limits
			l.Next = New(trusting(server), nil)
			for _, size := range []int{1, 7, 64 << 10} { // of a read
				response, err := fetch(t.Context(), &http.Client{Transport: l}, server.URL+"?watch=true", "")
				require.NoError(t, err)
				var read strings.Builder
				_, err = io.CopyBuffer(struct{ io.Writer }{&read}, struct{ io.Reader }{response.Body}, make([]byte, size))
				require.NoError(t, response.Body.Close())
				if row.want != "" {
					require.ErrorContains(t, err, row.want, "reads of %d bytes", size)
					continue
				}
				require.NoError(t, err, "reads of %d bytes", size)
				assert.Equal(t, row.body, read.String())
			}
		})
	}
}

func TestWithLimits(t *testing.T) {
	client, url, _ := clientOf(t, Limited{Body: ResponseLimits{Bytes: testLimit}}, "application/json", strings.Repeat("x", testLimit))
	read := func(ctx context.Context) (int, error) {
		response, err := fetch(ctx, client, url, "")
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return len(body), err
	}
	for range 2 { // the limits of one request are not those of the next
		n, err := read(WithLimits(t.Context(), ResponseLimits{Bytes: testLimit / 4}))
		require.ErrorContains(t, err, "larger than 256 kB")
		assert.LessOrEqual(t, n, testLimit/4)
		n, err = read(t.Context())
		require.NoError(t, err)
		assert.Equal(t, testLimit, n)
	}
}

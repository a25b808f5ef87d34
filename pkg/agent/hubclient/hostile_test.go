package hubclient

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const (
	jsonType    = "application/json"
	listStart   = `{"kind":"BundleDeploymentList","apiVersion":"fleet.cattle.io/v1alpha1","metadata":{"resourceVersion":"1"},"items":[`
	secretStart = `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"c-1"},`
)

// hostileHub returns a connection to a hub that answers with the handler, with a token as after a registration.
func hostileHub(t *testing.T, protocol string, timeout time.Duration, answer http.HandlerFunc) *Connection {
	t.Helper()
	server := httptest.NewUnstartedServer(answer)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{agenttest.ServerCertificate(t)}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	server.EnableHTTP2 = protocol == "HTTP/2.0"
	server.StartTLS()
	t.Cleanup(server.Close)
	d := dialer(t)
	d.Timing.Request = timeout
	h, err := d.Dial(Access{Endpoint: Endpoint{Server: server.URL, CA: []byte(agenttest.PEM(server)), Mode: "strict"}, Token: agenttest.NewToken, Namespace: "cluster-ns"})
	require.NoError(t, err)
	t.Cleanup(h.Close)
	return h
}

// hubCalls are requests of the agent: with the stored credential, and with the bootstrap identity during a registration.
var hubCalls = map[string]func(context.Context, *Connection) error{
	"probe": func(ctx context.Context, h *Connection) error { return h.Probe(ctx) },
	"create a request": func(ctx context.Context, h *Connection) error {
		_, err := h.Fleet.FleetV1alpha1().ClusterRegistrations("ws").Create(ctx, &fleet.ClusterRegistration{}, metav1.CreateOptions{})
		return err
	},
	"answer Secret": func(ctx context.Context, h *Connection) error {
		_, err := h.Core.CoreV1().Secrets("cattle-fleet-clusters-system").Get(ctx, "c-1", metav1.GetOptions{})
		return err
	},
	"Content": func(ctx context.Context, h *Connection) error {
		_, err := h.Fleet.FleetV1alpha1().Contents().Get(ctx, "s-1", metav1.GetOptions{})
		return err
	},
	"Lease": func(ctx context.Context, h *Connection) error {
		_, err := h.PatchLease(ctx, "agent", map[string]any{})
		return err
	},
	"watch": func(ctx context.Context, h *Connection) error {
		events, err := h.Watching.FleetV1alpha1().BundleDeployments(h.Namespace).Watch(ctx, metav1.ListOptions{})
		if err == nil {
			events.Stop()
		}
		return err
	},
}

// endless sends a text until the client closes the connection, or until far more than each limit was sent.
func endless(w io.Writer, text string) {
	const size = 128 << 20
	part := []byte(strings.Repeat(text, 64<<10/len(text)))
	for sent := 0; sent < size; sent += len(part) {
		if _, err := w.Write(part); err != nil {
			return
		}
	}
}

// bomb has more than each limit when it is decompressed.
var bomb = sync.OnceValue(func() []byte {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	endless(z, "          ")
	_ = z.Close()
	return packed.Bytes()
})

// hostileServers are servers that want the agent to keep more than it should. After these answers no call succeeds.
var hostileServers = map[string]struct {
	answer http.HandlerFunc
	// want is part of the error, and wantHTTP2 with HTTP/2, if it is another.
	want, wantHTTP2 string
}{
	"endless error": {want: "larger than 8192 kB", answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		w.WriteHeader(http.StatusInternalServerError)
		endless(w, "          ")
	}},
	"endless error of small objects": {want: "more than 500000 values", answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		w.WriteHeader(http.StatusInternalServerError)
		endless(w, `{"a":1}`)
	}},
	"decompression bomb": {want: "larger than 8192 kB", answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write(bomb())
	}},
	"one huge header": {want: "header", wantHTTP2: "connection error", answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X", strings.Repeat("x", 128<<10))
	}},
	"many headers": {want: "header", wantHTTP2: "connection error", answer: func(w http.ResponseWriter, _ *http.Request) {
		for i := range 4096 {
			w.Header().Set(fmt.Sprintf("X-%d", i), "00000000000000000000000000")
		}
	}},
	"a status with a million causes": {want: "more than 500000 values", answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"details":{"causes":[`+strings.Repeat("{},", 1_000_000)+`{}]}}`)
	}},
}

// A lower limit of bytes than that of agents makes the test faster.
func TestHostileServers(t *testing.T) {
	sample.Long(t)
	limits := responseLimits
	t.Cleanup(func() { responseLimits = limits })
	responseLimits.Bytes = 8 << 20
	for name, row := range hostileServers {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
			for what, call := range hubCalls {
				t.Run(name+", "+protocol+", "+what, func(t *testing.T) {
					h := hostileHub(t, protocol, agenttest.Patience, row.answer)
					err := call(t.Context(), h)
					want := row.want
					if protocol == "HTTP/2.0" && row.wantHTTP2 != "" {
						want = row.wantHTTP2
					}
					require.ErrorContains(t, err, want)
					assert.Equal(t, Unreachable, Classify(err), "the credential was not rejected")
					assert.Less(t, len(err.Error()), 1000)
				})
			}
		}
	}
}

// hostileAnswers are answers of less than 8 MiB that take a multiple of it in memory when they are decoded.
var hostileAnswers = map[string]struct{ contentType, body, want string }{
	"a million empty items":   {jsonType, listStart + strings.Repeat("{},", 1_000_000) + "{}]}", "more than 500000 values"},
	"a list of 10^5 items":    {jsonType, listStart + strings.Repeat(`{"metadata":{"name":"x","uid":"y","labels":{}}},`, 100_000) + "{}]}", "more than 500000 values"},
	"a million empty lists":   {jsonType, secretStart + `"x":[` + strings.Repeat("[],", 1_000_000) + "[]]}", "more than 500000 values"},
	"a million empty owners":  {jsonType, `{"kind":"Secret","apiVersion":"v1","metadata":{"ownerReferences":[` + strings.Repeat("{},", 1_000_000) + "{}]}}", "more than 500000 values"},
	"deep lists":              {jsonType, strings.Repeat("[", 1_000_000), "more than 500000 values"},
	"deep objects":            {jsonType, strings.Repeat(`{"a":`, 600_000), "more than 500000 values"},
	"deep, within the limits": {jsonType, strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000), "exceeded max depth"},
	"protobuf":                {"application/vnd.kubernetes.protobuf", "k8s\x00" + strings.Repeat("\x12\x00", 1_000_000), "text/plain"},
	"CBOR":                    {"application/cbor", "\x9f" + strings.Repeat("\x80", 1_000_000), "text/plain"},
	"text":                    {"text/html", "<html>", "text/plain"},
}

// answerWith answers every request with this body.
func answerWith(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}
}

func TestHostileAnswers(t *testing.T) {
	for name, row := range hostileAnswers {
		for what, call := range hubCalls {
			if what == "watch" {
				continue // TestHostileWatches
			}
			t.Run(name+", "+what, func(t *testing.T) {
				h := hostileHub(t, "HTTP/2.0", agenttest.Patience, answerWith(row.contentType, row.body))
				err := call(t.Context(), h)
				require.ErrorContains(t, err, row.want)
				assert.Equal(t, Unreachable, Classify(err))
				assert.Less(t, len(err.Error()), 1000)
			})
		}
	}
}

// The body never ends, and one byte comes at a time.
func TestTricklingHub(t *testing.T) {
	for what, call := range hubCalls {
		if what == "watch" {
			continue // may last for hours; transport.Watch ends it
		}
		t.Run(what, func(t *testing.T) {
			h := hostileHub(t, "HTTP/2.0", 300*time.Millisecond, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", jsonType)
				for r.Context().Err() == nil {
					_, _ = w.Write([]byte{' '})
					w.(http.Flusher).Flush()
					select {
					case <-r.Context().Done():
						panic(http.ErrAbortHandler)
					case <-time.After(10 * time.Millisecond):
					}
				}
			})
			err := call(t.Context(), h)
			var network net.Error
			require.ErrorAs(t, err, &network)
			assert.True(t, network.Timeout(), "%v", err)
			assert.Equal(t, Unreachable, Classify(err))
		})
	}
}

// A redirect would send the token to another address.
func TestRedirectingHub(t *testing.T) {
	var followed atomic.Int32
	for what, call := range hubCalls {
		t.Run(what, func(t *testing.T) {
			h := hostileHub(t, "HTTP/2.0", agenttest.Patience, func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, "/elsewhere") {
					followed.Add(1)
				}
				w.Header().Set("Location", "/elsewhere"+r.URL.Path)
				w.WriteHeader(http.StatusTemporaryRedirect)
			})
			err := call(t.Context(), h)
			require.Error(t, err)
			assert.Equal(t, Obstructed, Classify(err), "%v", err)
			assert.Zero(t, followed.Load())
		})
	}
}

// watchOf returns the events of a watch until it ends, and the message of its last error.
func watchOf(t *testing.T, h *Connection) (events int, failure string) {
	t.Helper()
	w, err := h.Watching.FleetV1alpha1().BundleDeployments(h.Namespace).Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer w.Stop()
	for event := range w.ResultChan() {
		if status, isStatus := event.Object.(*metav1.Status); event.Type == watch.Error && isStatus {
			return events, status.Message
		}
		events++
	}
	return events, failure
}

func event(data string) string {
	return `{"type":"ADDED","object":{"kind":"BundleDeployment","apiVersion":"fleet.cattle.io/v1alpha1","metadata":{"name":"x","resourceVersion":"2"` + data + "}}}"
}

func TestHostileWatches(t *testing.T) {
	sample.Long(t)
	annotation := func(size int) string { return `,"annotations":{"a":"` + strings.Repeat("x", size) + `"}` }
	answer := func(body string) func(io.Writer) { return func(w io.Writer) { _, _ = io.WriteString(w, body) } }
	const tooLarge, tooMany = "the event of the watch is larger than 8192 kB", "more than 100000 values"
	for name, row := range map[string]struct {
		encoding string
		answer   func(io.Writer)
		events   int
		want     string // part of the last error
	}{
		"events that are larger in all than the limits": {answer: answer(strings.Repeat(event(annotation(2<<20)), 10)), events: 10},
		"small events, with more values in all":         {answer: answer(strings.Repeat(event(""), 25_000)), events: 25_000},
		"events of 10 MiB":                              {answer: answer(strings.Repeat(event(annotation(10<<20)), 10)), want: tooLarge},
		"an event of 10 MiB after a small one":          {answer: answer(event("") + event(annotation(10<<20))), events: 1, want: tooLarge},
		"an endless event": {want: tooLarge, answer: func(w io.Writer) {
			_, _ = io.WriteString(w, `{"type":"ADDED","object":{"metadata":{"name":"`)
			endless(w, "xxxxxxxxxxxxxxxx")
		}},
		"endless spaces":               {want: tooLarge, answer: func(w io.Writer) { endless(w, "                ") }},
		"endless spaces after events":  {events: 2, want: tooLarge, answer: func(w io.Writer) { _, _ = io.WriteString(w, event("")+event("")); endless(w, "\n\n\n\n\n\n\n\n") }},
		"a million empty owners":       {answer: answer(event(`,"ownerReferences":[` + strings.Repeat("{},", 1_000_000) + "{}]")), want: tooMany},
		"deep lists":                   {answer: answer(strings.Repeat("[", 1_000_000)), want: "exceeded max depth"},
		"deep objects":                 {answer: answer(strings.Repeat(`{"a":`, 500_000)), want: "exceeded max depth"},
		"a bomb":                       {encoding: "gzip", want: tooLarge, answer: func(w io.Writer) { _, _ = w.Write(bomb()) }},
		"an object of no known format": {answer: answer(`{"type":"ADDED","object":[]}`), want: "unable to decode"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hostileHub(t, "HTTP/2.0", agenttest.Patience, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", jsonType)
				if row.encoding != "" {
					w.Header().Set("Content-Encoding", row.encoding)
				}
				row.answer(w)
			})
			events, failure := watchOf(t, h)
			assert.Equal(t, row.events, events, failure)
			if row.want == "" {
				assert.Empty(t, failure)
				return
			}
			assert.Contains(t, failure, row.want)
			assert.Less(t, len(failure), 1000)
		})
	}
	for _, contentType := range []string{"application/vnd.kubernetes.protobuf;stream=watch", "application/cbor-seq"} {
		t.Run(contentType, func(t *testing.T) {
			h := hostileHub(t, "HTTP/2.0", agenttest.Patience, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", contentType)
				_, _ = io.WriteString(w, "\x00\x00\x00\x01x")
			})
			_, err := h.Watching.FleetV1alpha1().BundleDeployments(h.Namespace).Watch(t.Context(), metav1.ListOptions{})
			require.ErrorContains(t, err, "text/plain")
		})
	}
}

// An API server compresses only what the client says that it decompresses.
func TestAnswersMayBeCompressed(t *testing.T) {
	h := hostileHub(t, "HTTP/2.0", agenttest.Patience, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		if !assert.Equal(t, "gzip", r.Header.Get("Accept-Encoding")) {
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		_, _ = io.WriteString(z, listStart+`]}`)
	})
	require.NoError(t, h.Probe(t.Context()))
}

// The largest responses that a hub has reason to send.
func TestLargeAnswers(t *testing.T) {
	const values = `{"metadata":{"name":"x"},"spec":{"options":{"helm":{"values":{"a":[%s1]}}}}},`
	item := fmt.Sprintf(values, strings.Repeat("1,", 300))
	h := hostileHub(t, "HTTP/2.0", agenttest.Patience, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		_, _ = io.WriteString(w, listStart+strings.Repeat(item, 1500)+`{}]}`)
	})
	list, err := h.Fleet.FleetV1alpha1().BundleDeployments(h.Namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Len(t, list.Items, 1501)
}

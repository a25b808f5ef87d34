package transport

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
)

// clientOf returns a client with limits of a server that sends that body.
func clientOf(t *testing.T, l Limited, contentType, body string) (client *http.Client, url string, accepted *atomic.Value) {
	t.Helper()
	accepted = &atomic.Value{}
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		accepted.Store(r.Header.Get("Accept"))
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	})
	connections := New(trusting(server), nil)
	t.Cleanup(connections.CloseIdleConnections)
	l.Next = connections
	return &http.Client{Transport: l}, server.URL, accepted
}

func fetch(ctx context.Context, client *http.Client, url, accept string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	return client.Do(request)
}

func TestLimitedValues(t *testing.T) {
	limits := Limited{Body: ResponseLimits{Bytes: testLimit, Values: 1000}, Watch: ResponseLimits{Bytes: 1000, Values: 100}}
	for name, row := range map[string]struct {
		body, query string
		tooLarge    bool
	}{
		"as many as the limit":         {body: "[" + strings.Repeat("1,", 998) + "1]"},
		"list of numbers":              {body: "[" + strings.Repeat("1,", 100_000) + "1]", tooLarge: true},
		"list of empty objects":        {body: "[" + strings.Repeat("{},", 100_000) + "{}]", tooLarge: true},
		"deep":                         {body: strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), tooLarge: true},
		"deep objects":                 {body: strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000), tooLarge: true},
		"commas in a text":             {body: `{"data":"` + strings.Repeat(`,[{\",`, 10_000) + `"}`},
		"a text that ends in a quote":  {body: `{"data":"\\"` + strings.Repeat(",1", 2000) + `}`, tooLarge: true},
		"watch of less than the limit": {body: strings.Repeat(`{"type":"A"}`, 50), query: "?watch=true"},
		"watch of many bytes":          {body: strings.Repeat(`{"type":"ADDED"}`, 70), query: "?watch=true", tooLarge: true},
		"watch of many values":         {body: strings.Repeat(`{}`, 101), query: "?watch=1", tooLarge: true},
	} {
		t.Run(name, func(t *testing.T) {
			client, url, _ := clientOf(t, limits, "application/json", row.body)
			response, err := fetch(t.Context(), client, url+row.query, "")
			require.NoError(t, err)
			defer response.Body.Close()
			_, err = io.ReadAll(response.Body)
			if !row.tooLarge {
				require.NoError(t, err)
				return
			}
			var tooLarge *TooLargeError
			require.ErrorAs(t, err, &tooLarge)
			assert.Contains(t, err.Error(), "or has more than 100") // 1000 of a response, 100 of a watch
		})
	}
}

// A server can answer in a format in which values are smaller than in JSON.
func TestLimitedTypes(t *testing.T) {
	const protobuf, partial = "application/vnd.kubernetes.protobuf", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	limits := Limited{Body: ResponseLimits{Values: 10}}
	for contentType, want := range map[string]string{
		protobuf: "text/plain", "application/cbor": "text/plain", "": "text/plain", "text/html": "text/plain",
		"application/json": "application/json", "application/json; charset=utf-8": "application/json; charset=utf-8", partial: partial,
	} {
		client, url, accepted := clientOf(t, limits, contentType, "{}")
		response, err := fetch(t.Context(), client, url, protobuf+";as=Table,"+partial+","+protobuf+",application/json")
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		assert.Equal(t, want, response.Header.Get("Content-Type"), contentType)
		assert.Equal(t, partial+",application/json", accepted.Load())
		response, err = fetch(t.Context(), client, url, "")
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		assert.Equal(t, "application/json", accepted.Load())
	}
	client, url, accepted := clientOf(t, Limited{Body: ResponseLimits{Bytes: 10}}, protobuf, "{}")
	response, err := fetch(t.Context(), client, url, protobuf)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	assert.Equal(t, protobuf, response.Header.Get("Content-Type"), "without a limit of values")
	assert.Equal(t, protobuf, accepted.Load())
}

// Each client reads a large response, and has it in memory until its next request or its end.
func TestLimitedLarge(t *testing.T) {
	const clients, turns, small = 32, 2, 16 << 10
	large := semaphore.NewWeighted(turns)
	var inMemory, most atomic.Int32
	var running sync.WaitGroup
	for range clients {
		turn := &Turn{Of: large}
		client, url, _ := clientOf(t, Limited{Body: ResponseLimits{Bytes: testLimit}, Small: ResponseLimits{Bytes: small}, Large: turn}, "application/json", strings.Repeat("x", testLimit))
		running.Go(func() {
			for range 3 {
				response, err := fetch(t.Context(), client, url, "")
				if !assert.NoError(t, err) {
					return
				}
				read, counted := 0, false
				for buffer := make([]byte, 8<<10); err == nil; {
					var n int
					n, err = response.Body.Read(buffer)
					if read += n; read > small && !counted {
						counted = true
						now := inMemory.Add(1)
						for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
						}
					}
				}
				assert.ErrorIs(t, err, io.EOF)
				assert.Equal(t, testLimit, read)
				assert.NoError(t, response.Body.Close())
				inMemory.Add(-1)
			}
			turn.End()
		})
	}
	running.Wait()
	assert.LessOrEqual(t, most.Load(), int32(turns))
	assert.True(t, large.TryAcquire(turns), "all turns have ended")

	t.Run("small responses need no turn", func(t *testing.T) {
		client, url, _ := clientOf(t, Limited{Body: ResponseLimits{Bytes: testLimit}, Small: ResponseLimits{Bytes: small}, Large: &Turn{Of: large}}, "application/json", strings.Repeat("x", small))
		response, err := fetch(t.Context(), client, url, "")
		require.NoError(t, err)
		defer response.Body.Close()
		_, err = io.ReadAll(response.Body)
		require.NoError(t, err)
	})
	t.Run("the answer of an error ends where it is no longer small", func(t *testing.T) {
		server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, strings.Repeat("x", testLimit))
		})
		connections := New(trusting(server), nil)
		t.Cleanup(connections.CloseIdleConnections)
		client := &http.Client{Transport: Limited{
			Next: connections, Body: ResponseLimits{Bytes: testLimit}, Small: ResponseLimits{Bytes: small}, Large: &Turn{Of: semaphore.NewWeighted(0)},
		}}
		response, err := fetch(t.Context(), client, server.URL, "")
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		assert.LessOrEqual(t, len(body), small)
		assert.Equal(t, http.StatusForbidden, response.StatusCode)
	})
	t.Run("a wait for a turn ends with the request", func(t *testing.T) {
		client, url, _ := clientOf(t, Limited{Body: ResponseLimits{Bytes: testLimit}, Small: ResponseLimits{Bytes: small}, Large: &Turn{Of: large}}, "application/json", strings.Repeat("x", small+1))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		response, err := fetch(ctx, client, url, "")
		require.NoError(t, err)
		defer response.Body.Close()
		_, err = io.ReadAll(response.Body)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestTurn_pin(t *testing.T) {
	large := semaphore.NewWeighted(1)
	turn := &Turn{Of: large}
	client, url, _ := clientOf(t, Limited{Large: turn}, "application/json", "{}")
	request := func() {
		response, err := fetch(t.Context(), client, url, "")
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
	}
	require.NoError(t, turn.Begin(t.Context()))
	require.NoError(t, turn.Pin(t.Context()), "it has the turn already")
	request()
	assert.False(t, large.TryAcquire(1), "the next request does not end the turn")
	turn.Unpin()
	turn.Unpin()
	require.NoError(t, turn.Begin(t.Context()))
	request()
	assert.True(t, large.TryAcquire(1), "it ends with the next request again")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, turn.Pin(ended), context.Canceled)
	large.Release(1)
	require.NoError(t, turn.Begin(t.Context()))
	turn.End()
	assert.True(t, large.TryAcquire(1), "a pin that failed leaves nothing")
}

// client-go and Helm send some requests at the same time.
func TestLimitedLarge_sameClient(t *testing.T) {
	const small = 16 << 10
	large := semaphore.NewWeighted(1)
	turn := &Turn{Of: large}
	client, url, _ := clientOf(t, Limited{Body: ResponseLimits{Bytes: testLimit}, Small: ResponseLimits{Bytes: small}, Large: turn}, "application/json", strings.Repeat("x", testLimit))
	first, err := fetch(t.Context(), client, url, "")
	require.NoError(t, err)
	_, err = io.ReadFull(first.Body, make([]byte, 2*small))
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	second, err := fetch(ctx, client, url, "")
	require.NoError(t, err)
	assert.False(t, large.TryAcquire(1), "another request does not end the turn while the response is read")
	_, err = io.ReadAll(second.Body)
	require.ErrorIs(t, err, context.DeadlineExceeded, "the second response is not read beside the first")
	require.NoError(t, second.Body.Close())

	require.NoError(t, first.Body.Close())
	third, err := fetch(t.Context(), client, url, "")
	require.NoError(t, err)
	body, err := io.ReadAll(third.Body)
	require.NoError(t, err)
	assert.Len(t, body, testLimit)
	require.NoError(t, third.Body.Close())
	turn.End()
	assert.True(t, large.TryAcquire(1))
}

// A server answers with a long token, with which the client would continue a list.
func TestLimitedQuery(t *testing.T) {
	turn := &Turn{Of: semaphore.NewWeighted(1)}
	require.NoError(t, turn.Begin(t.Context()))
	client, url, accepted := clientOf(t, Limited{Large: turn}, "application/json", "{}")
	_, err := fetch(t.Context(), client, url+"?continue="+strings.Repeat("x", maxQuery), "")
	require.ErrorIs(t, err, errLongQuery)
	assert.Nil(t, accepted.Load(), "nothing is sent")
	assert.True(t, turn.isTaken(), "the token is still in memory")
	response, err := fetch(t.Context(), client, url+"?continue="+strings.Repeat("x", maxQuery/2), "")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
}

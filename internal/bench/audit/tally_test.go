package audit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestRequestsAreCountedByWhatTheyCostTheHub(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	last := request("get", "secrets", 200)
	last.Answered = at
	beat := request("update", "leases", 200)
	beat.Answered = at.Add(time.Hour)
	counted := Count([]Request{
		request("create", "secrets", 201), last, request("create", "secrets", 409), request("patch", "clusters", 200), request("delete", "roles", 404),
		request("list", "clusters", 200), request("watch", "clusters", 200), request("create", "events", 201), beat,
	})
	assert.Equal(t, Tally{
		Writes: 4, Reads: 2, Failed: 2, Last: at,
		Kinds:       map[string]int{"create secrets": 2, "patch clusters": 1, "delete roles": 1, "get secrets": 1, "list clusters": 1},
		FailedKinds: map[string]int{"create secrets 409": 1, "delete roles 404": 1},
	}, counted)
	assert.Equal(t, 6, counted.All())
	assert.Equal(t, "create secrets 0.50, delete roles 0.25, get secrets 0.25, list clusters 0.25, patch clusters 0.25; "+
		"failed: create secrets 409 0.25, delete roles 404 0.25", counted.Each(4))
	assert.Empty(t, Count(nil).Each(4))
}

func TestWatchesHaveNoLatency(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	took := func(verb string, d time.Duration) Request {
		return Request{Verb: verb, Received: at, Answered: at.Add(d)}
	}
	assert.Equal(t, []time.Duration{time.Second, time.Millisecond},
		Latencies([]Request{took("get", time.Second), took("watch", time.Hour), took("patch", time.Millisecond)}))
}

package audit

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func request(verb, resource string, code int) (r Request) {
	r.Verb, r.ObjectRef.Resource, r.ResponseStatus.Code = verb, resource, code
	return r
}

// The line is from an API server, without the fields that are not read.
func TestRequestFromAnAuditEvent(t *testing.T) {
	var r Request
	require.NoError(t, json.Unmarshal([]byte(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","stage":"ResponseComplete",
		"requestURI":"/apis/fleet.cattle.io/v1alpha1/namespaces/fleet-default/clusters/c/status","verb":"patch","user":{"username":"admin"},
		"userAgent":"fleetcontroller/v0.0.0 (linux/amd64)","objectRef":{"resource":"clusters","namespace":"fleet-default","name":"c",
		"apiGroup":"fleet.cattle.io","subresource":"status"},"responseStatus":{"code":409},
		"requestReceivedTimestamp":"2026-11-21T23:00:00.000000Z","stageTimestamp":"2026-11-21T23:00:00.250000Z"}`), &r))
	assert.Equal(t, []time.Duration{250 * time.Millisecond}, Latencies([]Request{r, {Verb: "watch"}}))
	assert.Equal(t, map[string]int{"patch clusters/status 409": 1}, Count([]Request{r}).FailedKinds)
	assert.True(t, ByUserAgents("fleetagent", "fleetcontroller")(r))
	assert.False(t, ByUserAgents("fleetagent")(r))
}

func TestCount(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	last, lease := request("get", "secrets", 200), request("update", "leases", 200)
	last.Answered, lease.Answered = at, at.Add(time.Hour)
	dry := request("create", "clusterregistrations", 201)
	dry.URI = "/apis/fleet.cattle.io/v1alpha1/namespaces/ns/clusterregistrations?dryRun=All"
	c := Count([]Request{
		request("create", "secrets", 201), last, request("create", "secrets", 409), request("patch", "clusters", 200), request("delete", "roles", 404),
		request("update", "roles", 200), request("deletecollection", "roles", 200), request("list", "clusters", 200), request("get", "", 200), dry,
		request("watch", "clusters", 200), request("create", "events", 201), request("get", "leases", 200), lease,
	})
	assert.Equal(t, Counts{
		Writes: 6, Reads: 4, Failed: 2, Last: at,
		Kinds: map[string]int{
			"create secrets": 2, "patch clusters": 1, "delete roles": 1, "update roles": 1, "deletecollection roles": 1,
			"get secrets": 1, "list clusters": 1, "get": 1, "create clusterregistrations (dry run)": 1,
		},
		FailedKinds: map[string]int{"create secrets 409": 1, "delete roles 404": 1},
	}, c)
	assert.Equal(t, 10, c.Requests())

	c = Count([]Request{request("create", "secrets", 201), request("create", "secrets", 409), request("get", "secrets", 200)})
	assert.Equal(t, "create secrets 0.50, get secrets 0.25; failed: create secrets 409 0.25", c.PerItem(4))
	assert.Empty(t, Count(nil).PerItem(4))
}

func TestLog(t *testing.T) {
	line := func(verb, agent, resource string) string {
		return fmt.Sprintf(`{"verb":%q,"userAgent":%q,"objectRef":{"resource":%q},"responseStatus":{"code":200}}`+"\n", verb, agent, resource)
	}
	path := filepath.Join(t.TempDir(), "audit.log")
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	log := NewLog(path)
	write := func(text string) {
		_, err := file.WriteString(text)
		require.NoError(t, err)
	}
	read := func(log *Log) (kinds []string) {
		all, err := log.Next(ByUserAgents("hub"))
		require.NoError(t, err)
		for _, r := range all {
			kinds = append(kinds, r.kind())
		}
		return kinds
	}
	assert.Empty(t, read(log))
	write(line("create", "hub/1", "secrets") + line("get", "kubectl", "secrets"))
	assert.Equal(t, []string{"create secrets"}, read(log))
	half := line("patch", "hub/1", "clusters")
	write(half[:20])
	assert.Empty(t, read(log), "an incomplete line")
	other, err := log.FromHere()
	require.NoError(t, err)
	write(half[20:])
	assert.Equal(t, []string{"patch clusters"}, read(log))
	other, err = other.FromHere()
	require.NoError(t, err)
	write(line("delete", "hub/1", "secrets"))
	assert.Equal(t, []string{"delete secrets"}, read(other))
	assert.Equal(t, []string{"delete secrets"}, read(log), "each reader has its own offset")

	require.NoError(t, os.WriteFile(path, []byte("no JSON\n"), 0o600))
	_, err = NewLog(path).Next(All)
	require.ErrorContains(t, err, path)
	_, err = NewLog(path + "-gone").Next(All)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = NewLog(path + "-gone").FromHere()
	require.ErrorIs(t, err, os.ErrNotExist)
}

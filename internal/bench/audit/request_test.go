package audit

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func request(verb, resource string, code int) Request {
	return Request{Verb: verb, ObjectRef: objectRef{Resource: resource}, ResponseStatus: responseStatus{Code: code}}
}

// The line is one of an API server, without what nobody reads here.
func TestARequestIsWhatTheAPIServerNotes(t *testing.T) {
	var r Request
	require.NoError(t, json.Unmarshal([]byte(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","stage":"ResponseComplete",
		"requestURI":"/apis/fleet.cattle.io/v1alpha1/namespaces/fleet-default/clusters/c/status","verb":"patch","user":{"username":"admin"},
		"userAgent":"fleetcontroller/v0.0.0 (linux/amd64)","objectRef":{"resource":"clusters","namespace":"fleet-default","name":"c",
		"apiGroup":"fleet.cattle.io","subresource":"status"},"responseStatus":{"code":409},
		"requestReceivedTimestamp":"2026-11-21T23:00:00.000000Z","stageTimestamp":"2026-11-21T23:00:00.250000Z"}`), &r))
	assert.Equal(t, "patch clusters/status", r.Kind())
	assert.Equal(t, 250*time.Millisecond, r.Took())
	assert.True(t, r.IsWrite() && r.Failed() && ByAgents("fleetagent", "fleetcontroller")(r))
	assert.False(t, r.IsRead() || ByAgents("fleetagent")(r))
}

func TestWhatCounts(t *testing.T) {
	dry := request("create", "clusterregistrations", 201)
	dry.URI = "/apis/fleet.cattle.io/v1alpha1/namespaces/ns/clusterregistrations?dryRun=All"
	assert.Equal(t, "create clusterregistrations (dry run)", dry.Kind())
	for name, test := range map[string]struct {
		request     Request
		write, read bool
	}{
		"create":                   {request("create", "secrets", 201), true, false},
		"update":                   {request("update", "secrets", 200), true, false},
		"patch":                    {request("patch", "clusters", 200), true, false},
		"delete":                   {request("delete", "roles", 200), true, false},
		"a deletion of many":       {request("deletecollection", "roles", 200), true, false},
		"get":                      {request("get", "secrets", 200), false, true},
		"list":                     {request("list", "secrets", 200), false, true},
		"a request of no object":   {request("get", "", 200), false, true},
		"a watch stays open":       {request("watch", "secrets", 200), false, false},
		"leases are taken anyway":  {request("update", "leases", 200), false, false},
		"and looked at":            {request("get", "leases", 200), false, false},
		"events":                   {request("create", "events", 201), false, false},
		"a dry run writes nothing": {dry, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.write, test.request.IsWrite())
			assert.Equal(t, test.read, test.request.IsRead())
			assert.Equal(t, test.write || test.read, test.request.Counts())
		})
	}
}

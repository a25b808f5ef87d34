package imports

import (
	"strings"
	"testing"

	logrustest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/crds"
	"github.com/muster-fleet/muster/pkg/registration"
)

// fleetsStatus are the fields that Fleet's own definitions have in a status, where they have fewer than the ones of this hub.
var fleetsStatus = map[string][]string{
	"clusterregistrations.fleet.cattle.io":      {"clusterName", "granted"},
	"clusterregistrationtokens.fleet.cattle.io": {"expires", "secretName"},
}

// createFleetsKinds creates the kinds without the fields that only this project has, so that the API server drops them.
func createFleetsKinds(t *testing.T, hub *testenv.Cluster) {
	t.Helper()
	client, err := clientset.NewForConfig(hub.RESTConfig())
	require.NoError(t, err)
	objects, err := crds.Objects()
	require.NoError(t, err)
	for _, object := range objects {
		schema := object.Spec.Versions[0].Schema.OpenAPIV3Schema
		status, found := schema.Properties["status"]
		if !found {
			continue
		}
		status.XPreserveUnknownFields = nil
		keepOnly := func(schema *apiextensionsv1.JSONSchemaProps, fields ...string) {
			kept := map[string]apiextensionsv1.JSONSchemaProps{}
			for _, field := range fields {
				kept[field] = schema.Properties[field]
			}
			schema.Properties, schema.XPreserveUnknownFields = kept, nil
		}
		if fields := fleetsStatus[object.Name]; fields != nil {
			keepOnly(&status, fields...)
		}
		if object.Name == "clusters.fleet.cattle.io" {
			delete(status.Properties, "import")
			agent := status.Properties["agent"]
			keepOnly(&agent, "lastSeen", "namespace")
			status.Properties["agent"] = agent
		}
		schema.Properties["status"] = status
		testenv.Create(t, client.ApiextensionsV1().CustomResourceDefinitions().Create, object)
	}
}

// With the kinds of Fleet, the API server drops status fields that only this hub has. The hub reports that once, reports once in an event
// why it refuses a request, and repeats no write.
func TestKindsOfFleet(t *testing.T) {
	sample.Long(t)
	hub, member := testenv.BorrowedCluster(t, "member"), testenv.SharedCluster(t, "member")
	createFleetsKinds(t, hub)
	log := logrustest.NewGlobal()
	hub.Configure(t, hub.Reachable())
	r := &testenv.Recorder{}
	s := &testenv.Stage{Hub: hub, Member: member, Namespace: hub.Namespace(t)}
	s.Running = hub.Hub(t, r.Wrap)

	agentNamespace := member.Namespace(t)
	cluster := s.ImportInto(t, "m", agentNamespace)
	values := s.Token(t, "tok")
	request := hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: cluster.Spec.ClientID, ClientRandom: strings.Repeat("r", 54)})
	hub.RequireEvents(t, s.Namespace, request.Name, fleet.ReasonClientIDInUse, 1)

	versions := func() []string {
		return []string{
			s.Cluster(t, "m").ResourceVersion, testenv.RequireThere(t, hub.Fleet.ClusterRegistrations(s.Namespace).Get, request.Name).ResourceVersion,
		}
	}
	deployment := func() string {
		return testenv.RequireThere(t, member.Kubernetes.AppsV1().Deployments(agentNamespace).Get, registration.AgentName).ResourceVersion
	}

	// Each change of an object is a reason to look at it again. What the hub writes into the status is dropped, so that the version of the
	// object stays, and no event follows.
	r.Settle(t)
	installed := deployment()
	for range 2 {
		touch := `{"metadata":{"annotations":{"touched":"` + rand.String(5) + `"}}}`
		testenv.Merge(t, hub.Fleet.Clusters(s.Namespace).Patch, "m", touch)
		testenv.Merge(t, hub.Fleet.ClusterRegistrations(s.Namespace).Patch, request.Name, touch)
		before := versions()
		for _, w := range testenv.WritesIn(r.Settle(t)) {
			assert.Contains(t, w.Path, "/clusters/m/status", "the hub writes nothing again about the request")
		}
		assert.Equal(t, before, versions())
	}
	hub.RequireEvents(t, s.Namespace, request.Name, fleet.ReasonClientIDInUse, 1)
	assert.Equal(t, installed, deployment(), "the agent is not installed again")
	warned := map[string]int{}
	for _, entry := range log.AllEntries() {
		if strings.Contains(entry.Message, " lacks ") {
			warned[strings.Fields(entry.Message)[1]]++
		}
	}
	assert.Equal(t, map[string]int{"clusters.fleet.cattle.io": 1, "clusterregistrations.fleet.cattle.io": 1, "clusterregistrationtokens.fleet.cattle.io": 1}, warned)
}

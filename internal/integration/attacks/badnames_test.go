package attacks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const longest = 253

// Names as long as Kubernetes allows do not fit into namespaces, labels and ServiceAccounts as they are.
func TestLongestNames(t *testing.T) {
	sample.Long(t)
	shared := testenv.ParallelStage(t)
	hub, member := shared.Hub, shared.Member
	for name, long := range map[string]string{
		"letters": strings.Repeat("a", longest),
		"dots":    strings.Repeat("a.", longest/2) + "b",
		"dashes":  "a" + strings.Repeat("-", longest-2) + "b",
	} {
		t.Run(name, func(t *testing.T) {
			require.Len(t, long, longest)
			s := newScene(t, hub, member)
			s.goodSecret()
			s.cluster(func(c *fleet.Cluster) { c.Name = long })
			hub.ClusterCondition(t, s.ns, long, fleet.ConditionImported, "True Imported")
			bootstrap := testenv.RequireThere(t, member.Kubernetes.CoreV1().Secrets(s.agentNS).Get, registration.BootstrapSecret)
			cluster := testenv.RequireThere(t, hub.Fleet.Clusters(s.ns).Get, long)
			requireGrantedUnder(t, hub, testenv.BootstrapValues(bootstrap), long, cluster.Spec.ClientID, long)

			values := hub.Token(t, s.ns, long, fleet.ClusterRegistrationTokenSpec{})
			requireGrantedUnder(t, hub, values, long[:longest-1]+"c", "edge", registration.ClusterName("edge"))
		})
	}
}

// requireGrantedUnder creates a request of this name and requires that it is granted for this Cluster.
func requireGrantedUnder(t *testing.T, hub *testenv.Cluster, values registration.Values, name, clientID, cluster string) {
	t.Helper()
	request := hub.Send(t, values, &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{fleet.RegistrationTokenLabel: values.TokenName}},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: "r-" + values.Workspace + cluster},
	})
	granted, credential := hub.Granted(t, values, request)
	assert.Equal(t, cluster, granted.Status.ClusterName)
	assert.Equal(t, cluster, string(credential.Data[registration.CredentialClusterName]))
	bearer := string(credential.Data[registration.CredentialToken])
	testenv.RequireMay(t, hub, bearer,
		testenv.To("list", "bundledeployments.fleet.cattle.io", registration.ClusterNamespace(values.Workspace, cluster), ""),
		testenv.To("patch", "clusters.fleet.cattle.io/status", values.Workspace, cluster))
	_, err := hub.ClientFor(t, bearer).Fleet.Clusters(values.Workspace).Patch(t.Context(), cluster, types.MergePatchType,
		[]byte(`{"status":{"agent":{"lastSeen":"2030-01-01T00:00:00Z"}}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err, "the agent cannot send its heartbeat")
}

func TestUnusualClientIDs(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	hub, ns := s.Hub, s.Namespace
	values := hub.Token(t, ns, "tok", fleet.ClusterRegistrationTokenSpec{})
	for name, clientID := range map[string]string{
		"unicode":           "кластер-集群-🚀",
		"spaces":            "my cluster in the cellar",
		"slashes":           "../../etc/passwd",
		"a template":        "{{ .Values.token }}${HOME}%s",
		"the longest":       strings.Repeat("l", registration.MaxClientIDLength),
		"a line break":      "a\nb",
		"upper case letter": "UPPER",
	} {
		t.Run(name, func(t *testing.T) {
			request := hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: "r-" + ns})
			granted, _ := hub.Granted(t, values, request)
			assert.Equal(t, registration.ClusterName(clientID), granted.Status.ClusterName)
			cluster := testenv.RequireThere(t, hub.Fleet.Clusters(ns).Get, granted.Status.ClusterName)
			assert.Equal(t, clientID, cluster.Spec.ClientID)
		})
	}
}

// loosen removes rules from the schema of a field of the spec: the CustomResourceDefinition of another component may have none.
func loosen(t *testing.T, hub *testenv.Cluster, resource, field string, rules ...string) {
	t.Helper()
	extensions, err := clientset.NewForConfig(hub.RESTConfig())
	require.NoError(t, err)
	operations := make([]string, len(rules))
	for i, rule := range rules {
		operations[i] = fmt.Sprintf(`{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/%s/%s"}`, field, rule)
	}
	_, err = extensions.ApiextensionsV1().CustomResourceDefinitions().Patch(t.Context(), resource+".fleet.cattle.io",
		types.JSONPatchType, []byte("["+strings.Join(operations, ",")+"]"), metav1.PatchOptions{})
	require.NoError(t, err)
}

package imports

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/registration"
)

// otherwise has the recorded writes that this hub does not send, with the writes that it sends in their place and the reason.
var otherwise = map[string]struct{ sends, why string }{
	"PUT /apis/fleet.cattle.io/v1alpha1/namespaces/WORKSPACE/clusters/CLUSTER": {
		"PATCH /apis/fleet.cattle.io/v1alpha1/namespaces/WORKSPACE/clusters/CLUSTER", "a patch keeps the fields that this hub does not know",
	},
	"PUT /apis/fleet.cattle.io/v1alpha1/namespaces/WORKSPACE/bundles/fleet-agent-CLUSTER": {
		"PATCH /apis/fleet.cattle.io/v1alpha1/namespaces/WORKSPACE/bundles/fleet-agent-CLUSTER", "a patch keeps the fields that this hub does not know",
	},
	"DELETE /apis/rbac.authorization.k8s.io/v1/clusterrolebindings/REQUEST-content": {"", "one ClusterRoleBinding is for all agents"},
	"DELETE /apis/rbac.authorization.k8s.io/v1/namespaces/CLUSTER-NAMESPACE/rolebindings/REQUEST": {
		"DELETE /apis/rbac.authorization.k8s.io/v1/namespaces/CLUSTER-NAMESPACE/rolebindings/AGENT-bundles", "the RoleBinding has another name",
	},
	"DELETE /apis/fleet.cattle.io/v1alpha1/namespaces/CLUSTER-NAMESPACE/bundledeployments/fleet-agent-CLUSTER": {
		"", "it is deleted with the namespace, because the agent reads it until then",
	},
}

// TestWire deletes a Cluster and compares the writes of this hub with those that Fleet's own hub sent for a Cluster with an agent. The
// first three of them are in the recorded order: the Bundle, the namespace, the Cluster. The others follow from deleted owners, in any
// order. Before all of them this hub asks the agent to uninstall itself. A line of the recording has the method and the path, with names
// in capitals.
func TestWire(t *testing.T) {
	sample.Long(t)
	wire := &testenv.Recorder{}
	s := newStage(t, graceOf(forever), wire.Wrap)
	r, _ := s.registered(t)
	cluster := r.Request.Status.ClusterName
	namespace, agentBundle := registration.ClusterNamespace(s.Namespace, cluster), registration.AgentBundleName(cluster)
	wire.Settle(t)
	s.DeleteCluster(t, cluster)
	s.requireAsked(t, cluster)
	s.reportsFarewell(t, cluster)
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", cluster)
	testenv.RequireGone(t, s.Hub.Kubernetes.CoreV1().Namespaces().Get, "Namespace", namespace)

	var sent []string
	for _, request := range wire.Settle(t) {
		if request.Method != http.MethodGet && request.Code < http.StatusBadRequest {
			sent = append(sent, request.Method+" "+request.Path)
		}
	}
	names := strings.NewReplacer(
		"REGISTRATION-NAMESPACE", r.Values.SystemRegistrationNamespace, "CLUSTER-NAMESPACE", namespace, "WORKSPACE", s.Namespace,
		"fleet-agent-CLUSTER", agentBundle, "CLUSTER", cluster, "CREDENTIAL", r.Secret.Name, "AGENT", registration.RequestServiceAccount(r.Request.Name, string(r.Request.UID)),
		"REQUEST", r.Request.Name,
	)
	lines, err := os.ReadFile(filepath.Join("testdata", "wire", "26-cluster-deletion.txt"))
	require.NoError(t, err)
	const ordered = 3
	number, last := 0, slices.Index(sent, names.Replace("PATCH /apis/fleet.cattle.io/v1alpha1/namespaces/CLUSTER-NAMESPACE/bundledeployments/fleet-agent-CLUSTER"))
	require.GreaterOrEqual(t, last, 0, "the agent is asked first")
	for line := range strings.Lines(string(lines)) {
		line = strings.TrimSpace(line)
		number++
		recorded := names.Replace(line)
		require.NotRegexp(t, "/.*[A-Z]", recorded, "%s has a name that no name of this hub replaces", line)
		at := slices.Index(sent, recorded)
		if other, found := otherwise[line]; found {
			assert.Negative(t, at, "%s: %s", line, other.why)
			if other.sends == "" {
				continue
			}
			at = slices.Index(sent, names.Replace(other.sends))
		}
		assert.GreaterOrEqual(t, at, 0, "%s is not among\n%s", line, strings.Join(sent, "\n"))
		if number <= ordered {
			assert.Greater(t, at, last, "%s is sent too early:\n%s", line, strings.Join(sent, "\n"))
			last = at
		}
	}
	assert.Equal(t, 9, number)
}

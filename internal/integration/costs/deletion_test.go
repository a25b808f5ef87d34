package costs

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// deletion returns the requests of a quiet hub from the deletion of a Cluster until nothing is left of it. It calls meanwhile after the deletion.
func (s *stage) deletion(t *testing.T, r *testenv.Recorder, cluster string, meanwhile func()) []testenv.Sent {
	t.Helper()
	s.DeleteCluster(t, cluster)
	meanwhile()
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", cluster)
	testenv.RequireGone(t, s.Hub.Kubernetes.CoreV1().Namespaces().Get, "Namespace", registration.ClusterNamespace(s.Namespace, cluster))
	all := r.Settle(t)
	writes, reads, failures := testenv.Totals(all)
	t.Logf("the deletion of Cluster %s: %d writes, %d reads, %d of them refused: %v", cluster, writes, reads, failures, testenv.Bill(all))
	return all
}

func nothing() {}

// askedForKind are the reads of the CustomResourceDefinition of Clusters before the hub removes anything from a member, of which at most one is sent in a second.
const askedForKind = 2

// inVain is how many deletions may be answered with 404: Kubernetes deletes some of the objects too.
const inVain = 3

// requireRemoval compares the requests of a deletion with the objects that are deleted.
func requireRemoval(t *testing.T, all []testenv.Sent, most map[string]int) {
	t.Helper()
	done := slices.DeleteFunc(slices.Clone(all), func(s testenv.Sent) bool { return s.Code == http.StatusNotFound })
	assert.LessOrEqual(t, len(all)-len(done), inVain)
	cost := testenv.Bill(done)
	for line, n := range cost {
		assert.LessOrEqual(t, n, most[strings.TrimSuffix(line, " 2xx")], "%s: %v", line, cost)
	}
}

// rightsOfARequest are the objects that were created for a request, except those that Kubernetes deletes.
func rightsOfARequest() map[string]int {
	return map[string]int{
		"DELETE clusterregistrations": 1, "DELETE namespaces": 1, "PATCH clusters": 1,
		"DELETE serviceaccounts": 1, "DELETE roles": 2, "DELETE rolebindings": 3, "DELETE clusterrolebindings": 1, "DELETE secrets": 1,
	}
}

func (s *stage) costOfADeletion(t *testing.T, r *testenv.Recorder, values registration.Values) {
	t.Helper()
	register := func(clientID string) string {
		return s.Register(t, values, clientID, "random").Request.Status.ClusterName
	}
	first, silent, leaving := register("first"), register("silent"), register("leaving")
	s.Beat(t, leaving, fleet.AgentStatus{LastSeen: metav1.NewTime(time.Now()), Namespace: testenv.SystemNamespace, Version: "v1", Generation: "managed/0"})
	s.Hub.ClusterCondition(t, s.Namespace, leaving, fleet.ConditionConnected, "True")
	deployments, bundle := s.Hub.Fleet.BundleDeployments(registration.ClusterNamespace(s.Namespace, leaving)), registration.AgentBundleName(leaving)
	testenv.EventuallyThere(t, deployments.Get, bundle)
	r.Settle(t)
	s.deletion(t, r, first, nothing) // the hub discovers once which kinds the API server serves

	t.Run("no agent that could leave: nothing is read", func(t *testing.T) {
		requireRemoval(t, s.deletion(t, r, silent, nothing), rightsOfARequest())
	})
	t.Run("an agent that leaves: its Bundle more", func(t *testing.T) {
		most := rightsOfARequest()
		most["GET clusters.fleet.cattle.io"] = askedForKind
		most["PATCH bundledeployments"] = 1 // asks the agent to leave
		most["PATCH clusters/status"] = 1   // reports the wait for the agent
		most["DELETE bundles"], most["PATCH bundles"] = 1, 1
		most["GET bundles.fleet.cattle.io"] = 1 // whether the kind of the Bundle is deleted, if its BundleDeployment still exists

		requireRemoval(t, s.deletion(t, r, leaving, func() {
			testenv.EventuallyIs(t, deployments.Get, bundle, func(d *fleet.BundleDeployment) (bool, string) {
				return d.Annotations[fleet.FarewellAnnotation] != "", "not asked"
			})
			testenv.Merge(t, deployments.Patch, bundle, `{"status":{"conditions":[{"type":"Farewell","status":"True"}]}}`, "status")
		}), most)
	})
	t.Run("an imported Cluster: its kubeconfig is read", func(t *testing.T) {
		requireRemoval(t, s.deletion(t, r, "m0", nothing), map[string]int{
			"GET clusters.fleet.cattle.io": askedForKind, "GET secrets": 1, "PATCH clusters/status": 1, "PATCH clusters": 1, "DELETE namespaces": 1,
		})
	})
}

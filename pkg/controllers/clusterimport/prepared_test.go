package clusterimport

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// reads counts how often the kubeconfig Secret was read since the last call.
func (o *office) reads() (count int) {
	for _, action := range o.kube.Actions() {
		if action.Matches("get", "secrets") {
			count++
		}
	}
	o.kube.ClearActions()
	return count
}

func TestAnImportReadsItsSecretOnceHoweverOftenItIsLookedAt(t *testing.T) {
	c := fresh()
	o, _ := workFor(t, c)
	token := o.tokens.tokens["import-token-c"]
	delete(o.tokens.tokens, "import-token-c")
	for range 2 {
		require.Equal(t, fleet.ReasonImporting, o.Reconcile(t.Context(), c).Reason)
	}
	o.tokens.tokens["import-token-c"] = token
	require.True(t, o.until(t, c).IsDone())
	assert.Equal(t, 1, o.reads())
	assert.Nil(t, o.prepared.of(clusterKey("c"), "u/1").secret, "nothing is kept when it is over")
}

func TestAnImportThatFailedIsPreparedAnew(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	m.fault = failAt(0, "forbid")
	require.Equal(t, fleet.ReasonForbidden, o.until(t, c).Reason)
	assert.Equal(t, 1, o.reads())
	assert.Nil(t, o.prepared.of(clusterKey("c"), "u/1").secret)

	m.fault = nil
	o.clock.Step(o.Reconcile(t.Context(), c).After)
	o.reads()
	o.Reconcile(t.Context(), c)
	o.pool.wait()
	require.True(t, o.Reconcile(t.Context(), c).IsDone())
	assert.Equal(t, 1, o.reads(), "for the call and its result")
	assert.Nil(t, o.prepared.of(clusterKey("c"), "u/1").secret)
}

func TestASecretThatChangesMeanwhileIsReadAgain(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	token := o.tokens.tokens["import-token-c"]
	delete(o.tokens.tokens, "import-token-c")
	o.Reconcile(t.Context(), c)
	require.Equal(t, 1, o.reads())

	changed := kubeconfigSecret(with(t, to(m.Server)))
	changed.ResourceVersion, changed.Data["apiServerURL"] = "2", []byte("https://changed")
	require.NoError(t, o.kube.Tracker().Update(secretsResource, changed, "ns"))
	o.see(t, changed)
	o.tokens.tokens["import-token-c"] = token
	require.True(t, o.until(t, c).IsDone())
	assert.Equal(t, 1, o.reads())
	assert.Equal(t, "https://changed", c.Status.APIServerURL)
}

func TestASecretThatMayBeUsedNoMoreIsNotUsedFromMemory(t *testing.T) {
	c := fresh()
	theirs := kubeconfigSecret(with(t, to(newFakeMember(t).Server)))
	theirs.Namespace, theirs.Annotations = "theirs", map[string]string{fleet.KubeconfigAllowedAnnotation: "ns"}
	o := newOffice(t, theirs)
	c.Spec.KubeConfigSecretNamespace = "theirs"
	require.Equal(t, fleet.ReasonImporting, o.Reconcile(t.Context(), c).Reason)
	require.NotNil(t, o.prepared.of(clusterKey("c"), "u/1").secret)

	theirs.ResourceVersion, theirs.Annotations = "2", nil
	require.NoError(t, o.kube.Tracker().Update(secretsResource, theirs, "theirs"))
	o.see(t, theirs)
	assert.Equal(t, fleet.ReasonKubeconfigNotAllowed, o.Reconcile(t.Context(), c).Reason)
	assert.Nil(t, o.prepared.of(clusterKey("c"), "u/1").secret)
}

// oneCluster is the cache with one Cluster.
type oneCluster struct {
	fleetcontrollers.ClusterCache
	*fleet.Cluster
}

func (o oneCluster) Get(string, string) (*fleet.Cluster, error) { return o.Cluster, nil }

func TestNothingIsKeptOfAnImportThatIsNotTheHubsToGoOnWith(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *office, *fleet.Cluster){
		"its Secret is deleted": func(t *testing.T, o *office, c *fleet.Cluster) {
			t.Helper()
			require.NoError(t, o.secrets.informer.GetStore().Replace(nil, ""))
			assert.Equal(t, fleet.ReasonWaitingForKubeconfig, o.Reconcile(t.Context(), c).Reason)
		},
		"another controller takes it": func(t *testing.T, o *office, c *fleet.Cluster) {
			t.Helper()
			c.Labels = map[string]string{fleet.ClusterManagementLabel: "other"}
			assert.True(t, o.Reconcile(t.Context(), c).IsSkip())
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := fresh()
			o, _ := workFor(t, c)
			o.clusters = oneCluster{Cluster: c}
			delete(o.tokens.tokens, "import-token-c")
			o.Reconcile(t.Context(), c)
			require.NotNil(t, o.prepared.of(clusterKey("c"), "u/1").secret)
			end(t, o, c)
			assert.Nil(t, o.prepared.of(clusterKey("c"), "u/1").secret)
		})
	}
}

func TestNothingIsKeptOfAClusterThatIsGone(t *testing.T) {
	c := fresh()
	o, _ := workFor(t, c)
	delete(o.tokens.tokens, "import-token-c")
	o.Reconcile(t.Context(), c)
	require.NotNil(t, o.prepared.of(clusterKey("c"), "u/1").secret)
	o.Forget("ns/c")
	assert.Nil(t, o.prepared.of(clusterKey("c"), "u/1").secret)
}

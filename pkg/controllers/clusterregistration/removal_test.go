package clusterregistration

import (
	"errors"
	"testing"
	"time"

	applyfake "github.com/rancher/wrangler/v3/pkg/apply/fake"
	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

var errBadDay = errors.New("bad day")

// accountsOf answers for the cache of ServiceAccounts.
type accountsOf struct {
	corecontrollers.ServiceAccountCache
	all []*corev1.ServiceAccount
	err error
}

func (a accountsOf) GetByIndex(_, key string) (found []*corev1.ServiceAccount, err error) {
	for _, account := range a.all {
		if a := account.Annotations; a[fleet.ClusterRegistrationNamespaceAnnotation]+"/"+a[fleet.ClusterRegistrationAnnotation] == key {
			found = append(found, account)
		}
	}
	return found, a.err
}

// oneCluster is the only Cluster there is, or none.
type oneCluster struct {
	fleetcontrollers.ClusterController
	*fleet.Cluster
	err error
}

func (o oneCluster) Get(namespace, name string, _ metav1.GetOptions) (*fleet.Cluster, error) {
	if o.Cluster == nil || o.Namespace != namespace || o.Name != name {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "clusters"}, name)
	}
	return o.Cluster, o.err
}

// queue notes what is looked at later.
type queue struct {
	fleetcontrollers.ClusterRegistrationController
	delays map[string]time.Duration
}

func (q queue) EnqueueAfter(namespace, name string, delay time.Duration) {
	q.delays[namespace+"/"+name] = delay
}

func TestWhatADeletedRequestWasGivenStaysUntilTheAgentHasLeft(t *testing.T) {
	const key = "fleet-default/request-abc"
	for _, row := range []struct {
		name   string
		change func(*fleet.Cluster, *corev1.ServiceAccount)
		needed bool
	}{
		{"the Cluster says farewell", func(*fleet.Cluster, *corev1.ServiceAccount) {}, true},
		{"the Cluster stays", func(c *fleet.Cluster, _ *corev1.ServiceAccount) { c.DeletionTimestamp = nil }, false},
		{"the farewell is over", func(c *fleet.Cluster, _ *corev1.ServiceAccount) { c.Finalizers = []string{"other"} }, false},
		{"the Cluster is gone", func(c *fleet.Cluster, _ *corev1.ServiceAccount) { c.Name = "other" }, false},
		{"it is of another request", func(_ *fleet.Cluster, a *corev1.ServiceAccount) {
			a.Annotations[fleet.ClusterRegistrationAnnotation] = "request-other"
		}, false},
		{"there is no identity", func(_ *fleet.Cluster, a *corev1.ServiceAccount) { a.Annotations = nil }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, deleted := somePass(), metav1.NewTime(noon)
			p.cluster.DeletionTimestamp, p.cluster.Finalizers = &deleted, []string{fleet.ClusterFinalizer}
			account := p.account()
			row.change(p.cluster, account)
			p.agents.Kubernetes = fake.NewClientset()
			later := queue{delays: map[string]time.Duration{}}
			p.requests = later
			p.agents.Accounts, p.agents.Clusters = accountsOf{all: []*corev1.ServiceAccount{account}}, oneCluster{Cluster: p.cluster}
			needed, err := p.agents.Need(t.Context(), "fleet-default", "request-abc")
			require.NoError(t, err)
			assert.Equal(t, row.needed, needed)
			if needed {
				require.NoError(t, p.removeUnlessNeeded(t.Context(), key), "nothing is removed")
				assert.Equal(t, map[string]time.Duration{key: farewellLook}, later.delays)
			}
		})
	}
}

// noSecrets is a cache in which no request has one.
type noSecrets struct{ secretsOf }

func (noSecrets) GetByIndex(string, string) ([]*corev1.Secret, error) { return nil, nil }

func TestWhatTheEndOfAFarewellDeletesIsRemovedWithoutALook(t *testing.T) {
	p, applied := somePass(), &applyfake.FakeApply{}
	p.agents.Accounts, p.secrets, p.sets = accountsOf{err: errBadDay}, noSecrets{}, desiredset.New(applied, nil) // nobody could tell
	p.Left.Add(types.NamespacedName{Namespace: "fleet-default", Name: "request-abc"})
	require.NoError(t, p.removeUnlessNeeded(t.Context(), "fleet-default/request-abc"))
	assert.NotZero(t, applied.Count)
	require.ErrorIs(t, p.removeUnlessNeeded(t.Context(), "fleet-default/request-abc"), errBadDay, "once")
}

func TestNothingIsRemovedWhileNobodyKnowsWhetherItIsNeeded(t *testing.T) {
	p := somePass()
	p.agents.Kubernetes = fake.NewClientset()
	p.agents.Accounts = accountsOf{err: errBadDay}
	require.ErrorIs(t, p.removeUnlessNeeded(t.Context(), "fleet-default/request-abc"), errBadDay)
	p.agents.Accounts, p.agents.Clusters = accountsOf{all: []*corev1.ServiceAccount{p.account()}}, oneCluster{Cluster: p.cluster, err: errBadDay}
	require.ErrorIs(t, p.removeUnlessNeeded(t.Context(), "fleet-default/request-abc"), errBadDay)
}

package clusterregistration

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// maker notes the Clusters that are made.
type maker struct {
	fleetcontrollers.ClusterController
	made []*fleet.Cluster
	err  error
}

func (m *maker) Create(c *fleet.Cluster) (*fleet.Cluster, error) {
	m.made = append(m.made, c)
	return c, m.err
}

func TestAClusterIsMadeOnceTheRequestIsJudged(t *testing.T) {
	kind := schema.GroupResource{Resource: "clusters"}
	for _, row := range []struct {
		name string
		err  error
		want string
	}{
		{"it is new", nil, "Unknown WaitingForCluster"},
		{"another pass made it", apierrors.NewAlreadyExists(kind, "x"), "Unknown WaitingForCluster"},
		{"the token's labels are none", apierrors.NewInvalid(schema.GroupKind{Kind: "Cluster"}, "x", nil), "False Error"},
		{"the API server has a bad day", errBadDay, "False Error"},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, clusters := judged(), &maker{err: row.err}
			p.clusters, p.cluster, p.newCluster, p.token = clusters, nil, "cluster-x", someToken()
			p.request.Spec.ClusterLabels = map[string]string{"env": "prod", "team": "a", "management.cattle.io/x": "dropped"}
			p.token.Spec.Labels = map[string]string{"env": "test", "management.cattle.io/y": "imposed"}
			out := p.createCluster(t.Context())
			assert.Equal(t, row.want, text(out))
			assert.Equal(t, errors.Is(row.err, errBadDay), out.Err != nil, "only that is tried again")
			require.Len(t, clusters.made, 1)
			assert.Equal(t, &fleet.Cluster{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "fleet-default", Name: "cluster-x", Finalizers: []string{fleet.ClusterFinalizer},
					Labels: map[string]string{"env": "test", "team": "a", "management.cattle.io/y": "imposed", fleet.ClusterLabel: "cluster-x"},
				},
				Spec: fleet.ClusterSpec{ClientID: "client"},
			}, clusters.made[0])
		})
	}
}

func TestAClusterThatIsThereIsNotMade(t *testing.T) {
	p, clusters := judged(), &maker{}
	p.clusters = clusters
	require.True(t, p.createCluster(t.Context()).IsDone())
	assert.Empty(t, clusters.made)
	assert.Equal(t, "member", p.clusterName())
	p.cluster, p.newCluster = nil, "cluster-x"
	assert.Equal(t, "cluster-x", p.clusterName())
}

// The order of the steps is what keeps a request that is refused from leaving anything.
func TestNothingIsMadeBeforeTheJudgement(t *testing.T) {
	p, clusters := judged(), &maker{}
	p.clusters, p.cluster, p.newCluster = clusters, nil, ""
	p.known = noClusters{}
	p.Config = config.NewStore(config.Hub{Registration: config.Registration{Approval: fleet.ApprovalManual}})
	out := p.run(t.Context())
	assert.Equal(t, "Unknown WaitingForApproval", text(out))
	assert.Empty(t, clusters.made)
	assert.False(t, p.after.Granted)
}

// noClusters is the cache where there are none.
type noClusters struct{ fleetcontrollers.ClusterCache }

func (noClusters) GetByIndex(string, string) ([]*fleet.Cluster, error) { return nil, nil }
func (noClusters) Get(_, name string) (*fleet.Cluster, error)          { return nil, orNotFound(nil, name) }

// binder answers patches with the latest version of the request.
type binder struct {
	fleetcontrollers.ClusterRegistrationController
	latest *fleet.ClusterRegistration
	err    error
	sent   []string
}

func (b *binder) Patch(_, _ string, kind types.PatchType, data []byte, _ ...string) (*fleet.ClusterRegistration, error) {
	b.sent = append(b.sent, string(kind)+" "+string(data))
	return b.latest, b.err
}

func TestAnApprovalThatCameMeanwhileStays(t *testing.T) {
	p := judged()
	latest := p.request.DeepCopy()
	latest.ResourceVersion, latest.Status.Approval = "9", &fleet.RegistrationApproval{Decision: fleet.DecisionApproved}
	requests := &binder{latest: latest}
	p.requests = requests
	require.True(t, p.bindToCluster(t.Context()).IsDone())
	assert.Len(t, requests.sent, 1)
	assert.Same(t, latest, p.request)
	assert.Equal(t, latest.Status.Approval, p.after.Approval, "the status write is a difference to the latest version")
	p.requests = &binder{err: errBadDay}
	p.request = judged().request
	require.ErrorIs(t, p.bindToCluster(t.Context()).Err, errBadDay)
}

func TestARequestWithoutAClusterIsBoundToNone(t *testing.T) {
	p := judged()
	p.cluster = nil
	require.True(t, p.bindToCluster(t.Context()).IsDone())
	require.True(t, p.leaveToOthers(t.Context()).IsDone())
}

func TestWhatIsManagedElsewhereIsNotJudged(t *testing.T) {
	p := judged()
	p.cluster.Labels = map[string]string{fleet.ClusterManagementLabel: "other"}
	assert.Equal(t, "Unknown ManagedElsewhere", text(p.leaveToOthers(t.Context())))
}

package clusterregistration

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestFindCluster(t *testing.T) {
	owner := func(name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: "Cluster", Name: name, UID: "c"}}
	}
	newName := registration.ClusterName("client")
	for _, row := range []struct {
		name   string
		change func(*scene)
		found  string
		create string
		want   string
	}{
		{"the Cluster with the clientID", func(*scene) {}, "member", "", "True "},
		{"no Cluster: create one", func(s *scene) { s.clusters = fakecache.With[*fleet.Cluster]() }, "", newName, "True "},
		{"a Cluster that appeared between two look-ups", func(s *scene) {
			s.cluster.Name, s.cluster.Spec.ClientID = newName, ""
			s.request.Spec.ClientID = "client"
		}, "", "", "False ClusterNameTaken"},
		{"a Cluster that is being deleted: wait", func(s *scene) { s.cluster.DeletionTimestamp = &metav1.Time{Time: noon} }, "", "", "Unknown ClusterDeleting"},
		{"too large: refuse, whatever it says", func(s *scene) { s.request.Spec.TooLarge = true }, "", "", "False TooLarge"},
		{"no clientID: refuse", func(s *scene) { s.request.Spec.ClientID = "" }, "", "", "False ClientIDEmpty"},
		{"the request belongs to a Cluster with another clientID: refuse", func(s *scene) {
			s.cluster.Spec.ClientID, s.request.OwnerReferences = "other", owner("member")
		}, "", newName, "False NameConflict"},
		{"the request belongs to a Cluster that is gone: leave it to Kubernetes", func(s *scene) {
			s.clusters, s.request.OwnerReferences = fakecache.With[*fleet.Cluster](), owner("gone")
		}, "", newName, "False "},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			row.change(s)
			found, create, out := s.findCluster(s.request)
			assert.Equal(t, row.want, text(out))
			assert.Equal(t, row.create, create)
			assert.Equal(t, row.found, clusterName(found, ""))
		})
	}
}

func TestCreateCluster(t *testing.T) {
	kind := schema.GroupResource{Resource: "clusters"}
	for _, row := range []struct {
		name string
		err  error
		want string
	}{
		{"it is new", nil, "Unknown WaitingForCluster"},
		{"another pass created it", apierrors.NewAlreadyExists(kind, "x"), "Unknown WaitingForCluster"},
		{"the labels of the token are invalid", apierrors.NewInvalid(schema.GroupKind{Kind: "Cluster"}, "x", nil), "False TokenInvalid"},
		{"an error", errTest, "False Error"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			s.request.Spec.ClusterLabels = map[string]string{"env": "prod", "team": "a", "management.cattle.io/x": "dropped"}
			s.token.Spec.Labels = map[string]string{"env": "test", "management.cattle.io/y": "imposed"}
			if row.err != nil {
				s.fails("create", "clusters", row.err)
			}
			out := s.createCluster(t.Context(), s.request, s.token, "cluster-x")
			assert.Equal(t, row.want, text(out))
			assert.Equal(t, errors.Is(row.err, errTest), out.Err != nil, "only an error is retried")
			if row.err != nil {
				return
			}
			made, err := s.FleetClient.Clusters("fleet-default").Get(t.Context(), "cluster-x", metav1.GetOptions{})
			require.NoError(t, err)
			assert.NotEmpty(t, s.NamespaceKeys.Find(made), "its namespace can be created without another write")
			made.Annotations = nil
			assert.Equal(t, &fleet.Cluster{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "fleet-default", Name: "cluster-x", Finalizers: []string{fleet.ClusterFinalizer},
					Labels: map[string]string{"env": "test", "team": "a", "management.cattle.io/y": "imposed", fleet.ClusterLabel: "cluster-x"},
				},
				Spec: fleet.ClusterSpec{ClientID: "client"},
			}, made)
			again := s.createCluster(t.Context(), s.request, s.token, "cluster-x")
			assert.Equal(t, out, again)
			assert.Equal(t, []string{"create clusters"}, s.writes(), "not again before the cache shows it")
		})
	}
}

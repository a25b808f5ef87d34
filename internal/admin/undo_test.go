package admin

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
)

// The answer to a create may be lost on its way, whether the Cluster was made or not.
func TestAnImportThatFailsLeavesNothingThatAClusterDoesNotUse(t *testing.T) {
	lost, away := apierrors.NewTimeoutError("the answer was lost", 0), errors.New("connection refused")
	made := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "east"}, Spec: fleet.ClusterSpec{KubeConfigSecret: "east-kubeconfig"}}
	another := made.DeepCopy()
	another.Spec.KubeConfigSecret = "elsewhere"
	for name, test := range map[string]struct {
		made   *fleet.Cluster // by the time the create has failed
		look   error          // of the look at it
		secret bool           // is left
		says   string
	}{
		"it was not made":     {nil, nil, false, "create Cluster ns/east: "},
		"it was made":         {made, nil, true, "Cluster ns/east exists with Secret east-kubeconfig, and the hub imports it"},
		"another has made it": {another, nil, false, "create Cluster ns/east: "},
		"who knows":           {nil, away, true, "whether it was created is not known either (connection refused): Secret ns/east-kubeconfig is left"},
	} {
		t.Run(name, func(t *testing.T) {
			clusters, kube := fake.NewSimpleClientset(), kubernetesfake.NewSimpleClientset()
			hub := &Hub{Kubernetes: kube, Fleet: clusters.FleetV1alpha1()}
			ctx, interrupt := context.WithCancel(t.Context())
			clusters.PrependReactor("create", "clusters", func(clienttesting.Action) (bool, runtime.Object, error) {
				if test.made != nil {
					require.NoError(t, clusters.Tracker().Add(test.made))
				}
				interrupt()
				return true, nil, lost
			})
			clusters.PrependReactor("get", "clusters", func(clienttesting.Action) (bool, runtime.Object, error) {
				return test.look != nil && ctx.Err() != nil, nil, test.look
			})
			err := hub.Import(ctx, Import{Namespace: "ns", Name: "east", Kubeconfig: []byte("k")})
			require.ErrorIs(t, err, lost)
			assert.ErrorContains(t, err, test.says)
			_, err = kube.CoreV1().Secrets("ns").Get(t.Context(), "east-kubeconfig", metav1.GetOptions{})
			assert.Equal(t, !test.secret, apierrors.IsNotFound(err), "%v", err)
		})
	}
}

// listening is a client of Clusters that shows the context of each look.
type listening struct {
	fleetclient.FleetV1alpha1Interface
	fleetclient.ClusterInterface
	look func(ctx context.Context)
}

func (l listening) Clusters(string) fleetclient.ClusterInterface { return l }

func (l listening) Get(ctx context.Context, name string, _ metav1.GetOptions) (*fleet.Cluster, error) {
	l.look(ctx)
	return nil, apierrors.NewNotFound(clustersResource, name)
}

func TestTheLookAfterAFailureOutlivesTheInterruption(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	looked, failed := false, errors.New("failed")
	hub := &Hub{Kubernetes: kubernetesfake.NewSimpleClientset(), Fleet: listening{look: func(ctx context.Context) {
		looked = true
		assert.NoError(t, ctx.Err())
	}}}
	require.ErrorIs(t, hub.undo(ctx, Import{Namespace: "ns", Name: "east"}, failed), failed)
	assert.True(t, looked)
}

package cluster

import (
	"testing"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestTheNamespaceOfAClusterIsMadeOnceWhileTheCacheHasNotSeenIt(t *testing.T) {
	clock := clocktesting.NewFakeClock(noon)
	server := fake.NewClientset()
	seen := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	step := namespaceStep{
		handler: &handler{
			Context:    &app.Context{Kubernetes: server, Clock: clock},
			namespaces: generic.NewNonNamespacedCache[*corev1.Namespace](seen, schema.GroupResource{}),
		},
		made: expectations.New(clock),
	}
	cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "alice"}}
	home := registration.ClusterNamespace("ws", "alice")
	pass := func(wrote ...string) {
		t.Helper()
		out := step.Reconcile(t.Context(), cluster)
		require.True(t, out.IsDone(), out.Message)
		assert.Equal(t, home, cluster.Status.Namespace)
		var verbs []string
		for _, a := range server.Actions() {
			verbs = append(verbs, a.GetVerb())
		}
		assert.Equal(t, wrote, verbs)
		server.ClearActions()
	}

	pass("create")
	assert.Equal(t, expectations.Timeout, step.Reconcile(t.Context(), cluster).After, "it may be deleted before anybody has seen it")
	pass()

	made, err := server.Tracker().Get(corev1.SchemeGroupVersion.WithResource("namespaces"), "", home)
	require.NoError(t, err)
	require.NoError(t, seen.Add(made))
	pass()
	assert.Zero(t, step.Reconcile(t.Context(), cluster).After)

	require.NoError(t, seen.Delete(made))
	pass("create", "get") // deleted, as far as the hub knows: it asks
	clock.Step(expectations.Timeout)
	pass("create", "get")
}

package bundles

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

// startController calls reconcile for each event of an object that is not being deleted, and gone for each deleted one. It starts the watch again
// when that ends, and runs until the end of the test, or until stop is called: stop returns after the last write.
func startController[T metav1.Object](
	t *testing.T, start func(context.Context, metav1.ListOptions) (watch.Interface, error), reconcile func(context.Context, T),
	gone ...func(context.Context, T),
) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			events, err := start(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for event := range events.ResultChan() {
				object, ok := event.Object.(T)
				switch {
				case ok && event.Type == watch.Deleted:
					for _, f := range gone {
						f(ctx, object)
					}
				case ok && object.GetDeletionTimestamp() == nil:
					reconcile(ctx, object)
				}
			}
			events.Stop()
		}
	}()
	stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	return stop
}

// soonCollected shortens the grace period of Contents, for tests that wait for the deletion of one.
func soonCollected(o *muster.Options) { o.ContentGrace = 500 * time.Millisecond }

// shop is a workspace with Clusters and Bundles. The test acts as the agents.
type shop struct {
	hub *testenv.Cluster
	ns  string
}

// cluster creates a Cluster without a Bundle for its agent, so that only the Bundles of the test are counted.
func (s shop) cluster(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	all := map[string]string{fleet.NonManagedAgentLabel: "true"}
	for key, value := range labels {
		all[key] = value
	}
	testenv.Create(t, s.hub.Fleet.Clusters(s.ns).Create, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: all}})
	s.hub.ClusterCondition(t, s.ns, name, fleet.ConditionProcessed, "True")
}

// bundle creates a Bundle with one file of this text.
func (s shop) bundle(t *testing.T, name, text string, change func(*fleet.Bundle)) {
	t.Helper()
	b := &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fleet.BundleSpec{
		BundleDeploymentOptions: fleet.BundleDeploymentOptions{DefaultNamespace: "default"}, Resources: file(text),
	}}
	change(b)
	testenv.Create(t, s.hub.Fleet.Bundles(s.ns).Create, b)
}

// file does not contain the name of the workspace, so that equal texts give one Content.
func file(text string) []fleet.BundleResource {
	return []fleet.BundleResource{{Name: "cm.yaml", Content: "kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\ndata: {text: " + text + "}"}}
}

func contentName(t *testing.T, text string) string {
	t.Helper()
	name, _, err := content.Digest(file(text))
	require.NoError(t, err)
	return name
}

func everywhere(b *fleet.Bundle) {
	b.Spec.Targets = []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}
}

func namedTarget(cluster string) func(*fleet.Bundle) {
	return func(b *fleet.Bundle) { b.Spec.Targets = []fleet.BundleTarget{{ClusterName: cluster}} }
}

func selecting(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func (s shop) merge(t *testing.T, kind, name, patch string) {
	t.Helper()
	switch kind {
	case "Bundle":
		testenv.Merge(t, s.hub.Fleet.Bundles(s.ns).Patch, name, patch)
	case "ClusterGroup":
		testenv.Merge(t, s.hub.Fleet.ClusterGroups(s.ns).Patch, name, patch)
	default:
		testenv.Merge(t, s.hub.Fleet.Clusters(s.ns).Patch, name, patch)
	}
}

func (s shop) namespaceOf(cluster string) string { return registration.ClusterNamespace(s.ns, cluster) }

// requireOn waits until, of all the given Clusters, exactly the wanted ones have a BundleDeployment of the Bundle.
func (s shop) requireOn(t *testing.T, bundle string, all []string, want ...string) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		var on []string
		for _, cluster := range all {
			if _, err := s.hub.Fleet.BundleDeployments(s.namespaceOf(cluster)).Get(t.Context(), bundle, metav1.GetOptions{}); err == nil {
				on = append(on, cluster)
			}
		}
		return slices.Equal(on, want), fmt.Sprintf("Bundle %s is on %v, want %v", bundle, on, want)
	})
}

func (s shop) deployment(t *testing.T, cluster, bundle string) *fleet.BundleDeployment {
	t.Helper()
	return testenv.EventuallyThere(t, s.hub.Fleet.BundleDeployments(s.namespaceOf(cluster)).Get, bundle)
}

// eventuallyDeployment waits until check accepts a BundleDeployment.
func (s shop) eventuallyDeployment(t *testing.T, cluster, bundle string, check func(*fleet.BundleDeployment) bool) *fleet.BundleDeployment {
	t.Helper()
	return testenv.EventuallyIs(t, s.hub.Fleet.BundleDeployments(s.namespaceOf(cluster)).Get, bundle, func(d *fleet.BundleDeployment) (bool, string) {
		return check(d), fmt.Sprintf("%+v", d.Spec)
	})
}

// reports writes the status of the current BundleDeployment in place of the agent.
func (s shop) reports(t *testing.T, cluster, bundle string, change func(*fleet.BundleDeploymentStatus)) {
	t.Helper()
	d := s.deployment(t, cluster, bundle)
	status := fleet.BundleDeploymentStatus{
		AppliedDeploymentID: d.Spec.DeploymentID, Ready: true, NonModified: true,
		ResourceCounts: fleet.ResourceCounts{Ready: 2, DesiredReady: 2},
		Conditions:     []testenv.Generic{{Type: fleet.ConditionDeployed, Status: "True"}},
	}
	if change != nil {
		change(&status)
	}
	testenv.Merge(t, s.hub.Fleet.BundleDeployments(d.Namespace).Patch, bundle, map[string]any{"status": status}, "status")
}

func fails(why string) func(*fleet.BundleDeploymentStatus) {
	return func(s *fleet.BundleDeploymentStatus) {
		*s = fleet.BundleDeploymentStatus{Conditions: []testenv.Generic{{Type: fleet.ConditionDeployed, Status: "False", Message: why}}}
	}
}

// requireBundle waits until the Bundle shows this: "x/y", state and condition.
func (s shop) requireBundle(t *testing.T, name, readyClusters, state, condition string) *fleet.Bundle {
	t.Helper()
	return testenv.EventuallyIs(t, s.hub.Fleet.Bundles(s.ns).Get, name, func(b *fleet.Bundle) (bool, string) {
		got := testenv.Condition(b.Status.Conditions, fleet.ConditionReady)
		return b.Status.Display == (fleet.BundleDisplay{ReadyClusters: readyClusters, State: state}) &&
			b.Status.ObservedGeneration == b.Generation && strings.HasPrefix(got, condition), fmt.Sprintf("%+v, Ready %s", b.Status.Display, got)
	})
}

// requireCluster waits until the Cluster shows this.
func (s shop) requireCluster(t *testing.T, name, readyBundles, condition string) *fleet.Cluster {
	t.Helper()
	return testenv.EventuallyIs(t, s.hub.Fleet.Clusters(s.ns).Get, name, func(c *fleet.Cluster) (bool, string) {
		got := testenv.Condition(c.Status.Conditions, fleet.ConditionReady)
		return c.Status.Display.ReadyBundles == readyBundles && strings.HasPrefix(got, condition),
			fmt.Sprintf("%+v, Ready %s", c.Status.Display, got)
	})
}

func (s shop) requireNoContent(t *testing.T, text string) {
	t.Helper()
	testenv.RequireGone(t, s.hub.Fleet.Contents().Get, "Content", contentName(t, text))
}

func (s shop) deleteBundle(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, s.hub.Fleet.Bundles(s.ns).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

func isThere[T any](ctx context.Context, get testenv.Get[T], name string) bool {
	_, err := get(ctx, name, metav1.GetOptions{})
	return !apierrors.IsNotFound(err)
}

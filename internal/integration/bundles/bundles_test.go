package bundles

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/describe"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

func newShop(t *testing.T, change ...func(*muster.Options)) (shop, *testenv.Running) {
	t.Helper()
	s := testenv.NewStage(t, change...)
	return shop{hub: s.Hub, ns: s.Namespace}, s.Running
}

// parallelShop is a shop whose hub other tests share. It deletes Contents soon, and is past the moment until which a Bundle without reports may be silent.
func parallelShop(t *testing.T) shop {
	t.Helper()
	s := testenv.ParallelStage(t, soonCollected, testenv.Ahead(time.Minute))
	return shop{hub: s.Hub, ns: s.Namespace}
}

func TestTargets(t *testing.T) {
	sample.Long(t)
	s := parallelShop(t)
	all := []string{"a", "b", "c"}
	s.cluster(t, "a", map[string]string{"env": "prod"})
	s.cluster(t, "b", map[string]string{"env": "dev", fleet.ClusterDisplayNameLabel: "Bob"})
	s.cluster(t, "c", map[string]string{"env": "prod", "edge": "yes"})
	for name, selector := range map[string]*metav1.LabelSelector{"edges": selecting("edge", "yes"), "devs": selecting("env", "dev")} {
		testenv.Create(t, s.hub.Fleet.ClusterGroups(s.ns).Create, &fleet.ClusterGroup{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kind": name}}, Spec: fleet.ClusterGroupSpec{Selector: selector},
		})
	}
	for name, target := range map[string]fleet.BundleTarget{
		"by-name":           {ClusterName: "a"},
		"by-display-name":   {ClusterName: "Bob"},
		"by-label":          {ClusterSelector: selecting("env", "prod")},
		"by-group":          {ClusterGroup: "edges"},
		"by-group-selector": {ClusterGroupSelector: selecting("kind", "devs")},
		"by-all-of-it":      {ClusterName: "a", ClusterSelector: selecting("env", "dev")},
		"by-nothing":        {},
		"everywhere":        {ClusterSelector: &metav1.LabelSelector{}},
	} {
		s.bundle(t, name, "same", func(b *fleet.Bundle) { b.Spec.Targets = []fleet.BundleTarget{target} })
	}
	s.requireOn(t, "by-name", all, "a")
	s.requireOn(t, "by-display-name", all, "b")
	s.requireOn(t, "by-label", all, "a", "c")
	s.requireOn(t, "by-group", all, "c")
	s.requireOn(t, "by-group-selector", all, "b")
	s.requireOn(t, "everywhere", all, "a", "b", "c")
	s.requireOn(t, "by-all-of-it", all)
	s.requireOn(t, "by-nothing", all)
	s.requireBundle(t, "by-nothing", "0/0", "", "True NoClusters")

	s.merge(t, "Cluster", "b", `{"metadata":{"labels":{"env":"prod"}}}`)
	s.requireOn(t, "by-label", all, "a", "b", "c")
	s.requireOn(t, "by-group-selector", all)
	s.merge(t, "ClusterGroup", "edges", `{"spec":{"selector":{"matchLabels":{"edge":null,"env":"prod"}}}}`)
	s.requireOn(t, "by-group", all, "a", "b", "c")
	// The API server accepts a selector that the hub cannot read.
	s.merge(t, "ClusterGroup", "edges", `{"spec":{"selector":{"matchExpressions":[{"key":"env","operator":"In"}]}}}`)
	s.requireBundle(t, "by-group", "0/3", "WaitApplied", "False BundleInvalid")
	s.requireOn(t, "by-group", all, "a", "b", "c")
	s.merge(t, "ClusterGroup", "edges", `{"spec":{"selector":{"matchExpressions":null,"matchLabels":{"env":null,"edge":"yes"}}}}`)
	s.requireOn(t, "by-group", all, "c")
	s.merge(t, "ClusterGroup", "devs", `{"metadata":{"labels":{"kind":"none"}},"spec":{"selector":{"matchLabels":{"env":"prod"}}}}`)
	s.merge(t, "Bundle", "by-name", `{"spec":{"targets":[{"clusterName":"c"}]}}`)
	s.requireOn(t, "by-name", all, "c")
	s.cluster(t, "d", map[string]string{"env": "prod"})
	s.requireOn(t, "by-label", append(all, "d"), "a", "b", "c", "d")
	s.requireOn(t, "by-group-selector", all)
}

func TestBundleDeployment(t *testing.T) {
	s := parallelShop(t)
	s.cluster(t, "a", nil)
	s.bundle(t, "app", "whole", func(b *fleet.Bundle) {
		b.Labels = map[string]string{"app": "x", "fleet.cattle.io/repo-name": "repo", "objectset.rio.cattle.io/hash": "h"}
		b.Spec.CorrectDrift = &fleet.CorrectDrift{Enabled: true}
		b.Spec.DependsOn = []fleet.BundleRef{{Name: "first"}}
		b.Spec.Helm = &fleet.HelmOptions{ReleaseName: "r", Values: &fleet.GenericMap{Data: map[string]any{"a": map[string]any{"b": int64(1), "none": nil}}}}
		b.Spec.Targets = []fleet.BundleTarget{{ClusterName: "a", BundleDeploymentOptions: fleet.BundleDeploymentOptions{
			DefaultNamespace: "elsewhere", Helm: &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"a": map[string]any{"c": "d"}}}},
		}}}
	})
	d := s.eventuallyDeployment(t, "a", "app", func(d *fleet.BundleDeployment) bool { return !d.Spec.WaitingForValues })
	secret := testenv.RequireThere(t, s.hub.Kubernetes.CoreV1().Secrets(d.Namespace).Get, "app")
	assert.EqualValues(t, "fleet.cattle.io/bundle-deployment/v1alpha1", secret.Type)
	assert.JSONEq(t, `{"a":{"b":1,"c":"d","none":null}}`, string(secret.Data["values"]))
	assert.Equal(t, secret.Data["values"], secret.Data["stagedValues"])
	assert.True(t, metav1.IsControlledBy(secret, d))
	assert.Equal(t, map[string]string{
		"app": "x", "fleet.cattle.io/repo-name": "repo",
		"fleet.cattle.io/managed": "true", "fleet.cattle.io/bundle-name": "app", "fleet.cattle.io/bundle-namespace": s.ns,
		"fleet.cattle.io/cluster": "a", "fleet.cattle.io/cluster-namespace": s.ns, "fleet.cattle.io/content-name": contentName(t, "whole"),
	}, d.Labels)
	assert.Empty(t, d.Finalizers)
	assert.Equal(t, "elsewhere", d.Spec.Options.DefaultNamespace)
	assert.Nil(t, d.Spec.Options.Helm.Values, "the values are in a Secret")
	assert.Equal(t, "r", d.Spec.Options.Helm.ReleaseName)
	assert.Equal(t, d.Spec.Options, d.Spec.StagedOptions)
	assert.Equal(t, d.Spec.DeploymentID, d.Spec.StagedDeploymentID)
	assert.Regexp(t, "^"+contentName(t, "whole")+":[0-9a-f]{64}$", d.Spec.DeploymentID)
	assert.Equal(t, &fleet.CorrectDrift{Enabled: true}, d.Spec.CorrectDrift)
	assert.Equal(t, []fleet.BundleRef{{Name: "first"}}, d.Spec.DependsOn)
	c := testenv.RequireThere(t, s.hub.Fleet.Contents().Get, contentName(t, "whole"))
	assert.Equal(t, "true", c.Labels[fleet.ManagedLabel])
	assert.NotEmpty(t, c.Content)

	s.merge(t, "Bundle", "app", `{"metadata":{"labels":{"app":null}},"spec":{"dependsOn":null,"helm":{"values":{"a":{"none":null,"b":2}}}}}`)
	d = s.eventuallyDeployment(t, "a", "app", func(d *fleet.BundleDeployment) bool {
		return d.Spec.DependsOn == nil && d.Labels["app"] == ""
	})
	secret = testenv.RequireThere(t, s.hub.Kubernetes.CoreV1().Secrets(d.Namespace).Get, "app")
	assert.JSONEq(t, `{"a":{"b":2,"c":"d"}}`, string(secret.Data["values"]))
	assert.Equal(t, int64(3), d.Generation, "it is created, completed when its Secret is there, and one change of the Bundle is one change of it")
}

func TestStatusOfBundlesAndClusters(t *testing.T) {
	sample.Long(t)
	s := parallelShop(t)
	s.cluster(t, "a", nil)
	s.cluster(t, "b", nil)
	s.requireCluster(t, "a", "0/0", "True AllReady")
	s.bundle(t, "one", "one", everywhere)
	s.bundle(t, "two", "two", everywhere)
	s.requireCluster(t, "a", "0/2", "False NotReady: WaitApplied(2) [Bundle one; Bundle two]")
	s.reports(t, "a", "one", nil)
	s.requireBundle(t, "one", "1/2", "WaitApplied", "False NotReady: WaitApplied(1) [Cluster "+s.ns+"/b]")
	s.reports(t, "b", "one", fails("no such chart"))
	b := s.requireBundle(t, "one", "1/2", "ErrApplied", "False DeployFailed: ErrApplied(1) [Cluster "+s.ns+"/b: no such chart]")
	assert.Equal(t, fleet.BundleSummary{Ready: 1, ErrApplied: 1, DesiredReady: 2, NonReadyResources: []fleet.NonReadyResource{
		{Name: s.ns + "/b", State: fleet.ErrApplied, Message: "no such chart"},
	}}, b.Status.Summary)
	assert.Equal(t, 1, b.Status.Unavailable)
	assert.NotEmpty(t, b.Status.ResourcesSHA256Sum)
	assert.Contains(t, b.Finalizers, fleet.BundleFinalizer)
	s.requireCluster(t, "b", "0/2", "False DeployFailed: ErrApplied(1) [Bundle one: no such chart]; WaitApplied(1) [Bundle two]")

	for _, cluster := range []string{"a", "b"} {
		s.reports(t, cluster, "one", nil)
		s.reports(t, cluster, "two", nil)
	}
	s.requireBundle(t, "one", "2/2", "", "True AllReady")
	s.requireBundle(t, "two", "2/2", "", "True AllReady")
	c := s.requireCluster(t, "b", "2/2", "True AllReady")
	assert.Equal(t, fleet.BundleSummary{Ready: 2, DesiredReady: 2}, c.Status.Summary)
	assert.Equal(t, fleet.ResourceCounts{Ready: 4, DesiredReady: 4}, c.Status.ResourceCounts)
	s.hub.RequireEvents(t, s.ns, "one", fleet.ReasonDeployFailed, 1)
	s.hub.RequireEvents(t, s.ns, "one", fleet.ReasonAllReady, 1) // only after the failure

	s.merge(t, "Bundle", "one", `{"spec":{"namespace":"other"}}`)
	s.requireBundle(t, "one", "0/2", "WaitApplied", "False NotReady")
}

func TestPause(t *testing.T) {
	s := parallelShop(t)
	s.cluster(t, "a", nil)
	s.bundle(t, "app", "before-"+s.ns, everywhere)
	s.reports(t, "a", "app", nil)
	deployed := s.deployment(t, "a", "app").Spec.DeploymentID
	s.merge(t, "Cluster", "a", `{"spec":{"paused":true}}`)
	s.eventuallyDeployment(t, "a", "app", func(d *fleet.BundleDeployment) bool { return d.Spec.Paused })
	s.change(t, "app", "after-"+s.ns)
	d := s.eventuallyDeployment(t, "a", "app", func(d *fleet.BundleDeployment) bool { return d.Spec.StagedDeploymentID != deployed })
	assert.Equal(t, deployed, d.Spec.DeploymentID)
	assert.Equal(t, contentName(t, "after-"+s.ns), d.Labels[fleet.ContentNameLabel])
	s.requireBundle(t, "app", "0/1", "OutOfSync", "False NotReady: OutOfSync(1) [Cluster "+s.ns+"/a: paused]")
	s.bundle(t, "new", "new-"+s.ns, everywhere)
	s.requireBundle(t, "new", "0/1", "NotReady", "False NotReady")
	for _, text := range []string{"before-", "after-", "new-"} { // each is deployed or staged, so it is needed
		testenv.EventuallyThere(t, s.hub.Fleet.Contents().Get, contentName(t, text+s.ns))
	}
	s.merge(t, "Cluster", "a", `{"spec":{"paused":null}}`)
	s.eventuallyDeployment(t, "a", "app", func(d *fleet.BundleDeployment) bool { return d.Spec.DeploymentID != deployed })
	s.requireNoContent(t, "before-"+s.ns)
}

// A version reaches the partition of the canary first, and the others when the canary is ready, one at a time.
func TestRollout(t *testing.T) {
	sample.Long(t)
	s, running := newShop(t, testenv.Ahead(time.Minute)) // past the moment until which a Bundle without reports may be silent
	all := []string{"a", "b", "c"}
	for _, name := range all {
		s.cluster(t, name, map[string]string{"name": name})
	}
	one := intstr.FromInt32(1)
	s.bundle(t, "app", "first-"+s.ns, func(b *fleet.Bundle) {
		everywhere(b)
		b.Spec.RolloutStrategy = &fleet.RolloutStrategy{Partitions: []fleet.Partition{
			{Name: "canary", ClusterSelector: selecting("name", "b")}, {Name: "rest", ClusterSelector: &metav1.LabelSelector{}, MaxUnavailable: &one},
		}}
	})
	s.requireBundle(t, "app", "0/3", "WaitApplied", "False NotReady: WaitApplied(1) [Cluster "+s.ns+"/b]; NotReady(2) [Cluster "+
		s.ns+"/a: waits for the rollout strategy of the Bundle; Cluster "+s.ns+"/c: waits for the rollout strategy of the Bundle]")
	s.requireOn(t, "app", all, "a", "b", "c")
	waits := s.deployment(t, "a", "app")
	assert.Empty(t, waits.Spec.DeploymentID)
	assert.False(t, waits.Spec.Paused, "no agent has sent a heartbeat")
	s.reports(t, "b", "app", nil)
	for _, cluster := range []string{"a", "c"} {
		s.eventuallyDeployment(t, cluster, "app", func(d *fleet.BundleDeployment) bool { return d.Spec.DeploymentID == d.Spec.StagedDeploymentID })
	}
	s.reports(t, "a", "app", nil)
	s.reports(t, "c", "app", nil)
	s.requireBundle(t, "app", "3/3", "", "True")

	// The content of the earlier version is still needed where the new one is only staged.
	content := contentName(t, "second-"+s.ns)
	has := func(cluster string, deployed, staged bool) {
		t.Helper()
		s.eventuallyDeployment(t, cluster, "app", func(d *fleet.BundleDeployment) bool {
			return strings.HasPrefix(d.Spec.DeploymentID, content+":") == deployed && strings.HasPrefix(d.Spec.StagedDeploymentID, content+":") == staged &&
				(d.Labels[fleet.ContentNameLabel] == content) == staged
		})
	}
	s.change(t, "app", "second-"+s.ns)
	has("b", true, true)
	has("a", false, true)
	has("c", false, true)
	s.reports(t, "b", "app", fails("no"))
	b := s.requireBundle(t, "app", "0/3", "ErrApplied", "False DeployFailed: ErrApplied(1) [Cluster "+s.ns+"/b: no]; OutOfSync(2) [Cluster "+
		s.ns+"/a: waits for the rollout strategy of the Bundle; Cluster "+s.ns+"/c: waits for the rollout strategy of the Bundle]")
	assert.Equal(t, 2, b.Status.UnavailablePartitions)
	running.Stop(t)
	s.hub.Hub(t)

	s.reports(t, "b", "app", nil)
	has("a", true, true)
	has("c", false, true)
	s.reports(t, "a", "app", nil)
	has("c", true, true)
	s.reports(t, "c", "app", nil)
	b = s.requireBundle(t, "app", "3/3", "", "True")
	ready := func(count int) fleet.BundleSummary { return fleet.BundleSummary{DesiredReady: count, Ready: count} }
	assert.Equal(t, []fleet.PartitionStatus{
		{Name: "canary", Count: 1, MaxUnavailable: 1, Summary: ready(1)}, {Name: "rest", Count: 2, MaxUnavailable: 1, Summary: ready(2)},
	}, b.Status.Partitions)
}

func (s shop) change(t *testing.T, bundle, text string) {
	t.Helper()
	s.merge(t, "Bundle", bundle, `{"spec":{"resources":`+testenv.Bytes(t, file(text))+`}}`)
}

func TestSharedContent(t *testing.T) {
	sample.Long(t)
	s := parallelShop(t)
	text := "shared-" + s.ns
	s.cluster(t, "a", nil)
	s.cluster(t, "b", nil)
	s.bundle(t, "one", text, everywhere)
	s.bundle(t, "two", text, namedTarget("a"))
	s.requireOn(t, "one", []string{"a", "b"}, "a", "b")
	s.deployment(t, "a", "two")
	shared := testenv.EventuallyThere(t, s.hub.Fleet.Contents().Get, contentName(t, text))

	require.NoError(t, s.hub.Fleet.Contents().Delete(t.Context(), shared.Name, metav1.DeleteOptions{}))
	testenv.Eventually(t, func() (bool, string) { // a BundleDeployment needs it, so the hub creates it again
		again, err := s.hub.Fleet.Contents().Get(t.Context(), shared.Name, metav1.GetOptions{})
		return err == nil && again.UID != shared.UID, fmt.Sprint(err)
	})
	s.deleteBundle(t, "one")
	testenv.RequireGone(t, s.hub.Fleet.Bundles(s.ns).Get, "Bundle", "one")
	s.requireOn(t, "one", []string{"a", "b"})
	s.deployment(t, "a", "two")
	testenv.RequireThere(t, s.hub.Fleet.Contents().Get, shared.Name)
	s.change(t, "two", "other-"+s.ns)
	s.requireNoContent(t, text)
	require.NoError(t, s.hub.Fleet.Clusters(s.ns).Delete(t.Context(), "a", metav1.DeleteOptions{}))
	s.requireNoContent(t, "other-"+s.ns)
	s.requireBundle(t, "two", "0/0", "", "True NoClusters")
}

func TestUnusedAndForeignContents(t *testing.T) {
	s, running := newShop(t, soonCollected)
	running.Stop(t)
	name := func(prefix string) string { return (prefix + strings.Repeat("0123456789abcdef", 4))[:63] }
	for _, c := range []*fleet.Content{
		{ObjectMeta: metav1.ObjectMeta{Name: name("s-"), Labels: nil}},
		{ObjectMeta: metav1.ObjectMeta{Name: "ours", Labels: map[string]string{fleet.ManagedLabel: "true"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}},
	} {
		testenv.Create(t, s.hub.Fleet.Contents().Create, c)
	}
	s.hub.Hub(t, soonCollected)
	testenv.RequireGone(t, s.hub.Fleet.Contents().Get, "Content", name("s-"))
	testenv.RequireGone(t, s.hub.Fleet.Contents().Get, "Content", "ours")
	testenv.RequireThere(t, s.hub.Fleet.Contents().Get, "foreign")
	require.NoError(t, s.hub.Fleet.Contents().Delete(t.Context(), "foreign", metav1.DeleteOptions{}))
}

func TestBundleDeploymentIsRepaired(t *testing.T) {
	s := parallelShop(t)
	s.cluster(t, "a", nil)
	s.bundle(t, "app", "app", everywhere)
	d := s.deployment(t, "a", "app")
	client := s.hub.Fleet.BundleDeployments(d.Namespace)

	testenv.Merge(t, client.Patch, "app", `{"metadata":{"finalizers":["`+fleet.BundleDeploymentFinalizer+`"],"labels":{"x":"y"}},"spec":{"deploymentID":"other:1"}}`)
	s.eventuallyDeployment(t, "a", "app", func(now *fleet.BundleDeployment) bool {
		return now.Spec.DeploymentID == d.Spec.DeploymentID && now.Labels["x"] == ""
	})
	_, err := client.Patch(t.Context(), "app", types.JSONPatchType, // in the form the hub patches
		[]byte(`[{"op":"replace","path":"/metadata/resourceVersion","value":"`+d.ResourceVersion+`"},{"op":"add","path":"/spec","value":{}}]`), metav1.PatchOptions{})
	require.True(t, apierrors.IsConflict(err), "a patch based on an older version must be refused: %v", err)
	require.NoError(t, client.Delete(t.Context(), "app", metav1.DeleteOptions{}))
	s.eventuallyDeployment(t, "a", "app", func(now *fleet.BundleDeployment) bool { return now.UID != d.UID })
}

// The hub and the agents put no finalizers on BundleDeployments. One of another program keeps the BundleDeployment, and with it the deleted Bundle.
func TestDeletedBundle_foreignFinalizer(t *testing.T) {
	s := parallelShop(t)
	s.cluster(t, "a", nil)
	s.bundle(t, "app", "app", everywhere)
	d := s.deployment(t, "a", "app")
	deployments, bundles := s.hub.Fleet.BundleDeployments(d.Namespace), s.hub.Fleet.Bundles(s.ns)
	testenv.Merge(t, deployments.Patch, "app", `{"metadata":{"finalizers":["example.com/stuck"]}}`)
	require.NoError(t, bundles.Delete(t.Context(), "app", metav1.DeleteOptions{}))
	s.eventuallyDeployment(t, "a", "app", func(now *fleet.BundleDeployment) bool { return now.DeletionTimestamp != nil })
	const text = "is being deleted, and stays because of its finalizers: example.com/stuck"
	testenv.Eventually(t, func() (bool, string) { // instead of the half a minute between two passes
		testenv.Merge(t, bundles.Patch, "app", `{"metadata":{"annotations":{"touched":"`+rand.Text()+`"}}}`)
		ready := fleetstatus.Condition(testenv.RequireThere(t, bundles.Get, "app").Status.Conditions, fleet.ConditionReady)
		return ready.Reason == fleet.ReasonBundleDeleting && ready.Status == corev1.ConditionFalse && strings.Contains(ready.Message, text), ready.Message
	})
	testenv.Merge(t, deployments.Patch, "app", `{"metadata":{"finalizers":null}}`)
	testenv.RequireGone(t, bundles.Get, "Bundle", "app")
}

func TestForeignBundleDeployment(t *testing.T) {
	s, running := newShop(t)
	s.cluster(t, "a", nil)
	running.Stop(t)
	foreign := testenv.Create(t, s.hub.Fleet.BundleDeployments(s.namespaceOf("a")).Create, &fleet.BundleDeployment{
		ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: fleet.BundleDeploymentSpec{DeploymentID: "mine"},
	})
	s.bundle(t, "app", "app", everywhere)
	s.hub.Hub(t)
	s.hub.ClusterCondition(t, s.ns, "a", fleet.ConditionReady, "False NameConflict")
	after := testenv.RequireThere(t, s.hub.Fleet.BundleDeployments(foreign.Namespace).Get, "app")
	assert.Equal(t, testenv.Bytes(t, foreign), testenv.Bytes(t, after))
}

// Fleet's git job moves the Helm values of a Bundle, and of its targets, to a Secret.
func TestValuesOfABundleInASecret(t *testing.T) {
	s := parallelShop(t)
	s.cluster(t, "a", nil)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "app"}, Type: registration.SecretTypeBundleValues,
		Data: map[string][]byte{"values.yaml": []byte(`{"replicas":1,"color":"red"}`), "all": []byte(`{"color":"blue"}`)},
	}
	sum := sha256.Sum256([]byte(testenv.Bytes(t, secret.Data)))
	s.bundle(t, "app", "app", func(b *fleet.Bundle) {
		everywhere(b)
		b.Spec.Targets[0].Name, b.Spec.ValuesHash = "all", hex.EncodeToString(sum[:])
	})
	s.requireBundle(t, "app", "0/0", "", "False ValuesMissing: Secret "+s.ns+"/app with the Helm values of spec.valuesHash does not exist")
	testenv.Create(t, s.hub.Kubernetes.CoreV1().Secrets(s.ns).Create, secret)
	d := s.deployment(t, "a", "app")
	values := testenv.EventuallyThere(t, s.hub.Kubernetes.CoreV1().Secrets(d.Namespace).Get, "app")
	assert.JSONEq(t, `{"replicas":1,"color":"blue"}`, string(values.Data["values"]))

	require.NoError(t, s.hub.Kubernetes.CoreV1().Secrets(s.ns).Delete(t.Context(), "app", metav1.DeleteOptions{}))
	s.requireBundle(t, "app", "0/1", "WaitApplied", "False ValuesMissing")
	after := testenv.RequireThere(t, s.hub.Fleet.BundleDeployments(d.Namespace).Get, "app")
	assert.Equal(t, d.UID, after.UID)
	assert.Equal(t, d.Spec.DeploymentID, after.Spec.DeploymentID)
}

func TestInvalidFields(t *testing.T) {
	s := parallelShop(t)
	s.cluster(t, "a", nil)
	s.bundle(t, "app", "app", everywhere)
	d := s.deployment(t, "a", "app")
	s.merge(t, "Bundle", "app", `{"spec":{"targets":[{"clusterSelector":{"matchExpressions":[{"key":"a","operator":"Like"}]}}]}}`)
	s.requireBundle(t, "app", "0/1", "WaitApplied", "False BundleInvalid: spec.targets[0].clusterSelector")
	s.merge(t, "Bundle", "app", `{"spec":{"targets":[{"clusterName":"a"}],"resources":[{"name":"f","encoding":"zip"}]}}`)
	s.requireBundle(t, "app", "0/1", "WaitApplied", `False BundleInvalid: spec.resources: resource f has the unknown encoding "zip"`)
	after := testenv.RequireThere(t, s.hub.Fleet.BundleDeployments(d.Namespace).Get, "app")
	assert.Equal(t, testenv.Bytes(t, d), testenv.Bytes(t, after))
	s.hub.RequireEvents(t, s.ns, "app", fleet.ReasonBundleInvalid, 1)
}

// A Cluster reports a Bundle that cannot be rendered beside those that are not ready, as muster describe does, until the Bundle is gone.
func TestUnrenderedBundle(t *testing.T) {
	s, _ := newShop(t, func(o *muster.Options) { o.Recheck = time.Hour }) // only an event ends the report
	s.cluster(t, "a", nil)
	s.bundle(t, "slow", "slow", everywhere)
	unrendered := func(b *fleet.Bundle) {
		everywhere(b)
		b.Spec.Helm = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"v": "${ .ClusterLabels.region }"}}}
	}
	s.bundle(t, "values", "values", unrendered)
	c := s.requireCluster(t, "a", "0/1", "False BundleInvalid: Bundle values: the Helm values cannot be rendered")
	assert.Contains(t, testenv.Condition(c.Status.Conditions, fleet.ConditionReady), "; WaitApplied(1) [Bundle slow]")
	s.requireBundle(t, "values", "0/1", "ErrApplied", "False DeployFailed")
	d, err := describe.Of(t.Context(), &admin.Hub{Kubernetes: s.hub.Kubernetes, Fleet: s.hub.Fleet}, s.ns, "a", time.Now())
	require.NoError(t, err)
	assert.Contains(t, d.Tree(), "Bundle "+s.ns+"/values: NotDeployed, BundleInvalid (the Helm values cannot be rendered: ")

	s.deleteBundle(t, "values")
	s.requireCluster(t, "a", "0/1", "False NotReady: WaitApplied(1) [Bundle slow]")
	s.bundle(t, "values", "values", unrendered)
	s.requireCluster(t, "a", "0/1", "False BundleInvalid")
	s.merge(t, "Bundle", "values", `{"spec":{"targets":[{"clusterName":"b"}]}}`)
	s.requireCluster(t, "a", "0/1", "False NotReady: WaitApplied(1) [Bundle slow]")
}

func TestWritesOfABundleForOneCluster(t *testing.T) {
	sample.Long(t)
	r := &testenv.Recorder{}
	s, _ := newShop(t, r.Wrap)
	const neighbours = 10
	for i := range neighbours {
		s.cluster(t, fmt.Sprintf("c%d", i), nil)
	}
	r.Settle(t)
	s.bundle(t, "one", "one-"+s.ns, namedTarget("c7"))
	for _, text := range []string{"one-", "two-"} {
		s.change(t, "one", text+s.ns) // at first it has this text already
		s.eventuallyDeployment(t, "c7", "one", func(d *fleet.BundleDeployment) bool {
			return d.Labels[fleet.ContentNameLabel] == contentName(t, text+s.ns)
		})
		s.reports(t, "c7", "one", nil)
		s.requireBundle(t, "one", "1/1", "", "True")
		s.requireCluster(t, "c7", "1/1", "True")
	}
	s.deleteBundle(t, "one")
	testenv.RequireGone(t, s.hub.Fleet.Bundles(s.ns).Get, "Bundle", "one")
	all := r.Settle(t)
	assert.NotEmpty(t, all)
	for _, w := range all {
		for i := range neighbours {
			name := fmt.Sprintf("c%d", i)
			if i != 7 && (strings.HasSuffix(w.Path, "/clusters/"+name+"/status") || strings.Contains(w.Path, s.namespaceOf(name))) {
				t.Errorf("%s has nothing to do with Cluster %s", w, name)
			}
		}
	}
}

func TestDisableBundles(t *testing.T) {
	r := &testenv.Recorder{}
	s, running := newShop(t, r.Wrap, func(o *muster.Options) { o.DisableBundles = true })
	s.cluster(t, "a", nil)
	s.bundle(t, "app", "left", everywhere)
	before := testenv.RequireThere(t, s.hub.Fleet.Bundles(s.ns).Get, "app")
	all := r.Settle(t)
	assert.Equal(t, testenv.Bytes(t, before), testenv.Bytes(t, testenv.RequireThere(t, s.hub.Fleet.Bundles(s.ns).Get, "app")))
	assert.False(t, isThere(t.Context(), s.hub.Fleet.BundleDeployments(s.namespaceOf("a")).Get, "app"))
	c := testenv.RequireThere(t, s.hub.Fleet.Clusters(s.ns).Get, "a")
	assert.Equal(t, "True : ", testenv.Condition(c.Status.Conditions, fleet.ConditionReady), "as Fleet's controller writes it")
	for _, request := range all {
		assert.NotContains(t, request.Path, "/v1alpha1/contents")
		if request.IsWrite() {
			assert.NotRegexp(t, "/v1alpha1/.*bundledeployments", request.Path)
		}
	}
	running.Stop(t)
	s.hub.Hub(t)
	s.deployment(t, "a", "app")
}

func TestStatusOfClusterGroups(t *testing.T) {
	sample.Long(t)
	r := &testenv.Recorder{}
	s, _ := newShop(t, r.Wrap)
	testenv.Create(t, s.hub.Fleet.ClusterGroups(s.ns).Create, &fleet.ClusterGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "devs"}, Spec: fleet.ClusterGroupSpec{Selector: selecting("env", "dev")},
	})
	requireGroup := func(clusters int, readyClusters, readyBundles, ready string) *fleet.ClusterGroup {
		t.Helper()
		return testenv.EventuallyIs(t, s.hub.Fleet.ClusterGroups(s.ns).Get, "devs", func(group *fleet.ClusterGroup) (bool, string) {
			return group.Status.ClusterCount == clusters && group.Status.Display.ReadyClusters == readyClusters &&
				group.Status.Display.ReadyBundles == readyBundles &&
				strings.HasPrefix(testenv.Condition(group.Status.Conditions, fleet.ConditionReady), ready), fmt.Sprintf("%+v", group.Status)
		})
	}
	requireGroup(0, "0/0", "0/0", "True AllReady")
	s.cluster(t, "a", map[string]string{"env": "dev"})
	s.cluster(t, "b", map[string]string{"env": "dev"})
	s.cluster(t, "c", map[string]string{"env": "prod"})
	s.bundle(t, "app", "group", everywhere)
	requireGroup(2, "0/2 (a, b)", "0/2", "False NotReady: WaitApplied(2) [Bundle app]")
	s.reports(t, "a", "app", nil)
	group := requireGroup(2, "1/2 (b)", "1/2", "False NotReady: WaitApplied(1) [Bundle app]")
	assert.Equal(t, fleet.ResourceCounts{Ready: 2, DesiredReady: 2}, group.Status.ResourceCounts)
	s.reports(t, "b", "app", nil)
	requireGroup(2, "2/2", "2/2", "True AllReady")
	s.merge(t, "Cluster", "b", `{"metadata":{"labels":{"env":"prod"}}}`)
	requireGroup(1, "1/1", "1/1", "True AllReady")

	// The test acts as Fleet's agent, which does not write status.display.
	s.eventuallyDeployment(t, "a", "app", func(d *fleet.BundleDeployment) bool {
		return d.Status.Display == (fleet.BundleDeploymentDisplay{Deployed: "True", State: "Ready"})
	})
	r.Settle(t) // the two writers do not overwrite each other
}

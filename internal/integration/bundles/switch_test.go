package bundles

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/recording"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// recordedBundle is a Bundle with the objects that Fleet's own Bundle controller created for it.
type recordedBundle struct {
	Name              string
	BundleAsApplied   struct{ Spec fleet.BundleSpec }
	BundleDeployments []fleet.BundleDeployment
	Secrets           []struct {
		Type        corev1.SecretType
		DataDecoded map[string]string
	}
	Contents []struct{ ContentUnpacked string }
}

// recordedBundles returns Bundles of plain manifests and of a chart with values.
func recordedBundles(t *testing.T) (bundles []recordedBundle) {
	t.Helper()
	for _, scene := range []string{"01-plain.yaml", "04-chart-values.yaml"} {
		stages := recording.Stages[struct{ Bundles []json.RawMessage }](t, filepath.Join("..", "..", "..", "pkg", "controllers", "bundle", "testdata", "wire", scene))
		var b recordedBundle
		require.NoError(t, json.Unmarshal(stages[0].Bundles[0], &b))
		bundles = append(bundles, b)
	}
	return bundles
}

// madeFrom are the labels of the recorded Bundles by which the status of a Cluster counts GitRepos and HelmOps.
var madeFrom = map[string]map[string]string{
	"s01-plain": {fleet.RepoLabel: "repo"},
	"s04-chart": {fleet.HelmOpLabel: "op"},
}

// requireRollUp waits until the status of a Cluster sums up its BundleDeployments for other components.
func (s shop) requireRollUp(t *testing.T, cluster string) {
	t.Helper()
	testenv.EventuallyIs(t, s.hub.Fleet.Clusters(s.ns).Get, cluster, func(c *fleet.Cluster) (bool, string) {
		deployments := testenv.List(t, s.hub.Fleet.BundleDeployments(s.namespaceOf(cluster)).List, metav1.ListOptions{})
		var counts fleet.ResourceCounts
		apps := map[string]int{}
		ready, worst := 0, ""
		for _, d := range deployments.Items {
			isReady := 0
			if state := fleetstatus.BundleState(d.Spec, d.Status); state == fleet.Ready {
				isReady = 1
			} else {
				worst = string(state) // only one is not ready
			}
			ready += isReady
			for _, label := range []string{fleet.RepoLabel, fleet.HelmOpLabel} {
				if d.Labels[label] != "" {
					apps["desired "+label]++
					apps["ready "+label] += isReady
				}
			}
			of := d.Status.ResourceCounts
			counts.DesiredReady, counts.Ready, counts.NotReady = counts.DesiredReady+of.DesiredReady, counts.Ready+of.Ready, counts.NotReady+of.NotReady
		}
		want := []any{
			counts, fmt.Sprintf("%d/%d", ready, len(deployments.Items)), worst, ready, len(deployments.Items),
			apps["ready "+fleet.RepoLabel], apps["desired "+fleet.RepoLabel], apps["ready "+fleet.HelmOpLabel], apps["desired "+fleet.HelmOpLabel],
		}
		status := c.Status
		got := []any{
			status.ResourceCounts, status.Display.ReadyBundles, status.Display.State, status.Summary.Ready, status.Summary.DesiredReady,
			status.ReadyGitRepos, status.DesiredReadyGitRepos, status.ReadyHelmOps, status.DesiredReadyHelmOps,
		}
		return reflect.DeepEqual(want, got) && len(apps) == 4, fmt.Sprintf("want %v, got %v", want, got)
	})
}

// fleetBundles does for one Cluster what Fleet's own controllers of Bundles and BundleDeployments do: on each event it puts labels, spec
// and finalizer of the BundleDeployment back, and sets its display. writes counts its writes.
type fleetBundles struct {
	shop
	cluster string
	bundles []recordedBundle
	writes  atomic.Int64
	Stop    func()
}

func startFleetBundles(t *testing.T, s shop, cluster string, bundles []recordedBundle) *fleetBundles {
	t.Helper()
	f := &fleetBundles{shop: s, cluster: cluster, bundles: bundles}
	for _, b := range bundles {
		f.create(t, b)
	}
	f.Stop = startController(t, s.hub.Fleet.BundleDeployments(s.namespaceOf(cluster)).Watch, f.reconcile)
	return f
}

// create writes the objects that the hub does not have yet.
func (f *fleetBundles) create(t *testing.T, b recordedBundle) {
	t.Helper()
	var unpacked struct{ Resources []fleet.BundleResource }
	require.NoError(t, json.Unmarshal([]byte(b.Contents[0].ContentUnpacked), &unpacked))
	packed, err := content.Encode(unpacked.Resources)
	require.NoError(t, err)
	namespace := f.namespaceOf(f.cluster)
	require.True(t, strings.HasPrefix(b.BundleDeployments[0].Spec.DeploymentID, packed.Name+":"))
	requireCreated := func(err error) {
		t.Helper()
		if !apierrors.IsAlreadyExists(err) {
			require.NoError(t, err)
		}
	}
	_, err = f.hub.Fleet.Contents().Create(t.Context(), packed, metav1.CreateOptions{})
	requireCreated(err)
	wanted := f.wanted(b)
	wanted.Namespace = namespace
	_, err = f.hub.Fleet.BundleDeployments(namespace).Create(t.Context(), &wanted, metav1.CreateOptions{})
	requireCreated(err)
	for _, s := range b.Secrets {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: b.Name}, Type: s.Type, StringData: s.DataDecoded}
		_, err = f.hub.Kubernetes.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{})
		requireCreated(err)
	}
}

// wanted is the recorded BundleDeployment for the Cluster of the test.
func (f *fleetBundles) wanted(b recordedBundle) fleet.BundleDeployment {
	recorded := b.BundleDeployments[0]
	labels := maps.Clone(recorded.Labels)
	labels[fleet.ClusterLabel], labels[fleet.WorkspaceLabel], labels[fleet.BundleNamespaceLabel] = f.cluster, f.ns, f.ns
	maps.Copy(labels, madeFrom[b.Name])
	return fleet.BundleDeployment{
		ObjectMeta: metav1.ObjectMeta{Name: recorded.Name, Labels: labels, Finalizers: []string{fleet.BundleDeploymentFinalizer}}, Spec: recorded.Spec,
	}
}

func (f *fleetBundles) reconcile(ctx context.Context, bd *fleet.BundleDeployment) {
	client := f.hub.Fleet.BundleDeployments(bd.Namespace)
	for _, b := range f.bundles {
		wanted := f.wanted(b)
		if wanted.Name != bd.Name {
			continue
		}
		if !reflect.DeepEqual(wanted.Labels, bd.Labels) || !reflect.DeepEqual(wanted.Spec, bd.Spec) || !reflect.DeepEqual(wanted.Finalizers, bd.Finalizers) {
			after := bd.DeepCopy()
			after.Labels, after.Spec, after.Finalizers = wanted.Labels, wanted.Spec, wanted.Finalizers
			if _, err := client.Update(ctx, after, metav1.UpdateOptions{}); err == nil {
				f.writes.Add(1)
			}
			return
		}
		if display := fleetstatus.Display(bd.Spec, bd.Status); display != bd.Status.Display {
			after := bd.DeepCopy()
			after.Status.Display = display
			if _, err := client.UpdateStatus(ctx, after, metav1.UpdateOptions{}); err == nil {
				f.writes.Add(1)
			}
		}
	}
}

// deployed describes the objects on the member: the revisions of the releases, the ConfigMaps, and the Pod templates.
func deployed(t *testing.T, member *testenv.Cluster, namespaces ...string) (found []string) {
	t.Helper()
	for _, namespace := range namespaces {
		secrets := testenv.List(t, member.Kubernetes.CoreV1().Secrets(namespace).List, metav1.ListOptions{LabelSelector: "owner=helm"})
		for _, s := range secrets.Items {
			found = append(found, fmt.Sprintf("release %s of revision %s: %s", s.Labels["name"], s.Labels["version"], s.Labels["status"]))
		}
		configMaps := testenv.List(t, member.Kubernetes.CoreV1().ConfigMaps(namespace).List, metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=Helm"})
		for _, o := range configMaps.Items {
			found = append(found, fmt.Sprintf("ConfigMap %s/%s %s of version %s", o.Namespace, o.Name, o.UID, o.ResourceVersion))
		}
		deployments := testenv.List(t, member.Kubernetes.AppsV1().Deployments(namespace).List, metav1.ListOptions{})
		for _, o := range deployments.Items {
			found = append(found, fmt.Sprintf("Deployment %s/%s %s of generation %d: %s", o.Namespace, o.Name, o.UID, o.Generation, testenv.Bytes(t, &o.Spec.Template)))
		}
	}
	return found
}

// probe creates one more Bundle with a ConfigMap and waits until it is deployed. If own is true, the hub creates the BundleDeployment; otherwise
// the test does.
func (s shop) probe(t *testing.T, cluster, name, namespace string, own bool) {
	t.Helper()
	resources := []fleet.BundleResource{{Name: "cm.yaml", Content: "kind: ConfigMap\napiVersion: v1\nmetadata: {name: " + name + "}\n"}}
	options := fleet.BundleDeploymentOptions{DefaultNamespace: namespace}
	if own {
		s.bundle(t, name, "", func(b *fleet.Bundle) {
			b.Spec.Resources, b.Spec.BundleDeploymentOptions = resources, options
			everywhere(b)
		})
	} else {
		packed, err := content.Encode(resources)
		require.NoError(t, err)
		testenv.Create(t, s.hub.Fleet.Contents().Create, packed)
		id, err := content.DeploymentID(packed.Name, options)
		require.NoError(t, err)
		testenv.Create(t, s.hub.Fleet.BundleDeployments(s.namespaceOf(cluster)).Create, &fleet.BundleDeployment{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				fleet.ManagedLabel: "true", fleet.BundleNameLabel: name, fleet.BundleNamespaceLabel: s.ns, fleet.ContentNameLabel: packed.Name,
				fleet.ClusterLabel: cluster, fleet.WorkspaceLabel: s.ns,
			}},
			Spec: fleet.BundleDeploymentSpec{DeploymentID: id, StagedDeploymentID: id, Options: options, StagedOptions: options},
		})
	}
	s.eventuallyDeployment(t, cluster, name, func(d *fleet.BundleDeployment) bool { return d.Status.Display.State == string(fleet.Ready) })
}

// stepHeading is the heading of a step in docs/switching.md.
var stepHeading = regexp.MustCompile(`(?m)^## (Step \d: .+)$`)

// TestSwitch walks the steps of docs/switching.md, there and back, with simulated controllers of Fleet. In each step every release
// keeps its revision, every object its version, and every BundleDeployment its deployment ID, and where this hub runs, the status of
// the Cluster sums them up. The page cannot be run itself: it needs the images of Fleet.
func TestSwitch(t *testing.T) {
	stage := testenv.NewStage(t, testenv.WithoutBundles)
	s := shop{hub: stage.Hub, ns: stage.Namespace}
	agentNamespace, bundles := stage.Member.Namespace(t), recordedBundles(t)
	names := make([]string, 0, len(bundles))
	for _, b := range bundles {
		names = append(names, b.Name)
		testenv.Create(t, s.hub.Fleet.Bundles(s.ns).Create, &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Name: b.Name, Labels: madeFrom[b.Name]}, Spec: b.BundleAsApplied.Spec})
	}
	stage.ImportInto(t, "m", agentNamespace, func(c *fleet.Cluster) {
		c.Labels = map[string]string{"env": "dev", fleet.NonManagedAgentLabel: "true"}
	})

	// A cluster that Fleet manages: its hub has registered it, and its agent, which labels no release, has deployed.
	controllers, writes := startFleetBundles(t, s, "m", bundles), int64(0)
	stopControllers := func() {
		controllers.Stop()
		writes += controllers.writes.Swap(0)
	}
	agent := stage.Member.Agent(t, agentNamespace)
	requireApplied := func(t *testing.T) (ids []string) {
		t.Helper()
		for _, name := range names {
			d := s.eventuallyDeployment(t, "m", name, func(d *fleet.BundleDeployment) bool {
				return d.Status.AppliedDeploymentID == d.Spec.DeploymentID && d.Status.NonModified // no Pod of the Deployment ever runs
			})
			ids = append(ids, d.Spec.DeploymentID+" "+string(d.UID)+" "+d.Status.Release)
		}
		return ids
	}
	ids := requireApplied(t)
	agent.Stop(t)
	stage.Stop(t)
	namespaces := make([]string, 0, len(bundles))
	for _, b := range bundles {
		namespaces = append(namespaces, b.BundleDeployments[0].Spec.Options.DefaultNamespace)
	}
	// byFleet makes the revisions those of Fleet's own agent, which sets no labels and signs nothing.
	byFleet := func(t *testing.T) {
		t.Helper()
		for _, namespace := range namespaces {
			secrets := testenv.List(t, stage.Member.Kubernetes.CoreV1().Secrets(namespace).List, metav1.ListOptions{LabelSelector: "owner=helm"})
			for i := range secrets.Items {
				secrets.Items[i].Annotations = nil
				maps.DeleteFunc(secrets.Items[i].Labels, func(key, _ string) bool { return strings.HasPrefix(key, "muster.") })
				testenv.Update(t, stage.Member.Kubernetes.CoreV1().Secrets(namespace).Update, &secrets.Items[i])
			}
		}
	}
	byFleet(t)
	require.NoError(t, stage.Member.Kubernetes.CoreV1().Secrets(agentNamespace).Delete(t.Context(), registration.HistoryKeySecret, metav1.DeleteOptions{}))
	before := deployed(t, stage.Member, namespaces...)
	require.NotEmpty(t, before)

	running, own, hubRuns, probes := false, false, false, 0
	// requireSame has the agent deploy one more Bundle, if it runs, and requires that the first releases, their objects and their
	// BundleDeployments are the same as before.
	requireSame := func(t *testing.T) {
		t.Helper()
		if running {
			probes++
			s.probe(t, "m", fmt.Sprint("probe-", probes), stage.Member.Namespace(t), own)
		}
		assert.Equal(t, ids, requireApplied(t))
		assert.Equal(t, before, deployed(t, stage.Member, namespaces...))
		if hubRuns {
			s.requireRollUp(t, "m")
		}
	}
	ours := func() { // the hub with its own Bundle controllers, in place of Fleet's
		stopControllers()
		stage.Stop(t)
		stage.Running, own, hubRuns = s.hub.Hub(t), true, true
	}
	theirs := func() {
		stopControllers()
		stage.Stop(t)
		stage.Running, own, hubRuns = s.hub.Hub(t, testenv.WithoutBundles), false, true
		controllers = startFleetBundles(t, s, "m", bundles)
		s.hub.ClusterCondition(t, s.ns, "m", fleet.ConditionConnected, "True")
	}
	// What a step starts runs until the end of the whole test, so these functions use the t of TestSwitch.
	steps := []struct {
		name        string
		there, back func()
	}{
		{"Step 1: check before the switch", func() {}, func() {}},
		{
			"Step 2: one agent",
			func() { agent, running = stage.Member.Agent(t, agentNamespace), true },
			func() { agent.Stop(t); running = false },
		},
		{"Step 3: all agents", func() {}, func() {}},
		{
			"Step 4: the hub, beside Fleet's controllers",
			theirs,
			func() { stage.Stop(t); hubRuns = false },
		},
		{"Step 5: the hub's own Bundle controllers", ours, theirs},
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "switching.md"))
	require.NoError(t, err)
	var documented, walked []string
	for _, heading := range stepHeading.FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, heading[1])
	}
	for _, step := range steps {
		walked = append(walked, step.name)
	}
	require.Equal(t, documented, walked, "the test walks the steps of the page")

	for i := range steps {
		require.True(t, t.Run(steps[i].name, func(t *testing.T) {
			steps[i].there()
			requireSame(t)
		}))
	}
	for i := len(steps) - 1; i >= 0; i-- {
		require.True(t, t.Run(steps[i].name+", back", func(t *testing.T) {
			steps[i].back()
			requireSame(t)
		}))
	}
	t.Run("Step 2 once more, after Fleet's agent has deployed", func(t *testing.T) {
		byFleet(t)
		running = true
		stage.Member.Agent(t, agentNamespace)
		testenv.Eventually(t, func() (bool, string) {
			for _, namespace := range namespaces {
				secrets := testenv.List(t, stage.Member.Kubernetes.CoreV1().Secrets(namespace).List, metav1.ListOptions{LabelSelector: "owner=helm"})
				for _, s := range secrets.Items {
					if len(s.Annotations) == 0 {
						return false, fmt.Sprintf("Secret %s/%s is not signed", namespace, s.Name)
					}
				}
			}
			return true, ""
		})
		requireSame(t)
	})
	stopControllers()
	assert.Less(t, writes, int64(5), "no two controllers overwrite a BundleDeployment in turn")
}

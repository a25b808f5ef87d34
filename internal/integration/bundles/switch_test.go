package bundles

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/jsonpath"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/recording"
	"github.com/muster-fleet/muster/internal/testenv/sample"
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
	Contents []recordedContent
}

type recordedContent struct{ ContentUnpacked string }

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
// and finalizer of the BundleDeployment back, and sets its display. It deploys the recorded Bundles, and the Bundle of the agent as it is on
// the hub.
type fleetBundles struct {
	shop
	cluster string
	writes  *atomic.Int64 // of the recorded Bundles
	mu      sync.Mutex    // guards bundles
	bundles []recordedBundle
	Stop    func()
}

func startFleetBundles(t *testing.T, s shop, cluster string, bundles []recordedBundle, writes *atomic.Int64) *fleetBundles {
	t.Helper()
	f := &fleetBundles{shop: s, cluster: cluster, bundles: bundles, writes: writes}
	for _, b := range bundles {
		require.NoError(t, f.create(t.Context(), b))
	}
	stopDeployments := startController(t, s.hub.Fleet.BundleDeployments(s.namespaceOf(cluster)).Watch, f.reconcile)
	stopBundles := startController(t, s.hub.Fleet.Bundles(s.ns).Watch, f.deployAgent, f.removeAgent)
	f.Stop = func() {
		stopBundles()
		stopDeployments()
	}
	return f
}

// create writes the objects that the hub does not have yet.
func (f *fleetBundles) create(ctx context.Context, b recordedBundle) error {
	var unpacked struct{ Resources []fleet.BundleResource }
	if err := json.Unmarshal([]byte(b.Contents[0].ContentUnpacked), &unpacked); err != nil {
		return err
	}
	packed, err := content.Encode(unpacked.Resources)
	if err != nil {
		return err
	}
	wanted := f.wanted(b)
	wanted.Namespace = f.namespaceOf(f.cluster)
	if !strings.HasPrefix(wanted.Spec.DeploymentID, packed.Name+":") {
		return fmt.Errorf("%s is not the Content of %s", packed.Name, wanted.Spec.DeploymentID)
	}
	_, contentErr := f.hub.Fleet.Contents().Create(ctx, packed, metav1.CreateOptions{})
	_, deploymentErr := f.hub.Fleet.BundleDeployments(wanted.Namespace).Create(ctx, &wanted, metav1.CreateOptions{})
	errs := []error{contentErr, deploymentErr}
	for _, s := range b.Secrets {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: b.Name}, Type: s.Type, StringData: s.DataDecoded}
		_, err = f.hub.Kubernetes.CoreV1().Secrets(wanted.Namespace).Create(ctx, secret, metav1.CreateOptions{})
		errs = append(errs, err)
	}
	return errors.Join(slices.DeleteFunc(errs, apierrors.IsAlreadyExists)...)
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

// set replaces a Bundle, or adds it.
func (f *fleetBundles) set(b recordedBundle) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bundles = append(slices.DeleteFunc(slices.Clone(f.bundles), func(o recordedBundle) bool { return o.Name == b.Name }), b)
}

// change replaces a Bundle by one with another deployment ID, and deploys it.
func (f *fleetBundles) change(t *testing.T, b recordedBundle) {
	t.Helper()
	f.set(b)
	f.reconcile(t.Context(), f.deployment(t, f.cluster, b.Name))
}

// deployAgent deploys the Bundle of the agent.
func (f *fleetBundles) deployAgent(ctx context.Context, bundle *fleet.Bundle) {
	if bundle.Name != registration.AgentBundleName(f.cluster) {
		return
	}
	packed, err := content.Encode(bundle.Spec.Resources)
	if err != nil {
		return
	}
	options := bundle.Spec.BundleDeploymentOptions
	id, err := content.DeploymentID(packed.Name, options)
	if err != nil {
		return
	}
	unpacked, err := json.Marshal(map[string]any{"resources": bundle.Spec.Resources})
	if err != nil {
		return
	}
	b := recordedBundle{Name: bundle.Name, Contents: []recordedContent{{ContentUnpacked: string(unpacked)}}, BundleDeployments: []fleet.BundleDeployment{{
		ObjectMeta: metav1.ObjectMeta{Name: bundle.Name, Labels: map[string]string{
			fleet.ManagedLabel: "true", fleet.BundleNameLabel: bundle.Name, fleet.ContentNameLabel: packed.Name,
		}},
		Spec: fleet.BundleDeploymentSpec{DeploymentID: id, StagedDeploymentID: id, Options: options, StagedOptions: options},
	}}}
	f.set(b)
	if f.create(ctx, b) == nil {
		if bd, err := f.hub.Fleet.BundleDeployments(f.namespaceOf(f.cluster)).Get(ctx, b.Name, metav1.GetOptions{}); err == nil {
			f.reconcile(ctx, bd)
		}
	}
}

// removeAgent deletes the BundleDeployment of the agent. Fleet's controller removes its finalizer without waiting for an agent.
func (f *fleetBundles) removeAgent(ctx context.Context, bundle *fleet.Bundle) {
	if bundle.Name != registration.AgentBundleName(f.cluster) {
		return
	}
	f.mu.Lock()
	f.bundles = slices.DeleteFunc(slices.Clone(f.bundles), func(o recordedBundle) bool { return o.Name == bundle.Name })
	f.mu.Unlock()
	client := f.hub.Fleet.BundleDeployments(f.namespaceOf(f.cluster))
	_ = client.Delete(ctx, bundle.Name, metav1.DeleteOptions{})
	_, _ = client.Patch(ctx, bundle.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
}

func (f *fleetBundles) reconcile(ctx context.Context, bd *fleet.BundleDeployment) {
	f.mu.Lock()
	bundles := f.bundles
	f.mu.Unlock()
	client, after := f.hub.Fleet.BundleDeployments(bd.Namespace), bd.DeepCopy()
	at := slices.IndexFunc(bundles, func(b recordedBundle) bool { return b.Name == bd.Name })
	if at >= 0 {
		wanted := f.wanted(bundles[at])
		after.Labels, after.Spec, after.Finalizers = wanted.Labels, wanted.Spec, wanted.Finalizers
	}
	var err error
	if !reflect.DeepEqual(after.ObjectMeta, bd.ObjectMeta) || !reflect.DeepEqual(after.Spec, bd.Spec) {
		_, err = client.Update(ctx, after, metav1.UpdateOptions{})
	} else if after.Status.Display = fleetstatus.Display(bd.Spec, bd.Status); after.Status.Display != bd.Status.Display {
		_, err = client.UpdateStatus(ctx, after, metav1.UpdateOptions{})
	} else {
		return
	}
	if err == nil && at >= 0 && bd.Name != registration.AgentBundleName(f.cluster) {
		f.writes.Add(1)
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

// Parts of docs/switching.md: the heading of a step, the command of step 1 that must print nothing but its header, and that of step 5 which prints
// what the hub cannot deploy.
var (
	stepHeading = regexp.MustCompile(`(?m)^## (Step \d: .+)$`)
	preflight   = regexp.MustCompile(`kubectl --context hub get bundledeployments\.fleet\.cattle\.io --all-namespaces \\\n` +
		`  --output 'custom-columns=(.+)' \| grep -v '(.+)'`)
	undeployable = regexp.MustCompile(`kubectl --context hub get bundles\.fleet\.cattle\.io,clusters\.fleet\.cattle\.io --all-namespaces \\\n` +
		`  --output 'custom-columns=(.+)' \| grep -vE '(.+)'`)
)

// runPreflight prints what that command prints of the BundleDeployments of a Cluster, without the header.
func (s shop) runPreflight(t *testing.T, page, cluster string) []string {
	t.Helper()
	deployments := testenv.List(t, s.hub.Fleet.BundleDeployments(s.namespaceOf(cluster)).List, metav1.ListOptions{})
	require.NotEmpty(t, deployments.Items)
	var objects []any
	for i := range deployments.Items {
		objects = append(objects, &deployments.Items[i])
	}
	return printed(t, preflight.FindStringSubmatch(page), objects...)
}

// printed prints what a command with columns and grep -v prints of objects, without the header.
func printed(t *testing.T, command []string, objects ...any) []string {
	t.Helper()
	require.NotNil(t, command, "the command in the page")
	var header []string
	var columns []*jsonpath.JSONPath
	for column := range strings.SplitSeq(command[1], ",") {
		name, path, found := strings.Cut(column, ":")
		require.True(t, found, column)
		parsed := jsonpath.New(name).AllowMissingKeys(true)
		require.NoError(t, parsed.Parse("{"+path+"}"))
		header, columns = append(header, name), append(columns, parsed)
	}
	out := &bytes.Buffer{}
	table := tabwriter.NewWriter(out, 6, 4, 3, ' ', 0) // as kubectl prints tables
	write := func(cells []string) {
		_, err := fmt.Fprintln(table, strings.Join(cells, "\t"))
		require.NoError(t, err)
	}
	write(header)
	for _, object := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		require.NoError(t, err)
		var cells []string
		for _, column := range columns {
			cell := &bytes.Buffer{}
			require.NoError(t, column.Execute(cell, fields))
			cells = append(cells, cell.String())
		}
		write(cells)
	}
	require.NoError(t, table.Flush())
	hidden := regexp.MustCompile(command[2])
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.NotRegexp(t, hidden, lines[0], "the command prints its header")
	return slices.DeleteFunc(lines[1:], hidden.MatchString)
}

// TestSwitchPrintsWhatCannotBeDeployed runs the command of step 5 on Bundles and Clusters with the reasons of their condition Ready.
func TestSwitchPrintsWhatCannotBeDeployed(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "switching.md"))
	require.NoError(t, err)
	ready := func(reason string) fleetstatus.Conditions {
		return fleetstatus.Conditions{{Type: fleet.ConditionReady, Reason: reason, Message: "NotReady(1) [why]"}}
	}
	for reason, isShown := range map[string]bool{
		fleet.ReasonAllReady: false, fleet.ReasonNoClusters: false, fleet.ReasonNotReady: false,
		fleet.ReasonValuesMissing: true, fleet.ReasonBundleInvalid: true, fleet.ReasonNameConflict: true, fleet.ReasonDeployFailed: true,
		fleet.ReasonWorkspaceLimitReached: true,
	} {
		bundle := &fleet.Bundle{TypeMeta: metav1.TypeMeta{Kind: "Bundle"}, ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "app"}}
		bundle.Status.Conditions = ready(reason)
		cluster := &fleet.Cluster{TypeMeta: metav1.TypeMeta{Kind: "Cluster"}, ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "east"}}
		cluster.Status.Conditions = ready(reason)
		lines := printed(t, undeployable.FindStringSubmatch(string(page)), bundle, cluster)
		if !isShown {
			assert.Empty(t, lines, reason)
			continue
		}
		require.Len(t, lines, 2, reason)
		assert.Regexp(t, `^Bundle +ws +app +`+reason+` +NotReady`, lines[0])
		assert.Regexp(t, `^Cluster +ws +east +`+reason+` +NotReady`, lines[1])
	}
}

// recordedAgentBundle is the Bundle with which Fleet's hub deploys its agent.
func recordedAgentBundle(t *testing.T) fleet.BundleSpec {
	t.Helper()
	type recorded struct {
		BundleDeployments []fleet.BundleDeployment
		Contents          []struct{ Unpacked string }
	}
	stages := recording.Stages[struct{ Bundles []recorded }](t, filepath.Join("..", "..", "..", "pkg", "agent", "deploy", "testdata", "wire", "24-registration.yaml"))
	own := stages[0].Bundles[0]
	spec := fleet.BundleSpec{BundleDeploymentOptions: own.BundleDeployments[0].Spec.Options, Targets: []fleet.BundleTarget{{
		ClusterName: "m", ClusterSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: fleet.NonManagedAgentLabel, Operator: metav1.LabelSelectorOpDoesNotExist}},
		},
	}}}
	require.NoError(t, json.Unmarshal([]byte(own.Contents[0].Unpacked), &spec))
	return spec
}

// The image of Fleet's agent in the recording, and one of this project's agent.
const (
	fleetsImage = "rancher/fleet-agent:dev"
	ourImage    = "registry.example.com/muster-fleet/fleet-agent:v1"
)

// switching is a Cluster with an agent in a namespace of the member, and what runs at a step of docs/switching.md.
type switching struct {
	shop
	stage          *testenv.Stage
	page           string
	agentNamespace string
	bundles        []recordedBundle
	names          []string // of the Bundles
	namespaces     []string // of their releases

	controllers *fleetBundles
	fleets      *fleetAgent      // nil while another agent runs
	agent       *testenv.Running // nil while another agent runs
	ownBundles  bool             // the hub has its own Bundle controllers
	hubRuns     bool
	probes      int

	writes, whileOurs atomic.Int64 // of the controllers, and those while our agent ran
}

// requireApplied waits until the Bundles are deployed and ready, and describes their BundleDeployments.
func (s *switching) requireApplied(t *testing.T) (ids []string) {
	t.Helper()
	for _, name := range s.names {
		d := s.eventuallyDeployment(t, "m", name, func(d *fleet.BundleDeployment) bool {
			return d.Status.AppliedDeploymentID == d.Spec.DeploymentID && d.Status.Display.State == string(fleet.Ready)
		})
		ids = append(ids, d.Spec.DeploymentID+" "+string(d.UID)+" "+d.Status.Release)
	}
	return ids
}

// requireAgent waits until the Deployment of the agent has the image and its Pod, which the controllers of the member create, and returns it.
func (s *switching) requireAgent(t *testing.T, image string) *appsv1.Deployment {
	t.Helper()
	return testenv.EventuallyIs(t, s.stage.Member.Kubernetes.AppsV1().Deployments(s.agentNamespace).Get, registration.AgentName,
		func(d *appsv1.Deployment) (bool, string) {
			got := d.Spec.Template.Spec.Containers[0].Image
			return got == image && d.Status.ObservedGeneration == d.Generation && d.Status.AvailableReplicas == 1, fmt.Sprintf("%s %+v", got, d.Status)
		})
}

// requireOwnRelease waits until the agent has reported that it has deployed its own Bundle.
func (s *switching) requireOwnRelease(t *testing.T) {
	t.Helper()
	s.eventuallyDeployment(t, "m", registration.AgentBundleName("m"), func(d *fleet.BundleDeployment) bool {
		return d.Status.AppliedDeploymentID == d.Spec.DeploymentID && d.Status.Display.State == string(fleet.Ready)
	})
}

// manageAgent writes the Bundle of the agent as Fleet's hub does, which then manages the agent.
func (s *switching) manageAgent(t *testing.T, image string) {
	t.Helper()
	s.merge(t, "Cluster", "m", fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, fleet.NonManagedAgentLabel))
	spec := recordedAgentBundle(t)
	for i := range spec.Resources {
		replaced := strings.NewReplacer(registration.DefaultSystemNamespace, s.agentNamespace, fleetsImage, image).Replace(spec.Resources[i].Content)
		spec.Resources[i].Content = replaced
	}
	spec.DefaultNamespace = s.agentNamespace
	name := registration.AgentBundleName("m")
	existing, err := s.hub.Fleet.Bundles(s.ns).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		testenv.Create(t, s.hub.Fleet.Bundles(s.ns).Create, &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{"objectset.rio.cattle.io/id": registration.SetIDManageAgent},
		}, Spec: spec})
		return
	}
	require.NoError(t, err)
	existing.Spec = spec
	testenv.Update(t, s.hub.Fleet.Bundles(s.ns).Update, existing)
}

// setImage changes the image of the agent as kubectl set image does.
func (s *switching) setImage(t *testing.T, image string) {
	t.Helper()
	_, err := s.stage.Member.Kubernetes.AppsV1().Deployments(s.agentNamespace).Patch(t.Context(), registration.AgentName, types.StrategicMergePatchType,
		fmt.Appendf(nil, `{"spec":{"template":{"spec":{"containers":[{"name":"fleet-agent","image":%q}]}}}}`, image), metav1.PatchOptions{})
	require.NoError(t, err)
}

// runFleetsAgent replaces the running agent by Fleet's. What runs at a step runs until the end of the whole test, whose t is passed.
func (s *switching) runFleetsAgent(t *testing.T) {
	t.Helper()
	if s.agent != nil {
		s.agent.Stop(t)
		s.whileOurs.Add(s.writes.Load())
		s.agent = nil
	}
	if s.fleets == nil {
		s.fleets = startFleetAgent(t, s.hub, s.stage.Member, s.namespaceOf("m"), s.agentNamespace)
	}
}

// requireFleetsReleases requires that Fleet's agent has found a release for each BundleDeployment, and has deployed no further Bundle again.
func (s *switching) requireFleetsReleases(t *testing.T) {
	t.Helper()
	releases, err := s.fleets.releases(t.Context())
	require.NoError(t, err)
	deployments := testenv.List(t, s.hub.Fleet.BundleDeployments(s.namespaceOf("m")).List, metav1.ListOptions{})
	for _, d := range deployments.Items {
		found := releases[d.Name]
		require.NotNil(t, found, d.Name)
		assert.Equal(t, d.Status.Release, fmt.Sprintf("%s/%s:%d", found.Namespace, found.Name, found.Version))
		assert.Equal(t, "True : ", testenv.Condition(d.Status.Conditions, fleet.ConditionDeployed), d.Name)
		if strings.HasPrefix(d.Name, "probe-") {
			assert.Equal(t, 1, found.Version, d.Name)
		}
	}
}

// runOurAgent replaces Fleet's agent by this project's.
func (s *switching) runOurAgent(t *testing.T) {
	t.Helper()
	s.fleets.Stop()
	s.fleets = nil
	s.whileOurs.Add(-s.writes.Load())
	s.agent = s.stage.Member.Agent(t, s.agentNamespace)
}

// TestSwitch walks the steps of docs/switching.md, there and back, with simulated controllers and a simulated agent of Fleet. In each step every
// release keeps its revision, every object its version, and every BundleDeployment its deployment ID, and where this hub runs, the status of
// the Cluster sums them up. The page cannot be run itself: it needs the images of Fleet.
func TestSwitch(t *testing.T) {
	sample.Long(t)
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "switching.md"))
	require.NoError(t, err)
	stage := testenv.NewStage(t, testenv.WithoutBundles)
	s := &switching{
		shop: shop{hub: stage.Hub, ns: stage.Namespace}, stage: stage, page: string(page), agentNamespace: stage.Member.Namespace(t), bundles: recordedBundles(t),
	}
	for _, b := range s.bundles {
		s.names, s.namespaces = append(s.names, b.Name), append(s.namespaces, b.BundleDeployments[0].Spec.Options.DefaultNamespace)
		testenv.Create(t, s.hub.Fleet.Bundles(s.ns).Create, &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Name: b.Name, Labels: madeFrom[b.Name]}, Spec: b.BundleAsApplied.Spec})
	}

	// A Cluster that Fleet manages: its hub has registered the agent, which has deployed the Bundles and itself.
	stage.ImportInto(t, "m", s.agentNamespace, func(c *fleet.Cluster) {
		c.Labels = map[string]string{"env": "dev", fleet.NonManagedAgentLabel: "true"}
	})
	registering := stage.Member.Agent(t, s.agentNamespace)
	s.hub.ClusterCondition(t, s.ns, "m", fleet.ConditionConnected, "True")
	registering.Stop(t)
	stage.Stop(t)
	require.NoError(t, stage.Member.Kubernetes.CoreV1().Secrets(s.agentNamespace).Delete(t.Context(), registration.HistoryKeySecret, metav1.DeleteOptions{}))
	require.NoError(t, stage.Member.Kubernetes.AppsV1().Deployments(s.agentNamespace).Delete(t.Context(), registration.AgentName, metav1.DeleteOptions{}))
	s.controllers = startFleetBundles(t, s.shop, "m", s.bundles, &s.writes)
	s.manageAgent(t, fleetsImage)
	s.runFleetsAgent(t)

	var before, ids []string
	// note notes what must stay the same from now on.
	note := func(t *testing.T) {
		t.Helper()
		ids, before = s.requireApplied(t), deployed(t, stage.Member, s.namespaces...)
		require.NotEmpty(t, before)
	}
	// requireSame has the agent deploy one more Bundle, and requires that the first releases, their objects and their BundleDeployments are the same as
	// before.
	requireSame := func(t *testing.T) {
		t.Helper()
		s.probes++
		s.probe(t, "m", fmt.Sprint("probe-", s.probes), stage.Member.Namespace(t), s.ownBundles)
		assert.Equal(t, ids, s.requireApplied(t))
		assert.Equal(t, before, deployed(t, stage.Member, s.namespaces...))
		if s.fleets != nil {
			s.requireFleetsReleases(t)
		}
		if s.hubRuns {
			s.requireRollUp(t, "m")
		}
	}
	ours := func() { // the hub with its own Bundle controllers, in place of Fleet's
		s.controllers.Stop()
		stage.Stop(t)
		stage.Running, s.ownBundles, s.hubRuns = s.hub.Hub(t), true, true
	}
	theirs := func() {
		s.controllers.Stop()
		stage.Stop(t)
		stage.Running, s.ownBundles, s.hubRuns = s.hub.Hub(t, testenv.WithoutBundles), false, true
		s.controllers = startFleetBundles(t, s.shop, "m", s.bundles, &s.writes)
		s.hub.ClusterCondition(t, s.ns, "m", fleet.ConditionConnected, "True")
	}
	requirePreflight := func(t *testing.T) {
		t.Helper()
		testenv.Eventually(t, func() (bool, string) {
			shown := s.runPreflight(t, s.page, "m")
			return len(shown) == 0, strings.Join(shown, "\n")
		})
	}
	// What a step starts runs until the end of the whole test, so these functions pass the t of TestSwitch on.
	steps := []struct {
		name        string
		there, back func(*testing.T)
	}{
		{
			"Step 1: check before the switch",
			func(st *testing.T) {
				// No Pod of the Deployments runs yet.
				testenv.Eventually(st, func() (bool, string) {
					shown := strings.Join(s.runPreflight(st, s.page, "m"), "\n")
					return regexp.MustCompile(`(?m)^` + s.namespaceOf("m") + ` +s01-plain +NotReady$`).MatchString(shown), shown
				})
				startController(t, stage.Member.Kubernetes.CoreV1().Pods("").Watch, func(ctx context.Context, pod *corev1.Pod) { markRunning(ctx, stage.Member, pod) })
				requirePreflight(st)
				s.requireAgent(st, fleetsImage)
				note(st)
			},
			requirePreflight,
		},
		{
			"Step 2: one agent",
			func(st *testing.T) {
				uid := s.requireAgent(st, fleetsImage).UID
				own := registration.AgentBundleName("m")
				s.merge(st, "Cluster", "m", fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, fleet.NonManagedAgentLabel))
				// Fleet's hub deletes the Bundle, which may have the finalizer of a hub with Bundle controllers.
				s.merge(st, "Bundle", own, `{"metadata":{"finalizers":null}}`)
				s.deleteBundle(st, own)
				testenv.RequireGone(st, s.hub.Fleet.BundleDeployments(s.namespaceOf("m")).Get, "BundleDeployment", own)
				testenv.RequireGone(st, stage.Member.Kubernetes.CoreV1().Secrets(s.agentNamespace).Get, "Secret", "sh.helm.release.v1."+own+".v1")
				s.setImage(st, ourImage)
				assert.Equal(st, uid, s.requireAgent(st, ourImage).UID, "only the history of the release was removed")
				s.runOurAgent(t)
			},
			func(st *testing.T) {
				s.setImage(st, fleetsImage)
				s.manageAgent(st, fleetsImage)
				s.runFleetsAgent(t)
				s.requireOwnRelease(st)
				s.requireAgent(st, fleetsImage)
			},
		},
		{
			"Step 3: all agents",
			func(st *testing.T) {
				agent := s.requireAgent(st, ourImage)
				s.manageAgent(st, ourImage)
				s.requireOwnRelease(st)
				after := s.requireAgent(st, ourImage)
				assert.Equal(st, []any{agent.UID, agent.Generation}, []any{after.UID, after.Generation}, "the Pod of the agent does not restart again")
			},
			func(st *testing.T) {
				uid := s.requireAgent(st, ourImage).UID
				s.manageAgent(st, fleetsImage)
				assert.Equal(st, uid, s.requireAgent(st, fleetsImage).UID)
				s.requireOwnRelease(st)
				s.runFleetsAgent(t)
			},
		},
		{
			"Step 4: the hub, beside Fleet's controllers",
			func(st *testing.T) {
				theirs()
				s.hub.ClusterCondition(st, s.ns, "m", fleet.ConditionReconciled, "True Reconciled")
				testenv.Eventually(st, func() (bool, string) { // the Bundle of this hub has replaced that of Fleet's
					bundle := testenv.RequireThere(st, s.hub.Fleet.Bundles(s.ns).Get, registration.AgentBundleName("m"))
					name, _, err := content.Digest(bundle.Spec.Resources)
					return !strings.Contains(testenv.Bytes(st, bundle), ourImage) && s.deployment(st, "m", bundle.Name).Labels[fleet.ContentNameLabel] == name, fmt.Sprint(err)
				})
				s.requireOwnRelease(st)
			},
			func(st *testing.T) {
				stage.Stop(t)
				s.hubRuns = false
				s.manageAgent(st, ourImage)
				s.requireOwnRelease(st)
				s.requireAgent(st, ourImage)
			},
		},
		{"Step 5: the hub's own Bundle controllers", func(*testing.T) { ours() }, func(*testing.T) { theirs() }},
	}
	var documented, walked []string
	for _, heading := range stepHeading.FindAllStringSubmatch(s.page, -1) {
		documented = append(documented, heading[1])
	}
	for _, step := range steps {
		walked = append(walked, step.name)
	}
	require.Equal(t, documented, walked, "the test walks the steps of the page")

	run := func(name string, step func(*testing.T)) {
		require.True(t, t.Run(name, func(st *testing.T) {
			step(st)
			requireSame(st)
		}))
	}
	run(steps[0].name, steps[0].there)
	run(steps[1].name, steps[1].there)
	run(steps[1].name+", back", steps[1].back)
	for _, step := range steps[1:] {
		run(step.name+", with the next ones", step.there)
	}
	for i := len(steps) - 1; i >= 0; i-- {
		run(steps[i].name+", back at last", steps[i].back)
	}
	run("Step 2 once more, after Fleet's agent has deployed", func(st *testing.T) {
		changed := s.bundles[0]
		changed.BundleDeployments = []fleet.BundleDeployment{*changed.BundleDeployments[0].DeepCopy()}
		spec := &changed.BundleDeployments[0].Spec
		spec.Options.ForceSyncGeneration = 1
		id, err := content.DeploymentID(changed.BundleDeployments[0].Labels[fleet.ContentNameLabel], spec.Options)
		require.NoError(st, err)
		spec.DeploymentID, spec.StagedDeploymentID, spec.StagedOptions = id, id, spec.Options
		s.controllers.change(st, changed)
		s.eventuallyDeployment(st, "m", changed.Name, func(d *fleet.BundleDeployment) bool { return d.Status.AppliedDeploymentID == id })
		note(st)
		assert.Contains(st, ids[0], "/s01-plain:2")
		steps[1].there(st)
		testenv.Eventually(st, func() (bool, string) {
			for _, namespace := range s.namespaces {
				secrets := testenv.List(st, stage.Member.Kubernetes.CoreV1().Secrets(namespace).List, metav1.ListOptions{LabelSelector: "owner=helm,status=deployed"})
				for _, secret := range secrets.Items {
					if len(secret.Annotations) == 0 {
						return false, fmt.Sprintf("Secret %s/%s is not signed", namespace, secret.Name)
					}
				}
			}
			return true, ""
		})
	})
	s.runFleetsAgent(t)
	s.controllers.Stop()
	assert.Less(t, s.whileOurs.Load(), int64(5), "no two controllers overwrite a BundleDeployment in turn")
}

// markRunning writes the status of a Pod as a kubelet does.
func markRunning(ctx context.Context, member *testenv.Cluster, pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodRunning {
		return
	}
	after := pod.DeepCopy()
	after.Status.Phase = corev1.PodRunning
	after.Status.Conditions = append(after.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	_, _ = member.Kubernetes.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, after, metav1.UpdateOptions{})
}

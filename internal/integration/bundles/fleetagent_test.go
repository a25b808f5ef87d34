package bundles

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/summary"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	releasestatus "helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/release"
	"github.com/muster-fleet/muster/pkg/transport"
)

// The marks with which Fleet's own agent finds its releases and their objects, as the recordings have them.
const (
	bundleIDAnnotation       = "fleet.cattle.io/bundle-id"
	agentNamespaceAnnotation = "fleet.cattle.io/agent-namespace"
	setHashLabel             = "objectset.rio.cattle.io/hash"
	copiedForLabel           = "fleet.cattle.io/bundledeployment"
)

// fleetAgent does on a member what Fleet's own agent does in the recordings, as far as another agent or a hub depends on it:
//
//   - It finds its releases by two annotations of their charts, and installs and upgrades them with Helm's storage, the same names and marks.
//     A BundleDeployment whose ID is applied and that has a release is not deployed again, whichever agent has deployed it.
//   - It takes an object without its mark for missing.
//   - It writes a status only after an attempt to deploy: none while the BundleDeployment is paused, or the values or a copy are missing. It never
//     writes status.display, and a condition that is not True has the reason Error.
//   - It removes a release whose BundleDeployment is gone; of its own one only the history.
//
// It lacks what no test needs: kustomize, overlays, downloads, impersonation, the comparison of fields and the correction of drift.
type fleetAgent struct {
	hub, member *testenv.Cluster
	home        string // the namespace of the BundleDeployments on the hub
	namespace   string // of the agent on the member
	config      *rest.Config
	objects     dynamic.Interface
	mapper      *restmapper.DeferredDiscoveryRESTMapper
	passes      int
	retryAt     map[string]int // the pass in which a failed deployment is repeated
	Stop        func()
}

func startFleetAgent(t *testing.T, hub, member *testenv.Cluster, home, namespace string) *fleetAgent {
	t.Helper()
	f := &fleetAgent{hub: hub, member: member, home: home, namespace: namespace, config: rest.CopyConfig(member.RESTConfig()), retryAt: map[string]int{}}
	f.config.WarningHandler, f.config.QPS = rest.NoWarnings{}, -1
	f.config.Wrap(transport.Sender(func(next http.RoundTripper, request *http.Request) (*http.Response, error) {
		if query := request.URL.Query(); query.Has("fieldManager") { // Helm takes the name of the program
			query.Set("fieldManager", "fleetagent")
			request = request.Clone(request.Context())
			request.URL.RawQuery = query.Encode()
		}
		return next.RoundTrip(request)
	}).Wrap)
	var err error
	f.objects, err = dynamic.NewForConfig(f.config)
	require.NoError(t, err)
	f.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(member.Kubernetes.Discovery()))

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			if err := f.pass(ctx); err != nil && ctx.Err() == nil {
				_, _ = fmt.Fprintf(t.Output(), "Fleet's agent: %v\n", err)
			}
		}, 200*time.Millisecond)
	}()
	f.Stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(f.Stop)
	return f
}

// pass compares all BundleDeployments with all releases.
func (f *fleetAgent) pass(ctx context.Context) error {
	f.passes++
	releases, err := f.releases(ctx)
	if err != nil {
		return err
	}
	list, err := f.hub.Fleet.BundleDeployments(f.home).List(ctx, metav1.ListOptions{}) // after the releases, so that a new one has its BundleDeployment
	if err != nil {
		return err
	}
	var errs []error
	for name, existing := range releases {
		if !slices.ContainsFunc(list.Items, func(bd fleet.BundleDeployment) bool { return bd.Name == name }) {
			errs = append(errs, f.uninstall(ctx, name, existing))
		}
	}
	for i := range list.Items {
		if bd := &list.Items[i]; bd.DeletionTimestamp == nil {
			errs = append(errs, f.reconcile(ctx, bd, releases[bd.Name]))
		}
	}
	return errors.Join(errs...)
}

// releases returns the last revision of each release whose chart is annotated for this agent, by the BundleDeployment.
func (f *fleetAgent) releases(ctx context.Context) (map[string]*helm.Release, error) {
	list, err := f.member.Kubernetes.CoreV1().Secrets("").List(ctx, metav1.ListOptions{LabelSelector: "owner=helm"})
	if err != nil {
		return nil, err
	}
	found := map[string]*helm.Release{}
	for _, secret := range list.Items {
		stored, err := driver.NewSecrets(f.member.Kubernetes.CoreV1().Secrets(secret.Namespace)).Get(secret.Name)
		if errors.Is(err, driver.ErrReleaseNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		revision, ok := stored.(*helm.Release)
		if !ok || revision.Chart.Metadata.Annotations[agentNamespaceAnnotation] != f.namespace {
			continue
		}
		name := revision.Chart.Metadata.Annotations[bundleIDAnnotation]
		if known := found[name]; known == nil || known.Version < revision.Version {
			found[name] = revision
		}
	}
	return found, nil
}

func (f *fleetAgent) uninstall(ctx context.Context, name string, existing *helm.Release) error {
	config, err := release.Configuration(f.config, existing.Namespace)
	if err != nil {
		return err
	}
	if strings.HasPrefix(name, "fleet-agent") {
		history, err := config.Releases.History(existing.Name)
		for _, revision := range history {
			if stored, ok := revision.(*helm.Release); ok && err == nil {
				_, err = config.Releases.Delete(stored.Name, stored.Version)
			}
		}
		return err
	}
	uninstall := action.NewUninstall(config)
	uninstall.WaitStrategy = kube.HookOnlyStrategy
	if _, err := uninstall.Run(existing.Name); err != nil {
		return err
	}
	copied := labels.Set{copiedForLabel: name}.String()
	return f.member.Kubernetes.CoreV1().Secrets(existing.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: copied})
}

// reconcile deploys a BundleDeployment, if that is necessary, and writes its status.
func (f *fleetAgent) reconcile(ctx context.Context, bd *fleet.BundleDeployment, existing *helm.Release) error {
	spec := bd.Spec
	if spec.Paused || spec.OffSchedule || spec.WaitingForValues || spec.DeploymentID == "" || f.retryAt[bd.Name+spec.DeploymentID] > f.passes {
		return nil
	}
	after := bd.Status.DeepCopy()
	isCopied := bd.Status.DownstreamResourcesGeneration == spec.DownstreamResourcesGeneration
	if existing == nil || bd.Status.AppliedDeploymentID != spec.DeploymentID || !isCopied || existing.Info.Status != releasestatus.StatusDeployed {
		resources, values, copies, err := f.fetch(ctx, bd)
		if err != nil {
			return err // and no status
		}
		if existing, err = f.deploy(ctx, bd, existing, resources, values, copies); err != nil {
			const pause = 5
			f.retryAt[bd.Name+spec.DeploymentID] = f.passes + pause
			fleetstatus.SetCondition(&after.Conditions, conditionOf(fleet.ConditionDeployed, err.Error()), time.Now())
			return errors.Join(err, f.writeStatus(ctx, bd, after))
		}
	}
	if err := f.assess(ctx, bd, existing, after); err != nil {
		return err
	}
	return f.writeStatus(ctx, bd, after)
}

// fetch reads everything of the hub that a deployment needs.
func (f *fleetAgent) fetch(ctx context.Context, bd *fleet.BundleDeployment) (
	resources []fleet.BundleResource, values map[string]any, copies []*corev1.Secret, err error,
) {
	id, _, _ := strings.Cut(bd.Spec.DeploymentID, ":")
	stored, err := f.hub.Fleet.Contents().Get(ctx, id, metav1.GetOptions{})
	if err == nil {
		resources, err = content.Decode(stored)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	secrets := f.hub.Kubernetes.CoreV1().Secrets(bd.Namespace)
	if bd.Spec.ValuesHash != "" {
		secret, err := secrets.Get(ctx, bd.Name, metav1.GetOptions{})
		if err == nil && len(secret.Data["values"]) > 0 {
			err = json.Unmarshal(secret.Data["values"], &values)
		}
		if err != nil {
			return nil, nil, nil, err
		}
	}
	for _, r := range bd.Spec.Options.DownstreamResources {
		secret, err := secrets.Get(ctx, r.Name, metav1.GetOptions{})
		if err != nil {
			return nil, nil, nil, fmt.Errorf("could not get secret %s/%s from upstream namespace for copying: %w", bd.Namespace, r.Name, err)
		}
		copies = append(copies, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: r.Name, Labels: map[string]string{copiedForLabel: bd.Name}}, Type: secret.Type, Data: secret.Data,
		})
	}
	return resources, values, copies, nil
}

// deploy writes the copies, and installs or upgrades the release.
func (f *fleetAgent) deploy(
	ctx context.Context, bd *fleet.BundleDeployment, existing *helm.Release, resources []fleet.BundleResource, values map[string]any, copies []*corev1.Secret,
) (*helm.Release, error) {
	options := ptr.Deref(bd.Spec.Options.Helm, fleet.HelmOptions{})
	namespace := cmp.Or(bd.Spec.Options.TargetNamespace, bd.Spec.Options.DefaultNamespace, metav1.NamespaceDefault)
	name := cmp.Or(options.ReleaseName, bd.Name) // no test needs a name that has to be changed
	if len(copies) > 0 {
		made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		if _, err := f.member.Kubernetes.CoreV1().Namespaces().Create(ctx, made, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
	}
	for _, secret := range copies {
		secrets := f.member.Kubernetes.CoreV1().Secrets(namespace)
		_, err := secrets.Create(ctx, secret, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
		}
		if err != nil {
			return nil, err
		}
	}
	made, rendered, err := fleetChart(bd, resources, f.namespace)
	if err != nil {
		return nil, err
	}
	config, err := release.Configuration(f.config, namespace)
	if err != nil {
		return nil, err
	}
	if existing == nil {
		install := action.NewInstall(config)
		install.ReleaseName, install.Namespace, install.CreateNamespace = name, namespace, true
		install.TakeOwnership, install.ServerSideApply = options.TakeOwnership, !options.TakeOwnership
		install.PostRenderer, install.WaitStrategy = rendered, kube.HookOnlyStrategy
		_, err = install.RunWithContext(ctx, made, values)
	} else {
		const maxHistory = 2
		upgrade := action.NewUpgrade(config)
		upgrade.Namespace, upgrade.TakeOwnership, upgrade.ResetValues = namespace, true, true
		upgrade.MaxHistory = cmp.Or(options.MaxHistory, maxHistory)
		upgrade.PostRenderer, upgrade.WaitStrategy = rendered, kube.HookOnlyStrategy
		_, err = upgrade.RunWithContext(ctx, name, made, values)
	}
	if err != nil {
		return nil, err
	}
	releases, err := f.releases(ctx)
	return releases[bd.Name], err
}

// fleetChart returns the chart of a BundleDeployment, which is made around plain manifests, and what changes the rendered manifests.
func fleetChart(bd *fleet.BundleDeployment, resources []fleet.BundleResource, agentNamespace string) (made *chart.Chart, rendered markedManifests, err error) {
	setID := "default-" + bd.Name
	if strings.HasPrefix(bd.Name, "fleet-agent") {
		setID = "fleet-agent-bootstrap"
	}
	rendered = markedManifests{setID: setID}
	if slices.ContainsFunc(resources, func(r fleet.BundleResource) bool { return r.Name == "Chart.yaml" }) {
		var files []*archive.BufferedFile
		for _, r := range resources {
			files = append(files, &archive.BufferedFile{Name: r.Name, Data: []byte(r.Content)})
		}
		if made, err = loader.LoadFiles(files); err != nil {
			return nil, rendered, err
		}
	} else {
		id, _, _ := strings.Cut(bd.Spec.DeploymentID, ":")
		made = &chart.Chart{Metadata: &chart.Metadata{Name: bd.Name, Version: "v0.0.0+" + id, APIVersion: chart.APIVersionV2}}
		for _, r := range resources {
			rendered.plain = append(rendered.plain, r.Content)
			made.Files = append(made.Files, &common.File{Name: "raw-yaml/" + r.Name, Data: []byte(r.Content)})
		}
	}
	made.Metadata.Annotations = labels.Merge(made.Metadata.Annotations, map[string]string{
		bundleIDAnnotation: bd.Name, agentNamespaceAnnotation: agentNamespace, "fleet.cattle.io/service-account": bd.Spec.Options.ServiceAccount,
		"fleet.cattle.io/keep-resources": strconv.FormatBool(bd.Spec.Options.KeepResources),
	})
	if commit := bd.Labels[fleet.CommitLabel]; commit != "" {
		made.Metadata.Annotations["fleet.cattle.io/commit"] = commit
	}
	return made, rendered, nil
}

// markedManifests adds plain manifests to what a chart rendered, and marks all objects.
type markedManifests struct {
	setID string
	plain []string
}

// Run implements Helm's post-renderer.
func (m markedManifests) Run(rendered *bytes.Buffer) (*bytes.Buffer, error) {
	sum := sha1.Sum([]byte(m.setID))
	out := &bytes.Buffer{}
	for _, text := range append([]string{rendered.String()}, m.plain...) {
		objects, err := objectsIn(text)
		if err != nil {
			return nil, fmt.Errorf("error while running post render on files: %w", err)
		}
		for _, o := range objects {
			o.SetLabels(labels.Merge(o.GetLabels(), map[string]string{setHashLabel: hex.EncodeToString(sum[:])}))
			o.SetAnnotations(labels.Merge(o.GetAnnotations(), map[string]string{"objectset.rio.cattle.io/id": m.setID}))
			data, err := yaml.Marshal(o.Object)
			if err != nil {
				return nil, err
			}
			out.WriteString("---\n" + string(data))
		}
	}
	return out, nil
}

func objectsIn(text string) (objects []*unstructured.Unstructured, err error) {
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		o := &unstructured.Unstructured{}
		if err == nil {
			err = yaml.Unmarshal(document, &o.Object)
		}
		if err != nil {
			return nil, err
		}
		if o.GetKind() != "" {
			objects = append(objects, o)
		}
	}
}

// assess computes the status of what is deployed.
func (f *fleetAgent) assess(ctx context.Context, bd *fleet.BundleDeployment, deployed *helm.Release, s *fleet.BundleDeploymentStatus) error {
	s.AppliedDeploymentID, s.SyncGeneration = bd.Spec.DeploymentID, ptr.To(bd.Spec.Options.ForceSyncGeneration)
	s.DownstreamResourcesGeneration = bd.Spec.DownstreamResourcesGeneration
	s.Release = fmt.Sprintf("%s/%s:%d", deployed.Namespace, deployed.Name, deployed.Version)
	s.Resources, s.NonReadyStatus, s.ModifiedStatus, s.ResourceCounts = nil, nil, nil, fleet.ResourceCounts{}
	desired, err := objectsIn(deployed.Manifest)
	if err != nil {
		return err
	}
	why := ""
	for _, o := range desired {
		kind := o.GroupVersionKind()
		mapping, err := f.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			f.mapper.Reset()
			return err
		}
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			o.SetNamespace(cmp.Or(o.GetNamespace(), deployed.Namespace))
		}
		text := strings.ToLower(o.GetKind()) + "." + cmp.Or(kind.Group, kind.Version) + " " + o.GetNamespace() + "/" + o.GetName()
		live, err := f.objects.Resource(mapping.Resource).Namespace(o.GetNamespace()).Get(ctx, o.GetName(), metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		s.ResourceCounts.DesiredReady++
		if err != nil || live.GetLabels()[setHashLabel] != o.GetLabels()[setHashLabel] {
			s.ModifiedStatus = append(s.ModifiedStatus, fleet.ModifiedStatus{
				Kind: o.GetKind(), APIVersion: o.GetAPIVersion(), Namespace: o.GetNamespace(), Name: o.GetName(), Create: true, Exist: err == nil,
			})
			s.ResourceCounts.Missing++
			why = cmp.Or(why, text+" missing")
			continue
		}
		s.Resources = append(s.Resources, fleet.BundleDeploymentResource{
			Kind: o.GetKind(), APIVersion: o.GetAPIVersion(), Namespace: o.GetNamespace(), Name: o.GetName(),
			CreatedAt: metav1.Time{Time: live.GetCreationTimestamp().UTC()},
		})
		readiness := summary.Summarize(live)
		if readiness.IsReady() {
			s.ResourceCounts.Ready++
			continue
		}
		shown := fleet.ResourceSummary{State: readiness.State, Error: readiness.Error, Transitioning: readiness.Transitioning, Message: readiness.Message}
		s.NonReadyStatus = append(s.NonReadyStatus, fleet.NonReadyStatus{
			UID: string(live.GetUID()), Kind: o.GetKind(), APIVersion: o.GetAPIVersion(), Namespace: o.GetNamespace(), Name: o.GetName(), Summary: shown,
		})
		s.ResourceCounts.NotReady++
		why = cmp.Or(why, text+" "+fleetstatus.SummaryText(shown))
	}
	s.Ready, s.NonModified = len(s.NonReadyStatus) == 0, len(s.ModifiedStatus) == 0
	for _, c := range []testenv.Generic{
		conditionOf(fleet.ConditionInstalled, ""), conditionOf(fleet.ConditionDeployed, ""), conditionOf(fleet.ConditionReady, why), conditionOf(fleet.ConditionMonitored, ""),
	} {
		fleetstatus.SetCondition(&s.Conditions, c, time.Now())
	}
	return nil
}

// conditionOf returns a condition that is True without a message, and otherwise False.
func conditionOf(kind, message string) testenv.Generic {
	if message == "" {
		return testenv.Generic{Type: kind, Status: corev1.ConditionTrue}
	}
	return testenv.Generic{Type: kind, Status: corev1.ConditionFalse, Reason: fleet.ReasonError, Message: message}
}

func (f *fleetAgent) writeStatus(ctx context.Context, bd *fleet.BundleDeployment, after *fleet.BundleDeploymentStatus) error {
	difference, err := fleetstatus.MergePatch(bd.Status, *after)
	if err != nil || difference == nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"status": difference})
	if err != nil {
		return err
	}
	_, err = f.hub.Fleet.BundleDeployments(bd.Namespace).Patch(ctx, bd.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

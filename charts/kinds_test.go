package charts_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/kube"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/testenv/sample"
)

func TestUninstallKeepsTheKinds(t *testing.T) {
	sample.Long(t)
	s := freshScene(t)
	before := s.inventory()
	s.install(t, charts.CRD, nil)
	cluster := s.register("stays")
	s.upgrade(t, charts.CRD, map[string]any{"unknown": true})
	s.rollback(t, charts.CRD, 1)
	s.requireStillThere(cluster)

	s.uninstall(t, charts.CRD)
	s.requireStillThere(cluster)
	s.requireOnlyKindsSince(before)

	s.install(t, charts.CRD, nil) // takes over the kinds that it kept
	s.requireStillThere(cluster)
	s.uninstall(t, charts.CRD)
	s.removeKinds() // for good, as the README says
	s.requireAsBefore(before)
}

func TestKindsOfAManagementServerAreTakenOver(t *testing.T) {
	sample.Long(t)
	s := freshScene(t)
	before := s.inventory()
	for plural, kind := range map[string]string{"bundles": "Bundle", "clusters": "Cluster", "clustergroups": "ClusterGroup", "helmops": "HelmOp"} {
		s.makeKind(plural, kind, map[string]string{"meta.helm.sh/release-name": "fleet-crd", "meta.helm.sh/release-namespace": systemNamespace})
	}
	cluster := s.register("stays")
	loose := s.crd("clusters").GetUID()

	s.serverUpgrade(t, charts.CRD, nil)
	assert.Equal(t, loose, s.crd("clusters").GetUID(), "the kind is updated, not created again")
	versions, _, err := unstructured.NestedSlice(s.crd("clusters").Object, "spec", "versions")
	require.NoError(t, err)
	assert.NotEmpty(t, versions[0].(map[string]any)["additionalPrinterColumns"], "the kind is the one of this chart now")
	s.requireStillThere(cluster)

	s.serverUpgrade(t, charts.CRD, nil) // as it does every few hours
	s.uninstall(t, charts.CRD)
	s.requireStillThere(cluster)
	s.crd("helmops")
	s.requireOnlyKindsSince(before)
}

func TestKindsWithoutAReleaseNeedTakeOwnership(t *testing.T) {
	sample.Long(t)
	s := freshScene(t)
	s.makeKind("clusters", "Cluster", nil)
	cluster := s.register("stays")
	loaded, err := charts.Load(charts.CRD)
	require.NoError(t, err)
	install := action.NewInstall(s.configuration(t))
	install.ReleaseName, install.Namespace = charts.CRD, systemNamespace
	_, err = install.RunWithContext(t.Context(), loaded, nil)
	require.ErrorContains(t, err, "invalid ownership metadata")

	s.install(t, charts.CRD, nil, takeOwnership)
	s.requireStillThere(cluster)
	s.uninstall(t, charts.CRD)
	s.requireStillThere(cluster)
}

// Helm deletes the kinds that a new version of a release does not contain, with all their objects. Fleet's chart of this name has kinds that
// Muster does not use. The README describes how to keep the kinds that are not in this chart.
func TestKindsOfOtherComponentsStay(t *testing.T) {
	sample.Long(t)
	s := freshScene(t)
	s.installWith(t, looseKind("gitrepos", "GitRepo", nil), looseKind("imagescans", "ImageScan", nil), looseKind("unknowns", "Unknown", nil), looseKind("kepts", "Kept", nil))
	keep := []byte(`{"metadata":{"annotations":{"helm.sh/resource-policy":"keep"}}}`)
	_, err := s.dynamic.Resource(crdsResource).Patch(t.Context(), "kepts.fleet.cattle.io", types.MergePatchType, keep, metav1.PatchOptions{})
	require.NoError(t, err)
	cluster := s.register("stays")
	repos := s.crd("gitrepos")

	s.upgrade(t, charts.CRD, nil)
	assert.Equal(t, repos.GetUID(), s.crd("gitrepos").GetUID())
	assert.Equal(t, repos.Object["spec"], s.crd("gitrepos").Object["spec"], "its schema does not change")
	assert.Nil(t, s.crd("imagescans").GetDeletionTimestamp())
	s.crd("helmops") // is new
	assert.Nil(t, s.crd("kepts").GetDeletionTimestamp())
	gone, err := s.dynamic.Resource(crdsResource).Get(t.Context(), "unknowns.fleet.cattle.io", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err) || gone.GetDeletionTimestamp() != nil, "otherwise the warning in the README is wrong")
	s.requireStillThere(cluster)
}

// installWith installs the chart with the given kinds in place of those of other components.
func (s *scene) installWith(t *testing.T, kinds ...*unstructured.Unstructured) {
	t.Helper()
	theirs, err := charts.Load(charts.CRD)
	require.NoError(t, err)
	theirs.Templates = slices.DeleteFunc(theirs.Templates, func(f *common.File) bool { return f.Name == "templates/others.yaml" })
	for _, kind := range kinds {
		theirs.Templates = append(theirs.Templates, &common.File{Name: "templates/" + kind.GetName() + ".yaml", Data: []byte(text(t, kind.Object))})
	}
	install := action.NewInstall(s.configuration(t))
	install.ReleaseName, install.Namespace, install.WaitStrategy = charts.CRD, systemNamespace, kube.HookOnlyStrategy
	_, err = install.RunWithContext(t.Context(), theirs, nil)
	require.NoError(t, err)
}

// makeKind creates a kind outside of Helm. With annotations, it is marked as part of a release.
func (s *scene) makeKind(plural, kind string, annotations map[string]string) {
	s.Helper()
	_, err := s.dynamic.Resource(crdsResource).Create(context.Background(), looseKind(plural, kind, annotations), metav1.CreateOptions{})
	require.NoError(s, err)
}

// looseKind has a schema that accepts everything.
func looseKind(plural, kind string, annotations map[string]string) *unstructured.Unstructured {
	anything := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + ".fleet.cattle.io"},
		"spec": map[string]any{
			"group": "fleet.cattle.io", "scope": "Namespaced", "names": map[string]any{"kind": kind, "plural": plural},
			"versions": []any{map[string]any{
				"name": "v1alpha1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": anything},
			}},
		},
	}}
	if annotations != nil {
		crd.SetLabels(map[string]string{"app.kubernetes.io/managed-by": "Helm"})
		crd.SetAnnotations(annotations)
	}
	return crd
}

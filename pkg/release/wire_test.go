package release

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/action"
	helm "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubefake "k8s.io/client-go/kubernetes/fake"

	"github.com/muster-fleet/muster/internal/testenv/recording"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// wireBundle is a Bundle of a recorded scene, with the objects that Fleet's hub wrote for it and the releases that Fleet's agent deployed. A
// field that refers to an earlier stage is text.
type wireBundle struct {
	Name              string
	BundleDeployments []struct {
		Metadata metav1.ObjectMeta
		Spec     fleet.BundleDeploymentSpec
		Status   struct {
			Conditions []struct{ Type, Message string }
		}
	}
	Secrets        []struct{ DataDecoded map[string]string }
	Contents       []struct{ ContentUnpacked string }
	MemberReleases []struct {
		Release struct {
			Name, Namespace string
			Chart           struct {
				Metadata  struct{ Name, Version string }
				Templates []struct{ Name, Data string }
			}
			Config   map[string]any
			Manifest string
			Hooks    []*helm.Hook
		}
	}
}

// refusedLater are BundleDeployments that have no release because the API server of the member, or dependsOn, refuses them. TestWire of
// package deploy compares what the agent reports about them.
var refusedLater = map[string]bool{
	"s12-keep": true, "s12-delete": true, "s13-user": true, "s13-selector": true, "s13-nothing": true,
	"s14-kind": true, "s14-atomic": true, "s14-conflict": true, "s14-clusterscoped": true,
}

// TestWire renders recorded BundleDeployments. The releases have the chart, the values and the objects that were recorded. Two
// differences are on purpose: plain manifests are not kept in the release a second time, in addition to its manifest, because a Secret
// has room for 1 MiB; and an error of kustomize appears once, without a second copy that Helm's post-renderer adds.
func TestWire(t *testing.T) {
	scenes, err := filepath.Glob("../controllers/bundle/testdata/wire/*.yaml")
	require.NoError(t, err)
	compared := 0
	for _, scene := range scenes {
		for _, b := range readWire(t, scene) {
			if len(b.BundleDeployments) == 0 {
				continue
			}
			isHelmOp := b.BundleDeployments[0].Spec.HelmChartOptions != nil
			if !isHelmOp && (len(b.Contents) == 0 || !strings.HasPrefix(b.Contents[0].ContentUnpacked, "{")) {
				continue
			}
			t.Run(filepath.Base(scene)+"/"+b.Name, func(t *testing.T) {
				made, err := renderWire(t, b)
				if refusedLater[b.Name] {
					return
				}
				if len(b.MemberReleases) == 0 {
					for _, c := range b.BundleDeployments[0].Status.Conditions {
						if c.Type == fleet.ConditionDeployed {
							require.Error(t, err)
							assert.Contains(t, err.Error(), strings.TrimPrefix(c.Message, "error while running post render on files: "))
							compared++
						}
					}
					return
				}
				require.NoError(t, err)
				want := b.MemberReleases[len(b.MemberReleases)-1].Release
				assert.Equal(t, want.Name+"/"+want.Namespace, made.Name+"/"+made.Namespace)
				assert.Equal(t, want.Chart.Metadata.Name, made.Chart.Metadata.Name)
				if commit := b.BundleDeployments[0].Metadata.Labels[fleet.CommitLabel]; commit != "" || len(b.MemberReleases) == 1 {
					assert.Equal(t, want.Chart.Metadata.Version, made.Chart.Metadata.Version)
				}
				var templates []string
				for _, f := range made.Chart.Templates {
					templates = append(templates, f.Name)
				}
				assert.Len(t, want.Chart.Templates, len(templates))
				assert.Equal(t, wireJSON(t, want.Config), wireJSON(t, made.Config))
				assert.Equal(t, wireObjects(t, want.Manifest), wireObjects(t, made.Manifest))
				assert.True(t, isSame(made, &helm.Release{Config: want.Config, Manifest: want.Manifest, Hooks: want.Hooks}), "this agent would not keep it")
				compared++
			})
		}
	}
	assert.Greater(t, compared, 50)
}

// readWire reads the Bundles of a scene, without those that refer to an earlier stage.
func readWire(t *testing.T, file string) (bundles []wireBundle) {
	t.Helper()
	for _, stage := range recording.Stages[struct{ Bundles []json.RawMessage }](t, file) {
		for _, raw := range stage.Bundles {
			var b wireBundle
			if json.Unmarshal(raw, &b) == nil {
				bundles = append(bundles, b)
			}
		}
	}
	return bundles
}

// renderWire renders the BundleDeployment without a cluster.
func renderWire(t *testing.T, b wireBundle) (*helm.Release, error) {
	t.Helper()
	bd := b.BundleDeployments[0]
	r := Request{BundleDeployment: bd.Metadata.Name, Commit: bd.Metadata.Labels[fleet.CommitLabel], Options: bd.Spec.Options}
	r.Namespace, r.Name = Place(r.BundleDeployment, r.Options)
	if bd.Spec.HelmChartOptions != nil { // the chart that the agent downloaded
		recorded, folder := b.MemberReleases[0].Release.Chart, FetchedFolder(r.helm())
		data := "apiVersion: v2\nname: " + recorded.Metadata.Name + "\nversion: " + recorded.Metadata.Version
		r.Resources = []fleet.BundleResource{{Name: folder + "/" + chartFile, Content: data}}
		for _, f := range recorded.Templates {
			r.Resources = append(r.Resources, fleet.BundleResource{Name: folder + "/" + f.Name, Content: f.Data})
		}
	} else {
		var contents struct{ Resources []fleet.BundleResource }
		require.NoError(t, json.Unmarshal([]byte(b.Contents[0].ContentUnpacked), &contents))
		r.Resources = contents.Resources
	}
	member := kubefake.NewClientset()
	for _, s := range b.Secrets {
		if values := s.DataDecoded["values"]; values != "" {
			require.NoError(t, json.Unmarshal([]byte(values), &r.Values))
		}
		if values, found := s.DataDecoded["values.yaml"]; found { // a copied ConfigMap
			require.NoError(t, member.Tracker().Add(&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: "conf"}, Data: map[string]string{"values.yaml": values},
			}))
		}
	}
	s, err := makeSource(r)
	if err != nil {
		return nil, err
	}
	values, err := readValues(t.Context(), member, r)
	require.NoError(t, err)
	kinds := meta.NewDefaultRESTMapper(nil)
	kinds.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	op := &helmAction{config: action.NewConfiguration(), cluster: &cluster{schema: &schemaCache{mapper: resettable{kinds}}}}
	install := op.install(t.Context(), r, s, nil)
	install.DryRunStrategy = action.DryRunClient
	made, err := install.RunWithContext(t.Context(), s.chart, values)
	if err != nil {
		return nil, err
	}
	return made.(*helm.Release), nil
}

type resettable struct{ meta.RESTMapper }

func (resettable) Reset() {}

func wireJSON(t *testing.T, value map[string]any) string {
	t.Helper()
	if len(value) == 0 {
		return "{}"
	}
	data, err := json.Marshal(value)
	require.NoError(t, err)
	return string(data)
}

// wireObjects returns the objects in the order of a manifest, without the marks of other parts of the agent.
func wireObjects(t *testing.T, manifest string) (objects []string) {
	t.Helper()
	decoded, err := decodeObjects([]byte(manifest))
	require.NoError(t, err)
	for _, o := range decoded {
		for field, key := range map[string]string{"labels": "objectset.rio.cattle.io/hash", "annotations": "objectset.rio.cattle.io/id"} {
			unstructured.RemoveNestedField(o.Object, "metadata", field, key)
			if kept, _, _ := unstructured.NestedMap(o.Object, "metadata", field); len(kept) == 0 {
				unstructured.RemoveNestedField(o.Object, "metadata", field)
			}
		}
		objects = append(objects, wireJSON(t, o.Object))
	}
	return objects
}

package release

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	helm "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// The names and marks were recorded from Fleet's own agent.
func TestPlace(t *testing.T) {
	const ten = "abcdefghij"
	for name, row := range map[string]struct {
		bd                 string
		options            fleet.BundleDeploymentOptions
		namespace, release string
	}{
		"by default":        {"app", fleet.BundleDeploymentOptions{}, "default", "app"},
		"a namespace":       {"app", fleet.BundleDeploymentOptions{DefaultNamespace: "d"}, "d", "app"},
		"the one for all":   {"app", fleet.BundleDeploymentOptions{DefaultNamespace: "d", TargetNamespace: "t"}, "t", "app"},
		"a name with dots":  {"app", fleet.BundleDeploymentOptions{Helm: &fleet.HelmOptions{ReleaseName: "rel.with.dots"}}, "default", "rel.with.dots"},
		"53 characters":     {"s19-l53-" + strings.Repeat(ten, 4) + "abcde", fleet.BundleDeploymentOptions{}, "default", "s19-l53-" + strings.Repeat(ten, 4) + "abcde"},
		"54 characters":     {"s19-l54-" + strings.Repeat(ten, 4) + "abcdef", fleet.BundleDeploymentOptions{}, "default", "s19-l54-" + strings.Repeat(ten, 3) + "abcdefghi-2b4a8"},
		"dots":              {"s19.with.dots", fleet.BundleDeploymentOptions{}, "default", "s19-with-dots-e5a3b24c"},
		"many dots":         {"s19-" + strings.Repeat("x.", 26) + "end", fleet.BundleDeploymentOptions{}, "default", "s19-" + strings.Repeat("x-", 22)[:43] + "-3dfb9"},
		"two dashes":        {"s19--double", fleet.BundleDeploymentOptions{}, "default", "s19-double"},
		"nothing but a dot": {".", fleet.BundleDeploymentOptions{}, "default", "5058f1af"},
	} {
		t.Run(name, func(t *testing.T) {
			namespace, release := Place(row.bd, row.options)
			assert.Equal(t, row.namespace, namespace)
			assert.Equal(t, row.release, release)
			assert.LessOrEqual(t, len(release), nameMax)
		})
	}
}

func TestMarkObject(t *testing.T) {
	for _, row := range []struct{ bd, scope, id, hash string }{
		{"s01-plain", "", "default-s01-plain", "4a14e88d069843d0d3e8d8c0f864b5428944d678"},
		{
			"s19-l63-abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcde", "",
			"default-s19-l63-abcdefghijabcdefghijabcdefghijabcdefghija-881f8", "6e899cb118e35d5c2ba70e6fec387d3ff05deb00",
		},
		{"fleet-agent-m1", "", "fleet-agent-bootstrap", "f399d0b310fbfb28e9667312fdc7a33954e2b8c8"},
		{"s01-plain", "blue", "default-s01-plain-blue", "2faaef8103bb41a4ff1c1e4bf8c36b130d67203f"},
		{"fleet-agent-m1", "blue", "fleet-agent-bootstrap-blue", "154d43cede6fa92d59ddd7921705981979938b39"},
	} {
		o := &unstructured.Unstructured{Object: map[string]any{}}
		o.SetLabels(map[string]string{"own": "l"})
		markObject(o, row.bd, row.scope)
		assert.Equal(t, map[string]string{"own": "l", SetHashLabel: row.hash}, o.GetLabels(), row.bd)
		assert.Equal(t, map[string]string{objectSetIDAnnotation: row.id}, o.GetAnnotations(), row.bd)
	}
}

func TestChartAnnotations(t *testing.T) {
	r := Request{BundleDeployment: "app", ServiceAccountNamespace: "agents"}
	assert.Equal(t, map[string]string{
		"fleet.cattle.io/bundle-id": "app", "fleet.cattle.io/agent-namespace": "agents", "fleet.cattle.io/service-account": "", "fleet.cattle.io/keep-resources": "false",
	}, chartAnnotations(r))
	r.Commit, r.Options.KeepResources, r.Options.ServiceAccount = "0123", true, "tenant"
	assert.Equal(t, map[string]string{
		"fleet.cattle.io/bundle-id": "app", "fleet.cattle.io/agent-namespace": "agents", "fleet.cattle.io/service-account": "tenant", "fleet.cattle.io/keep-resources": "true",
		"fleet.cattle.io/commit": "0123",
	}, chartAnnotations(r))
}

func TestAdoptedBy(t *testing.T) {
	for text, adopted := range map[string]map[string]string{
		`{}`:                               {},
		`{"ConfigMap ns/x":"ns/other"}`:    {"ConfigMap ns/x": "ns/other"},
		`[]`:                               {},
		`["ConfigMap ns/x","Secret ns/y"]`: {"ConfigMap ns/x": "", "Secret ns/y": ""},
		nothingWritten:                     nil,
		"":                                 nil,
		`{"ConfigMap ns/x":1}`:             nil,
		`[1]`:                              nil,
	} {
		r := &helm.Release{Chart: &chart.Chart{Metadata: &chart.Metadata{Annotations: map[string]string{adoptedAnnotation: text}}}}
		noted, isNoted := adoptedBy(r)
		assert.Equal(t, adopted != nil, isNoted, text)
		assert.Equal(t, adopted, noted, text)
	}
}

func TestFormerMarks(t *testing.T) {
	for _, row := range []struct{ name, namespace, marks string }{
		{"app", "ns", "ns/app"},
		{"app.one", "ns", "ns/app.one"},
		{"", "", "/"},
		{"", "ns", "/"},
		{"app", "", "/"},
		{"c", "a/b", "/"},
		{"b/c", "a", "/"},
		{strings.Repeat("a", 1<<18), "ns", "/"},
		{"app", strings.Repeat("a", 1<<18), "/"},
	} {
		assert.Equal(t, row.marks, formerMarks(row.name, row.namespace), "%.20s %.20s", row.namespace, row.name)
	}
}

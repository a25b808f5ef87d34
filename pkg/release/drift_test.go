package release

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	require.NoError(t, err)
	o := &unstructured.Unstructured{}
	require.NoError(t, o.UnmarshalJSON(data))
	return o
}

func TestApplyComparePatch(t *testing.T) {
	deployment := "{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: ns, name: web}, spec: {replicas: 3}}"
	pointer, remove := []string{"/spec/replicas"}, []fleet.Operation{{Op: "remove", Path: "/spec/replicas"}}
	for name, row := range map[string]struct {
		patch   fleet.ComparePatch
		applies bool
	}{
		"pointers, any name":                   {fleet.ComparePatch{APIVersion: "apps/v1", Kind: "Deployment", JSONPointers: pointer}, true},
		"pointers, another version":            {fleet.ComparePatch{APIVersion: "apps/v2", Kind: "Deployment", JSONPointers: pointer}, true},
		"pointers, patterns":                   {fleet.ComparePatch{APIVersion: "*/v1", Kind: "Deploy*", JSONPointers: pointer}, true},
		"pointers, this name":                  {fleet.ComparePatch{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "ns", Name: "web", JSONPointers: pointer}, true},
		"pointers, another name":               {fleet.ComparePatch{APIVersion: "apps/v1", Kind: "Deployment", Name: "w", JSONPointers: pointer}, false},
		"pointers, another namespace":          {fleet.ComparePatch{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "x", JSONPointers: pointer}, false},
		"pointers, no kind":                    {fleet.ComparePatch{APIVersion: "apps/v1", JSONPointers: pointer}, false},
		"pointers, the group of core kinds":    {fleet.ComparePatch{APIVersion: "v1", Kind: "Deployment", JSONPointers: pointer}, false},
		"operations":                           {fleet.ComparePatch{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "ns", Name: "web", Operations: remove}, true},
		"operations, no name":                  {fleet.ComparePatch{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "ns", Operations: remove}, false},
		"operations, another version":          {fleet.ComparePatch{APIVersion: "apps/v2", Kind: "Deployment", Namespace: "ns", Name: "web", Operations: remove}, false},
		"operations, a pattern":                {fleet.ComparePatch{APIVersion: "apps/v1", Kind: "*", Namespace: "ns", Name: "web", Operations: remove}, false},
		"the operation ignore changes nothing": {fleet.ComparePatch{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "ns", Name: "web", Operations: []fleet.Operation{{Op: "ignore"}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			changed, err := applyComparePatch(object(t, deployment), row.patch)
			require.NoError(t, err)
			_, kept, _ := unstructured.NestedInt64(changed, "spec", "replicas")
			_, float, _ := unstructured.NestedFloat64(changed, "spec", "replicas")
			assert.Equal(t, row.applies, !kept && !float)
		})
	}
}

// An operation that does not apply does not prevent the comparison.
func TestStripped_missingPath(t *testing.T) {
	for op, want := range map[string]string{
		"remove": "null", "add": `{"k":"v"}`, "replace": "null", "test": "null",
	} {
		t.Run(op, func(t *testing.T) {
			patch := fleet.ComparePatch{APIVersion: "v1", Kind: "ConfigMap", Namespace: "ns", Name: "c1", Operations: []fleet.Operation{
				{Op: op, Path: "/data/k", Value: "v"}, {Op: "remove", Path: "/binaryData"},
			}}
			fields, err := stripped(object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: ns, name: c1}, binaryData: {b: AA==}}"), []fleet.ComparePatch{patch})
			require.NoError(t, err)
			data, err := json.Marshal(fields["data"])
			require.NoError(t, err)
			assert.JSONEq(t, want, string(data))
			assert.NotContains(t, fields, "binaryData")
		})
	}
}

// The library would copy an array once for each element that it adds.
func TestStripped_largeIndex(t *testing.T) {
	for path, applies := range map[string]bool{
		"/metadata/x/20000/y":       false,
		"/metadata/x/20000":         false,
		"/metadata/finalizers/3000": false,
		"/metadata/x/5":             true,
		"/metadata/finalizers/1":    true,
		"/data/20000":               true,
	} {
		t.Run(path, func(t *testing.T) {
			o := object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: ns, name: c1, finalizers: [a]}, data: {k: v}}")
			patch := fleet.ComparePatch{APIVersion: "v1", Kind: "ConfigMap", Namespace: "ns", Name: "c1", Operations: []fleet.Operation{{Op: "add", Path: path, Value: "1"}}}
			fields, err := stripped(o, []fleet.ComparePatch{patch})
			require.NoError(t, err)
			unchanged, err := stripped(o, nil)
			require.NoError(t, err)
			assert.Equal(t, !applies, reflect.DeepEqual(unchanged, fields))
		})
	}
}

// All operations together have the limit: each could lengthen an array further.
func TestStripped_manyIndices(t *testing.T) {
	patch := fleet.ComparePatch{APIVersion: "v1", Kind: "ConfigMap", Namespace: "ns", Name: "c1"}
	for _, path := range []string{"/metadata/x/60", "/metadata/x/120/y", "/metadata/z/50", "/metadata/z/30/1", "/metadata/x/61"} {
		patch.Operations = append(patch.Operations, fleet.Operation{Op: "add", Path: path, Value: "1"})
	}
	fields, err := stripped(object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: ns, name: c1}}"), []fleet.ComparePatch{patch})
	require.NoError(t, err)
	x, _, _ := unstructured.NestedSlice(fields, "metadata", "x")
	z, _, _ := unstructured.NestedSlice(fields, "metadata", "z")
	assert.Len(t, x, 62)
	require.Len(t, z, 31)
	assert.Len(t, z[30], 2)
}

func TestToleratesMissing(t *testing.T) {
	ignore := []fleet.Operation{{Op: "ignore"}}
	for name, row := range map[string]struct {
		patch fleet.ComparePatch
		want  bool
	}{
		"this name":            {fleet.ComparePatch{APIVersion: "v1", Kind: "ConfigMap", Namespace: "ns", Name: "c1", Operations: ignore}, true},
		"any namespace":        {fleet.ComparePatch{APIVersion: "v1", Kind: "ConfigMap", Name: "c1", Operations: ignore}, true},
		"a regular expression": {fleet.ComparePatch{APIVersion: "v1", Kind: "ConfigMap", Name: "^c[0-9]$", Operations: ignore}, true},
		"another name":         {fleet.ComparePatch{APIVersion: "v1", Kind: "ConfigMap", Name: "^d", Operations: ignore}, false},
		"no expression":        {fleet.ComparePatch{APIVersion: "v1", Kind: "ConfigMap", Name: "(", Operations: ignore}, false},
		"another namespace":    {fleet.ComparePatch{APIVersion: "v1", Kind: "ConfigMap", Namespace: "x", Name: "c1", Operations: ignore}, false},
		"another kind":         {fleet.ComparePatch{APIVersion: "v1", Kind: "Secret", Name: "c1", Operations: ignore}, false},
		"another operation":    {fleet.ComparePatch{APIVersion: "v1", Kind: "ConfigMap", Name: "c1", Operations: []fleet.Operation{{Op: "remove"}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: ns, name: c1}}")
			assert.Equal(t, row.want, toleratesMissing(o, []fleet.ComparePatch{row.patch}))
		})
	}
}

func TestRemoveForeignFields(t *testing.T) {
	scaler := "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {namespace: ns, name: web}, " +
		"spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 5}}"
	web := func(replicas string) string {
		return "{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: ns, name: web}, spec: {replicas: " + replicas + ", paused: false}}"
	}
	hook := func(config string) string {
		return "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: h}, webhooks: [{name: a, clientConfig: " + config + "}]}"
	}
	role := "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: r}, aggregationRule: {clusterRoleSelectors: []}, rules: "
	for name, row := range map[string]struct{ desired, live, scaler, want string }{
		"replicas within the bounds":            {web("1"), web("4"), scaler, "{paused: false}"},
		"replicas beyond the bounds":            {web("1"), web("6"), scaler, "{paused: false, replicas: 6}"},
		"replicas without a scaler":             {web("1"), web("4"), "{apiVersion: v1, kind: ConfigMap}", "{paused: false, replicas: 4}"},
		"a CA bundle that the release lacks":    {hook("{url: u}"), hook("{url: u, caBundle: x}"), scaler, "[{name: a, clientConfig: {url: u}}]"},
		"a CA bundle of the release":            {hook("{url: u, caBundle: own}"), hook("{url: u, caBundle: x}"), scaler, "[{name: a, clientConfig: {url: u, caBundle: x}}]"},
		"the rules of an aggregated role":       {role + "[]}", role + "[{verbs: [get]}]}", scaler, "null"},
		"the rules of a role that is no result": {"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, rules: []}", "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, rules: [1]}", scaler, "[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			live := object(t, row.live)
			removeForeignFields(live, object(t, row.desired), []Object{{Desired: object(t, row.scaler)}}, live.DeepCopy())
			var want any
			require.NoError(t, yaml.Unmarshal([]byte(row.want), &want))
			for _, field := range []string{"spec", "webhooks", "rules"} {
				if got, found := live.Object[field]; found {
					gotText, _ := yaml.Marshal(got)
					wantText, _ := yaml.Marshal(want)
					assert.YAMLEq(t, string(wantText), string(gotText))
					return
				}
			}
			assert.Nil(t, want)
		})
	}
}

package release

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	chartcommon "helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/fuzz"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Values come from Bundles and from ConfigMaps and Secrets of the cluster.
func FuzzValues(f *testing.F) {
	for _, pair := range [][2]string{
		{"", ""},
		{"a: 1", "a: {b: 2}"},
		{"a: {b: 1, c: null}", "a: {b: null}"},
		{"[]", "null"},
		{"a: [1]", "a: [2]"},
		{"? {}\n: x", "1: 2"},
		{"&a {x: *a}", "<<: {a: 1}"},
		{"a: 0x10", "a: 1e400"},
		{"\x00", "\xff"},
	} {
		f.Add([]byte(pair[0]), []byte(pair[1]))
	}
	f.Fuzz(func(t *testing.T, under, over []byte) {
		read := func() []map[string]any {
			var layers []map[string]any
			for _, data := range [][]byte{under, over} {
				values, err := parseValues(data, "Secret ns/values")
				if err != nil {
					assert.Contains(t, err.Error(), "Secret ns/values")
					continue
				}
				layers = append(layers, values)
			}
			return layers
		}
		merged := mergeValues(read())
		require.NotNil(t, merged)
		assert.Equal(t, merged, mergeValues(read()))
		if layers := read(); len(layers) == 2 {
			assertOver(t, layers[1], merged)
		}
		_, err := json.Marshal(merged)
		assert.NoError(t, err, "Helm stores them")
	})
}

// assertOver checks that later values win wherever they set something.
func assertOver(t *testing.T, over, merged map[string]any) {
	t.Helper()
	for key, value := range over {
		if _, isTable := value.(map[string]any); !isTable && value != nil {
			assert.Equal(t, value, merged[key], key)
		}
	}
}

// The ComparePatches of a Bundle are applied to any object on the cluster.
func FuzzApplyComparePatch(f *testing.F) {
	const document = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"k":"v"},"list":[1,{"x":2}]}`
	for _, path := range []string{"", "/", "/data/k", "/data/none/deep", "/list/0", "/list/-", "/list/99", "/list/1/x", "/~2", "data", "/metadata/name"} {
		for _, op := range []string{"remove", "add", "replace", "test", "copy", "ignore", ""} {
			f.Add(document, op, path, `{"y":1}`)
		}
	}
	f.Fuzz(func(t *testing.T, document, op, path, value string) {
		var object map[string]any
		if json.Unmarshal([]byte(document), &object) != nil || object == nil {
			return
		}
		before, err := json.Marshal(object)
		require.NoError(t, err)
		o := &unstructured.Unstructured{Object: object}
		patch := fleet.ComparePatch{
			APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(),
			JSONPointers: []string{path}, Operations: []fleet.Operation{{Op: op, Path: path, Value: value}},
		}
		toleratesMissing(o, []fleet.ComparePatch{patch})
		changed, err := applyComparePatch(o, patch)
		after, _ := json.Marshal(object)
		assert.JSONEq(t, string(before), string(after), "the object is somebody else's")
		again, errAgain := applyComparePatch(o, patch)
		assert.Equal(t, err == nil, errAgain == nil)
		assert.Equal(t, changed, again)
	})
}

// Any user who may write to a git repository writes the files of a Bundle.
func FuzzMakeSource(f *testing.F) {
	for _, seed := range [][3]string{
		{"resources: [a.yaml]", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}", "data: {a: b}"},
		{"{resources: [a.yaml], patchesJson6902: [null]}", "kind: A", "[{op: add, path: /x, value: 1}]"},
		{"", "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a}]}", "spec: {containers: [{$patch: replace}, null]}"},
		{"", "apiVersion: v1\nkind: List\nitems: [null, 1, {kind: A}]", "[null]"},
		{"", "kind: A\nmetadata: []\n---\n[]", "metadata: {$retainKeys: 1}"},
		{"generators: ['kind: A']", "{\"kind\":\"A\"}", "null"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, kustomization, manifest, patch string) {
		r := Request{Name: "app", Resources: []fleet.BundleResource{{Name: "a.yaml", Content: manifest}, {Name: "overlays/dev/a_patch.yaml", Content: patch}}}
		if kustomization != "" {
			r.Resources = append(r.Resources, fleet.BundleResource{Name: kustomizationFile, Content: kustomization})
		}
		r.Options.YAML = &fleet.YAMLOptions{Overlays: []string{"dev"}}
		s, err := makeSource(r)
		if err != nil {
			return
		}
		objects, err := s.complete([]byte(manifest))
		if err != nil {
			return
		}
		for _, o := range objects {
			assert.NotEmpty(t, o.GetKind())
		}
		_, err = encodeObjects(objects)
		assert.NoError(t, err)
	})
}

func FuzzOwnerLabels(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed, "fleet-agent-x", "s-1:2")
	}
	f.Fuzz(func(t *testing.T, seed []byte, deployment, id string) {
		var owner Owner
		var options fleet.BundleDeploymentOptions
		fuzz.From(seed, "ns", "cluster.with.dots").Fill(&options)
		owner.Namespace, owner.ClusterName, owner.Workspace = "agent", "cluster", "ns"
		if len(validation.IsDNS1123Subdomain(deployment)) > 0 {
			return
		}
		for key, value := range owner.LabelsFor(deployment, id) {
			assert.Empty(t, validation.IsQualifiedName(key))
			assert.Empty(t, validation.IsValidLabelValue(value), key)
		}
		back := UninstallOptionsFrom(optionLabels(options))
		assert.Equal(t, options.KeepResources, back.KeepResources)
		assert.Equal(t, options.DeleteNamespace, back.DeleteNamespace)
		assert.Equal(t, options.DeleteCRDResources, back.DeleteCRDs)
	})
}

// A parser makes at most MostNodes nodes of a text, and no aliases if hasAliases is false. A text that CheckYAML accepts has no more nodes than
// the limit when aliases are expanded.
func FuzzCheckYAML(f *testing.F) {
	for _, seed := range []string{"a: &x [1]\nb: *x", "{?&a b:*a}", "- - ? : {a,b: c}", "a:\n- b\n-\tc\n--- !t &a 'x'", "[&a a,*a,-*a]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		const limit = 20
		accepted := CheckYAML([]byte(text), limit) == nil
		decoder := yaml.NewDecoder(strings.NewReader(text))
		parsed, expanded, aliases := 0, 0, false
		for {
			var root yaml.Node
			if decoder.Decode(&root) != nil {
				break
			}
			var visit func(node *yaml.Node, below int, follow bool) int
			visit = func(node *yaml.Node, below int, follow bool) (nodes int) {
				if node.Kind == yaml.AliasNode {
					aliases = true
					if !follow || below > 100 {
						return 1
					}
					return visit(node.Alias, below+1, follow)
				}
				nodes = 1
				for _, child := range node.Content {
					if nodes += visit(child, below+1, follow); nodes > 10*limit && follow {
						break
					}
				}
				return nodes
			}
			parsed += visit(&root, 0, false) - 2 // the document and its root
			expanded += visit(&root, 0, true) - 2
		}
		if !utf8.ValidString(text) {
			require.False(t, accepted)
			return
		}
		assert.LessOrEqual(t, parsed, 3*registration.MostNodes([]byte(text)))
		assert.True(t, !aliases || hasAliases([]byte(text)))
		if accepted && hasAliases([]byte(text)) {
			assert.LessOrEqual(t, expanded, limit)
		}
	})
}

// What a removal reads of a revision that an agent has stored is the same in the reduced one.
func FuzzReduce(f *testing.F) {
	for _, text := range []string{
		"", "a\n---\nkind: X\n", "\n---\n", `{"a":[1,"\"}]`, "# a\r\n- b\n", "&a *a", "kind", "manifest", "? a\n: b", "\U0001F600\u2028\x00\xff", "<\\u0041>", " a ", "1", "null", "---",
	} {
		for _, event := range []string{"pre-delete", "post-delete", "test", ""} {
			f.Add(text, event, event != "")
		}
	}
	f.Fuzz(func(t *testing.T, text, event string, isIndented bool) {
		key := text
		if strings.ContainsAny(text, "\u0085\u2028\u2029") {
			key = "key" // no field has a name with one of the line ends that only YAML knows
		}
		object := func(name string) string {
			fields := map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"k": text}, "list": []any{text, map[string]any{key: nil}},
				"metadata": map[string]any{
					"name": name, "namespace": text, "labels": map[string]any{SetHashLabel: text, "a": text},
					"annotations": map[string]any{kube.ResourcePolicyAnno: text, "b": text, helm.HookAnnotation: event},
				},
			}
			if _, isField := fields[key]; !isField && key != "items" { // a list is kept as it is
				fields[key] = text
			}
			encoded, err := sigsyaml.Marshal(fields)
			if err != nil {
				t.Skip("no agent stores it: ", err)
			}
			return "---\n" + string(encoded)
		}
		stored := &helm.Release{
			Name: "a", Namespace: "ns", Version: 7, Info: &helm.Info{Status: common.StatusDeployed, Description: text, Notes: text},
			Chart: &chart.Chart{
				Metadata:  &chart.Metadata{Name: text, Annotations: map[string]string{bundleAnnotation: text}},
				Templates: []*chartcommon.File{{Name: text, Data: []byte(text)}}, Values: map[string]any{text: text},
			},
			Config: map[string]any{text: []any{text, 1.5, map[string]any{"manifest": text}}}, Manifest: object("one") + object(text),
			Hooks: []*helm.Hook{{Name: text, Manifest: object("hook"), Events: []helm.HookEvent{helm.HookEvent(event)}, Weight: 3}},
		}
		encoded, err := json.Marshal(stored)
		if isIndented {
			encoded, err = json.MarshalIndent(stored, "", "\t")
		}
		require.NoError(t, err)
		decode := func(reduces bool) *helm.Release {
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: secretName("a", 7)}}
			secret.Data = map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(encoded))}
			found, err := driver.NewSecrets(&historySecrets{SecretInterface: readSecret{secret: secret}, ctx: t.Context(), limits: HistoryLimits{Reduces: reduces}}).Get(secret.Name)
			require.NoError(t, err)
			return found.(*helm.Release)
		}
		want, got := decode(false), decode(true)
		heads := func(manifest string) (heads []reducedHead, err error) {
			for _, document := range documentStart.Split(manifest, -1) {
				var head reducedHead
				if err := sigsyaml.Unmarshal([]byte(document), &head); err != nil {
					return nil, err
				}
				head.Metadata.Labels = withNames(head.Metadata.Labels, SetHashLabel)
				head.Metadata.Annotations = withNames(head.Metadata.Annotations, kube.ResourcePolicyAnno, helm.HookAnnotation)
				heads = append(heads, head)
			}
			return heads, nil
		}
		wanted, err := heads(want.Manifest)
		if err != nil {
			return // the encoder writes some characters that no decoder accepts
		}
		kept, err := heads(got.Manifest)
		require.NoError(t, err, got.Manifest)
		require.Equal(t, wanted, kept)
		if isOfRemoval := event == "pre-delete" || event == "post-delete"; !isOfRemoval {
			want.Hooks = nil
		}
		want.Manifest, got.Manifest = "", ""
		want.Config, want.Chart.Templates, want.Chart.Values = nil, nil, nil
		assert.Equal(t, want, got)
	})
}

package release

import (
	"bytes"
	"encoding/json"
	"log" //nolint:depguard // the log of Helm
	"os"
	"strings"
	"testing"

	kubefake "k8s.io/client-go/kubernetes/fake"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestReadValues(t *testing.T) {
	secret := func(namespace, name, key, value string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{key: []byte(value)}}
	}
	configMap := func(namespace, name, key, value string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{key: value}}
	}
	member := kubefake.NewClientset(
		secret("apps", "s", "values.yaml", "from: Secret"), secret("other", "s", "k", "from: other Secret"),
		configMap("apps", "c", "values.yaml", "{from: ConfigMap, in: {c: 1}}"), configMap("other", "c", "values.yaml", "from: other ConfigMap"),
	)
	inSecret, inConfigMap := &fleet.KeySelector{Name: "s"}, &fleet.KeySelector{Name: "c"}
	for name, row := range map[string]struct {
		from []fleet.ValuesFrom
		want string
	}{
		"none":                             {nil, `{"from":"request","in":{"r":1},"option":1}`},
		"a ConfigMap over the request":     {[]fleet.ValuesFrom{{ConfigMapKeyRef: inConfigMap}}, `{"from":"ConfigMap","in":{"r":1,"c":1},"option":1}`},
		"a Secret over the ConfigMap":      {[]fleet.ValuesFrom{{SecretKeyRef: inSecret, ConfigMapKeyRef: inConfigMap}}, `{"from":"Secret","in":{"r":1,"c":1},"option":1}`},
		"a later entry over an earlier":    {[]fleet.ValuesFrom{{SecretKeyRef: inSecret}, {ConfigMapKeyRef: inConfigMap}}, `{"from":"ConfigMap","in":{"r":1,"c":1},"option":1}`},
		"another namespace and key":        {[]fleet.ValuesFrom{{SecretKeyRef: &fleet.KeySelector{Namespace: "other", Name: "s", Key: "k"}}}, `{"from":"other Secret","in":{"r":1},"option":1}`},
		"a copy; its namespace is ignored": {[]fleet.ValuesFrom{{ConfigMapKeyRef: &fleet.KeySelector{Namespace: "other", Name: "c"}}}, `{"from":"ConfigMap","in":{"r":1,"c":1},"option":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Namespace: "apps", Values: map[string]any{"from": "request", "in": map[string]any{"r": 1}}}
			r.Options.DownstreamResources = []fleet.DownstreamResource{{Kind: "configmap", Name: "c"}}
			r.Options.Helm = &fleet.HelmOptions{
				ValuesFiles: []string{"merged-before.yaml"}, ValuesFrom: row.from,
				Values: &fleet.GenericMap{Data: map[string]any{"from": "options", "option": 1}},
			}
			values, err := readValues(t.Context(), member, r)
			require.NoError(t, err)
			data, err := json.Marshal(values)
			require.NoError(t, err)
			assert.JSONEq(t, row.want, string(data))
			assert.Equal(t, map[string]any{"from": "request", "in": map[string]any{"r": 1}}, r.Values, "the request stays as it is")
		})
	}
}

// A number has the same type as if Helm read it from a file of values, whatever its source: with another type, templates render another text.
func TestReadValues_numbers(t *testing.T) {
	const text = `{"large":12345678901,"larger":9007199254740993,"whole":5,"negative":-3,"fraction":1.5,"in":{"list":[1,{"n":2}]}}`
	want, err := common.ReadValues([]byte(text))
	require.NoError(t, err)
	member := kubefake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "c"}, Data: map[string]string{"values.yaml": text}})
	for name, change := range map[string]func(*Request){
		"a file of the Bundle": func(r *Request) {
			r.Resources, r.Options.Helm.ValuesFiles = []fleet.BundleResource{{Name: "v.yaml", Content: text}}, []string{"v.yaml"}
		},
		"the options": func(r *Request) {
			r.Options.Helm.Values = &fleet.GenericMap{}
			require.NoError(t, json.Unmarshal([]byte(text), r.Options.Helm.Values))
		},
		"the Secret of the BundleDeployment": func(r *Request) { require.NoError(t, json.Unmarshal([]byte(text), &r.Values)) },
		"helm.valuesFrom": func(r *Request) {
			r.Options.Helm.ValuesFrom = []fleet.ValuesFrom{{ConfigMapKeyRef: &fleet.KeySelector{Name: "c"}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Namespace: "apps"}
			r.Options.Helm = &fleet.HelmOptions{}
			change(&r)
			values, err := readValues(t.Context(), member, r)
			require.NoError(t, err)
			assert.Equal(t, map[string]any(want), values)
		})
	}
}

func TestReadValues_ofTheBundle(t *testing.T) {
	r := Request{Resources: []fleet.BundleResource{{Name: "v.yaml", Content: "]"}}}
	r.Options.Helm = &fleet.HelmOptions{ValuesFiles: []string{"v.yaml"}}
	_, err := readValues(t.Context(), nil, r)
	var permanent *InvalidError
	require.ErrorAs(t, err, &permanent)
	assert.ErrorContains(t, err, "file v.yaml of the Bundle contains no valid values")
}

// Decoded, the aliases would take gigabytes.
func TestReadValues_bomb(t *testing.T) {
	repeated := "a: &a " + strings.Repeat("x", 200_000) + "\nb: [" + strings.Repeat("*a,", 50_000) + "]\n"
	lists := "a: [" + strings.Repeat("{},", 300_000) + "]\n"
	ref := &fleet.KeySelector{Name: "v"}
	divided := strings.Replace(repeated, "\nb:", "\n---&a x: 1\nb:", 1) // an anchor only for a reader who divides the text there
	for name, text := range map[string]string{"aliases": repeated, "small values": lists, "aliases behind a line that begins as a document": divided} {
		meta := metav1.ObjectMeta{Namespace: "apps", Name: "v"}
		member := kubefake.NewClientset(
			&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"values.yaml": text}},
			&corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"values.yaml": []byte(text)}},
		)
		for source, helm := range map[string]*fleet.HelmOptions{
			"a ConfigMap": {ValuesFrom: []fleet.ValuesFrom{{ConfigMapKeyRef: ref}}},
			"a Secret":    {ValuesFrom: []fleet.ValuesFrom{{SecretKeyRef: ref}}},
			"a file":      {ValuesFiles: []string{"v.yaml"}},
		} {
			t.Run(name+" in "+source, func(t *testing.T) {
				r := Request{Namespace: "apps", Resources: []fleet.BundleResource{{Name: "v.yaml", Content: text}}}
				r.Options.Helm = helm
				_, err := readValues(t.Context(), member, r)
				require.ErrorContains(t, err, "contains no valid values: YAML that has more than 100000 nodes")
			})
		}
	}
	values, err := parseValues([]byte("a: &a {b: 1}\nc: {<<: *a, d: 2}\n"), "values")
	require.NoError(t, err)
	data, err := json.Marshal(values)
	require.NoError(t, err)
	assert.JSONEq(t, `{"a": {"b": 1}, "c": {"b": 1, "d": 2}}`, string(data), "aliases are allowed")
}

// Values may come from Secrets, so no value goes to the log.
func TestMergeValues(t *testing.T) {
	var logged bytes.Buffer
	log.SetOutput(&logged)
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	for name, row := range map[string]struct{ under, over, want string }{
		"tables":                {"{a: {b: 1, c: 1}}", "{a: {c: 2}, d: 2}", `{"a":{"b":1,"c":2},"d":2}`},
		"a scalar over a table": {"{a: {b: password}}", "{a: 2}", `{"a":2}`},
		"a table over a scalar": {"{a: password}", "{a: {b: 2}}", `{"a":{"b":2}}`},
		"null over a table":     {"{a: {b: password}}", "{a: null}", `{"a":null}`},
		"null in a table":       {"{a: {b: 1, c: 1}}", "{a: {b: null}}", `{"a":{"b":null,"c":1}}`},
		"a table over null":     {"{a: null}", "{a: {b: 2}}", `{"a":{"b":2}}`},
		"lists":                 {"{a: [1, 2]}", "{a: [3]}", `{"a":[3]}`},
		"nothing":               {"", "", `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			var layers []map[string]any
			for _, text := range []string{row.under, row.over} {
				layer, err := parseValues([]byte(text), "values")
				require.NoError(t, err)
				layers = append(layers, layer)
			}
			merged, err := json.Marshal(mergeValues(layers))
			require.NoError(t, err)
			assert.JSONEq(t, row.want, string(merged))
		})
	}
	assert.Empty(t, logged.String())
}

// The message about an object that does not exist is that of Fleet's own agent. The others name the namespace and the field.
func TestReadValues_missing(t *testing.T) {
	there := metav1.ObjectMeta{Namespace: "default", Name: "there"}
	member := kubefake.NewClientset(&corev1.ConfigMap{ObjectMeta: there, Data: map[string]string{"bad": "]"}}, &corev1.Secret{ObjectMeta: there})
	for name, row := range map[string]struct {
		from fleet.ValuesFrom
		says string
	}{
		"no ConfigMap":        {fleet.ValuesFrom{ConfigMapKeyRef: &fleet.KeySelector{Name: "gone"}}, `configmaps "gone" not found`},
		"no Secret":           {fleet.ValuesFrom{SecretKeyRef: &fleet.KeySelector{Name: "gone"}}, `secrets "gone" not found`},
		"no key, ConfigMap":   {fleet.ValuesFrom{ConfigMapKeyRef: &fleet.KeySelector{Name: "there"}}, "names key values.yaml of ConfigMap default/there"},
		"no key, Secret":      {fleet.ValuesFrom{SecretKeyRef: &fleet.KeySelector{Name: "there", Key: "k"}}, "names key k of Secret default/there"},
		"what holds no value": {fleet.ValuesFrom{ConfigMapKeyRef: &fleet.KeySelector{Name: "there", Key: "bad"}}, "contains no valid values"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Namespace: "default", Options: fleet.BundleDeploymentOptions{Helm: &fleet.HelmOptions{ValuesFrom: []fleet.ValuesFrom{row.from}}}}
			_, err := readValues(t.Context(), member, r)
			require.ErrorContains(t, err, row.says)
			var permanent *InvalidError
			assert.NotErrorAs(t, err, &permanent, "what may come or be repaired is tried again soon")
		})
	}
}

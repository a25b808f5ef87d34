package release

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	helm "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/pkg/transport"
)

// reducedOf returns what Helm decodes of a reduced revision.
func reducedOf(t *testing.T, text string, limits HistoryLimits) (*helm.Release, error) {
	t.Helper()
	secret := stored(t, secretName("a", 1), text, 1)
	limits.Reduces = true
	history := &historySecrets{SecretInterface: fake.NewClientset(secret).CoreV1().Secrets("ns"), ctx: t.Context(), limits: limits}
	found, err := driver.NewSecrets(history).Get(secret.Name)
	if err != nil {
		return nil, err
	}
	return found.(*helm.Release), nil
}

func TestReduce(t *testing.T) {
	const cm = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}` + "\n"
	for name, row := range map[string]struct{ manifest, want string }{
		"nothing":            {"", ""},
		"an object":          {"apiVersion: v1\ndata:\n  k: |\n    ---\n    kind: X\nkind: ConfigMap\nmetadata:\n  name: a\n", "---\n" + cm},
		"without a line end": {"---\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n- b\napiVersion: v1", "---\n" + cm},
		"several": {
			"# Source: x\n---\n# Source: y\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n---\n\n--- # c\n---apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---  \nx: y\n--",
			"---\n" + cm + "---\n" + cm,
		},
		"the marks": {
			"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  annotations:\n    a: b\n    helm.sh/hook: test\n    helm.sh/resource-policy: keep\n  labels:\n    a: b\n    objectset.rio.cattle.io/hash: h\n  name: a\n  namespace: n\n",
			`---` + "\n" + `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"n","labels":{"objectset.rio.cattle.io/hash":"h"},"annotations":{"helm.sh/hook":"test","helm.sh/resource-policy":"keep"}}}` + "\n",
		},
		"JSON":                     {`{"apiVersion": "v1", "kind": "ConfigMap",` + "\n" + `"metadata": {"name": "a"}, "data": {"kind": "X"}` + "\n}\n", "---\n" + cm},
		"quoted fields":            {"data: {}\n\"kind\": ConfigMap\n'apiVersion': v1\n? metadata\n: name: a\n", "---\n" + cm},
		"indented":                 {"\n  apiVersion: v1\n  kind: ConfigMap\n  data: {kind: x}\n  metadata: {name: a}\n", "---\n" + cm},
		"other ends of lines":      {"apiVersion: v1\r\ndata:\r\n  k: v\r\nkind: ConfigMap\r\nmetadata:\r\n  name: a\r\n", "---\n" + cm},
		"a list":                   {"apiVersion: v1\nkind: List\nitems:\n- kind: X\n  data: 1\nx: y\n", "---\napiVersion: v1\nkind: List\nitems:\n- kind: X\n  data: 1\n"},
		"what cannot be parsed":    {"kind: [\nx: y\n", "---\nkind: [\n"},
		"a name that is a number":  {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 1}\n", "---\n" + strings.ReplaceAll(cm, `"a"`, `"1"`)},
		"a field with a long name": {"apiVersion: v1\nkind: ConfigMap\nmetadataOfAnother:\n  name: b\nmetadata: {name: a}\n", "---\n" + cm},
		"escapes":                  {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"<\\\"\t\\\\é\u2028\U0001F600\"}\n", "---\n" + `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"\u003c\"\t\\é` + `\u2028` + "\U0001F600" + `"}}` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			made := &helm.Release{Name: "a", Namespace: "ns", Version: 1, Manifest: row.manifest}
			text, err := json.Marshal(made)
			require.NoError(t, err)
			reduced, err := reducedOf(t, string(text), HistoryLimits{Nodes: 1000})
			require.NoError(t, err)
			assert.Equal(t, row.want, reduced.Manifest)
		})
	}
	t.Run("the other fields", func(t *testing.T) {
		reduced, err := reducedOf(t, ` {"name" : "a","config":{"name":"b","x":[1,{"]":"\"}"}],"n":-1e3},"info":{"status":"failed","x":[true,null]},
			"chart":{"files":[{"name":"f","data":"aGFsbG8="}],"metadata":{"name":"c","annotations":{"k":"v"}},"lock":null},
			"hooks":[{"name":"t","events":["test"]},null,{"name":"d","manifest":"kind: Job","events":["post-install","pre-delete"]}],
			"version":7,"namespace":"ns","apply_method":"ssa"}`, HistoryLimits{})
		require.NoError(t, err)
		assert.Equal(t, "a ns 7 failed", strings.Join([]string{reduced.Name, reduced.Namespace, "7", reduced.Info.Status.String()}, " "))
		assert.Equal(t, 7, reduced.Version)
		assert.Equal(t, map[string]string{"k": "v"}, annotationsOf(reduced))
		assert.Empty(t, reduced.Chart.Files)
		assert.Empty(t, reduced.Config)
		require.Len(t, reduced.Hooks, 2)
		assert.Nil(t, reduced.Hooks[0], "soundReleases refuses it")
		assert.Equal(t, "kind: Job", reduced.Hooks[1].Manifest)
	})
	for name, text := range map[string]string{
		"no JSON": "?", "half of it": `{"name":"a","manifest":"kind: X\nmeta`, "no object": `[1]`, "a bad escape": `{"manifest":"\uZZZZ"}`, "nothing": "",
		"a number for a name": `{"name":1}`, "a hook that is none": `{"hooks":["a"]}`,
	} {
		t.Run("what Helm cannot decode: "+name, func(t *testing.T) {
			reduced, err := reducedOf(t, text, HistoryLimits{})
			if name == "no object" {
				require.NoError(t, err)
				assert.Nil(t, reduced.Info, "soundReleases refuses it")
				return
			}
			require.ErrorContains(t, err, "failed to decode")
		})
	}
}

func TestReduce_limits(t *testing.T) {
	object := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n"
	limits := HistoryLimits{ResponseLimits: transport.ResponseLimits{Bytes: 8 << 10, Values: 100}, Nodes: 100, Scanned: 1 << 20}
	for name, row := range map[string]struct{ text, says string }{
		"large values":             {`{"config":{"a":[` + strings.Repeat("[],", 10_000) + `[]]},"manifest":"a"}`, ""},
		"large objects":            {`{"manifest":"` + strings.Repeat("a: "+strings.Repeat("x", 100)+`\n`, 1000) + `"}`, ""},
		"many objects":             {`{"manifest":"` + strings.Repeat(strings.ReplaceAll(object, "\n", `\n`), 200) + `"}`, "the response is larger than 8 kB"},
		"a large head":             {`{"manifest":"metadata: ` + strings.Repeat("x", 10_000) + `"}`, "the response is larger than 8 kB"},
		"many nodes":               {`{"manifest":"metadata: [` + strings.Repeat("1,", 200) + `]"}`, "YAML that has more than 100 nodes"},
		"a large hook":             {`{"hooks":[{"events":["pre-delete"],"manifest":"` + strings.Repeat("x", 10_000) + `"}]}`, "the response is larger than 8 kB"},
		"many values":              {`{"info":{"a":[` + strings.Repeat("1,", 200) + `1]}}`, "has more than 100 values"},
		"many other hooks":         {`{"hooks":[` + strings.Repeat(`{"events":["test"],"manifest":"`+strings.Repeat("x", 1000)+`"},`, 20) + `{}]}`, ""},
		"other hooks, with values": {`{"hooks":[` + strings.Repeat(`{"events":["test"],"manifest":"a","x":[1,2,3,4,5,6,7,8,9]},`, 20) + `{}]}`, ""},
		"commas in texts":          {`{"info":{"status":"failed","notes":"` + strings.Repeat(`{a,[\",`, 200) + `"}}`, ""},
		"spaces":                   {`{"name"` + strings.Repeat(" ", 2<<20) + `:"a"}`, "the response is larger than 1024 kB"},
		"more than is read":        {`{"config":"` + strings.Repeat("x", 2<<20) + `"}`, "the response is larger than 1024 kB"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := reducedOf(t, row.text, limits)
			if row.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "the history of the Helm release: ")
			require.ErrorContains(t, err, row.says)
		})
	}
}

// A reduced revision is signed if the stored one is, and is not stored.
func TestReduce_signature(t *testing.T) {
	key := []byte(strings.Repeat("k", keyLength))
	secret := stored(t, secretName("a", 1), `{"name":"a","namespace":"ns","version":1,"info":{"status":"deployed"}}`, 1)
	secret.Labels = map[string]string{"owner": "helm", "name": "a", "version": "1", labelPrefix + "other": "x"}
	forged := secret.DeepCopy()
	forged.Name, forged.Labels["version"] = secretName("a", 2), "2"
	secret.Annotations = map[string]string{signatureAnnotation: signature(key, "ns", secret), "large": "x"}
	forged.Annotations = secret.Annotations
	history := &historySecrets{
		SecretInterface: fake.NewClientset(secret, forged).CoreV1().Secrets("ns"), ctx: t.Context(), limits: HistoryLimits{Reduces: true}, key: key,
	}
	list, err := signedSecrets{history, key, "ns", map[string]bool{}}.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	isSigned := func(s corev1.Secret) bool { return s.Labels[signedLabel] == labelTrue }
	assert.True(t, isSigned(list.Items[0]))
	assert.False(t, isSigned(list.Items[1]), "it was changed")
	assert.NotContains(t, list.Items[0].Annotations, "large")
	_, err = history.Update(t.Context(), &list.Items[0], metav1.UpdateOptions{})
	require.ErrorIs(t, err, errReduced)
}

// No API server stores a Secret with such a name, but a member may answer with one in each page.
func TestReduce_longNames(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for name, change := range map[string]func(*corev1.Secret){
		"name":             func(s *corev1.Secret) { s.Name = long },
		"namespace":        func(s *corev1.Secret) { s.Namespace = long },
		"UID":              func(s *corev1.Secret) { s.UID = types.UID(long) },
		"resource version": func(s *corev1.Secret) { s.ResourceVersion = long },
		"label":            func(s *corev1.Secret) { s.Labels[AgentLabel] = long },
	} {
		t.Run(name, func(t *testing.T) {
			secret := stored(t, secretName("a", 1), `{}`, 1)
			secret.Labels = map[string]string{"name": "a", "version": "1"}
			change(secret)
			client := fake.NewClientset()
			client.PrependReactor("list", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
				return true, &corev1.SecretList{Items: []corev1.Secret{*secret}}, nil
			})
			history := &historySecrets{SecretInterface: client.CoreV1().Secrets("ns"), ctx: t.Context(), limits: HistoryLimits{Reduces: true}}
			_, err := history.List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			assert.Empty(t, history.read)
		})
	}
}

// What is kept of the metadata counts.
func TestReduce_manySecrets(t *testing.T) {
	client, long := fake.NewClientset(), strings.Repeat("x", 63)
	for version := range 5 {
		secret := stored(t, secretName("a", version), `{}`, 1)
		secret.Labels = map[string]string{}
		for _, label := range revisionLabels {
			secret.Labels[label] = long
		}
		require.NoError(t, client.Tracker().Add(secret))
	}
	history := &historySecrets{SecretInterface: client.CoreV1().Secrets("ns"), ctx: t.Context(), limits: HistoryLimits{
		Reduces: true, ResponseLimits: transport.ResponseLimits{Bytes: 7 * secretSize},
	}}
	_, err := history.List(t.Context(), metav1.ListOptions{})
	var tooLarge *transport.TooLargeError
	require.ErrorAs(t, err, &tooLarge)
}

func TestReduce_contextEnds(t *testing.T) {
	why := errors.New("the call has ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	secret := stored(t, secretName("a", 1), `{"name":"a"}`, 1)
	_, err := (&historySecrets{ctx: ctx, limits: HistoryLimits{Reduces: true}}).reduce(&historySize{}, secret)
	require.ErrorIs(t, err, why)
}

// A member may serve each of the kinds that its histories name.
func TestKindLookup_forgets(t *testing.T) {
	kinds := &kindLookup{known: map[schema.GroupVersionKind]*meta.RESTMapping{}, unasked: 7}
	for i := range knownKindsMax {
		kinds.known[schema.GroupVersionKind{Kind: fmt.Sprint(i)}] = &meta.RESTMapping{}
	}
	kinds.Reset()
	assert.Len(t, kinds.known, knownKindsMax)
	kinds.known[schema.GroupVersionKind{Kind: "one more"}] = &meta.RESTMapping{}
	kinds.Reset()
	assert.Empty(t, kinds.known)
	assert.Zero(t, kinds.unasked)
}

package crds_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/crds"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

func TestEnsure(t *testing.T) {
	sample.Long(t)
	client := served(t).ApiextensionsV1().CustomResourceDefinitions()
	objects, err := crds.Objects()
	require.NoError(t, err)

	before, err := client.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Len(t, before.Items, len(objects))

	_, err = client.Patch(t.Context(), "contents.fleet.cattle.io", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":"Helm"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	clustersHaveStatus, err := crds.Ensure(t.Context(), extensions(t))
	require.NoError(t, err)
	assert.True(t, clustersHaveStatus)

	after, err := client.Get(t.Context(), "contents.fleet.cattle.io", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "Helm", after.Labels["app.kubernetes.io/managed-by"])
	assert.EqualValues(t, 1, after.Generation)
}

func TestEnsureErrorNamesTheDefinition(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err := crds.Ensure(ctx, extensions(t))
	require.ErrorIs(t, err, context.Canceled)
	assert.ErrorContains(t, err, ".fleet.cattle.io")
}

func TestTokenTTL(t *testing.T) {
	const message = "ttl must be '0' or a Go duration such as '240h' or '30m'; units d and w are not known"
	tests := []struct {
		ttl     any
		refusal string
	}{
		{ttl: nil},
		{ttl: "0"},
		{ttl: "0s"},
		{ttl: "240h"},
		{ttl: "240h0m0s"},
		{ttl: "1h30m"},
		{ttl: "1.5h"},
		{ttl: "500ms"},
		{ttl: "3µs"},
		{ttl: "3μs"},
		{ttl: "2562047h"},
		{ttl: "", refusal: "should be at least 1 chars long"},
		{ttl: strings.Repeat("1", 32) + "h", refusal: "may not be more than 32"},
		{ttl: "1d", refusal: message},
		{ttl: "1w", refusal: message},
		{ttl: "-1h", refusal: message},
		{ttl: "+1h", refusal: message},
		{ttl: "1", refusal: message},
		{ttl: "00", refusal: message},
		{ttl: "h", refusal: message},
		{ttl: "1h ", refusal: message},
		{ttl: "1h\n", refusal: message},
		{ttl: "soon", refusal: message},
		{ttl: "2562047h1m", refusal: message},
		{ttl: "2562048h", refusal: "ttl"},
		{ttl: "99999999999999999999h", refusal: "ttl"},
		{ttl: int64(3600), refusal: "must be of type string"},
	}
	client := resource(t, "clusterregistrationtokens")
	for _, test := range tests {
		token := object("ClusterRegistrationToken", map[string]any{"ttl": test.ttl})
		_, err := client.Create(t.Context(), token, metav1.CreateOptions{})
		if test.refusal == "" {
			require.NoError(t, err, "ttl %q", test.ttl)
			continue
		}
		assert.True(t, apierrors.IsInvalid(err), "ttl %q: %v", test.ttl, err)
		assert.ErrorContains(t, err, test.refusal, "ttl %q", test.ttl)
	}
}

func TestRequestIsImmutable(t *testing.T) {
	const message = "a ClusterRegistration cannot be changed; create a new one"
	full := map[string]any{"clientID": "a", "clientRandom": "b", "clusterLabels": map[string]any{"c": "d"}}
	nulls := map[string]any{"clientID": nil, "clientRandom": nil, "clusterLabels": nil}
	tests := []struct {
		name    string
		spec    map[string]any
		patch   string
		refused bool
	}{
		{"another client ID", full, `{"spec":{"clientID":"x"}}`, true},
		{"another random string", full, `{"spec":{"clientRandom":"x"}}`, true},
		{"another label", full, `{"spec":{"clusterLabels":{"x":"y"}}}`, true},
		{"a label less", full, `{"spec":{"clusterLabels":{"c":null}}}`, true},
		{"no client ID", full, `{"spec":{"clientID":null}}`, true},
		{"no labels", full, `{"spec":{"clusterLabels":null}}`, true},
		{"a first client ID", map[string]any{}, `{"spec":{"clientID":"x"}}`, true},
		{"a first client ID instead of null", nulls, `{"spec":{"clientID":"x"}}`, true},
		{"no spec", full, `{"spec":null}`, true},
		{"the same again", full, `{"spec":{"clientID":"a"}}`, false},
		{"null written as nothing", nulls, `{"spec":{"clientID":null,"clientRandom":null,"clusterLabels":null}}`, false},
		{"an empty string instead of null", nulls, `{"spec":{"clientID":""}}`, false},
		{"a label of the object itself", full, `{"metadata":{"labels":{"x":"y"}}}`, false},
	}
	client := resource(t, "clusterregistrations")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			created, err := client.Create(t.Context(), object("ClusterRegistration", test.spec), metav1.CreateOptions{})
			require.NoError(t, err)

			_, err = client.Patch(t.Context(), created.GetName(), types.MergePatchType, []byte(test.patch), metav1.PatchOptions{})
			if !test.refused {
				require.NoError(t, err)
				return
			}
			require.True(t, apierrors.IsInvalid(err), "%v", err)
			if test.patch == `{"spec":null}` { // otherwise the next update could set another one
				assert.ErrorContains(t, err, "spec: Required value")
				return
			}
			assert.ErrorContains(t, err, message)
		})
	}
}

func TestRequestStatusMayChange(t *testing.T) {
	client := resource(t, "clusterregistrations")
	created, err := client.Create(t.Context(), object("ClusterRegistration", map[string]any{"clientID": "a"}), metav1.CreateOptions{})
	require.NoError(t, err)

	created.Object["status"] = map[string]any{"granted": true, "clusterName": "c"}
	updated, err := client.UpdateStatus(t.Context(), created, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, map[string]any{"granted": true, "clusterName": "c"}, updated.Object["status"])
}

// An agent of Fleet sends its heartbeats as JSON patches that add to the status. Its hub may not have written one yet.
func TestClusterHasStatus(t *testing.T) {
	client := resource(t, "clusters")
	created, err := client.Create(t.Context(), object("Cluster", map[string]any{}), metav1.CreateOptions{})
	require.NoError(t, err)
	patch := []byte(`[{"op":"add","path":"/status/agent","value":{"namespace":"cattle-fleet-system"}}]`)
	patched, err := client.Patch(t.Context(), created.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	assert.Equal(t, map[string]any{"agent": map[string]any{"namespace": "cattle-fleet-system"}}, patched.Object["status"])
}

func TestRequestClientIDLength(t *testing.T) {
	client := resource(t, "clusterregistrations")
	for _, field := range []string{"clientID", "clientRandom"} {
		spec := map[string]any{field: strings.Repeat("x", 4096)}
		_, err := client.Create(t.Context(), object("ClusterRegistration", spec), metav1.CreateOptions{})
		require.NoError(t, err)

		spec[field] = strings.Repeat("x", 10_000)
		_, err = client.Create(t.Context(), object("ClusterRegistration", spec), metav1.CreateOptions{})
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		assert.ErrorContains(t, err, "spec."+field+": Too long: may not be more than 4096")
	}
}

func TestEmptyPullSecretsAreKept(t *testing.T) {
	cluster := object("Cluster", map[string]any{"agentPullSecrets": []any{}})
	created, err := resource(t, "clusters").Create(t.Context(), cluster, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Equal(t, map[string]any{"agentPullSecrets": []any{}}, created.Object["spec"])
}

// The API server renders the columns that kubectl shows.
func TestPrintedColumns(t *testing.T) {
	condition := func(kind, status, reason string) any {
		return map[string]any{"type": kind, "status": status, "reason": reason}
	}
	ago := time.Now().Add(-2 * time.Hour).UTC().Format(time.RFC3339)
	for _, row := range []struct {
		name, kind, plural string
		status             map[string]any
		want               map[string]any
	}{
		{
			"a healthy Cluster has no reason", "Cluster", "clusters",
			map[string]any{"agent": map[string]any{"lastSeen": ago}, "display": map[string]any{"readyBundles": "1/1"}, "conditions": []any{
				condition("Registered", "True", "Registered"), condition("Connected", "True", "Connected"),
			}},
			map[string]any{"Registered": "True", "Connected": "True", "Bundles-Ready": "1/1", "Last-Seen": "120m", "Reason": nil},
		},
		{
			"the first condition of a Cluster that is not True", "Cluster", "clusters",
			map[string]any{"conditions": []any{
				condition("Processed", "True", "Processed"), condition("Imported", "False", "Unreachable"),
				condition("Registered", "Unknown", "WaitingForAgent"), condition("Connected", "Unknown", "WaitingForAgent"),
			}},
			map[string]any{"Registered": "Unknown", "Connected": "Unknown", "Reason": "Unreachable", "Last-Seen": nil},
		},
		{"a Cluster without conditions", "Cluster", "clusters", nil, map[string]any{"Registered": nil, "Reason": nil}},
		{
			"a refused request", "ClusterRegistration", "clusterregistrations",
			map[string]any{"conditions": []any{condition("OriginProved", "True", "OriginProved"), condition("Granted", "False", "TokenUsedUp")}},
			map[string]any{"Reason": "TokenUsedUp"},
		},
		{
			"a token with refused requests", "ClusterRegistrationToken", "clusterregistrationtokens",
			map[string]any{"expires": "2100-01-02T03:04:05Z", "conditions": []any{
				condition("Ready", "True", "TokenReady"), condition("RequestsAccepted", "False", "ClientIDInUse"),
			}},
			map[string]any{"Ready": "True", "Reason": "ClientIDInUse", "Expires": "2100-01-02T03:04:05Z"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			client := resource(t, row.plural)
			created, err := client.Create(t.Context(), object(row.kind, map[string]any{}), metav1.CreateOptions{})
			require.NoError(t, err)
			if row.status != nil {
				created.Object["status"] = row.status
				_, err = client.UpdateStatus(t.Context(), created, metav1.UpdateOptions{})
				require.NoError(t, err)
			}
			printed := printedColumns(t, row.plural, created.GetName())
			assert.Regexp(t, `^\d+s$`, printed["Age"])
			for column, want := range row.want {
				assert.Equal(t, want, printed[column], column)
			}
		})
	}
}

// printedColumns are the cells that the API server prints for one object and kubectl shows without -o wide, by the name of the column.
func printedColumns(t *testing.T, plural, name string) map[string]any {
	t.Helper()
	body, err := extensions(t).Discovery().RESTClient().Get().
		AbsPath("/apis/fleet.cattle.io/v1alpha1/namespaces/default", plural, name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	require.NoError(t, err)
	var table metav1.Table
	require.NoError(t, json.Unmarshal(body, &table))
	require.Len(t, table.Rows, 1)
	cells := map[string]any{}
	for i, column := range table.ColumnDefinitions {
		if column.Priority == 0 {
			cells[column.Name] = table.Rows[0].Cells[i]
		}
	}
	return cells
}

func extensions(t *testing.T) clientset.Interface {
	t.Helper()
	plane := controlplane.Shared(t, "member")
	client, err := clientset.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	return client
}

// served returns a client of an API server with the definitions.
func served(t *testing.T) clientset.Interface {
	t.Helper()
	client := extensions(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	_, err := crds.Ensure(ctx, client)
	require.NoError(t, err)
	return client
}

func resource(t *testing.T, plural string) dynamic.ResourceInterface {
	t.Helper()
	return clusterScoped(t, plural).Namespace(metav1.NamespaceDefault)
}

func clusterScoped(t *testing.T, plural string) dynamic.NamespaceableResourceInterface {
	t.Helper()
	served(t)
	client, err := dynamic.NewForConfig(controlplane.Shared(t, "member").RESTConfig())
	require.NoError(t, err)
	return client.Resource(schema.GroupVersionResource{Group: "fleet.cattle.io", Version: "v1alpha1", Resource: plural})
}

func object(kind string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fleet.cattle.io/v1alpha1",
		"kind":       kind,
		"metadata":   map[string]any{"generateName": "test-"},
		"spec":       spec,
	}}
}

// goldenFiles are objects with every field set, one per kind; they are what the Go types read and write.
const goldenFiles = "../apis/fleet.cattle.io/v1alpha1/testdata"

func TestSchemaHasEveryField(t *testing.T) {
	for _, definition := range definitions(t) {
		plural := definition.Spec.Names.Plural
		t.Run(plural, func(t *testing.T) {
			client := resource(t, plural)
			if definition.Spec.Scope == "Cluster" {
				client = clusterScoped(t, plural)
			}
			golden := readGolden(t, definition.Spec.Names.Singular)

			created, err := client.Create(t.Context(), golden.DeepCopy(), metav1.CreateOptions{FieldValidation: "Strict"})
			require.NoError(t, err)
			assert.Equal(t, golden.Object["spec"], created.Object["spec"])
			assert.Equal(t, golden.Object["content"], created.Object["content"])

			created.Object["status"] = golden.Object["status"]
			updated, err := client.UpdateStatus(t.Context(), created, metav1.UpdateOptions{FieldValidation: "Strict"})
			require.NoError(t, err)
			assert.Equal(t, golden.Object["status"], updated.Object["status"])
		})
	}
}

func readGolden(t *testing.T, kind string) *unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(goldenFiles, kind+".json"))
	require.NoError(t, err)
	golden := &unstructured.Unstructured{}
	require.NoError(t, golden.UnmarshalJSON(data))
	golden.Object["metadata"] = map[string]any{"generateName": "golden-"}
	return golden
}

package inventory

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

func object(kind, namespace, name string, change ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("v1")
	o.SetKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	for _, f := range change {
		f(o)
	}
	return o
}

// kinds are those of a cluster, one of which cannot be listed.
func kinds() *fakediscovery.FakeDiscovery {
	verbs := metav1.Verbs{"get", "list"}
	return &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{Resources: []*metav1.APIResourceList{{
		GroupVersion: "v1",
		APIResources: []metav1.APIResource{
			{Name: "namespaces", Kind: "Namespace", Verbs: verbs},
			{Name: "secrets", Kind: "Secret", Namespaced: true, Verbs: verbs},
			{Name: "events", Kind: "Event", Namespaced: true, Verbs: verbs},
			{Name: "bindings", Kind: "Binding", Namespaced: true, Verbs: metav1.Verbs{"create"}},
		},
	}}}}
}

func inventoryOf(t *testing.T, objects ...runtime.Object) Inventory {
	t.Helper()
	resource := func(name string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Version: "v1", Resource: name}
	}
	client := fakedynamic.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		resource("namespaces"): "NamespaceList", resource("secrets"): "SecretList", resource("events"): "EventList",
	}, objects...)
	found, err := take(t.Context(), kinds(), client)
	require.NoError(t, err)
	return found
}

func TestTake(t *testing.T) {
	found := inventoryOf(t, object("Namespace", "", "a"), object("Secret", "a", "s"), object("Event", "a", "e"))

	require.Equal(t, "Namespace a, Secret a/s", List(found.Since(Inventory{})), "events go by themselves, bindings cannot be listed")
}

func TestSince(t *testing.T) {
	before := inventoryOf(t, object("Namespace", "", "a"))
	after := inventoryOf(t, object("Namespace", "", "a"), object("Secret", "a", "new"))

	require.Equal(t, []Thing{{"Secret", "a", "new"}}, after.Since(before))
	require.Empty(t, before.Since(after), "what is gone is not left")
}

func TestMentioning(t *testing.T) {
	found := inventoryOf(t,
		object("Secret", "a", "by-label", func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"of": "e2e-abc-1"}) }),
		object("Secret", "e2e-abc", "by-namespace"),
		object("Namespace", "", "other"))

	require.Equal(t, "Secret a/by-label, Secret e2e-abc/by-namespace", List(found.Mentioning("e2e-abc")))
}

func TestOfNamespace(t *testing.T) {
	tests := map[Thing]bool{
		{"Namespace", "", "a"}:                  true,
		{"ConfigMap", "a", "kube-root-ca.crt"}:  true,
		{"ServiceAccount", "a", "default"}:      true,
		{"ServiceAccount", "a", "fleet-agent"}:  false,
		{"ConfigMap", "a", "fleet-agent"}:       false,
		{"Deployment", "a", "default"}:          false,
		{"Secret", "a", "kube-root-ca.crt"}:     false,
		{"ClusterRole", "", "kube-root-ca.crt"}: false,
	}
	for thing, want := range tests {
		require.Equal(t, want, OfNamespace(thing), "%s", thing)
	}
}

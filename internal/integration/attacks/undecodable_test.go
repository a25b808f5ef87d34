package attacks

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// restoreSchemas waits, at the end of a test, until the API server enforces the schemas of the checkpoint again. The next test uses the same API
// server.
func restoreSchemas(t *testing.T, hub *testenv.Cluster) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		require.NoError(t, hub.Reset(ctx))
		client, err := dynamic.NewForConfig(hub.RESTConfig())
		require.NoError(t, err)
		testenv.Eventually(t, func() (bool, string) {
			for kind, spec := range map[string]map[string]any{
				"ClusterRegistrationToken": {"ttl": "30d"},
				"ClusterRegistration":      {"clientID": strings.Repeat("x", 10_000)},
				"Cluster":                  {"agentResources": map[string]any{"limits": map[string]any{"cpu": "x"}}},
			} {
				_, err := client.Resource(fleet.SchemeGroupVersion.WithResource(strings.ToLower(kind)+"s")).Namespace(metav1.NamespaceDefault).Create(ctx,
					&unstructured.Unstructured{Object: map[string]any{
						"apiVersion": fleet.SchemeGroupVersion.String(), "kind": kind, "metadata": map[string]any{"name": object}, "spec": spec,
					}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if !apierrors.IsInvalid(err) {
					return false, fmt.Sprintf("a %s is not refused yet: %v", kind, err)
				}
			}
			return true, ""
		})
	})
}

// The CustomResourceDefinitions of Fleet admit any text as the ttl of a token, and quantities in a Cluster that take minutes and gigabytes to
// decode. Such an object must not stop the hub for the others. A clientID can be longer than this project allows.
func TestUndecodable(t *testing.T) {
	sample.Long(t)
	hub := testenv.BorrowedCluster(t, "hub")
	restoreSchemas(t, hub)
	hub.Configure(t, hub.Reachable())
	wire := &testenv.Recorder{}
	running := hub.Hub(t, wire.Wrap)
	ns, ours := hub.Namespace(t), hub.Namespace(t)
	client, err := dynamic.NewForConfig(hub.RESTConfig())
	require.NoError(t, err)
	tokens := client.Resource(fleet.SchemeGroupVersion.WithResource("clusterregistrationtokens")).Namespace(ns)
	create := func(name string, spec map[string]any) error {
		_, err := tokens.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": fleet.SchemeGroupVersion.String(), "kind": "ClusterRegistrationToken", "metadata": map[string]any{"name": name}, "spec": spec,
		}}, metav1.CreateOptions{})
		return err
	}
	loosen(t, hub, "clusterregistrationtokens", "usageLimit", "format")
	loosen(t, hub, "clusterregistrationtokens", "ttl", "x-kubernetes-validations", "minLength", "maxLength")
	loosen(t, hub, "clusters", "agentResources", "properties/limits/additionalProperties/pattern")
	values := hub.Token(t, ns, "spoiled", fleet.ClusterRegistrationTokenSpec{})
	request := &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Name: object, Labels: map[string]string{fleet.RegistrationTokenLabel: values.TokenName}},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: strings.Repeat("x", 10_000), ClientRandom: "r"},
	}
	_, err = hub.Fleet.ClusterRegistrations(ns).Create(t.Context(), request, metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, "clientID")
	request.Spec.ClientID = strings.Repeat("é", 4000) // the definitions and the admission policy count characters, the hub counts bytes
	testenv.Create(t, hub.Fleet.ClusterRegistrations(ns).Create, request)
	hub.WaitCondition(t, testenv.KindRequest, ns, object, fleet.ConditionGranted, "False ClientIDTooLong")
	testenv.Eventually(t, func() (bool, string) {
		return hub.EventCount(t, ns, object, fleet.ReasonClientIDTooLong) == 1, "not one event"
	})
	testenv.Eventually(t, func() (bool, string) { // the new schema takes effect a moment later
		err := create(object, map[string]any{"ttl": "30d"})
		return err == nil, "the looser schema has no effect yet"
	})
	testenv.Eventually(t, func() (bool, string) {
		_, err := client.Resource(fleet.SchemeGroupVersion.WithResource("clusters")).Namespace(ns).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": fleet.SchemeGroupVersion.String(), "kind": "Cluster", "metadata": map[string]any{"name": object},
			"spec": map[string]any{"agentResources": map[string]any{"limits": map[string]any{"cpu": "1.5e-999999999"}}},
		}}, metav1.CreateOptions{})
		return err == nil, "the looser schema has no effect yet"
	})
	testenv.Eventually(t, func() (bool, string) {
		return create("large", map[string]any{"usageLimit": int64(1) << 40}) == nil, "the looser schema has no effect yet"
	})
	testenv.Merge(t, tokens.Patch, "spoiled", `{"spec":{"ttl":"soon"}}`)

	requireInert := func(t *testing.T) {
		message := hub.WaitCondition(t, testenv.KindToken, ns, "large", fleet.ConditionReady, "False TokenInvalid")
		assert.Contains(t, message, "spec.usageLimit cannot be decoded")
		for name, ttl := range map[string]string{object: "30d", "spoiled": "soon"} {
			message := hub.WaitCondition(t, testenv.KindToken, ns, name, fleet.ConditionReady, "False TokenInvalid")
			assert.Contains(t, message, "spec.ttl cannot be decoded")
			raw, err := tokens.Get(t.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			got, _, err := unstructured.NestedString(raw.Object, "spec", "ttl")
			require.NoError(t, err)
			assert.Equal(t, ttl, got)
		}
	}
	requireInert(t)
	hub.ClusterCondition(t, ns, object, fleet.ConditionProcessed, "True")
	testenv.RequireUnauthorized(t, hub, values.Token)
	other := hub.Token(t, ours, "while-it-runs", fleet.ClusterRegistrationTokenSpec{})
	hub.Granted(t, other, hub.Request(t, other, fleet.ClusterRegistrationSpec{ClientID: "a", ClientRandom: "a"}))
	wire.RequireQuiet(t, 20, "/namespaces/"+ns+"/")
	clusters := testenv.List(t, hub.Fleet.Clusters(ns).List, metav1.ListOptions{})
	assert.Len(t, clusters.Items, 1, "none for the request whose clientID is too long")

	running.Stop(t)
	hub.Hub(t)
	other = hub.Token(t, ours, "after-a-start", fleet.ClusterRegistrationTokenSpec{})
	hub.Granted(t, other, hub.Request(t, other, fleet.ClusterRegistrationSpec{ClientID: "b", ClientRandom: "b"}))
	requireInert(t)

	testenv.Merge(t, tokens.Patch, object, `{"spec":{"ttl":"720h"}}`)
	hub.WaitCondition(t, testenv.KindToken, ns, object, fleet.ConditionReady, "True TokenReady")
	corrected := hub.Values(t, ns, object)
	hub.Granted(t, corrected, hub.Request(t, corrected, fleet.ClusterRegistrationSpec{ClientID: "c", ClientRandom: "c"}))
}

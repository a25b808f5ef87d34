package bootstrap

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"strings"
	"testing"

	wranglerapply "github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
)

// cluster returns Cluster local as the API server has it. record is the annotation in which wrangler stores what it applied last; it is empty if a
// person created the Cluster.
func cluster(namespace, record string, labelled map[string]any, spec map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster",
		"metadata": map[string]any{"namespace": namespace, "name": "local", "uid": "uid", "labels": labelled},
		"spec":     spec, "status": map[string]any{"namespace": "cluster-fleet-local-local"},
	}}
	if record != "" {
		set, annotations, _ := wranglerapply.GetLabelsAndAnnotations(setID, nil)
		annotations[wranglerapply.LabelApplied] = record
		object.SetLabels(labels.Merge(object.GetLabels(), set))
		object.SetAnnotations(annotations)
	}
	return object
}

// packed returns a record in the form in which wrangler stores it.
func packed(t *testing.T, record string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(record))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return base64.RawStdEncoding.EncodeToString(b.Bytes())
}

func newDynamic(objects ...runtime.Object) *dynamicfake.FakeDynamicClient {
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{clusters: "ClusterList", clusterGroups: "ClusterGroupList"}, objects...)
}

func TestApply(t *testing.T) {
	const record = `{"metadata":{"creationTimestamp":null,"labels":{"name":"local","env":"lab","old":"x"}},` +
		`"spec":{"kubeConfigSecret":"local-cluster","agentNamespace":"before"},"status":{"agent":{}}}`
	bootstrap := config.Bootstrap{Namespace: "fleet-local", ClusterLabels: map[string]string{"env": "prod", "name": "ignored"}}
	for title, existing := range map[string]*unstructured.Unstructured{
		"there is none": nil,
		"of an earlier configuration": cluster("fleet-local", record,
			map[string]any{"name": "local", "env": "lab", "old": "x"}, map[string]any{"kubeConfigSecret": "local-cluster", "agentNamespace": "before"}),
		"of Fleet's hub": cluster("fleet-local", packed(t, record),
			map[string]any{"name": "local", "env": "lab", "old": "x"}, map[string]any{"kubeConfigSecret": "local-cluster", "agentNamespace": "before"}),
		"somebody removed what is wanted": cluster("fleet-local", record, map[string]any{}, map[string]any{}),
		"the record cannot be read": cluster("fleet-local", "H4sI",
			map[string]any{"name": "other"}, map[string]any{"kubeConfigSecret": "other"}),
	} {
		t.Run(title, func(t *testing.T) {
			h, _ := newHandler()
			client := newDynamic()
			if existing != nil {
				for key, value := range map[string]string{"theirs": "stays", "management.cattle.io/cluster-name": "local"} {
					require.NoError(t, unstructured.SetNestedField(existing.Object, value, "metadata", "labels", key))
				}
				require.NoError(t, unstructured.SetNestedField(existing.Object, "id", "spec", "clientID"))
				client = newDynamic(existing)
			}
			ensure := func() *unstructured.Unstructured {
				wanted, err := h.cluster(t.Context(), bootstrap)
				require.NoError(t, err)
				client.ClearActions()
				require.NoError(t, apply(t.Context(), client.Resource(clusters).Namespace("fleet-local"), wanted))
				latest, err := client.Tracker().Get(clusters, "fleet-local", "local")
				require.NoError(t, err)
				return latest.(*unstructured.Unstructured)
			}
			latest := ensure()
			wantLabels := map[string]string{"name": "local", "env": "prod", "objectset.rio.cattle.io/hash": latest.GetLabels()["objectset.rio.cattle.io/hash"]}
			wantSpec := map[string]any{"kubeConfigSecret": "local-cluster"}
			if existing != nil {
				wantLabels["theirs"], wantLabels["management.cattle.io/cluster-name"], wantSpec["clientID"] = "stays", "local", "id"
				assert.Equal(t, existing.Object["status"], latest.Object["status"])
			}
			assert.Equal(t, wantLabels, latest.GetLabels())
			assert.Equal(t, wantSpec, latest.Object["spec"])
			assert.Equal(t, "fleet-bootstrap", latest.GetAnnotations()["objectset.rio.cattle.io/id"])

			ensure()
			assert.Len(t, client.Actions(), 1, "the second time it only reads")
		})
	}
	t.Run("of somebody else", func(t *testing.T) {
		h, _ := newHandler()
		wanted, err := h.cluster(t.Context(), bootstrap)
		require.NoError(t, err)
		client := newDynamic(cluster("fleet-local", "", nil, map[string]any{}))
		err = apply(t.Context(), client.Resource(clusters).Namespace("fleet-local"), wanted)
		foreign := new(desiredset.ForeignError)
		require.ErrorAs(t, err, &foreign)
		assert.Equal(t, &desiredset.ForeignError{Kind: "Cluster", Namespace: "fleet-local", Name: "local"}, foreign)
		assert.Len(t, client.Actions(), 1)
	})
}

func TestLastApplied_large(t *testing.T) {
	record := `{"metadata":{"labels":{"a":"b"}},"spec":{"a":"` + strings.Repeat("x", 2<<20) + `"}}`
	assert.JSONEq(t, `{"metadata":{}}`, string(lastApplied(cluster("fleet-local", packed(t, record), nil, nil))))
}

func TestDeleteMoved(t *testing.T) {
	moved, current := cluster("elsewhere", "{}", nil, nil), cluster("fleet-local", "{}", nil, nil)
	foreign, labelled, renamed := cluster("somewhere", "", nil, nil), cluster("labelled", "{}", nil, nil), cluster("renamed", "{}", nil, nil)
	labelled.SetAnnotations(nil)
	renamed.SetName("production")
	h, _ := newHandler()
	h.cached = map[schema.GroupVersionResource]cache.Store{clusters: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	client := newDynamic(moved, current, foreign, labelled, renamed)
	for _, c := range []*unstructured.Unstructured{moved, current, foreign, labelled, renamed} {
		require.NoError(t, h.cached[clusters].Add(c))
	}
	for range 2 { // the second time, the cache still shows it
		require.NoError(t, h.deleteMoved(t.Context(), client, "fleet-local"))
	}
	left, err := client.Resource(clusters).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var namespaces []string
	for _, c := range left.Items {
		namespaces = append(namespaces, c.GetNamespace())
	}
	assert.ElementsMatch(t, []string{"fleet-local", "somewhere", "labelled", "renamed"}, namespaces)
}

func TestLocalClusterToleratesWhatTheHubTolerates(t *testing.T) {
	h, client := newHandler()
	tolerations := []corev1.Toleration{{Key: "node-role.kubernetes.io/control-plane"}}
	own := hubDeployment(tolerations)
	_, err := client.AppsV1().Deployments(system).Create(t.Context(), own, metav1.CreateOptions{})
	require.NoError(t, err)
	wanted, err := h.cluster(t.Context(), config.Bootstrap{Namespace: "fleet-local"})
	require.NoError(t, err)
	assert.Equal(t, tolerations, wanted.Spec.AgentTolerations)
}

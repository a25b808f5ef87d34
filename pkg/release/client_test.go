package release

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/client-go/rest"
)

// An embedding program may use Helm for itself, under a name of its own.
func TestClient_fieldManager(t *testing.T) {
	before := kube.ManagedFieldsManager
	t.Cleanup(func() { kube.ManagedFieldsManager = before })
	kube.ManagedFieldsManager = "embedder"

	var mu sync.Mutex
	writers := map[string][]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case req.URL.Path == "/api":
			_, _ = w.Write([]byte(`{"kind":"APIVersions","versions":["v1"]}`))
		case req.URL.Path == "/apis":
			_, _ = w.Write([]byte(`{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`))
		case req.URL.Path == "/api/v1":
			_, _ = w.Write([]byte(`{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"configmaps","kind":"ConfigMap","namespaced":true}]}`))
		case req.Method == http.MethodGet && req.URL.Query().Get("labelSelector") != "":
			_, _ = w.Write([]byte(`{"kind":"SecretList","apiVersion":"v1","items":[]}`))
		case req.Method == http.MethodGet && req.URL.Path == "/api/v1/namespaces/ns":
			_, _ = w.Write([]byte(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"ns"}}`))
		case req.Method == http.MethodGet:
			http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, http.StatusNotFound)
		default:
			mu.Lock()
			writers[req.Method+" "+req.URL.Path] = req.URL.Query()["fieldManager"]
			mu.Unlock()
			_, _ = w.Write([]byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"namespace":"ns","name":"a"}}`))
		}
	}))
	defer server.Close()

	client, err := New(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	r := Request{Namespace: "ns", Name: "app", Resources: files("a.yaml"), Labels: owner.LabelsFor("app", "one")}
	r.Resources[0].Content = configMap("a", "k", "v")
	_, err = client.Deploy(t.Context(), r)
	require.NoError(t, err)

	assert.Equal(t, "embedder", kube.ManagedFieldsManager, "the variable of the process is left alone")
	assert.Equal(t, []string{"fleetagent"}, writers["PATCH /api/v1/namespaces/ns/configmaps/a"], "%v", writers)
	for request, managers := range writers {
		assert.NotContains(t, managers, "embedder", request)
	}
}

package leaks

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/muster-fleet/muster/internal/testenv"
)

// requireNoneInObjects searches all objects of all kinds on a cluster, including metadata and managedFields, but not the data of Secrets.
func (v *vault) requireNoneInObjects(t *testing.T, name string, c *testenv.Cluster) {
	t.Helper()
	client, err := dynamic.NewForConfig(c.RESTConfig())
	require.NoError(t, err)
	kinds := map[string]bool{}
	for _, resource := range listable(t, c) {
		list, err := client.Resource(resource).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err, "%s", resource)
		for _, object := range list.Items {
			kinds[object.GetKind()] = true
			if object.GetKind() == "Secret" {
				unstructured.RemoveNestedField(object.Object, "data")
			}
			text, err := json.Marshal(object.Object)
			require.NoError(t, err)
			for _, found := range v.shows(append(text, unpacked(object.Object)...)) {
				t.Errorf("%s %s/%s on the %s contains a secret of %s", object.GetKind(), object.GetNamespace(), object.GetName(), name, found)
			}
		}
	}
	for _, kind := range []string{"Secret", "ConfigMap", "Event", "Deployment", "ServiceAccount", "Lease"} {
		assert.True(t, kinds[kind], "no %s on the %s was searched", kind, name)
	}
}

func listable(t *testing.T, c *testenv.Cluster) (all []schema.GroupVersionResource) {
	t.Helper()
	lists, err := c.Kubernetes.Discovery().ServerPreferredResources()
	require.NoError(t, err)
	found, err := discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}}, lists))
	require.NoError(t, err)
	for resource := range found {
		all = append(all, resource)
	}
	return all
}

// unpacked is the decoded content of the strings of an object, such as annotations of desired sets and Contents.
func unpacked(value any) (all []byte) {
	switch value := value.(type) {
	case map[string]any:
		for _, inner := range value {
			all = append(all, unpacked(inner)...)
		}
	case []any:
		for _, inner := range value {
			all = append(all, unpacked(inner)...)
		}
	case string:
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding} {
			if data, err := encoding.DecodeString(value); err == nil {
				all = append(append(all, data...), gunzipped(data)...)
			}
		}
	}
	return all
}

func gunzipped(data []byte) []byte {
	reader, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil
	}
	plain, _ := io.ReadAll(reader)
	return plain
}

// requireNoneInLogs searches the logs of all pods of a cluster. The pods must log at the highest level, which logs every request.
func (v *vault) requireNoneInLogs(t *testing.T, name, folder string) {
	t.Helper()
	text := testenv.PodLogs(t, folder)
	assert.Contains(t, text, `"Request" verb=`, "the logs on the %s are not of the highest level", name)
	for line := range strings.Lines(text) {
		for _, found := range v.shows([]byte(line)) {
			t.Errorf("a log on the %s contains a secret of %s: %.200s", name, found, line)
		}
	}
}

var served = regexp.MustCompile(`Serving [\w ]+ at (http://127\.0\.0\.1:\d+)`)

// requireNoneServed reads the pages that the pods serve without authentication.
func (v *vault) requireNoneServed(t *testing.T, folder string) {
	t.Helper()
	addresses := served.FindAllStringSubmatch(testenv.PodLogs(t, folder), -1)
	require.NotEmpty(t, addresses)
	for _, address := range addresses {
		for _, path := range []string{"/metrics", "/healthz", "/readyz?verbose"} {
			answer, err := http.Get(address[1] + path) //nolint:noctx // it is here or not
			if err != nil {
				continue // a pod that was replaced
			}
			page, err := io.ReadAll(answer.Body)
			require.NoError(t, errors.Join(err, answer.Body.Close()))
			assert.Empty(t, v.shows(page), "%s%s", address[1], path)
		}
	}
}

package charts_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/sample"
)

const systemNamespace = "cattle-fleet-system"

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// warnings are the warnings in the answers of an API server.
type warnings struct {
	mutex sync.Mutex
	texts []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.texts = append(w.texts, text)
}

// A dry run checks everything but the storage: admission, validation and field names.
func TestAPIServerAcceptsEveryObject(t *testing.T) {
	sample.Long(t)
	plane := controlplane.Shared(t, "member")
	ensureNamespace(t, plane.RESTConfig())
	forEachValuesFile(t, func(t *testing.T, chart, file string) {
		said := dryRun(t, plane.RESTConfig(), chart, readValues(t, file))
		assert.Empty(t, said.texts)
	})
}

// The pods meet the restricted Pod Security Standard, unless the values ask for something that it forbids.
func TestPodsKeepToTheRestrictedStandard(t *testing.T) {
	plane := controlplane.Shared(t, "member")
	ensureNamespace(t, plane.RESTConfig())
	label(t, plane.RESTConfig(), `"restricted"`)
	defer label(t, plane.RESTConfig(), "null")
	for _, file := range []string{"testdata/fleet/full.values.yaml", "testdata/fleet-agent/hostnetwork.values.yaml"} {
		require.Eventually(t, func() bool { return len(dryRun(t, plane.RESTConfig(), chartOf(file), readValues(t, file)).texts) > 0 },
			patience, poll, "%s: the standard is not enforced yet", file)
	}
	for _, file := range []string{
		"testdata/fleet/default.values.yaml", "testdata/fleet/replicas.values.yaml", "testdata/fleet/rancher.values.yaml",
		"testdata/fleet-agent/full.values.yaml", "testdata/fleet-agent/minimal.values.yaml",
	} {
		assert.Empty(t, dryRun(t, plane.RESTConfig(), chartOf(file), readValues(t, file)).texts, file)
	}
}

func dryRun(t *testing.T, config *rest.Config, chart string, values map[string]any) *warnings {
	t.Helper()
	said := &warnings{}
	listening := rest.CopyConfig(config)
	listening.WarningHandler = said
	client, err := dynamic.NewForConfig(listening)
	require.NoError(t, err)
	rendered, err := charts.Render(chart, release(chart), values)
	require.NoError(t, err)
	for _, object := range objectsOf(t, rendered) {
		if object.GroupVersionKind().Group == "monitoring.coreos.com" {
			continue // the kinds of the Prometheus Operator, which this API server does not have; hack/alerts evaluates the rules
		}
		data, err := json.Marshal(object)
		require.NoError(t, err)
		force := true
		_, err = resourceOf(client, object).Patch(t.Context(), object.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{
			DryRun: []string{metav1.DryRunAll}, FieldManager: "helm", Force: &force, FieldValidation: metav1.FieldValidationStrict,
		})
		assert.NoError(t, err, "%s %s", object.GetKind(), object.GetName())
	}
	return said
}

func resourceOf(client dynamic.Interface, object *unstructured.Unstructured) dynamic.ResourceInterface {
	resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	if object.GetNamespace() == "" {
		return client.Resource(resource)
	}
	return client.Resource(resource).Namespace(object.GetNamespace())
}

func objectsOf(t *testing.T, rendered map[string]string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	reader := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(join(rendered))))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		require.NoError(t, err)
		object := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal(document, &object.Object))
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

func ensureNamespace(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	_, err = client.CoreV1().Namespaces().Create(context.Background(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
}

// label sets the standard for pods in the namespace, as JSON.
func label(t *testing.T, config *rest.Config, standard string) {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":%[1]s,"pod-security.kubernetes.io/warn":%[1]s}}}`, standard)
	_, err = client.CoreV1().Namespaces().Patch(context.Background(), systemNamespace, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
}

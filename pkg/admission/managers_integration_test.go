package admission_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// The API server stores the managers of an object's fields with the object: a list without a limit, which each writer can extend.
func TestManagedFieldsOfAgents(t *testing.T) {
	sample.Long(t)
	s := sceneInForce(t)
	s.cluster("c")
	who, namespace := s.agent("c"), registration.ClusterNamespace(s.namespace, "c")
	s.deployment("c")
	lease := s.account(namespace, "renews", rule("coordination.k8s.io", "leases", "get", "patch"))
	_, err := s.admin.kubernetes.CoordinationV1().Leases(namespace).Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "renews"}}, metav1.CreateOptions{})
	require.NoError(t, err)

	for _, row := range []struct {
		who         user
		resource    schema.GroupVersionResource
		kind        string
		namespace   string
		name        string
		subresource []string
		fields      string
	}{
		{who, fleet.SchemeGroupVersion.WithResource("clusters"), "Cluster", s.namespace, "c", []string{"status"}, `"status":{"agent":{"namespace":"x"}}`},
		{who, fleet.SchemeGroupVersion.WithResource("bundledeployments"), "BundleDeployment", namespace, "b", []string{"status"}, `"status":{"release":"x"}`},
		{lease, coordinationv1.SchemeGroupVersion.WithResource("leases"), "Lease", namespace, "renews", nil, `"spec":{"holderIdentity":"x"}`},
	} {
		t.Run(row.kind, func(t *testing.T) {
			client := row.who.dynamic.Resource(row.resource).Namespace(row.namespace)
			managers := func() int {
				found, err := s.admin.dynamic.Resource(row.resource).Namespace(row.namespace).Get(t.Context(), row.name, metav1.GetOptions{})
				require.NoError(t, err)
				return len(found.GetManagedFields())
			}
			write := func(fields string) error {
				_, err := client.Patch(t.Context(), row.name, types.MergePatchType, []byte("{"+fields+"}"), metav1.PatchOptions{}, row.subresource...)
				return err
			}
			require.NoError(t, write(row.fields))
			apply := &unstructured.Unstructured{}
			require.NoError(t, json.Unmarshal([]byte(fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q},%s}`,
				row.resource.GroupVersion(), row.kind, row.name, row.fields)), &apply.Object))
			var errApply error
			for n := range 40 {
				options := metav1.ApplyOptions{FieldManager: fmt.Sprint("manager-", n)}
				if _, errApply = client.Apply(t.Context(), row.name, apply, options, row.subresource...); errApply != nil {
					break
				}
			}
			requireRefused(t, errApply, "at most 20 managers")
			assert.LessOrEqual(t, managers(), 20)
			require.NoError(t, write(strings.Replace(row.fields, `"x"`, `"y"`, 1)), "an agent goes on")
		})
	}
	t.Run("a generated name", func(t *testing.T) {
		_, err := lease.kubernetes.CoordinationV1().Leases(namespace).Patch(t.Context(), "renews", types.MergePatchType,
			[]byte(`{"metadata":{"generateName":"x"}}`), metav1.PatchOptions{})
		requireRefused(t, err, "only its report in the metadata of its Lease")
	})
	t.Run("a list of managers in a patch", func(t *testing.T) {
		leases := s.admin.kubernetes.CoordinationV1().Leases(namespace)
		renew := func(manager, fields string) error {
			_, err := lease.kubernetes.CoordinationV1().Leases(namespace).Patch(t.Context(), "renews", types.MergePatchType, []byte(fmt.Sprintf(
				`{"metadata":{"managedFields":[{"manager":%q,"operation":"Apply","apiVersion":"coordination.k8s.io/v1","fieldsType":"FieldsV1","fieldsV1":%s}]},`+
					`"spec":{"holderIdentity":%q}}`, manager, fields, manager)), metav1.PatchOptions{})
			return err
		}
		many := func(count, size int) string {
			names := make([]string, count)
			for n := range names {
				names[n] = fmt.Sprintf(`"f:%d-%s":{}`, n, strings.Repeat("x", size))
			}
			return `{"f:spec":{` + strings.Join(names, ",") + `}}`
		}
		for name, fields := range map[string]string{
			"many fields": many(5000, 20), "long fields": many(100, 1000), "deep fields": strings.Repeat(`{"f:a":`, 500) + "{}" + strings.Repeat("}", 500),
		} {
			requireRefused(t, renew(name, fields), "at most 20 managers, with fields of 65536 characters")
		}
		require.NoError(t, renew("few", many(5, 5)))
		found, err := leases.Get(t.Context(), "renews", metav1.GetOptions{})
		require.NoError(t, err)
		text, err := json.Marshal(found.ManagedFields)
		require.NoError(t, err)
		assert.Less(t, len(text), 2000)
	})
}

// The holder of a registration token writes the metadata of its requests, and the hub keeps hundreds of them.
func TestManagedFieldsOfRequests(t *testing.T) {
	sample.Long(t)
	s := sceneInForce(t)
	requests := s.importer().fleet.ClusterRegistrations(s.namespace)
	entry := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: fleet.SchemeGroupVersion.String(),
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		}
	}
	large := make([]string, 1000)
	for n := range large {
		large[n] = fmt.Sprintf(`"f:%d-%s":{}`, n, strings.Repeat("x", 1000))
	}
	var many []metav1.ManagedFieldsEntry
	for n := range 100 {
		many = append(many, entry(fmt.Sprint("manager-", n), `{"f:spec":{"f:x":{}}}`)) // of a field that the request does not have
	}
	for _, managers := range [][]metav1.ManagedFieldsEntry{{entry("x", `{"f:spec":{`+strings.Join(large, ",")+`}}`)}, many} {
		request := s.request(nil)
		request.ManagedFields = managers
		_, err := requests.Create(t.Context(), request, metav1.CreateOptions{})
		requireRefused(t, err, "at most 20 managers, with fields of 65536 characters")
	}
	request := s.request(nil)
	request.Spec.ClusterLabels = map[string]string{}
	for n := range 256 {
		request.Spec.ClusterLabels[fmt.Sprintf("example.com/label-%03d", n)] = strings.Repeat("v", 40)
	}
	_, err := requests.Create(t.Context(), request, metav1.CreateOptions{})
	require.NoError(t, err, "as many labels as a request may have")
}

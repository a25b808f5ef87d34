package rancherlike

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/testenv"
)

// looseCRD is a definition with the server's own schema, and with the labels and annotations with which Helm adopts it into the chart
// fleet-crd.
const looseCRD = `
metadata:
  name: %[2]s.fleet.cattle.io
  labels: {app.kubernetes.io/managed-by: Helm}
  annotations: {meta.helm.sh/release-name: fleet-crd, meta.helm.sh/release-namespace: cattle-fleet-system}
spec:
  group: fleet.cattle.io
  scope: Namespaced
  names: {kind: %[1]s, plural: %[2]s}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// preCreateCRDs creates the four definitions that the server needs before the charts.
func (s *Server) preCreateCRDs(t testing.TB) {
	t.Helper()
	client, err := clientset.NewForConfig(s.config)
	require.NoError(t, err)
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	for kind, plural := range map[string]string{
		"Bundle": "bundles", "Cluster": "clusters", "ClusterGroup": "clustergroups", "HelmOp": "helmops",
	} {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		require.NoError(t, yaml.UnmarshalStrict(fmt.Appendf(nil, looseCRD, kind, plural), definition))
		_, err := definitions.Create(t.Context(), definition, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			require.NoError(t, err)
		}
		testenv.EventuallyIs(t, definitions.Get, definition.Name, func(crd *apiextensionsv1.CustomResourceDefinition) (bool, string) {
			return apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established), plural + " are not served"
		})
	}
}

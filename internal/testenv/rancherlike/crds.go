package rancherlike

import (
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// preCreateCRDs creates the four definitions that the server needs before the charts, with its own schema and with the labels and annotations
// with which Helm adopts them into the chart fleet-crd.
func (s *Server) preCreateCRDs(t testing.TB) {
	t.Helper()
	client, err := clientset.NewForConfig(s.config)
	require.NoError(t, err)
	for kind, plural := range map[string]string{
		"Bundle": "bundles", "Cluster": "clusters", "ClusterGroup": "clustergroups", "HelmOp": "helmops",
	} {
		_, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), looseCRD(kind, plural), metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			require.NoError(t, err)
		}
		definitions := client.ApiextensionsV1().CustomResourceDefinitions()
		testenv.EventuallyIs(t, definitions.Get, plural+"."+fleet.SchemeGroupVersion.Group, func(crd *apiextensionsv1.CustomResourceDefinition) (bool, string) {
			return established(crd), plural + " are not served"
		})
	}
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.Established {
			return c.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}

func looseCRD(kind, plural string) *apiextensionsv1.CustomResourceDefinition {
	group := fleet.SchemeGroupVersion.Group
	anything := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name:   plural + "." + group,
			Labels: map[string]string{"app.kubernetes.io/managed-by": "Helm"},
			Annotations: map[string]string{
				"meta.helm.sh/release-name": "fleet-crd", "meta.helm.sh/release-namespace": systemNamespace,
			},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group,
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, Plural: plural},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: fleet.SchemeGroupVersion.Version, Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type:       "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": anything, "status": anything},
				}},
			}},
		},
	}
}

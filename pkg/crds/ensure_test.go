package crds

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestEnsure_clustersHaveStatus(t *testing.T) {
	for name, earlier := range map[string]bool{"definitions of this version": false, "earlier definitions": true} {
		t.Run(name, func(t *testing.T) {
			objects, err := Objects()
			require.NoError(t, err)
			var installed []runtime.Object
			for _, object := range objects {
				object.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
				if earlier {
					status := object.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
					status.Default = nil
					object.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"] = status
				}
				installed = append(installed, object)
			}
			clustersHaveStatus, err := Ensure(t.Context(), fake.NewSimpleClientset(installed...))
			require.NoError(t, err)
			assert.Equal(t, !earlier, clustersHaveStatus)
		})
	}
}

func TestLackingStatus(t *testing.T) {
	wanted, err := Objects()
	require.NoError(t, err)
	existing, err := Objects()
	require.NoError(t, err)
	for i := range wanted {
		assert.Empty(t, lackingStatus(existing[i], wanted[i]), wanted[i].Name)
		if wanted[i].Name != "clusterregistrations.fleet.cattle.io" {
			continue
		}
		status := existing[i].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
		delete(status.Properties, "conditions")
		keep := true
		status.XPreserveUnknownFields = &keep
		existing[i].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"] = status
		assert.Empty(t, lackingStatus(existing[i], wanted[i]), "the API server keeps unknown fields")
		status.XPreserveUnknownFields = nil
		existing[i].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"] = status
		assert.Equal(t, []string{"status.conditions"}, lackingStatus(existing[i], wanted[i]))
	}
}

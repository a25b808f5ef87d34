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
	earlier := func(version *apiextensionsv1.CustomResourceDefinitionVersion) {
		status := version.Schema.OpenAPIV3Schema.Properties["status"]
		status.Default = nil
		version.Schema.OpenAPIV3Schema.Properties["status"] = status
	}
	for name, change := range map[string]func(*apiextensionsv1.CustomResourceDefinitionVersion){
		"definitions of this version": nil, "earlier definitions": earlier,
		"definitions without a schema": func(version *apiextensionsv1.CustomResourceDefinitionVersion) { version.Schema = nil },
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := Objects()
			require.NoError(t, err)
			var installed []runtime.Object
			for _, object := range objects {
				object.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
				if change != nil {
					change(&object.Spec.Versions[0])
				}
				installed = append(installed, object)
			}
			clustersHaveStatus, err := Ensure(t.Context(), fake.NewSimpleClientset(installed...))
			require.NoError(t, err)
			assert.Equal(t, change == nil, clustersHaveStatus)
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

// Without these fields, the API server drops the quarantine of a Cluster and the limits of a token.
func TestLackingSpec(t *testing.T) {
	existing, err := Objects()
	require.NoError(t, err)
	for _, definition := range existing {
		lacking, err := LackingSpec(definition)
		require.NoError(t, err)
		assert.Empty(t, lacking, definition.Name)
		spec, hasSpec := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		if !hasSpec {
			continue
		}
		for _, field := range []string{"quarantined", "usageLimit", "clientIDs", "selector"} {
			delete(spec.Properties, field)
		}
		spec.XPreserveUnknownFields = nil
		definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
		lacking, err = LackingSpec(definition)
		require.NoError(t, err)
		assert.Equal(t, map[string][]string{
			LimitingKinds[0]: {"spec.clientIDs", "spec.usageLimit"}, LimitingKinds[1]: {"spec.quarantined"},
		}[definition.Name], lacking, definition.Name)
	}
}

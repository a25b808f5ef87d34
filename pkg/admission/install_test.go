package admission_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/pkg/admission"
)

func TestInstallRetriesAfterAConflict(t *testing.T) {
	wanted := objects(t, "v1")[0]
	changed := wanted.DeepCopy()
	require.NoError(t, unstructured.SetNestedField(changed.Object, "Ignore", "spec", "failurePolicy"))
	client := fake.NewSimpleDynamicClient(runtime.NewScheme(), changed)
	conflicts := 0
	client.PrependReactor("update", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflicts++
		return conflicts == 1, nil, apierrors.NewConflict(admission.Resource(wanted).GroupResource(), wanted.GetName(), nil)
	})

	require.NoError(t, admission.Install(t.Context(), client, []*unstructured.Unstructured{wanted}))
	latest, err := client.Resource(admission.Resource(wanted)).Get(t.Context(), wanted.GetName(), metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, wanted.Object["spec"], latest.Object["spec"])
	require.Equal(t, 2, conflicts)
}

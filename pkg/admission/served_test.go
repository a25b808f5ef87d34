package admission

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRemedyWhereNothingRecordsCreators(t *testing.T) {
	for version, want := range map[string]string{
		"v1.30.14":       "Kubernetes v1.30.14, serves no MutatingAdmissionPolicies: upgrade it to Kubernetes 1.36 or later",
		"v1.31.0+k3s1":   "upgrade it to Kubernetes 1.36 or later",
		"v1.33.13":       "or later, or set --feature-gates=MutatingAdmissionPolicy=true and --runtime-config=admissionregistration.k8s.io/v1alpha1=true on the API server",
		"v1.35.4":        "or later, or set --feature-gates=MutatingAdmissionPolicy=true and --runtime-config=admissionregistration.k8s.io/v1beta1=true on the API server",
		"v1.36.3+rke2r1": "it can, so remove the settings that disable them",
		"odd":            "upgrade it to Kubernetes 1.36 or later",
	} {
		t.Run(version, func(t *testing.T) {
			require.Regexp(t, regexp.QuoteMeta(want)+"( from --feature-gates .*)?$", noMutating(version))
		})
	}
}

func TestRemedyWhereThereAreNoPolicies(t *testing.T) {
	require.Contains(t, noValidating("v1.29.6"), "upgrade it to Kubernetes 1.30 or later. Until then agents may write")
	require.Contains(t, noValidating("v1.34.4"), "it can, so remove the settings that disable them")
}

// discovered is an API server that serves these kinds, by version of the group.
type discovered map[string][]string

func (d discovered) ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error) {
	kinds, found := d[strings.TrimPrefix(groupVersion, Group+"/")]
	if !found {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, groupVersion)
	}
	list := &metav1.APIResourceList{}
	for _, kind := range kinds {
		list.APIResources = append(list.APIResources, metav1.APIResource{Kind: kind})
	}
	return list, nil
}

func (d discovered) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	return nil, nil, nil
}

func (d discovered) ServerPreferredResources() ([]*metav1.APIResourceList, error) { return nil, nil }

func (d discovered) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	return nil, nil
}

func TestServedBy(t *testing.T) {
	validating := []string{KindValidating, KindValidatingBinding}
	for name, row := range map[string]struct {
		api  discovered
		want served
	}{
		"1.28":                {discovered{"v1": {}, "v1beta1": validating}, served{}},
		"1.30":                {discovered{"v1": validating}, served{validating: true}},
		"1.33 with the alpha": {discovered{"v1": validating, "v1alpha1": {KindMutating}}, served{true, "v1alpha1"}},
		"1.34 with the beta":  {discovered{"v1": validating, "v1beta1": {KindMutating}, "v1alpha1": {KindMutating}}, served{true, "v1beta1"}},
		"1.36":                {discovered{"v1": append(validating, KindMutating), "v1beta1": {KindMutating}}, served{true, "v1"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := servedBy(row.api)
			require.NoError(t, err)
			require.Equal(t, row.want, got)
		})
	}
}

package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// stored are the policies as an API server has them.
type stored map[string]*unstructured.Unstructured

func key(object *unstructured.Unstructured) string { return object.GetKind() + " " + object.GetName() }

func (s stored) get(want *unstructured.Unstructured) *unstructured.Unstructured { return s[key(want)] }

func newStored(t *testing.T) stored {
	t.Helper()
	s := stored{}
	policies, err := Objects("v1")
	require.NoError(t, err)
	for _, policy := range policies {
		policy.SetCreationTimestamp(metav1.NewTime(noon))
		policy.SetGeneration(1)
		s[key(policy)] = policy
	}
	return s
}

func (s stored) compare(t *testing.T) finding {
	t.Helper()
	wanted, err := Objects("v1")
	require.NoError(t, err)
	return compare(wanted, s.get)
}

func TestPoliciesThatAreAllThereAreRightSinceTheLastOfThemCame(t *testing.T) {
	s := newStored(t)
	s["MutatingAdmissionPolicyBinding "+CreatorPolicy].SetCreationTimestamp(metav1.NewTime(noon.Add(time.Hour)))
	s["ValidatingAdmissionPolicy "+StatusPolicy].SetCreationTimestamp(metav1.NewTime(noon.Add(2 * time.Hour)))
	found := s.compare(t)
	assert.Empty(t, found.wrong)
	assert.Empty(t, found.others)
	assert.Equal(t, noon.Add(time.Hour), found.since.UTC(), "those about agents say nothing about who creates a request")
}

func TestAPolicyThatWasOpenForAWhileIsRightSinceItsLastChange(t *testing.T) {
	s := newStored(t)
	at := func(d time.Duration) *metav1.Time { t := metav1.NewTime(noon.Add(d)); return &t }
	s["ValidatingAdmissionPolicy "+CreatorPolicy].SetManagedFields([]metav1.ManagedFieldsEntry{
		{Manager: "kubectl-edit", Time: at(time.Hour)},
		{Manager: "kube-controller-manager", Subresource: "status", Time: at(2 * time.Hour)},
		{Manager: "without-time"},
	})
	assert.Equal(t, noon.Add(time.Hour), s.compare(t).since.UTC())
}

func TestEachOfTheFourObjectsIsNeeded(t *testing.T) {
	for _, kind := range []string{KindMutating, KindMutatingBinding, KindValidating, KindValidatingBinding} {
		object := kind + " " + CreatorPolicy
		tests := map[string]struct {
			harm func(stored)
			says string
		}{
			"gone":          {func(s stored) { delete(s, object) }, object + " is missing"},
			"being deleted": {func(s stored) { s[object].SetDeletionTimestamp(&metav1.Time{Time: noon}) }, object + " is being deleted"},
			"without spec":  {func(s stored) { delete(s[object].Object, "spec") }, object + " is not as this hub knows it"},
			"odd spec":      {func(s stored) { s[object].Object["spec"] = "odd" }, object + " is not as this hub knows it"},
			"odd field": {func(s stored) {
				s[object].Object["spec"] = map[string]any{"policyName": int64(7), "failurePolicy": int64(7)}
			}, object + " is not as this hub knows it"},
		}
		for title, test := range tests {
			s := newStored(t)
			test.harm(s)
			found := s.compare(t)
			assert.Equal(t, []string{test.says}, found.wrong, title)
			assert.Contains(t, describe(found.wrong), "admissionPolicies.enabled=true")
		}
	}
}

func TestPoliciesAboutAgentsAreMissedOnTheirOwn(t *testing.T) {
	s := newStored(t)
	delete(s, "ValidatingAdmissionPolicyBinding "+TokenPolicy)
	found := s.compare(t)
	assert.Empty(t, found.wrong)
	assert.Equal(t, []string{"ValidatingAdmissionPolicyBinding fleet-agent-token is missing"}, found.others)
}

func TestAPolicyThatAppliesToLessIsAnother(t *testing.T) {
	selector := map[string]any{"matchLabels": map[string]any{"a": "b"}}
	tests := map[string]struct {
		object string
		path   []string
		value  any
	}{
		"some objects":       {KindMutating, []string{"spec", "matchConstraints", "objectSelector"}, selector},
		"some namespaces":    {KindValidating, []string{"spec", "matchConstraints", "namespaceSelector"}, selector},
		"exceptions":         {KindValidating, []string{"spec", "matchConstraints", "excludeResourceRules"}, []any{map[string]any{"resources": []any{"*"}}}},
		"some users":         {KindMutating, []string{"spec", "matchConditions"}, []any{map[string]any{"name": "x", "expression": "false"}}},
		"failures let in":    {KindValidating, []string{"spec", "failurePolicy"}, "Ignore"},
		"nothing refused":    {KindValidatingBinding, []string{"spec", "validationActions"}, []any{"Audit"}},
		"another policy":     {KindMutatingBinding, []string{"spec", "policyName"}, "another"},
		"a binding of some":  {KindMutatingBinding, []string{"spec", "matchResources"}, map[string]any{"objectSelector": selector}},
		"nothing validated":  {KindValidating, []string{"spec", "validations"}, []any{}},
		"nothing overwrites": {KindMutating, []string{"spec", "mutations"}, []any{}},
		"never again":        {KindMutating, []string{"spec", "reinvocationPolicy"}, "Never"},
	}
	for title, test := range tests {
		s := newStored(t)
		require.NoError(t, unstructured.SetNestedField(s[test.object+" "+CreatorPolicy].Object, test.value, test.path...))
		assert.Len(t, s.compare(t).wrong, 1, title)
	}
}

func TestWhatANewerAPIServerAddsChangesNothing(t *testing.T) {
	s := newStored(t)
	for _, policy := range s {
		require.NoError(t, unstructured.SetNestedField(policy.Object, "AsEver", "spec", "fieldOfTheFuture"))
		policy.SetLabels(map[string]string{"app.kubernetes.io/managed-by": "Helm"})
	}
	assert.Empty(t, s.compare(t).wrong)
	assert.Empty(t, s.compare(t).others)
}

func TestPoliciesAreTriedAgainWhenOneWasMadeAnewOrChanged(t *testing.T) {
	before := newStored(t)
	for title, change := range map[string]func(*unstructured.Unstructured){
		"made anew": func(p *unstructured.Unstructured) { p.SetUID("another") },
		"changed":   func(p *unstructured.Unstructured) { p.SetGeneration(2) },
	} {
		s := newStored(t)
		change(s[KindMutating+" "+CreatorPolicy])
		assert.NotEqual(t, before.compare(t).print, s.compare(t).print, title)
	}
	s := newStored(t)
	s[KindMutating+" "+CreatorPolicy].SetResourceVersion("of a new status")
	assert.Equal(t, before.compare(t).print, s.compare(t).print)
}

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

func (s stored) compare(t *testing.T) policyDiff {
	t.Helper()
	wanted, err := Objects("v1")
	require.NoError(t, err)
	return compare(wanted, s.get)
}

func TestCompare(t *testing.T) {
	at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: noon.Add(d)} }
	for _, row := range []struct {
		name   string
		change func(stored)
		since  time.Duration // after noon
		agents []string
	}{
		{"since the last object was created; those about agents do not count", func(s stored) {
			s[KindMutatingBinding+" "+CreatorPolicy].SetCreationTimestamp(*at(time.Hour))
			s[KindValidating+" "+StatusPolicy].SetCreationTimestamp(*at(2 * time.Hour))
		}, time.Hour, nil},
		{"since the last change; the status does not count", func(s stored) {
			s[KindValidating+" "+CreatorPolicy].SetManagedFields([]metav1.ManagedFieldsEntry{
				{Manager: "kubectl-edit", Time: at(time.Hour)},
				{Manager: "kube-controller-manager", Subresource: "status", Time: at(2 * time.Hour)},
				{Manager: "without-time"},
			})
		}, time.Hour, nil},
		{
			"a policy about agents is missing", func(s stored) { delete(s, KindValidatingBinding+" "+TokenPolicy) }, 0,
			[]string{"ValidatingAdmissionPolicyBinding fleet-agent-token is missing"},
		},
		{"fields of a newer API server, and labels of Helm", func(s stored) {
			for _, policy := range s {
				require.NoError(t, unstructured.SetNestedField(policy.Object, "AsEver", "spec", "fieldOfTheFuture"))
				policy.SetLabels(map[string]string{"app.kubernetes.io/managed-by": "Helm"})
			}
		}, 0, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newStored(t)
			row.change(s)
			found := s.compare(t)
			assert.Empty(t, found.origin)
			assert.Equal(t, row.agents, found.agents)
			assert.Equal(t, noon.Add(row.since), found.since.UTC())
		})
	}
}

func TestCompareNeedsEachObjectOfTheCreatorPolicy(t *testing.T) {
	for _, kind := range []string{KindMutating, KindMutatingBinding, KindValidating, KindValidatingBinding} {
		object := kind + " " + CreatorPolicy
		for name, row := range map[string]struct {
			damage func(stored)
			want   string
		}{
			"missing":            {func(s stored) { delete(s, object) }, " is missing"},
			"being deleted":      {func(s stored) { s[object].SetDeletionTimestamp(&metav1.Time{Time: noon}) }, " is being deleted"},
			"without a spec":     {func(s stored) { delete(s[object].Object, "spec") }, " differs from the one of this hub"},
			"a spec that is not": {func(s stored) { s[object].Object["spec"] = "odd" }, " differs from the one of this hub"},
			"fields of other types": {func(s stored) {
				s[object].Object["spec"] = map[string]any{"policyName": int64(7), "failurePolicy": int64(7)}
			}, " differs from the one of this hub"},
		} {
			s := newStored(t)
			row.damage(s)
			found := s.compare(t)
			assert.Equal(t, []string{object + row.want}, found.origin, name)
			assert.Contains(t, describe(found.origin), "admissionPolicies.enabled=true")
		}
	}
}

func TestCompareWeakenedPolicies(t *testing.T) {
	selector := map[string]any{"matchLabels": map[string]any{"a": "b"}}
	for name, row := range map[string]struct {
		kind  string
		path  []string
		value any
	}{
		"for some objects":       {KindMutating, []string{"spec", "matchConstraints", "objectSelector"}, selector},
		"for some namespaces":    {KindValidating, []string{"spec", "matchConstraints", "namespaceSelector"}, selector},
		"with exceptions":        {KindValidating, []string{"spec", "matchConstraints", "excludeResourceRules"}, []any{map[string]any{"resources": []any{"*"}}}},
		"for some users":         {KindMutating, []string{"spec", "matchConditions"}, []any{map[string]any{"name": "x", "expression": "false"}}},
		"open after failures":    {KindValidating, []string{"spec", "failurePolicy"}, "Ignore"},
		"audit only":             {KindValidatingBinding, []string{"spec", "validationActions"}, []any{"Audit"}},
		"bound to another":       {KindMutatingBinding, []string{"spec", "policyName"}, "another"},
		"bound for some objects": {KindMutatingBinding, []string{"spec", "matchResources"}, map[string]any{"objectSelector": selector}},
		"without validations":    {KindValidating, []string{"spec", "validations"}, []any{}},
		"without mutations":      {KindMutating, []string{"spec", "mutations"}, []any{}},
		"not reinvoked":          {KindMutating, []string{"spec", "reinvocationPolicy"}, "Never"},
	} {
		s := newStored(t)
		require.NoError(t, unstructured.SetNestedField(s[row.kind+" "+CreatorPolicy].Object, row.value, row.path...))
		assert.Len(t, s.compare(t).origin, 1, name)
	}
}

func TestCompareIdentity(t *testing.T) {
	for name, row := range map[string]struct {
		change  func(*unstructured.Unstructured)
		another bool
	}{
		"created again": {func(p *unstructured.Unstructured) { p.SetUID("another") }, true},
		"spec changed":  {func(p *unstructured.Unstructured) { p.SetGeneration(2) }, true},
		"a new status":  {func(p *unstructured.Unstructured) { p.SetResourceVersion("9") }, false},
	} {
		before, s := newStored(t), newStored(t)
		row.change(s[KindMutating+" "+CreatorPolicy])
		assert.Equal(t, row.another, before.compare(t).originVersion != s.compare(t).originVersion, name)
	}
}

func TestCompareInForce(t *testing.T) {
	s := newStored(t)
	all := s.compare(t).inForce
	assert.Len(t, all, 9)
	for policy, inForce := range all {
		assert.True(t, inForce, policy)
	}
	delete(s, KindValidatingBinding+" "+StatusPolicy)
	delete(s, KindMutating+" "+CreatorPolicy)
	for policy, inForce := range s.compare(t).inForce {
		missing := policy == PolicyRef{KindValidating, StatusPolicy} || policy == PolicyRef{KindMutating, CreatorPolicy}
		assert.Equal(t, !missing, inForce, policy)
	}
}

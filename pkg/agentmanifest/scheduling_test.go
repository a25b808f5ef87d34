package agentmanifest_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestScheduling_priorityClass(t *testing.T) {
	for _, s := range []*fleet.AgentSchedulingCustomization{nil, {}} {
		objects, err := agentmanifest.Scheduling("agents", s)
		require.NoError(t, err)
		assert.Empty(t, objects)
	}
	never := corev1.PreemptNever
	for _, policy := range []*corev1.PreemptionPolicy{nil, &never} {
		objects, err := agentmanifest.Scheduling("agents", &fleet.AgentSchedulingCustomization{
			PriorityClass: &fleet.PriorityClassSpec{Value: 1000, PreemptionPolicy: policy},
		})
		require.NoError(t, err)
		require.Len(t, objects, 1)
		assert.Equal(t, &schedulingv1.PriorityClass{
			TypeMeta:         metav1.TypeMeta{APIVersion: "scheduling.k8s.io/v1", Kind: "PriorityClass"},
			ObjectMeta:       metav1.ObjectMeta{Name: "fleet-agent-priority-class"},
			Value:            1000,
			Description:      "Priority class for Fleet Agent",
			PreemptionPolicy: policy,
		}, objects[0])
	}
}

func TestScheduling_priorityValue(t *testing.T) {
	for value, refused := range map[int]bool{
		0: false, -5: false, 1_000_000_000: false, math.MinInt32: false,
		1_000_000_001: true, math.MaxInt32: true, math.MinInt32 - 1: true, math.MaxInt64: true,
	} {
		objects, err := agentmanifest.Scheduling("agents", &fleet.AgentSchedulingCustomization{
			PriorityClass: &fleet.PriorityClassSpec{Value: value},
		})
		if refused {
			assert.ErrorContains(t, err, "priorityClass.value is", "%d", value)
			assert.Empty(t, objects)
			continue
		}
		require.NoError(t, err, "%d", value)
		assert.EqualValues(t, value, objects[0].(*schedulingv1.PriorityClass).Value)
	}
}

func TestScheduling_disruptionBudget(t *testing.T) {
	number := func(n int32) *intstr.IntOrString { v := intstr.FromInt32(n); return &v }
	percent := func(s string) *intstr.IntOrString { v := intstr.FromString(s); return &v }
	tests := map[string]struct {
		minAvailable, maxUnavailable string
		wantMin, wantMax             *intstr.IntOrString
	}{
		"neither":             {"", "", nil, number(0)},
		"min":                 {"1", "", number(1), nil},
		"max":                 {"", "1", nil, number(1)},
		"percent min":         {"50%", "", percent("50%"), nil},
		"percent max":         {"", "100%", nil, percent("100%")},
		"min, max 0":          {"1", "0", number(1), nil},
		"min, max 0 %":        {"1", "0%", number(1), nil},
		"max, min 0":          {"0", "1", nil, number(1)},
		"max percent, min 0":  {"0", "10%", nil, percent("10%")},
		"min 0 alone":         {"0", "", number(0), nil},
		"max 0 alone":         {"", "0", nil, number(0)},
		"both 0":              {"0", "0", nil, number(0)},
		"min is ten":          {"10", "0", number(10), nil},
		"leading zero counts": {"01", "00", number(1), nil},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			objects, err := agentmanifest.Scheduling("agents", customBudget(tt.minAvailable, tt.maxUnavailable))
			require.NoError(t, err)
			require.Len(t, objects, 1)
			assert.Equal(t, &policyv1.PodDisruptionBudget{
				TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"},
				ObjectMeta: metav1.ObjectMeta{Name: "fleet-agent-pod-disruption-budget", Namespace: "agents"},
				Spec: policyv1.PodDisruptionBudgetSpec{
					MinAvailable:   tt.wantMin,
					MaxUnavailable: tt.wantMax,
					Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "fleet-agent"}},
				},
			}, objects[0])
		})
	}
}

func TestScheduling_disruptionBudgetErrors(t *testing.T) {
	const both = `remove one or set it to "0"`
	tests := map[string]struct {
		minAvailable, maxUnavailable string
		says                         []string
	}{
		"both":                 {"1", "1", []string{both, `minAvailable "1"`, `maxUnavailable "1"`}},
		"both in percent":      {"50%", "50%", []string{both}},
		"word":                 {"some", "", []string{`podDisruptionBudget.minAvailable is "some"`, "like 50%"}},
		"negative":             {"", "-1", []string{`podDisruptionBudget.maxUnavailable is "-1"`}},
		"more than all":        {"101%", "", []string{"101%"}},
		"white space":          {" 1", "", []string{"minAvailable"}},
		"only a percent sign":  {"%", "", []string{"minAvailable"}},
		"fraction":             {"", "1.5", []string{"maxUnavailable"}},
		"more than an integer": {"99999999999", "", []string{"minAvailable"}},
		"two words":            {"a", "b", []string{"minAvailable", "maxUnavailable"}},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			s := customBudget(tt.minAvailable, tt.maxUnavailable)
			s.PriorityClass = &fleet.PriorityClassSpec{Value: 1}
			objects, err := agentmanifest.Scheduling("agents", s)
			require.Error(t, err)
			assert.Empty(t, objects)
			for _, text := range tt.says {
				assert.ErrorContains(t, err, text)
			}
		})
	}
}

func customBudget(minAvailable, maxUnavailable string) *fleet.AgentSchedulingCustomization {
	return &fleet.AgentSchedulingCustomization{
		PodDisruptionBudget: &fleet.PodDisruptionBudgetSpec{MinAvailable: minAvailable, MaxUnavailable: maxUnavailable},
	}
}

package agentmanifest

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Names of the objects of Scheduling. The pods of an agent name the PriorityClass if their Cluster asks for one.
const (
	PriorityClassName       = "fleet-agent-priority-class"
	PodDisruptionBudgetName = "fleet-agent-pod-disruption-budget"
)

// maxPriority is the highest value that Kubernetes allows to users.
const maxPriority = 1_000_000_000

const budgetField = "spec.agentSchedulingCustomization.podDisruptionBudget"

// podLimit matches a number or a percentage of pods, as the API server takes it.
var podLimit = regexp.MustCompile(`^([0-9]{1,9}|[0-9]{1,2}%|100%)$`)

// Scheduling returns the agent's PriorityClass and, in its namespace, its PodDisruptionBudget: none, one or both, according to
// the Cluster's spec.agentSchedulingCustomization. The value and the preemption policy of a PriorityClass are immutable: to
// change them it has to be deleted and created again.
func Scheduling(namespace string, s *fleet.AgentSchedulingCustomization) ([]runtime.Object, error) {
	if s == nil {
		return nil, nil
	}
	var objects []runtime.Object
	if s.PriorityClass != nil {
		class, err := priorityClass(*s.PriorityClass)
		if err != nil {
			return nil, err
		}
		objects = append(objects, class)
	}
	if s.PodDisruptionBudget != nil {
		budget, err := disruptionBudget(namespace, *s.PodDisruptionBudget)
		if err != nil {
			return nil, err
		}
		objects = append(objects, budget)
	}
	return objects, nil
}

func priorityClass(spec fleet.PriorityClassSpec) (*schedulingv1.PriorityClass, error) {
	if spec.Value > maxPriority || spec.Value < math.MinInt32 {
		return nil, fmt.Errorf("spec.agentSchedulingCustomization.priorityClass.value is %d, but Kubernetes takes %d to %d: set it within that range",
			spec.Value, math.MinInt32, maxPriority)
	}
	return &schedulingv1.PriorityClass{
		TypeMeta:         metav1.TypeMeta{APIVersion: schedulingv1.SchemeGroupVersion.String(), Kind: "PriorityClass"},
		ObjectMeta:       metav1.ObjectMeta{Name: PriorityClassName},
		Value:            int32(spec.Value),
		Description:      "Priority class for Fleet Agent",
		PreemptionPolicy: spec.DeepCopy().PreemptionPolicy,
	}, nil
}

func disruptionBudget(namespace string, spec fleet.PodDisruptionBudgetSpec) (*policyv1.PodDisruptionBudget, error) {
	minAvailable, maxUnavailable, err := budget(spec)
	if err != nil {
		return nil, err
	}
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"},
		ObjectMeta: metav1.ObjectMeta{Name: PodDisruptionBudgetName, Namespace: namespace},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable:   minAvailable,
			MaxUnavailable: maxUnavailable,
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": registration.AgentName}},
		},
	}, nil
}

// budget chooses one of the two limits, because Kubernetes takes only one. User interfaces send "0" for a limit that was not
// set. Without a limit, no pod may be evicted.
func budget(spec fleet.PodDisruptionBudgetSpec) (minAvailable, maxUnavailable *intstr.IntOrString, err error) {
	least, most := spec.MinAvailable, spec.MaxUnavailable
	if err := errors.Join(checkLimit("minAvailable", least), checkLimit("maxUnavailable", most)); err != nil {
		return nil, nil, err
	}
	switch {
	case !zero(least) && !zero(most):
		return nil, nil, fmt.Errorf("%s has minAvailable %q and maxUnavailable %q, but Kubernetes takes only one of them: remove one or set it to \"0\"",
			budgetField, least, most)
	case !zero(least), most == "" && least != "":
		return limit(least), nil, nil
	case most != "":
		return nil, limit(most), nil
	default:
		return nil, limit("0"), nil
	}
}

func checkLimit(field, value string) error {
	if value == "" || podLimit.MatchString(value) {
		return nil
	}
	return fmt.Errorf("%s.%s is %q: write a number of pods, like 1, or a percentage, like 50%%", budgetField, field, value)
}

func zero(limit string) bool {
	return strings.Trim(limit, "0%") == ""
}

func limit(value string) *intstr.IntOrString {
	parsed := intstr.Parse(value)
	return &parsed
}

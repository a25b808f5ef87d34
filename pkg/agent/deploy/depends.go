package deploy

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// unmet is the first Bundle that has to be there and is not, in words; "" when all are.
func unmet(bd *fleet.BundleDeployment, all []*fleet.BundleDeployment) string {
	for _, ref := range bd.Spec.DependsOn {
		matches, err := matcher(ref)
		if err != nil {
			return fmt.Sprintf("dependsOn has a selector that cannot be understood: %v", err)
		}
		found := false
		for _, other := range all {
			if other.Name == bd.Name || !matches(other) {
				continue
			}
			found = true
			if state := fleetstatus.BundleState(other.Spec, other.Status); !accepted(ref, state) {
				return fmt.Sprintf("waiting for Bundle %s, which is %s", bundleOf(other), state)
			}
		}
		if !found {
			return fmt.Sprintf("waiting for Bundle %s, which is not deployed to this cluster", wanted(ref))
		}
	}
	return ""
}

func matcher(ref fleet.BundleRef) (func(*fleet.BundleDeployment) bool, error) {
	selector := labels.Nothing()
	if ref.Selector != nil {
		parsed, err := metav1.LabelSelectorAsSelector(ref.Selector)
		if err != nil {
			return nil, err
		}
		selector = parsed
	}
	return func(bd *fleet.BundleDeployment) bool {
		return ref.Name != "" && bundleOf(bd) == ref.Name || selector.Matches(labels.Set(bd.Labels))
	}, nil
}

func bundleOf(bd *fleet.BundleDeployment) string {
	if name := bd.Labels[fleet.BundleNameLabel]; name != "" {
		return name
	}
	return bd.Name
}

func wanted(ref fleet.BundleRef) string {
	if ref.Name != "" {
		return ref.Name
	}
	return "with labels " + metav1.FormatLabelSelector(ref.Selector)
}

func accepted(ref fleet.BundleRef, state fleet.BundleState) bool {
	if len(ref.AcceptedStates) == 0 {
		return state == fleet.Ready
	}
	return slices.Contains(ref.AcceptedStates, state)
}

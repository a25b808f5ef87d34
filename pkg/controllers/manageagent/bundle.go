package manageagent

import (
	"fmt"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/registration"
)

const resourceName = "agent.yaml"

// newBundle is the Bundle of one Cluster's agent, as Fleet's controllers know it, but for its owner: it has none. Kubernetes
// deletes what a Cluster owns before a Cluster that is deleted in the foreground, and the agent could no longer be asked to
// leave. Whoever deletes the Cluster deletes its Bundle by name.
func newBundle(cluster *fleet.Cluster, agentNamespace, manifest string) *fleet.Bundle {
	return &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   cluster.Namespace,
			Name:        registration.AgentBundleName(cluster.Name),
			Annotations: map[string]string{apply.LabelID: registration.SetIDManageAgent},
		},
		Spec: fleet.BundleSpec{
			BundleDeploymentOptions: fleet.BundleDeploymentOptions{
				DefaultNamespace: agentNamespace,
				Helm:             &fleet.HelmOptions{TakeOwnership: true},
			},
			Resources: []fleet.BundleResource{{Name: resourceName, Content: manifest}},
			Targets:   []fleet.BundleTarget{target(cluster.Name)},
		},
	}
}

func target(cluster string) fleet.BundleTarget {
	return fleet.BundleTarget{
		ClusterName: cluster,
		ClusterSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: fleet.NonManagedAgentLabel, Operator: metav1.LabelSelectorOpDoesNotExist,
		}}},
	}
}

// ensure makes the Bundle, or repairs what differs of what is ours in it.
func (s *Step) ensure(existing, wanted *fleet.Bundle) result.Result {
	if existing == nil {
		return s.create(wanted)
	}
	return s.keep(existing, wanted)
}

// create may find that the Bundle is there already: made a moment ago, and not in the cache yet, or by somebody else.
func (s *Step) create(wanted *fleet.Bundle) result.Result {
	made, err := s.bundles.Create(wanted)
	if apierrors.IsAlreadyExists(err) {
		existing, err := s.bundles.Get(wanted.Namespace, wanted.Name, metav1.GetOptions{})
		if err != nil {
			return result.Retry(fleet.ReasonError, fmt.Errorf("reading Bundle %s: %w", keyOf(wanted), err))
		}
		return s.keep(existing, wanted)
	} else if err != nil {
		return result.Retry(fleet.ReasonError, fmt.Errorf("creating Bundle %s: %w", keyOf(wanted), err))
	}
	s.fresh.Wrote(made)
	return result.Done("", "")
}

func (s *Step) keep(existing, wanted *fleet.Bundle) result.Result {
	switch {
	case !agentspec.IsBundle(existing):
		return result.Stalled(fleet.ReasonNameConflict, fmt.Sprintf(
			"Bundle %s exists and is not of an agent; delete or rename it", keyOf(existing))).In(s.RecheckDelay())
	case existing.DeletionTimestamp != nil:
		return result.Wait(fleet.ReasonBundleDeleting, fmt.Sprintf("waiting for the deletion of Bundle %s, to make it again", keyOf(existing)))
	case s.fresh.IsStale(existing):
		return result.Done("", "")
	}
	patch := repairs(existing, wanted)
	if patch == nil {
		return result.Done("", "")
	}
	latest, err := writes.Merge(s.bundles, existing, patch)
	if err != nil {
		return result.Retry(fleet.ReasonError, fmt.Errorf("updating the agent's Bundle: %w", err))
	}
	s.fresh.Wrote(latest)
	return result.Done("", "")
}

// repairs is the merge patch that makes of a Bundle what is wanted, nil when it is that already. What others have added, such
// as a pause, stays.
func repairs(existing, wanted *fleet.Bundle) map[string]any {
	spec := map[string]any{}
	if existing.Spec.DefaultNamespace != wanted.Spec.DefaultNamespace {
		spec["defaultNamespace"] = wanted.Spec.DefaultNamespace
	}
	if existing.Spec.Helm == nil || !existing.Spec.Helm.TakeOwnership {
		spec["helm"] = map[string]any{"takeOwnership": true}
	}
	if !equality.Semantic.DeepEqual(existing.Spec.Resources, wanted.Spec.Resources) {
		spec["resources"] = wanted.Spec.Resources
	}
	if !equality.Semantic.DeepEqual(existing.Spec.Targets, wanted.Spec.Targets) {
		spec["targets"] = wanted.Spec.Targets
	}
	kept := withoutCluster(existing.OwnerReferences)
	if len(kept) == len(existing.OwnerReferences) && len(spec) == 0 {
		return nil
	}
	patch := map[string]any{}
	meta := map[string]any{"resourceVersion": existing.ResourceVersion}
	if len(kept) < len(existing.OwnerReferences) {
		meta["ownerReferences"] = kept
	}
	if len(spec) > 0 {
		patch["spec"] = spec
	}
	patch["metadata"] = meta
	return patch
}

// withoutCluster are the owners but for Clusters, which other releases have made the owner.
func withoutCluster(owners []metav1.OwnerReference) (kept []metav1.OwnerReference) {
	for _, o := range owners {
		if o.Kind != clusterKind || o.APIVersion != fleet.SchemeGroupVersion.String() {
			kept = append(kept, o)
		}
	}
	return kept
}

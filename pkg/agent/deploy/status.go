package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/rancher/wrangler/v3/pkg/summary"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/release"
)

// maxListedResources limits the list of resources in a status.
const maxListedResources = 500

// view is the input of assess.
type view struct {
	spec   fleet.BundleDeploymentSpec
	before fleet.BundleDeploymentStatus // the latest known
	// current means that the release with the deployment ID is deployed.
	current bool
	// installed means that there is a release, or a failed attempt, with any deployment ID.
	installed bool
	deployed  *release.Deployed
	// copied is the generation of the Secrets and ConfigMaps that the release was deployed with.
	copied  int64
	failure error
	// waitsFor names the Bundles that dependsOn requires first.
	waitsFor string
	paused   bool
	drift    drift
	now      time.Time
	live     func(release.Object) *unstructured.Unstructured
}

// assess computes the status. While another deployment ID is deployed, the fields about the objects describe the release that is still there:
// they are computed if this run has read that release, and stay as they are otherwise.
func assess(v view) fleet.BundleDeploymentStatus {
	s := *v.before.DeepCopy()
	switch {
	case v.current:
		s.AppliedDeploymentID, s.SyncGeneration = v.spec.DeploymentID, ptr.To(v.spec.Options.ForceSyncGeneration)
		s.DownstreamResourcesGeneration = v.copied
	case s.AppliedDeploymentID == v.spec.DeploymentID:
		s.AppliedDeploymentID = "" // it is no longer applied
	}
	if v.deployed != nil || !v.installed {
		s.Resources, s.NonReadyStatus, s.ModifiedStatus, s.ResourceCounts = nil, nil, nil, fleet.ResourceCounts{}
		s.IncompleteState, s.Ready, s.NonModified = false, false, false
	}
	// Without a release of ours s.Release stays: it may name an unlabelled release that another agent deployed for this
	// BundleDeployment, and proves that this agent may adopt it.
	if v.deployed != nil {
		s.Release = v.deployed.String()
		v.assessObjects(&s)
	}
	if v.current && isNamespaceLabelError(v.failure) {
		s.Ready = false // as Fleet's own agent reports it
	}
	v.setConditions(&s)
	s.Display = fleetstatus.Display(v.spec, s)
	return s
}

// assessObjects counts the objects of the release and lists those that are not ready or differ.
func (v view) assessObjects(s *fleet.BundleDeploymentStatus) {
	kinds := map[string]int{} // in the order of the release
	for i, o := range v.deployed.Objects {
		kind, apiVersion, namespace, name := o.Desired.GetKind(), o.Desired.GetAPIVersion(), o.Desired.GetNamespace(), o.Desired.GetName()
		if _, found := kinds[apiVersion+kind]; !found {
			kinds[apiVersion+kind] = i
		}
		compared := v.drift.objects[objectID(o)]
		live, difference := v.live(o), compared.Difference
		if live == nil {
			live = compared.seen
		}
		if difference.Tolerated {
			continue
		}
		uid := ""
		if !difference.Missing {
			resource := fleet.BundleDeploymentResource{Kind: kind, APIVersion: apiVersion, Namespace: namespace, Name: name}
			if live != nil {
				resource.CreatedAt = metav1.Time{Time: live.GetCreationTimestamp().UTC()}
				uid = string(live.GetUID())
			}
			s.Resources = append(s.Resources, resource)
		}
		s.ResourceCounts.DesiredReady++
		if !difference.None() {
			s.ModifiedStatus = append(s.ModifiedStatus, fleet.ModifiedStatus{
				Kind: kind, APIVersion: apiVersion, Namespace: namespace, Name: name,
				Create: difference.Missing, Exist: difference.Foreign, Patch: difference.Patch,
			})
		}
		readiness := summarize(live, v.spec.Options.IgnoreOptions)
		switch {
		case difference.Missing:
			s.ResourceCounts.Missing++
		case !readiness.IsReady():
			s.NonReadyStatus = append(s.NonReadyStatus, fleet.NonReadyStatus{
				UID: uid, Kind: kind, APIVersion: apiVersion, Namespace: namespace, Name: name,
				Summary: fleet.ResourceSummary{
					State: readiness.State, Error: readiness.Error, Transitioning: readiness.Transitioning, Message: readiness.Message,
				},
			})
			s.ResourceCounts.NotReady++
		case !difference.None():
			s.ResourceCounts.Modified++
		default:
			s.ResourceCounts.Ready++
		}
	}
	s.Ready, s.NonModified = len(s.NonReadyStatus) == 0, len(s.ModifiedStatus) == 0
	// The status lists at most ten objects that are not ready and ten that differ: the hub would drop the others, and its API server refuses a large status.
	nonReady, modified := fleetstatus.ShortenNonReady(s.NonReadyStatus), fleetstatus.ShortenModified(s.ModifiedStatus)
	s.IncompleteState = len(nonReady) < len(s.NonReadyStatus) || len(modified) < len(s.ModifiedStatus) || len(s.Resources) > maxListedResources
	s.NonReadyStatus, s.ModifiedStatus = nonReady, modified
	slices.SortFunc(s.Resources, func(a, b fleet.BundleDeploymentResource) int { // as Fleet's own agent lists them
		return cmp.Or(cmp.Compare(kinds[a.APIVersion+a.Kind], kinds[b.APIVersion+b.Kind]), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	s.Resources = s.Resources[:min(maxListedResources, len(s.Resources))]
}

// setConditions sets Deployed, Installed, Monitored and Ready. A condition that is True has no reason, and one that is False has
// the reason Error: Fleet's own hub shows the message of no other. Only Ready is False with another reason: NotReady, while the release does not have
// the deployment ID of the BundleDeployment. An Unknown Deployed has the reason Paused or WaitApplied.
func (v view) setConditions(s *fleet.BundleDeploymentStatus) {
	set := func(kind string, status corev1.ConditionStatus, reason, message string) {
		c := genericcondition.GenericCondition{Type: kind, Status: status, Reason: reason, Message: message}
		fleetstatus.SetCondition(&s.Conditions, c, v.now)
	}
	status, reason, why := v.deployedCondition()
	set(fleet.ConditionDeployed, status, reason, why)
	switch {
	case v.current:
		set(fleet.ConditionInstalled, corev1.ConditionTrue, "", "")
	case !v.installed:
		s.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions), func(c genericcondition.GenericCondition) bool {
			return c.Type == fleet.ConditionInstalled || c.Type == fleet.ConditionMonitored
		})
	}
	switch {
	case v.deployed == nil:
	case v.current && v.failure != nil:
		set(fleet.ConditionMonitored, corev1.ConditionFalse, fleet.ReasonError, release.Explain(v.failure))
	case v.drift.err != "":
		set(fleet.ConditionMonitored, corev1.ConditionFalse, fleet.ReasonError, v.drift.err)
	default:
		set(fleet.ConditionMonitored, corev1.ConditionTrue, "", "")
	}
	switch state := fleetstatus.BundleState(v.spec, *s); {
	case state == fleet.Ready, state == fleet.OutOfSync && s.NonModified:
		set(fleet.ConditionReady, corev1.ConditionTrue, "", "")
	case state == fleet.ErrApplied:
		set(fleet.ConditionReady, corev1.ConditionFalse, fleet.ReasonError, why)
	case !v.current:
		set(fleet.ConditionReady, corev1.ConditionFalse, fleet.ReasonNotReady, cmp.Or(why, string(state)))
	case v.failure != nil && !isLeftover(v.failure): // a correction failed, or the namespace may not be labelled
		set(fleet.ConditionReady, corev1.ConditionFalse, fleet.ReasonError, release.Explain(v.failure))
	default:
		set(fleet.ConditionReady, corev1.ConditionFalse, fleet.ReasonError, cmp.Or(objectsMessage(*s), why, string(state)))
	}
}

func (v view) deployedCondition() (status corev1.ConditionStatus, reason, message string) {
	switch {
	case v.current && v.waitsFor == "":
		return corev1.ConditionTrue, "", ""
	case !v.current && v.paused:
		return corev1.ConditionUnknown, fleet.ReasonPaused, "paused"
	case !v.current && v.spec.WaitingForValues:
		return corev1.ConditionUnknown, fleet.ReasonWaitApplied, "the hub has not written the Secret with the Helm values yet"
	case v.spec.DeploymentID == "":
		return corev1.ConditionUnknown, fleet.ReasonWaitApplied, "the rollout of the Bundle has not come to this cluster yet"
	case v.waitsFor != "":
		return corev1.ConditionFalse, fleet.ReasonError, v.waitsFor
	case v.failure != nil:
		return corev1.ConditionFalse, fleet.ReasonError, release.Explain(v.failure)
	}
	return corev1.ConditionUnknown, fleet.ReasonWaitApplied, ""
}

// objectsMessage describes the first object that is not ready, or else the first that differs from what was deployed.
func objectsMessage(s fleet.BundleDeploymentStatus) string {
	if len(s.NonReadyStatus) > 0 {
		n := s.NonReadyStatus[0]
		return objectText(n.APIVersion, n.Kind, n.Namespace, n.Name, fleetstatus.SummaryText(n.Summary))
	}
	if len(s.ModifiedStatus) == 0 {
		return ""
	}
	m := s.ModifiedStatus[0]
	return objectText(m.APIVersion, m.Kind, m.Namespace, m.Name, fleetstatus.DifferenceText(m))
}

// objectText names an object as Fleet's own agent does: "deployment.apps web/shop", or "configmap.v1 web/shop" without a group.
func objectText(apiVersion, kind, namespace, name, text string) string {
	group, _, _ := strings.Cut(apiVersion, "/")
	if namespace != "" {
		name = namespace + "/" + name
	}
	return release.Explain(fmt.Errorf("%s.%s %s %s", strings.ToLower(kind), group, name, text))
}

// summarize computes the readiness of an object. live is nil if neither the cache nor the last comparison has found the object.
func summarize(live *unstructured.Unstructured, ignored *fleet.IgnoreOptions) summary.Summary {
	if live == nil {
		return summary.Summary{State: "in-progress", Transitioning: true} // wrangler's word
	}
	if ignored != nil && len(ignored.Conditions) > 0 {
		live = withoutConditions(live, ignored.Conditions)
	}
	// Kinds outside of apps need not have status.observedGeneration; if it were required, such objects might never be ready.
	_, found, err := unstructured.NestedInt64(live.Object, "status", "observedGeneration")
	observed := err == nil && found || live.GroupVersionKind().Group == "apps"
	s := summary.SummarizeWithOptions(live, &summary.SummarizeOptions{HasObservedGeneration: observed})
	// A condition such as "no minimum availability" hides the numbers that kstatus finds.
	if result, err := kstatus.Compute(live); !s.IsReady() && err == nil && result.Status == kstatus.InProgressStatus && !slices.Contains(s.Message, result.Message) {
		s.Message = append(s.Message, result.Message)
	}
	return s
}

// withoutConditions returns the object without the conditions that match all fields of one of the ignored ones.
func withoutConditions(o *unstructured.Unstructured, ignored []map[string]string) *unstructured.Unstructured {
	conditions, found, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	if err != nil || !found {
		return o
	}
	kept := slices.DeleteFunc(conditions, func(c any) bool {
		condition, ok := c.(map[string]any)
		return ok && matchesAny(condition, ignored)
	})
	changed := o.DeepCopy()
	if err := unstructured.SetNestedSlice(changed.Object, kept, "status", "conditions"); err != nil {
		return o
	}
	return changed
}

func matchesAny(condition map[string]any, ignored []map[string]string) bool {
	return slices.ContainsFunc(ignored, func(fields map[string]string) bool {
		for key, value := range fields {
			if fmt.Sprint(condition[key]) != value {
				return false
			}
		}
		return len(fields) > 0
	})
}

// writtenStatus is the status that this run wrote last. The watch may not show it yet.
type writtenStatus struct {
	version string // the resourceVersion of that write
	status  fleet.BundleDeploymentStatus
}

// latest returns the newer of the written and the cached status.
func (w writtenStatus) latest(bd *fleet.BundleDeployment) fleet.BundleDeploymentStatus {
	if number(w.version) > number(bd.ResourceVersion) {
		return w.status
	}
	return bd.Status
}

// number returns 0 for a resourceVersion that is empty or no number.
func number(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// updateStatus writes the status that change returns for the latest known one, and remembers what was written.
func (d *reconciler) updateStatus(
	ctx context.Context, bd *fleet.BundleDeployment, state *deploymentState, change func(fleet.BundleDeploymentStatus) fleet.BundleDeploymentStatus,
) error {
	before := state.latestStatus(bd)
	wrote, err := d.writeStatus(ctx, bd, before, change(before))
	if wrote.version != "" {
		state.setWritten(wrote)
	}
	return err
}

// writeStatus patches the fields that differ. The result is empty if none does.
func (d *reconciler) writeStatus(ctx context.Context, bd *fleet.BundleDeployment, before, after fleet.BundleDeploymentStatus) (writtenStatus, error) {
	difference, err := fleetstatus.MergePatch(before, after)
	if err != nil || difference == nil {
		return writtenStatus{}, err
	}
	patch, err := json.Marshal(map[string]any{"status": difference})
	if err != nil {
		return writtenStatus{}, err
	}
	made, err := d.Hub.FleetV1alpha1().BundleDeployments(bd.Namespace).Patch(ctx, bd.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if d.endIfRejected(err); err != nil {
		return writtenStatus{}, err
	}
	return writtenStatus{version: made.ResourceVersion, status: made.Status}, nil
}

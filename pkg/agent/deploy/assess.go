package deploy

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/rancher/wrangler/v3/pkg/summary"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/release"
)

// listed bounds the lists of a status: of a thousand objects that are not ready, ten are enough to see why.
const (
	listed          = 10
	listedResources = 500
)

// view is all that a status is made of.
type view struct {
	spec fleet.BundleDeploymentSpec
	base fleet.BundleDeploymentStatus // the one there is
	// current says that what is deployed is what was asked for.
	current bool
	// installed says that there is a release, whatever it is of.
	installed bool
	deployed  *release.Deployed
	failure   error
	waitsFor  string
	paused    bool
	drift     drift
	now       time.Time
	live      func(release.Object) *unstructured.Unstructured
}

// assess is the status.
func assess(v view) fleet.BundleDeploymentStatus {
	s := *v.base.DeepCopy()
	switch {
	case v.current:
		s.AppliedDeploymentID = v.spec.DeploymentID
		s.SyncGeneration = generation(v.spec.Options.ForceSyncGeneration)
	case s.AppliedDeploymentID == v.spec.DeploymentID:
		s.AppliedDeploymentID = "" // it was, and is no longer
	}
	s.Resources, s.NonReadyStatus, s.ModifiedStatus, s.ResourceCounts = nil, nil, nil, fleet.ResourceCounts{}
	s.IncompleteState, s.Ready, s.NonModified = false, false, false
	// Without a release of ours the record of an earlier agent stays: it proves whose an unlabelled release is.
	if v.deployed != nil {
		s.Release = v.deployed.String()
		v.objects(&s)
	}
	v.conditions(&s)
	state := fleetstatus.BundleState(v.spec, s)
	s.Display = fleet.BundleDeploymentDisplay{
		Deployed: shown(s, fleet.ConditionDeployed), Monitored: shown(s, fleet.ConditionMonitored), State: string(state),
	}
	return s
}

func generation(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

// objects fills in what is there of the release, and how it is.
func (v view) objects(s *fleet.BundleDeploymentStatus) {
	for _, o := range v.deployed.Objects {
		s.ResourceCounts.DesiredReady++
		live, seen := v.live(o), v.drift.verdicts[identify(o)]
		s.Resources = append(s.Resources, resourceOf(o, live))
		if !seen.None() {
			s.ModifiedStatus = append(s.ModifiedStatus, modifiedOf(o, seen.Difference))
		}
		condition := summarize(live, v.spec.Options.IgnoreOptions)
		switch {
		case seen.Missing:
			s.ResourceCounts.Missing++
		case !condition.IsReady():
			s.NonReadyStatus = append(s.NonReadyStatus, nonReadyOf(o, live, condition))
			s.ResourceCounts.NotReady++
		case !seen.None():
			s.ResourceCounts.Modified++
		default:
			s.ResourceCounts.Ready++
		}
	}
	s.Ready, s.NonModified = len(s.NonReadyStatus) == 0, len(s.ModifiedStatus) == 0
	s.IncompleteState = len(s.NonReadyStatus) > listed || len(s.ModifiedStatus) > listed || len(s.Resources) > listedResources
	s.NonReadyStatus = s.NonReadyStatus[:min(listed, len(s.NonReadyStatus))]
	s.ModifiedStatus = s.ModifiedStatus[:min(listed, len(s.ModifiedStatus))]
	s.Resources = s.Resources[:min(listedResources, len(s.Resources))]
}

func resourceOf(o release.Object, live *unstructured.Unstructured) fleet.BundleDeploymentResource {
	r := fleet.BundleDeploymentResource{
		Kind: o.Desired.GetKind(), APIVersion: o.Desired.GetAPIVersion(), Namespace: o.Desired.GetNamespace(), Name: o.Desired.GetName(),
	}
	if live != nil {
		r.CreatedAt = metav1.Time{Time: live.GetCreationTimestamp().UTC()}
	}
	return r
}

func modifiedOf(o release.Object, d release.Difference) fleet.ModifiedStatus {
	return fleet.ModifiedStatus{
		Kind: o.Desired.GetKind(), APIVersion: o.Desired.GetAPIVersion(), Namespace: o.Desired.GetNamespace(), Name: o.Desired.GetName(),
		Create: d.Missing, Patch: d.Patch,
	}
}

func nonReadyOf(o release.Object, live *unstructured.Unstructured, c summary.Summary) fleet.NonReadyStatus {
	r := fleet.NonReadyStatus{
		Kind: o.Desired.GetKind(), APIVersion: o.Desired.GetAPIVersion(), Namespace: o.Desired.GetNamespace(), Name: o.Desired.GetName(),
		Summary: fleet.ResourceSummary{State: c.State, Error: c.Error, Transitioning: c.Transitioning, Message: c.Message},
	}
	if live != nil {
		r.UID = string(live.GetUID())
	}
	return r
}

// conditions says all of it in words.
func (v view) conditions(s *fleet.BundleDeploymentStatus) {
	set := func(kind string, status corev1.ConditionStatus, reason, message string) {
		fleetstatus.SetCondition(&s.Conditions, genericcondition.GenericCondition{
			Type: kind, Status: status, Reason: reason, Message: message,
		}, v.now)
	}
	status, reason, message := v.progress()
	set(fleet.ConditionDeployed, status, reason, message)
	if v.installed {
		status, reason, message = corev1.ConditionTrue, fleet.ReasonInstalled, ""
	}
	set(fleet.ConditionInstalled, status, reason, message)
	switch {
	case v.deployed == nil:
		set(fleet.ConditionMonitored, corev1.ConditionUnknown, fleet.ReasonWaitApplied, "")
	case v.current && v.failure != nil:
		set(fleet.ConditionMonitored, corev1.ConditionFalse, fleet.ReasonCorrectionFailed, release.Explain(v.failure))
	case v.drift.err != "":
		set(fleet.ConditionMonitored, corev1.ConditionFalse, fleet.ReasonMonitoringFailed, v.drift.err)
	default:
		set(fleet.ConditionMonitored, corev1.ConditionTrue, fleet.ReasonMonitored, "")
	}
	switch state := fleetstatus.BundleState(v.spec, *s); {
	case state == fleet.Ready, state == fleet.OutOfSync && s.Ready:
		set(fleet.ConditionReady, corev1.ConditionTrue, fleet.ReasonAllReady, "")
	case state == fleet.Modified:
		set(fleet.ConditionReady, corev1.ConditionFalse, fleet.ReasonModified, modifiedMessage(s.ModifiedStatus))
	case state == fleet.ErrApplied:
		set(fleet.ConditionReady, corev1.ConditionFalse, fleet.ReasonDeployFailed, fleetstatus.Condition(s.Conditions, fleet.ConditionDeployed).Message)
	default:
		set(fleet.ConditionReady, corev1.ConditionFalse, fleet.ReasonNotReady,
			cmp.Or(fleetstatus.Condition(s.Conditions, fleet.ConditionDeployed).Message, notReadyMessage(s.NonReadyStatus), string(state)))
	}
}

// progress is the condition Deployed.
func (v view) progress() (corev1.ConditionStatus, string, string) {
	var unsupported *release.UnsupportedError
	switch {
	case v.current:
		return corev1.ConditionTrue, fleet.ReasonDeployed, ""
	case errors.As(v.failure, &unsupported):
		return corev1.ConditionFalse, fleet.ReasonUnsupported, release.Explain(v.failure)
	case v.failure != nil:
		return corev1.ConditionFalse, fleet.ReasonDeployFailed, release.Explain(v.failure)
	case v.paused:
		return corev1.ConditionUnknown, fleet.ReasonPaused, "paused"
	case v.waitsFor != "":
		return corev1.ConditionUnknown, fleet.ReasonWaitingForDependency, v.waitsFor
	}
	return corev1.ConditionUnknown, fleet.ReasonWaitApplied, ""
}

func modifiedMessage(all []fleet.ModifiedStatus) string {
	var texts []string
	for _, m := range all {
		what := "modified " + m.Patch
		if m.Create {
			what = "missing"
		}
		texts = append(texts, strings.TrimSpace(named(m.Kind, m.Namespace, m.Name)+" "+what))
	}
	return release.Explain(errors.New(strings.Join(texts, "; ")))
}

func notReadyMessage(all []fleet.NonReadyStatus) string {
	var texts []string
	for _, n := range all {
		texts = append(texts, strings.TrimSpace(named(n.Kind, n.Namespace, n.Name)+" "+n.Summary.State+" "+strings.Join(n.Summary.Message, ", ")))
	}
	if len(texts) == 0 {
		return ""
	}
	return release.Explain(errors.New(strings.Join(texts, "; ")))
}

func named(kind, namespace, name string) string {
	if namespace == "" {
		return kind + " " + name
	}
	return fmt.Sprintf("%s %s/%s", kind, namespace, name)
}

func shown(s fleet.BundleDeploymentStatus, kind string) string {
	c := fleetstatus.Condition(s.Conditions, kind)
	return cmp.Or(c.Message, string(c.Status))
}

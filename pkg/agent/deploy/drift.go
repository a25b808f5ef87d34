package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/muster-fleet/muster/pkg/agent/timing"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

// drift is the result of comparing a release with the cluster.
type drift struct {
	objects map[string]comparison // by objectID; nil before the first comparison
	// patches are the ComparePatches of the comparison.
	patches []fleet.ComparePatch
	// err is why some objects could not be compared; "" if all were, or if only the last comparison failed.
	err string
	// comparisonsRequested counts the requests that the next comparison includes all objects, even those that have not changed since the last one.
	// comparisonsDone is how many of them were made when the last such comparison began.
	comparisonsRequested, comparisonsDone int
	// retries are the pauses after comparisons that have failed; nil after one that has succeeded.
	retries *wait.Backoff
	// nextMissingCheck is when missing objects are compared again although they have not changed; missingBackoff has the pauses. Both are zero if none
	// is missing.
	nextMissingCheck time.Time
	missingBackoff   *wait.Backoff
}

// comparison is the result for one object.
type comparison struct {
	fingerprint string // of the object that was compared
	release.Difference
	// seen is the object after the comparison, if it exists and the cache lacks it because it has lost Helm's label; nil otherwise.
	seen *unstructured.Unstructured
}

// isCorrectable reports whether a correction undoes the difference. Without takeOwnership, it leaves an object that another release has adopted.
func (c comparison) isCorrectable(o fleet.BundleDeploymentOptions) bool {
	return !c.None() && (!c.Adopted || o.Helm != nil && o.Helm.TakeOwnership)
}

func (d drift) compared() bool { return d.objects != nil || d.err != "" }

// isOutdated reports whether an object was deleted after it was compared; call it only if objects were compared. The deletion has enqueued
// another comparison, and before that a status would say that the object is not ready.
func (d drift) isOutdated(deployed *release.Deployed, live func(release.Object) *unstructured.Unstructured) bool {
	return d.err == "" && slices.ContainsFunc(deployed.Objects, func(o release.Object) bool {
		return live(o) == nil && d.objects[objectID(o)].fingerprint != absent
	})
}

// missing returns the objects that are missing, or belong to another owner.
func (d drift) missing() map[string]release.Difference {
	missing := map[string]release.Difference{}
	for id, c := range d.objects {
		if c.Missing {
			missing[id] = c.Difference
		}
	}
	return missing
}

// isCorrectable reports whether a correction undoes a difference.
func (d drift) isCorrectable(o fleet.BundleDeploymentOptions) bool {
	for _, c := range d.objects {
		if c.isCorrectable(o) {
			return true
		}
	}
	return false
}

// found reports whether an object differs.
func (d drift) found() bool {
	for _, c := range d.objects {
		if !c.None() {
			return true
		}
	}
	return false
}

// none reports whether all objects were compared and none differs.
func (d drift) none() bool { return d.objects != nil && d.err == "" && !d.found() }

// missesOverwritten reports whether an object of the release is missing that another BundleDeployment had as well: the removal of
// that one may have deleted it, so that it is created again even if drift is not corrected.
func (d drift) missesOverwritten(deployed *release.Deployed, options fleet.BundleDeploymentOptions) bool {
	return deployed != nil && slices.ContainsFunc(deployed.Objects, func(o release.Object) bool {
		resource := fleet.OverwrittenResource{Kind: o.Desired.GetKind(), Namespace: o.Desired.GetNamespace(), Name: o.Desired.GetName()}
		c := d.objects[objectID(o)]
		return c.Missing && c.isCorrectable(options) && slices.Contains(options.Overwrites, resource)
	})
}

// compare compares the objects of a release that may have changed with the cluster. The worker of the queue then shows or
// undoes what differs.
func (d *reconciler) compare(ctx context.Context, key string) {
	state, bd := d.states.find(key), d.bundleDeployment(key)
	if state == nil {
		return
	}
	deployed, before := state.release()
	if deployed == nil || bd == nil || !d.objects.watch(deployed.Objects) {
		return // the caches of these kinds are not filled yet; reconcile enqueues the key again when they are
	}
	tolerances := release.Tolerances{Release: deployed.Objects, Patches: d.comparePatches(key, bd)}
	after := drift{objects: map[string]comparison{}, patches: tolerances.Patches}
	all := before.comparisonsRequested != before.comparisonsDone
	checkMissing := before.missingBackoff != nil && !d.Clock.Now().Before(before.nextMissingCheck)
	for _, o := range deployed.Objects {
		id, live := objectID(o), d.objects.get(o)
		old, known := before.objects[id]
		seen := fingerprint(live, tolerances.Patches)
		if known && old.fingerprint == seen && !all && !(old.Missing && checkMissing) {
			after.objects[id] = old
			continue
		}
		if hasOnlyData(o.Resource) {
			live = nil // Compare reads it: the cache has it without its data
		}
		var unwatched *unstructured.Unstructured
		difference, err := d.releases.Compare(ctx, o, live, tolerances)
		if err == nil && !difference.Missing && !difference.Tolerated && d.objects.get(o) == nil {
			unwatched, err = d.readUnwatched(ctx, o)
		}
		switch {
		case err == nil:
			after.objects[id] = comparison{seen, difference, unwatched}
		case known: // keep the last result, without the fingerprint, so that the object is compared again
			after.objects[id] = comparison{Difference: old.Difference, seen: old.seen}
		}
		if err != nil {
			after.err = release.Explain(err)
		}
	}
	if ctx.Err() != nil {
		return
	}
	if after.err != "" {
		d.log(key).Warnf("Comparing with what was deployed: %s", after.err)
		d.drifts.AddAfter(key, after.failed(before, d.Timing))
	}
	d.scheduleMissingCheck(key, before, &after, checkMissing)
	state.setDrift(deployed, before, after)
	d.queue.Add(key)
}

// readUnwatched returns an object that has lost Helm's label, and is not in the cache therefore, for its status.
func (d *reconciler) readUnwatched(ctx context.Context, o release.Object) (*unstructured.Unstructured, error) {
	live, err := d.releases.Read(ctx, o)
	if err != nil || live == nil {
		return nil, err
	}
	live.SetManagedFields(nil)
	if !hasOnlyData(o.Resource) {
		return live, nil
	}
	reduced, err := withoutData(live)
	if err != nil {
		return nil, err
	}
	return reduced.(*unstructured.Unstructured), nil
}

// failed returns the pause after a comparison that has failed. The first failure after a success is not shown: the API server may be restarting, and the
// status shows the error if the next comparison has one, too.
func (d *drift) failed(before drift, t Timing) (pause time.Duration) {
	if d.retries = before.retries; d.retries == nil {
		d.retries = timing.Backoff(t.RetryFirst, t.RetryMax)
		if before.compared() {
			d.err = ""
		}
	}
	return d.retries.Step()
}

// scheduleMissingCheck enqueues the next comparison of missing objects. The agent watches only objects with Helm's label, so that an object which somebody creates
// without it, or an object of another owner that is deleted, causes no event. The pauses grow until nothing is missing, or something else is.
func (d *reconciler) scheduleMissingCheck(key string, before drift, after *drift, checked bool) {
	missing := after.missing()
	switch {
	case len(missing) == 0:
		return
	case before.missingBackoff == nil || !maps.Equal(missing, before.missing()):
		after.missingBackoff = timing.Backoff(d.Timing.CorrectFirst, d.CompareInterval)
	case checked:
		after.missingBackoff = before.missingBackoff
	default:
		after.missingBackoff, after.nextMissingCheck = before.missingBackoff, before.nextMissingCheck
		d.drifts.AddAfter(key, after.nextMissingCheck.Sub(d.Clock.Now()))
		return
	}
	pause := after.missingBackoff.Step()
	after.nextMissingCheck = d.Clock.Now().Add(pause)
	d.drifts.AddAfter(key, pause)
}

// comparePatches returns the ComparePatches in the options of a BundleDeployment. The replicas of the agent's own Deployment never differ: a person who
// scales it to zero stops the agent, which must not start itself again before it ends.
func (d *reconciler) comparePatches(key string, bd *fleet.BundleDeployment) []fleet.ComparePatch {
	var patches []fleet.ComparePatch
	if bd.Spec.Options.Diff != nil {
		patches = bd.Spec.Options.Diff.ComparePatches
	}
	if key == d.ownKey {
		patches = append(slices.Clone(patches), fleet.ComparePatch{
			APIVersion: "apps/v1", Kind: "Deployment", Namespace: d.AgentNamespace, Name: registration.AgentName, JSONPointers: []string{"/spec/replicas"},
		})
	}
	return patches
}

// dropOutdatedDrift drops the result of a comparison with other ComparePatches and enqueues another one. The hub changes them without another
// deployment ID. Until then, no difference is reported, or undone, that they may tolerate.
func (d *reconciler) dropOutdatedDrift(key string, bd *fleet.BundleDeployment, state *deploymentState) {
	if state.dropDriftUnlessOf(d.comparePatches(key, bd)) {
		d.drifts.Add(key)
	}
}

func objectID(o release.Object) string {
	return o.Resource.GroupResource().String() + " " + o.Desired.GetNamespace() + "/" + o.Desired.GetName()
}

// absent is the fingerprint of an object that does not exist.
const absent = "absent"

// fingerprint changes when an object changes in a way that can be drift. The status of an object changes often and is never
// drift, so the resourceVersion counts only for kinds without a generation.
func fingerprint(live *unstructured.Unstructured, ignored []fleet.ComparePatch) string {
	if live == nil {
		return absent
	}
	patches := ""
	if len(ignored) > 0 {
		data, _ := json.Marshal(ignored) // text fields only: this cannot fail
		patches = string(data)
	}
	if live.GetGeneration() == 0 {
		return live.GetResourceVersion() + patches
	}
	annotations := map[string]string{}
	for key, value := range live.GetAnnotations() {
		if !strings.HasPrefix(key, "deployment.kubernetes.io/") {
			annotations[key] = value
		}
	}
	return fmt.Sprint(live.GetUID(), live.GetGeneration(), live.GetLabels(), annotations, patches)
}

package deploy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/features"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/muster-fleet/muster/pkg/agent/timing"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

// remove removes the releases of a BundleDeployment that the watch no longer shows, if decideRemoval says so.
func (d *reconciler) remove(ctx context.Context, key string, state *deploymentState) {
	if state.goneSince.IsZero() {
		state.goneSince = d.Clock.Now()
	}
	found := d.index.of(key)
	untilDelay := d.Timing.RemovalDelay - d.Clock.Since(state.goneSince)
	f := removalFacts{Own: key == d.ownKey, Installed: len(found) > 0, Copied: len(state.copiedFor) > 0, DelayNotPassed: untilDelay > 0}
	f.Kept, f.HubChanged = d.keptOrChanged(key)

	var unconfirmed error
	for {
		switch decideRemoval(f) {
		case recordKept:
			if err := d.keepIfRestored(ctx); err != nil {
				d.retryLater(ctx, key, state, err)
				return
			}
			f.Kept, f.HubChanged = d.isKept(key), false
			continue // decide again
		case askHub:
			switch mayAsk, err := d.mayAskHub(ctx, state, found); {
			case err != nil:
				d.retryLater(ctx, key, state, err)
				return
			case !mayAsk:
				d.queue.AddAfter(key, d.Timing.RemovalRecheck)
				return
			}
			f, unconfirmed = d.confirmGone(ctx, key, state, f)
			continue // decide again
		case forget:
			if f.Kept {
				if err := d.endKept(ctx, key, ""); err != nil {
					d.retryLater(ctx, key, state, err)
					return
				}
			}
			d.states.drop(key)
		case keep: // until the BundleDeployment exists again, or a person has uninstalled its releases
		case waitForDelay:
			d.queue.AddAfter(key, untilDelay)
		case retryRemoval:
			d.retryLater(ctx, key, state, unconfirmed)
		case keepBecauseRejected:
			d.clusterDeleted.Do(func() {
				d.Log.Warn("The hub deleted all BundleDeployments of this cluster and rejects the agent's credential, as it does when the Cluster is deleted. " +
					"What was deployed stays on this cluster: register the cluster again, or uninstall its Helm releases and the agent")
			})
			d.queue.AddAfter(key, d.Timing.RemovalRecheck)
		case keepBecauseAgentGone:
			if f.Own {
				since := d.ownGoneSince(state)
				if !f.Others && !since.Equal(unmanagedSince) { // it is gone with all others, as if the Cluster had been deleted
					since, state.goneSince = time.Time{}, d.Clock.Now()
				}
				if err := d.recordOwnState(ctx, since); err != nil {
					d.retryLater(ctx, key, state, err)
					return
				}
			}
			d.log(key).Info("Removing nothing: the agent's own BundleDeployment is gone, and the hub has not asked the agent to uninstall itself")
			d.queue.AddAfter(key, d.Timing.RemovalRecheck)
		case uninstallAll:
			keepsResources, _ := state.deleted()
			var errs []error
			for _, r := range found {
				errs = append(errs, d.uninstall(ctx, key, r, release.KeepIf(keepsResources)))
			}
			err := errors.Join(errs...)
			if err == nil && !keepsResources {
				err = d.deleteCopies(ctx, key, state)
			}
			if err != nil {
				d.retryLater(ctx, key, state, err)
				return
			}
			d.states.drop(key)
		}
		return
	}
}

// The questions to the hub about BundleDeployments that this run has not seen, and of which no last revision is signed: at once, and per second.
const (
	unknownBurst = 10
	unknownRate  = 0.1
)

func newUnknownLimiter(c Config) flowcontrol.RateLimiter {
	return flowcontrol.NewTokenBucketRateLimiterWithClock(unknownRate, unknownBurst, c.Clock)
}

// mayAskHub reports whether the hub may be asked now whether the BundleDeployment of the revisions is gone. Users who may write Secrets in one namespace
// can store revisions with the names of any number of BundleDeployments, and each question may be a list of all that exist.
func (d *reconciler) mayAskHub(ctx context.Context, state *deploymentState, found []release.Found) (bool, error) {
	if state.wasSeen() || d.unknown.TryAccept() {
		return true, nil
	}
	revisions := fmt.Sprint(found)
	if state.unsignedWhenAsked == revisions {
		return false, nil
	}
	isSigned, err := d.hasSigned(ctx, found)
	if err == nil && !isSigned {
		state.unsignedWhenAsked = revisions
	}
	return isSigned, err
}

// hasSigned reports whether one of the revisions is signed.
func (d *reconciler) hasSigned(ctx context.Context, revisions []release.Found) (bool, error) {
	for _, f := range revisions {
		if isSigned, err := d.releases.HasSignedSecret(ctx, f); isSigned || err != nil {
			return isSigned, err
		}
	}
	return false, nil
}

// deleteCopies deletes what deployments that stored no release have copied. Call it when the releases of the BundleDeployment are uninstalled: their
// hooks may need the copies. A revision that is left then is of another agent. Its copies have the same marks if its BundleDeployment has the same
// name, and stay.
func (d *reconciler) deleteCopies(ctx context.Context, key string, state *deploymentState) error {
	for r := range state.copiedFor {
		isNeeded, err := d.releases.HasRevisions(ctx, r.namespace, r.name, key)
		if err == nil && !isNeeded {
			err = d.releases.DeleteCopies(ctx, r.namespace, key)
		}
		if err != nil {
			return err
		}
		state.copiedFor.Delete(r)
		if isNeeded {
			d.log(key).Infof("The Secrets and ConfigMaps that were copied into namespace %s stay: a release of another agent may need them", r.namespace)
		} else {
			d.log(key).Infof("Deleted the Secrets and ConfigMaps that were copied into namespace %s", r.namespace)
		}
	}
	return nil
}

// confirmGone asks the hub whether the BundleDeployment of a key and that of the agent are gone, and returns the facts with the answers. It returns
// an error if the hub does not confirm that the first one is gone.
func (d *reconciler) confirmGone(ctx context.Context, key string, state *deploymentState, f removalFacts) (removalFacts, error) {
	f.Asked = true
	live, err := d.onHub(ctx, key)
	if err == nil && live != nil {
		err = errors.New("the watch shows the BundleDeployment as deleted, but the hub still has it")
	}
	// The release of the agent is in its namespace. Users who may write Secrets in another one must not decide that the agent removes nothing.
	isOwn := func(f release.Found) bool { return f.Namespace == d.AgentNamespace }
	f.HasOwnRelease = slices.ContainsFunc(d.index.of(d.ownKey), isOwn)
	if recorded := d.recordedOwn(); err == nil && (f.HasOwnRelease || recorded != "") {
		var own *fleet.BundleDeployment
		own, err = d.onHub(ctx, d.ownKey)
		f.AgentGone = own == nil
		if own != nil && recorded != "" && own.UID != recorded {
			err = errors.New("the hub has created the agent's own BundleDeployment anew, and the watch does not show it yet")
		}
	}
	// Read the record and the cache after the answers: another worker may have recorded meanwhile that the hub has created its objects anew, and which
	// releases stay, and further deletions may have arrived.
	kept, hasChanged := d.keptOrChanged(key)
	if f.Kept = kept; hasChanged && err == nil {
		err = errors.New("the hub has changed while it was asked")
	}
	f.Confirmed, f.Rejected = err == nil, apierrors.IsUnauthorized(err)

	cached := d.bundleDeployments()
	f.NoneCached = len(cached) == 0
	f.Others = slices.ContainsFunc(cached, func(bd *fleet.BundleDeployment) bool { return bd.DeletionTimestamp == nil })
	f.GoneAlone = f.Own && f.Others && d.Clock.Since(d.ownGoneSince(state)) >= d.Timing.RemovalAlone && d.Clock.Since(state.goneSince) >= d.Timing.RemovalRecheck
	return f, err
}

// onHub returns the BundleDeployment of a key that the hub has, nil if it is gone or being deleted. Only the answer of its API server counts: a proxy
// in between may answer 404 as well while it restarts.
func (d *reconciler) onHub(ctx context.Context, key string) (*fleet.BundleDeployment, error) {
	bd, err := d.Hub.FleetV1alpha1().BundleDeployments(d.Namespace).Get(ctx, key, metav1.GetOptions{})
	switch d.endIfRejected(err); {
	case err != nil && !isNotFoundByName(err, key):
		return nil, fmt.Errorf("asking the hub whether BundleDeployment %s/%s is gone: %w", d.Namespace, key, err)
	case err != nil && len(key) < validation.LabelValueMaxLength:
		return nil, nil
	case err != nil: // the key may be of a name that was too long for a label
		list, err := d.listBundleDeployments(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(list.Items, func(bd fleet.BundleDeployment) bool { return registration.LabelValue(bd.Name) == key })
		if at < 0 {
			return nil, nil
		}
		bd = &list.Items[at]
	}
	if bd.DeletionTimestamp != nil {
		return nil, nil
	}
	return bd, nil
}

// isNotFoundByName reports whether an API server answered that it has no object of that name. It repeats the name, unlike
// other servers that answer 404.
func isNotFoundByName(err error, name string) bool {
	var answer apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &answer) || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return false
	}
	details := answer.Status().Details
	return details != nil && details.Name == name
}

// warnOfLeftReleases logs, once for each, the releases of an agent that sets no labels whose BundleDeployment the hub does not have.
// Fleet's own agent removes them. This one does not: it never saw the BundleDeployment, and a hub that was restored, or another
// hub, has none either. checked holds the revisions that need no second look.
func (d *reconciler) warnOfLeftReleases(ctx context.Context, checked map[string]bool) {
	found, err := d.releases.Unlabelled(ctx)
	if err == nil { // forget those that are gone
		exist := sets.New[string]()
		for _, f := range found {
			exist.Insert(f.String())
		}
		maps.DeleteFunc(checked, func(f string, _ bool) bool { return !exist.Has(f) })
	}
	for _, f := range found {
		if checked[f.String()] {
			continue
		}
		bundleDeployment, agent, readErr := d.releases.Annotated(ctx, f)
		if errors.Is(readErr, release.ErrBusy) {
			continue // a large one: it is looked at with the next search, and meanwhile the others are
		}
		if err = readErr; err != nil {
			break
		}
		ours := bundleDeployment != "" && agent == d.AgentNamespace
		if ours && d.bundleDeployment(registration.LabelValue(bundleDeployment)) != nil {
			continue // it is adopted with the BundleDeployment
		}
		checked[f.String()] = true
		if ours {
			d.log(bundleDeployment).Warnf("Helm release %s/%s was deployed for a BundleDeployment that the hub does not have. It stays, because another hub may have "+
				"had it. If it is not needed any more, run: helm uninstall --namespace %s %s", f.Namespace, f.Name, f.Namespace, f.Name)
		}
	}
	if err != nil && ctx.Err() == nil {
		d.Log.Warnf("Cannot look for releases that nobody removes: %s", release.Explain(err))
	}
}

// asksToUninstall reports whether the agent's own BundleDeployment has the annotation with which the hub asks the agent to uninstall itself.
func asksToUninstall(bd *fleet.BundleDeployment) bool {
	if bd == nil {
		return false
	}
	_, asked := bd.Annotations[fleet.FarewellAnnotation]
	return asked
}

// removeEverything removes everything that this agent deployed and reports that to the hub, until both have worked. The workers have
// ended, so that nothing is deployed at the same time. If the hub has asked to keep the workloads, the objects of all releases stay.
func (d *reconciler) removeEverything(ctx context.Context) error {
	own := d.bundleDeployment(d.ownKey)
	keepsAll := own != nil && fleetstatus.KeepsWorkloads(own)
	d.Log.Info("The hub asked the agent to uninstall itself: removing everything that was deployed")
	pauses := timing.Backoff(d.Timing.RetryFirst, d.Timing.RetryMax)
	noted := false // BeginUninstall is called once: a new installation after that does not belong to this request of the hub
	var keeping sets.Set[string]
	for ctx.Err() == nil {
		var removeErr error
		if keeping == nil { // asked once: the hub deletes the BundleDeployments if the removal takes longer than it waits
			keeping, removeErr = d.keeping(ctx)
		}
		if removeErr == nil {
			removeErr = d.removeAll(ctx, func(key string) bool { return keepsAll || keeping.Has(key) })
		}
		if removeErr == nil && !noted {
			removeErr = d.BeginUninstall(ctx)
			noted = removeErr == nil
		}
		reportErr := d.reportRemoval(ctx, removeErr)
		if rejected := d.CheckRejection(reportErr); rejected != nil {
			return rejected
		}
		if removeErr == nil && reportErr == nil {
			return ErrUninstall
		}
		if ctx.Err() == nil {
			d.Log.Warnf("The removal is not complete, trying again: %s", release.Explain(errors.Join(removeErr, reportErr)))
		}
		timing.Pause(ctx, d.Clock, pauses.Step(), nil)
	}
	return nil
}

// keeping returns the keys of the BundleDeployments whose resources stay. It asks the hub, whose answer is newer than the cache. If the hub does not answer,
// the cache decides: the hub may delete the credential before it answers again. The cache has all objects of the list, or all earlier events of the watch,
// in which the request to uninstall came, unless the feature AtomicFIFO of client-go is off.
func (d *reconciler) keeping(ctx context.Context) (sets.Set[string], error) {
	list, err := d.listBundleDeployments(ctx, metav1.ListOptions{})
	if err != nil && !features.FeatureGates().Enabled(features.AtomicFIFO) {
		return nil, fmt.Errorf("asking the hub which resources stay: %w", err)
	}
	if err != nil {
		d.Log.Warnf("The hub does not say which resources stay, so what it said last counts: %s", release.Explain(err))
		list = &fleet.BundleDeploymentList{}
	}
	known := d.bundleDeployments() // and those that have been deleted since
	for i := range list.Items {
		known = append(known, &list.Items[i])
	}
	keeping := sets.New[string]()
	for key, state := range d.states.all() {
		if keepsResources, _ := state.deleted(); keepsResources {
			keeping.Insert(key)
		}
	}
	for _, bd := range known {
		if key := registration.LabelValue(bd.Name); fleetstatus.KeepsResources(bd.Spec) {
			keeping.Insert(key)
		} else {
			keeping.Delete(key)
		}
	}
	return keeping, nil
}

// removeAll tries to remove every release, even if some fail. The resources stay whose key keeps returns true for. The agent's own release comes last
// and loses only its history: the agent itself removes its objects.
func (d *reconciler) removeAll(ctx context.Context, keeps func(key string) bool) error {
	found, err := d.releases.List(ctx, d.owner.Selector())
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range found {
		if key := f.Labels[release.DeploymentLabel]; key != d.ownKey {
			errs = append(errs, d.uninstall(ctx, key, f, release.KeepIf(keeps(key))))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for key, state := range d.states.all() {
		if !keeps(key) {
			errs = append(errs, d.deleteCopies(ctx, key, state))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, f := range found {
		if f.Labels[release.DeploymentLabel] == d.ownKey {
			errs = append(errs, d.releases.Forget(ctx, f.Namespace, f.Name))
		}
	}
	return errors.Join(errs...)
}

// uninstall removes one release. It removes only the history of the agent's own release. change gets the options in the labels of a revision.
func (d *reconciler) uninstall(
	ctx context.Context, key string, f release.Found, change func(release.UninstallOptions) release.UninstallOptions,
) error {
	ctx, cancel := withGrace(ctx, d.Clock, d.Timing.Grace)
	defer cancel()
	ctx, cancelTimeout := context.WithTimeout(ctx, d.Timing.Operation)
	defer cancelTimeout()
	adjust := func(o release.UninstallOptions) release.UninstallOptions {
		o = change(o)
		o.KeepResources = o.KeepResources || key == d.ownKey
		return o
	}
	options := adjust(f.Options())
	options.Scope, options.Adjust = &d.Scope, adjust
	options.ReportKept = func(kept []string) { d.logKept(key, releaseName{f.Namespace, f.Name}, kept) }
	if err := d.releases.Uninstall(ctx, f.Namespace, f.Name, options); err != nil {
		return err
	}
	d.index.removeRelease(key, releaseName{f.Namespace, f.Name})
	d.log(key).Infof("Removed Helm release %s/%s", f.Namespace, f.Name)
	return nil
}

// reportRemoval writes the condition that the hub waits for. A BundleDeployment that is gone needs no report: the hub has
// stopped waiting.
func (d *reconciler) reportRemoval(ctx context.Context, removeErr error) error {
	bd, err := d.Hub.FleetV1alpha1().BundleDeployments(d.Namespace).Get(ctx, registration.AgentBundleName(d.ClusterName), metav1.GetOptions{})
	if err == nil {
		condition := genericcondition.GenericCondition{Type: fleet.ConditionFarewell, Status: corev1.ConditionTrue, Reason: fleet.ReasonFarewell}
		if removeErr != nil {
			condition.Status, condition.Reason, condition.Message = corev1.ConditionFalse, fleet.ReasonFarewellFailed, release.Explain(removeErr)
		}
		status := *bd.Status.DeepCopy()
		fleetstatus.SetCondition(&status.Conditions, condition, d.Clock.Now())
		_, err = d.writeStatus(ctx, bd, bd.Status, status)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reporting the removal to the hub: %w", err)
	}
	return nil
}

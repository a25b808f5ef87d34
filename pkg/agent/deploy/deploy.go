package deploy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/release"
)

// reconcile carries out one BundleDeployment: it decides what to do, does it, and writes the status. A step that fails or
// has to wait enqueues the key again and ends the pass.
func (d *reconciler) reconcile(ctx context.Context, key string) {
	bd, state := d.bundleDeployment(key), d.states.get(key)
	switch {
	case bd != nil && bd.DeletionTimestamp != nil: // its releases are removed although a finalizer may keep it
		state.noteDeleted(bd)
	case bd != nil:
		state.noteSeen()
	}

	if bd != nil {
		// If the agent's own BundleDeployment is another one than the recorded one, the hub has lost its objects and created them anew. Record which
		// releases have no BundleDeployment. They are kept. The releases of a BundleDeployment that is deleted later are removed.
		if key == d.ownKey {
			if err := d.checkOwn(ctx, bd); err != nil {
				d.retryLater(ctx, key, state, err)
				return
			}
		}
		// Adopt the release that an agent without labels, such as Fleet's own, has deployed for it. Otherwise it would never be removed.
		if !d.isElsewhere(key, bd) {
			if err := d.adopt(ctx, key, bd, state); err != nil {
				d.retryRead(ctx, key, bd, state, err)
				return
			}
		}
		// Ask which of the releases under other names this agent has deployed.
		if err := d.noteReplaced(ctx, key, bd, state); err != nil {
			d.retryRead(ctx, key, bd, state, err)
			return
		}
		d.dropOutdatedDrift(key, bd, state)
	}

	// Collect the facts from the caches and from what this run remembers.
	state.endConflictIfOver()
	f := d.facts(key, bd, state)

	// This agent deploys it: end what was recorded or remembered while it was gone, failed, or waited.
	if f.Wanted && !f.Elsewhere {
		state.goneSince, state.ignoredSince = time.Time{}, time.Time{}
		if d.isKept(key) { // the BundleDeployment of releases that were kept exists again
			if err := d.endKeptIfBack(ctx, key, bd); err != nil {
				d.retryLater(ctx, key, state, err)
				return
			}
		}
		if _, drift := state.release(); f.IsCurrent && !f.Leftovers && !f.OldCopies && !f.OldNamespaceLabels && drift.none() {
			state.attempts.endConflict()
			state.attempts.endFailure() // a correction failed, and the drift was undone by another writer
		}
		state.setWaitsFor(f.WaitsFor)
		if f.WaitsFor != "" {
			d.queue.AddAfter(key, d.Timing.Depend)
		}
	}

	// Decide, and install, upgrade, undo drift, remove leftovers, or label the namespace.
	switch action := decide(f); action {
	case checkRemoval:
		d.remove(ctx, key, state)
		return
	case ignore:
		d.reportElsewhere(ctx, key, bd, state)
		return
	case await: // the event of what is missing enqueues the key; the status says what is missing
	case reportOnly:
		if f.RetryNotDue {
			// Each pass asks for the next attempt: the queue keeps only the earliest time of a key, so that the AddAfter in failed is lost if
			// an event had already enqueued the key for an earlier time.
			d.queue.AddAfter(key, state.attempts.next(bd, d.Timing).Sub(d.Clock.Now()))
		}
	case relabel:
		err := d.relabel(ctx, bd)
		if err == nil {
			state.labelled = namespaceOptions(bd)
			d.queue.Add(key) // the next pass ends the failure of an earlier attempt
		} else if ctx.Err() == nil {
			d.failed(key, bd, state, action, err)
		}
	case deploy, correct, sweep:
		began := d.Clock.Now()
		made, err := d.carryOut(ctx, key, bd, action)
		if made.NamespaceErr != nil {
			state.labelled = "" // labelling the namespace is retried alone
		}
		if err == nil {
			d.succeeded(key, bd, state, made, action, action == correct || f.MustRepeat, began)
		} else if ctx.Err() == nil {
			d.failed(key, bd, state, action, err)
		}
	}
	if ctx.Err() != nil {
		return
	}

	// Read the release, unless this run has deployed or read that revision.
	revision, isCurrent := d.requestedRevision(key, bd, state)
	deployed, _ := state.release() // as this run has deployed or read it
	if isCurrent && !isRevision(deployed, revision) {
		read, err := d.releases.Get(ctx, revision)
		if errors.Is(err, release.ErrNotSigned) {
			if isPausedAsDeployed(bd) {
				return
			}
			d.log(key).Warnf("Deploying Helm release %s again unless it equals what is to be deployed: %v", revision, err)
			state.revisionNotSigned = revision.String()
			state.attempts.endConflict()
			d.queue.Add(key)
			return
		}
		if err != nil {
			d.retryRead(ctx, key, bd, state, err)
			return
		}
		deployed = read
		state.setRelease(read)
		state.mustSweep = d.index.followsFailure(key, *read)
		if state.labelled != namespaceOptions(bd) || state.mustSweep {
			d.queue.Add(key)
		}
		d.states.setKey(releaseName{read.Namespace, read.Name}, key)
		d.drifts.AddAfter(key, d.Timing.Settle)
	}

	// Uninstall the releases that this one replaces: the options had other names or namespaces before.
	// The status is written even if that fails.
	var leftErr error
	if isCurrent && !f.Paused {
		for _, old := range otherReleases(d.index.of(key), revision.Namespace, revision.Name) {
			leftErr = errors.Join(leftErr, d.uninstall(ctx, key, old, func(o release.UninstallOptions) release.UninstallOptions {
				return replacedOptions(o, old, revision, deployed)
			}))
		}
	}
	if deployed != nil && len(d.index.of(key)) == 0 { // another program has removed the release
		deployed = nil
		state.setRelease(nil)
	}

	// While the BundleDeployment is paused, its deployed release is not assessed.
	if isCurrent && isPausedAsDeployed(bd) {
		state.attempts.retries = nil
		return
	}

	// Write the status when the state of all objects is known.
	if deployed != nil && !d.objectsKnown(key, state, deployed) {
		return
	}
	d.report(ctx, key, bd, state, f, leftErr)
}

// checkOwn is called when the agent's own BundleDeployment exists. It keeps releases if that shows that the hub is another one, see restored.go.
func (d *reconciler) checkOwn(ctx context.Context, own *fleet.BundleDeployment) error {
	if err := d.keepIfRecreated(ctx, own); err != nil {
		return err
	}
	return d.recordOwnState(ctx, ownExists)
}

// isPausedAsDeployed reports whether a BundleDeployment is paused after it was deployed.
func isPausedAsDeployed(bd *fleet.BundleDeployment) bool {
	return isPaused(bd) && bd.Status.AppliedDeploymentID == bd.Spec.DeploymentID
}

func isPaused(bd *fleet.BundleDeployment) bool { return bd.Spec.Paused || bd.Spec.OffSchedule }

// facts collects the input of decide.
func (d *reconciler) facts(key string, bd *fleet.BundleDeployment, state *deploymentState) facts {
	f := facts{Own: key == d.ownKey, Wanted: bd != nil && bd.DeletionTimestamp == nil}
	if !f.Wanted {
		return f
	}
	spec := bd.Spec
	deployed, drift := state.release()
	var revision release.Found
	revision, f.IsCurrent = d.requestedRevision(key, bd, state)
	f.MustRepeat = !f.IsCurrent && !d.isReplaced(key, bd, state) && (isRevision(deployed, revision) || state.revisionNotSigned == revision.String() || state.hasDeployed(bd))
	f.OldCopies = len(spec.Options.DownstreamResources) > 0 && copiedGeneration(revision) != spec.DownstreamResourcesGeneration
	f.NoDeploymentID = spec.DeploymentID == ""
	f.Elsewhere = d.isElsewhere(key, bd)
	f.Paused = isPaused(bd)
	failure := state.attempts.failureOf(bd)
	f.Leftovers = f.IsCurrent && (isLeftover(failure) || state.mustSweep)
	f.Drifted = drift.isCorrectable(spec.Options)
	f.MustCorrect = spec.CorrectDrift != nil && spec.CorrectDrift.Enabled || drift.missesOverwritten(deployed, spec.Options)
	// A revision that this run has not read yet may have to be deployed again, which labels the namespace too.
	f.OldNamespaceLabels = state.labelled != namespaceOptions(bd) && isRevision(deployed, revision)
	// A failed deployment is not repeated before its time; another deployment ID does not wait.
	f.RetryNotDue = d.Clock.Now().Before(state.attempts.next(bd, d.Timing)) && (f.IsCurrent || f.MustRepeat || failure != nil)
	f.WaitsForValues = spec.WaitingForValues
	// A deployed BundleDeployment is checked against dependsOn once for each of its changes, as by Fleet's own agent: after an event of its
	// objects and after a comparison, the status does not report that a Bundle on which it depends has become unready.
	if asked := dependencyRequest(bd); !f.IsCurrent || state.dependenciesMet != asked {
		f.WaitsFor = unmet(bd, d.bundleDeployments())
		state.dependenciesMet = ""
		if f.WaitsFor == "" {
			state.dependenciesMet = asked
		}
	}
	return f
}

// dependencyRequest returns a text that changes with each change of a BundleDeployment, except those of its status.
func dependencyRequest(bd *fleet.BundleDeployment) string {
	return fmt.Sprint(bd.UID, bd.Generation, bd.Labels, bd.Annotations)
}

// isElsewhere reports whether a BundleDeployment is for the agent of this Cluster in another namespace. Its name identifies it: a hub makes one
// Bundle for the agent of each Cluster. A Bundle that a user has named like the one of another Cluster's agent is deployed as any other.
func (d *reconciler) isElsewhere(key string, bd *fleet.BundleDeployment) bool {
	namespace := bd.Spec.Options.DefaultNamespace
	return key == d.ownKey && namespace != "" && namespace != d.AgentNamespace
}

// reportElsewhere writes into the status why this agent deploys nothing, if no agent has written a status for Timing.Elsewhere. It must not
// overwrite the status of the agent in the other namespace.
func (d *reconciler) reportElsewhere(ctx context.Context, key string, bd *fleet.BundleDeployment, state *deploymentState) {
	if len(bd.Status.Conditions) > 0 {
		state.ignoredSince = time.Time{}
		return
	}
	if state.ignoredSince.IsZero() {
		state.ignoredSince = d.Clock.Now()
	}
	if rest := d.Timing.Elsewhere - d.Clock.Since(state.ignoredSince); rest > 0 {
		d.queue.AddAfter(key, rest)
		return
	}
	message := fmt.Sprintf("this is the BundleDeployment of the agent, and its defaultNamespace is %s: the agent of this cluster is in namespace %s",
		bd.Spec.Options.DefaultNamespace, d.AgentNamespace)
	if err := d.reportProblem(ctx, bd, state, message); err != nil {
		d.retryLater(ctx, key, state, err)
	}
}

// retryRead retries a step that reads the history of a release, and reports an error that lasts. The first error is only logged: the API server
// of the member may be restarting. While a deployed BundleDeployment is paused, its status is not written.
func (d *reconciler) retryRead(ctx context.Context, key string, bd *fleet.BundleDeployment, state *deploymentState, err error) {
	if state.attempts.retries != nil && !isPausedAsDeployed(bd) {
		err = errors.Join(err, d.reportProblem(ctx, bd, state, release.Explain(err)))
	}
	d.retryLater(ctx, key, state, err)
}

// reportProblem sets the conditions Deployed and Ready to False. The rest of the status stays: from it, adopt knows which release another agent
// has deployed.
func (d *reconciler) reportProblem(ctx context.Context, bd *fleet.BundleDeployment, state *deploymentState, message string) error {
	return d.updateStatus(ctx, bd, state, func(s fleet.BundleDeploymentStatus) fleet.BundleDeploymentStatus {
		for _, condition := range []string{fleet.ConditionDeployed, fleet.ConditionReady} {
			fleetstatus.SetCondition(&s.Conditions, genericcondition.GenericCondition{
				Type: condition, Status: corev1.ConditionFalse, Reason: fleet.ReasonError, Message: message,
			}, d.Clock.Now())
		}
		s.Display = fleetstatus.Display(bd.Spec, s)
		return s
	})
}

// adopt labels the release that an agent without labels has deployed, if the status shows that an agent has worked on the BundleDeployment. The
// status has the name of the release, or, after a deployment that failed, the options have it. A revision of such an agent may have the labels
// of the revision before, which Helm copies: then the label with the deployment ID differs from the status.
func (d *reconciler) adopt(ctx context.Context, key string, bd *fleet.BundleDeployment, state *deploymentState) error {
	labelled := d.index.of(key) // the revisions with labels of this agent
	at := release.ParseRecord(bd.Status.Release)
	if at.Name == "" && len(bd.Status.Conditions) > 0 && len(labelled) == 0 {
		at.Namespace, at.Name = release.Place(bd.Name, bd.Spec.Options)
	}
	applied := bd.Status.AppliedDeploymentID
	isAdopted := func(f release.Found) bool {
		isLater := f.Namespace == at.Namespace && f.Name == at.Name && f.Version > at.Version
		return isLater || f.String() == at.String() && (applied == "" || f.Labels[release.DeploymentIDLabel] == release.DeploymentIDValue(applied))
	}
	if at.Name == "" || state.sought == at.String() || slices.ContainsFunc(labelled, isAdopted) {
		return nil
	}
	request := release.Request{
		Namespace: at.Namespace, Name: at.Name, BundleDeployment: bd.Name, Recorded: bd.Status.Release,
		Labels: d.owner.LabelsFor(bd.Name, applied), ServiceAccountNamespace: d.AgentNamespace,
	}
	if applied == bd.Spec.DeploymentID { // it was deployed with these options
		request.Options = bd.Spec.Options
		if len(request.Options.DownstreamResources) > 0 {
			request.Labels[release.CopiesLabel] = strconv.FormatInt(bd.Status.DownstreamResourcesGeneration, 10)
		}
	}
	adopted, err := d.releases.Adopt(ctx, request)
	if err != nil {
		return err
	}
	state.sought = at.String()
	if adopted.Name != "" {
		d.index.add(adopted)
		d.log(key).Infof("Adopted Helm release %s of an agent that sets no labels", adopted)
	}
	return nil
}

// requestedRevision returns the revision with the release name and the deployment ID of the BundleDeployment, if there is one, and whether it
// is deployed. The watch may still show a revision as pending that this run has finished. A superseded revision is not deployed, even if this
// run has deployed it: another BundleDeployment has adopted the release. Nor is a revision that is not signed, or one that isReplaced.
func (d *reconciler) requestedRevision(key string, bd *fleet.BundleDeployment, state *deploymentState) (release.Found, bool) {
	namespace, name := release.Place(bd.Name, bd.Spec.Options)
	id := release.DeploymentIDValue(bd.Spec.DeploymentID)
	deployed, _ := state.release()
	for _, f := range d.index.of(key) {
		if f.Namespace == namespace && f.Name == name && f.Labels[release.DeploymentIDLabel] == id {
			isDeployed := f.Deployed || f.Pending && isRevision(deployed, f)
			return f, isDeployed && state.revisionNotSigned != f.String() && !d.isReplaced(key, bd, state)
		}
	}
	return release.Found{}, false
}

// isReplaced reports whether a release under another name may have adopted objects of the requested one, which is then deployed again to take them back
// before the other one is uninstalled: the options had another name meanwhile, and that deployment may have failed.
func (d *reconciler) isReplaced(key string, bd *fleet.BundleDeployment, state *deploymentState) bool {
	namespace, name := release.Place(bd.Name, bd.Spec.Options)
	return !isPaused(bd) && state.replaces && state.applied != releaseName{namespace, name} && len(otherReleases(d.index.of(key), namespace, name)) > 0
}

// noteReplaced notes whether a release under another name is signed, or is the recorded one, which an agent that signs nothing may have deployed.
func (d *reconciler) noteReplaced(ctx context.Context, key string, bd *fleet.BundleDeployment, state *deploymentState) (err error) {
	namespace, name := release.Place(bd.Name, bd.Spec.Options)
	others := otherReleases(d.index.of(key), namespace, name)
	recorded := release.ParseRecord(bd.Status.Release)
	isRecorded := func(f release.Found) bool { return f.Namespace == recorded.Namespace && f.Name == recorded.Name }
	if state.replaces = slices.ContainsFunc(others, isRecorded); !state.replaces && state.applied != (releaseName{namespace, name}) {
		state.replaces, err = d.hasSigned(ctx, others)
	}
	return err
}

// hasDeployed reports whether this run has deployed the deployment ID last, and no attempt has failed since. Another revision is the last one now.
func (s *deploymentState) hasDeployed(bd *fleet.BundleDeployment) bool {
	deployed, _ := s.release()
	namespace, name := release.Place(bd.Name, bd.Spec.Options)
	return deployed != nil && s.attempts.failure == nil && deployed.Namespace == namespace && deployed.Name == name &&
		deployed.Labels[release.DeploymentIDLabel] == release.DeploymentIDValue(bd.Spec.DeploymentID)
}

func isRevision(d *release.Deployed, f release.Found) bool {
	return d != nil && d.Namespace == f.Namespace && d.Name == f.Name && d.Version == f.Version
}

// carryOut fetches the files, values and copies, and runs Helm.
func (d *reconciler) carryOut(ctx context.Context, key string, bd *fleet.BundleDeployment, action action) (release.Deployed, error) {
	ctx, cancelGrace := withGrace(ctx, d.Clock, d.Timing.Grace)
	defer cancelGrace()
	options := *bd.Spec.Options.DeepCopy()
	options.CorrectDrift = bd.Spec.CorrectDrift // Fleet's hub changes those in the options only with the deployment ID
	namespace, name := release.Place(bd.Name, options)
	request := release.Request{
		Namespace: namespace, Name: name, BundleDeployment: bd.Name, Scope: d.Scope, Commit: bd.Labels[fleet.CommitLabel], Options: options,
		Predecessors:            otherReleases(d.index.of(key), namespace, name),
		Labels:                  d.owner.LabelsFor(bd.Name, bd.Spec.DeploymentID),
		ServiceAccountNamespace: d.AgentNamespace,
		Recorded:                bd.Status.Release,
		Applied: bd.Status.AppliedDeploymentID == bd.Spec.DeploymentID &&
			(len(options.DownstreamResources) == 0 || bd.Status.DownstreamResourcesGeneration == bd.Spec.DownstreamResourcesGeneration),
		IsAgent: key == d.ownKey,
	}
	if len(d.index.of(key)) == 0 && d.isLater(bd.ResourceVersion) { // see restored.go
		if err := d.recordVersion(ctx, bd.ResourceVersion); err != nil {
			return release.Deployed{}, err
		}
	}
	state := d.states.get(key)
	state.setTried(releaseName{namespace, name}) // before the attempt: the other release may be removed before its conflict is noted
	ctx, cancel := context.WithTimeout(ctx, d.Timing.Operation+request.Bound())
	defer cancel()
	switch action {
	case sweep:
		made, err := d.releases.Sweep(ctx, request)
		if err != nil && !isLeftover(err) {
			err = &release.LeftoverError{Err: err} // whatever prevented the sweep, the objects are still there
		}
		return made, err
	case correct:
		if made, err := d.releases.Correct(ctx, request); !errors.Is(err, release.ErrNotSigned) {
			return made, err
		}
		d.log(key).Warnf("Deploying again to undo a difference: %v", release.ErrNotSigned)
		request.Applied = false // the release differs, so it must not stay
	default:
	}
	var err error
	if request.Resources, err = d.fetchResources(ctx, bd); err != nil {
		return release.Deployed{}, err
	}
	if request.Values, err = d.fetchValues(ctx, bd); err != nil {
		return release.Deployed{}, err
	}
	if request.Copies, err = d.fetchCopies(ctx, bd); err != nil {
		return release.Deployed{}, err
	}
	for _, old := range request.Predecessors { // so that the removal of the new release deletes the copies that were made for the former one
		if copied := old.Labels[release.CopiesLabel]; copied != "" && old.Namespace == namespace {
			request.Labels[release.CopiesLabel] = copied
		}
	}
	if len(request.Copies) > 0 {
		request.Labels[release.CopiesLabel] = strconv.FormatInt(bd.Spec.DownstreamResourcesGeneration, 10)
		state.copiedFor = state.copiedFor.Union(sets.New(releaseName{namespace, name}))
	}
	state.applied = releaseName{}
	made, err := d.releases.Deploy(ctx, request)
	if err == nil || isLeftover(err) {
		state.applied = releaseName{namespace, name}
	}
	return made, err
}

// relabel applies the labels and annotations that the options set on the namespace of the release.
func (d *reconciler) relabel(ctx context.Context, bd *fleet.BundleDeployment) error {
	namespace, name := release.Place(bd.Name, bd.Spec.Options)
	ctx, cancel := context.WithTimeout(ctx, d.Timing.Operation)
	defer cancel()
	return d.releases.LabelNamespace(ctx, release.Request{
		Namespace: namespace, Name: name, BundleDeployment: bd.Name, Options: bd.Spec.Options, ServiceAccountNamespace: d.AgentNamespace,
	})
}

// namespaceOptions returns a text, never "", that changes with the labels and annotations that the options set on the namespace of the release.
func namespaceOptions(bd *fleet.BundleDeployment) string {
	o := bd.Spec.Options
	return fmt.Sprintf("%q %q %q %q %q", o.TargetNamespace, o.DefaultNamespace, o.ServiceAccount, o.NamespaceLabels, o.NamespaceAnnotations)
}

// otherReleases returns the releases of a BundleDeployment under other names, from before its options changed.
func otherReleases(releases []release.Found, namespace, name string) []release.Found {
	return slices.DeleteFunc(slices.Clone(releases), func(f release.Found) bool { return f.Namespace == namespace && f.Name == name })
}

// succeeded records the result of an operation. repeated means that this run had deployed the same before.
func (d *reconciler) succeeded(
	key string, bd *fleet.BundleDeployment, state *deploymentState, made release.Deployed, done action, repeated bool, began time.Time,
) {
	what := map[action]string{deploy: "Deployed", correct: "Undid differences from", sweep: "Removed what failed attempts left of"}[done]
	if made.Unchanged {
		what = "Signed unchanged"
	}
	d.log(key).Infof("%s Helm release %s", what, made)
	for _, dropped := range made.Dropped {
		d.index.remove(dropped)
		d.log(key).Warnf("Deleted the Secret of revision %s, which was damaged and not written by this agent", dropped)
	}
	d.logKept(key, releaseName{made.Namespace, made.Name}, made.Kept)
	d.index.add(release.Found{Namespace: made.Namespace, Name: made.Name, Version: made.Version, Deployed: true, Labels: made.Labels})
	state.setRelease(&made)
	d.states.setKey(releaseName{made.Namespace, made.Name}, key)
	state.revisionNotSigned = ""
	state.mustSweep = state.mustSweep && done == correct
	if made.Labels[release.CopiesLabel] != "" { // the removal of the release deletes all copies in its namespace
		maps.DeleteFunc(state.copiedFor, func(r releaseName, _ sets.Empty) bool { return r.namespace == made.Namespace })
	}
	state.attempts.succeeded(done)
	switch {
	case made.NamespaceErr != nil:
		d.failed(key, bd, state, relabel, made.NamespaceErr)
	case done == deploy:
		state.labelled = namespaceOptions(bd)
	}
	if repeated { // another writer keeps changing this release, so the next repetition must wait
		state.attempts.postpone(state.corrections.next(done, began, d.Clock.Now(), d.Timing))
	}
	d.drifts.AddAfter(key, d.Timing.Settle)
}

// logKept logs objects that a release no longer has, and that stay because they do not belong to it, or because the deployment may not
// read them.
func (d *reconciler) logKept(key string, from releaseName, kept []string) {
	for _, object := range kept {
		d.log(key).Warnf("Kept an object that Helm release %s/%s no longer has: %s", from.namespace, from.name, object)
	}
}

func (d *reconciler) failed(key string, bd *fleet.BundleDeployment, state *deploymentState, tried action, err error) {
	what := map[action]string{
		deploy: "Deploying", correct: "Undoing differences", sweep: "Removing what failed attempts left", relabel: "Labelling the namespace",
	}[tried]
	d.log(key).Warnf("%s failed: %s", what, release.Explain(err))
	d.queue.AddAfter(key, state.attempts.failed(bd, err, d.Clock.Now(), d.Timing))
}

// needsChange reports whether only a change of the BundleDeployment, which is an event, or of the member can help.
func needsChange(err error) bool {
	var unsupported *release.UnsupportedError
	var invalid *release.InvalidError
	return errors.As(err, &unsupported) || errors.As(err, &invalid) || isConflict(err)
}

func isConflict(err error) bool {
	var conflict *release.ConflictError
	return errors.As(err, &conflict)
}

func isNamespaceLabelError(err error) bool {
	var unlabelled *release.NamespaceError
	return errors.As(err, &unlabelled)
}

func isLeftover(err error) bool {
	var leftover *release.LeftoverError
	return errors.As(err, &leftover)
}

// replacedOptions returns the options for the removal of a release that another one replaces. The new release needs its namespace, the
// namespaces of its objects, and the CustomResourceDefinitions of the chart.
func replacedOptions(options release.UninstallOptions, old, current release.Found, deployed *release.Deployed) release.UninstallOptions {
	options.DeleteCRDs = false
	uses := func(o release.Object) bool {
		return o.Desired.GetNamespace() == old.Namespace || o.Desired.GetKind() == "Namespace" && o.Desired.GetName() == old.Namespace
	}
	options.DeleteCopies = options.DeleteCopies && old.Namespace != current.Namespace
	if old.Namespace == current.Namespace || deployed != nil && slices.ContainsFunc(deployed.Objects, uses) {
		options.DeleteNamespace = false
	}
	return options
}

// A cache that may not list its kind is never filled. A status waits syncPatience for the caches; after that, syncCheckMax
// bounds the interval at which they are checked. The interval grows with the time waited: with a fixed short one, each
// BundleDeployment with such a kind would check several times a second.
const (
	syncPatience = 10 * time.Second
	syncCheckMax = 30 * time.Second
)

// objectsKnown reports whether a status can be computed: the caches of all kinds are filled, or have been waited for, and
// the objects were compared. If not, the key is enqueued again.
func (d *reconciler) objectsKnown(key string, state *deploymentState, deployed *release.Deployed) bool {
	if !d.objects.watch(deployed.Objects) {
		if state.unsyncedSince.IsZero() {
			state.unsyncedSince = d.Clock.Now()
		}
		waited := d.Clock.Since(state.unsyncedSince)
		d.queue.AddAfter(key, min(max(d.Timing.Settle, waited-syncPatience), syncCheckMax))
		return waited > syncPatience
	}
	if !state.unsyncedSince.IsZero() {
		state.unsyncedSince = time.Time{}
		d.drifts.AddAfter(key, d.Timing.Settle)
	}
	// A comparison enqueues the key, so that the status is written once after a deployment and after the deletion of an object.
	_, drift := state.release()
	return (drift.compared() || len(deployed.Objects) == 0) && !drift.isOutdated(deployed, d.objects.get)
}

// report writes the status, of which assess computes the fields. If that fails, or leftErr is an error of an earlier step, the pass is repeated.
func (d *reconciler) report(ctx context.Context, key string, bd *fleet.BundleDeployment, state *deploymentState, f facts, leftErr error) {
	revision, isCurrent := d.requestedRevision(key, bd, state)
	deployed, drift := state.release()
	err := d.updateStatus(ctx, bd, state, func(before fleet.BundleDeploymentStatus) fleet.BundleDeploymentStatus {
		return assess(view{
			spec: bd.Spec, before: before, current: isCurrent, installed: len(d.index.of(key)) > 0, deployed: deployed,
			copied: copiedGeneration(revision), failure: state.attempts.failureOf(bd), waitsFor: f.WaitsFor, paused: f.Paused, drift: drift,
			live: d.objects.get, now: d.Clock.Now(),
		})
	})
	switch err = errors.Join(err, leftErr); {
	case err != nil:
		d.retryLater(ctx, key, state, err)
	case state.attempts.failure == nil:
		state.attempts.retries = nil // the next failure is another one and begins with short pauses
	}
}

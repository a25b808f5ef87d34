package bundle

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/bundle/templates"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/rollup"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Reconcile brings the BundleDeployments of a Cluster up to date with its Bundles, and reports their state in the Cluster's status.
func (d *Deployer) Reconcile(ctx context.Context, cluster *fleet.Cluster) result.Result {
	existing, err := d.deploymentCache.List(registration.ClusterNamespace(cluster.Namespace, cluster.Name), labels.Everything())
	if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	var own []*fleet.BundleDeployment
	foreign := map[string]*fleet.BundleDeployment{} // of other owners, by name
	for _, deployment := range existing {
		if isFromWorkspace(deployment, cluster.Namespace) {
			own = append(own, deployment)
		} else {
			foreign[deployment.Name] = deployment
		}
	}
	current := own
	var recheck time.Duration
	if cluster.Spec.Quarantined {
		// This pass leaves the BundleDeployments of a quarantined Cluster as they are; finalizeBundle deletes those of a deleted Bundle all the
		// same. The API server checks rights when a request begins, so an agent that has lost its rights may still have a watch open, which
		// delivers every write.
		err = d.roles.AllowObjects(ctx, cluster, nil, nil)
	} else if !cluster.Spec.MetadataTooLarge { // otherwise the cache has dropped labels by which Bundles select the Cluster
		recount := d.recountStorage(cluster, own)
		current, recheck, err = d.deploy(ctx, cluster, own, foreign)
		recheck = result.Earliest(recheck, recount)
	}
	if ctx.Err() == nil {
		rollup.ReportDeployments(&cluster.Status, current)
	}

	var out result.Result
	switch {
	case stalledReason(err) != "":
		out = result.Stalled(stalledReason(err), rollup.WithUnready(err.Error(), "Bundle", cluster.Status.Summary))
		if !isOnlyKindDeleted(err) {
			out = out.In(d.RecheckDelay())
		}
	case err != nil:
		out = result.Retry(fleet.ReasonError, err)
		out.Message = rollup.WithUnready(out.Message, "Bundle", cluster.Status.Summary)
		return out
	case cluster.Spec.MetadataTooLarge:
		out = result.Stalled(fleet.ReasonTooLarge, registration.TooLarge(cluster.Spec.Excess, registration.MetadataTooLarge)+"; what is deployed stays as it is")
	case cluster.Status.Agent.DeploymentsStalled != "": // what the agent has reported for each BundleDeployment is old
		out = result.Stalled(fleet.ReasonDeploymentsStalled, "the agent deploys nothing: "+rollup.Shown(cluster.Status.Agent.DeploymentsStalled))
	default:
		out = rollup.Ready("Bundle", cluster.Status.Summary)
	}
	out.After = result.Earliest(out.After, recheck)
	return rollup.WithoutRoutineEvent(fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionReady), out)
}

// assignment is what a pass decides for one BundleDeployment of a Cluster.
type assignment struct {
	action   action
	existing *fleet.BundleDeployment // nil if there is none
	wanted   *fleet.BundleDeployment // as it is after the pass, for the status; nil if there is none then
	secrets  []string                // with Helm values, which the agent may read
	err      error                   // why the BundleDeployment is not as its Bundle requires
	recheck  time.Duration           // after which to decide again, 0 for never

	bundle *fleet.Bundle // nil for remove, and if no Bundle targets the Cluster
	// For update:
	plan        *plan
	variant     variant
	values      helmValues
	isPostponed bool  // the Cluster may not have the deployment ID of the variant yet
	size        int64 // of wanted, for its label
}

// action is what the hub does with a BundleDeployment.
type action int

const (
	asIs   action = iota // change nothing, except that a changed copy raises its downstreamResourcesGeneration
	update               // create it, or bring it up to date
	remove               // delete it: no Bundle requires it
)

// leaveAsIs returns the assignment that does not change a BundleDeployment. existing is nil if there is none.
func leaveAsIs(existing *fleet.BundleDeployment, err error) assignment {
	a := assignment{action: asIs, existing: existing, err: err}
	if existing != nil {
		wanted := *existing
		a.wanted, a.secrets = &wanted, secretsOf(existing)
		a.values = helmValues{unread: existing.Spec.ValuesHash} // they stay in their Secret
	}
	return a
}

// deploy writes the BundleDeployments of one Cluster, of which own exist. It returns those that the Cluster has afterwards, and the time after
// which to call it again, 0 for never. foreign are those of other owners, which were not made from a Bundle of the workspace: their Secrets stay readable.
func (d *Deployer) deploy(
	ctx context.Context, cluster *fleet.Cluster, own []*fleet.BundleDeployment, foreign map[string]*fleet.BundleDeployment,
) (current []*fleet.BundleDeployment, recheck time.Duration, err error) {
	assignments, err := d.assign(ctx, cluster, own, foreign)
	if err != nil {
		return own, 0, err
	}

	// Create the BundleDeployments and the Secrets with their Helm values.
	for i, a := range assignments {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		if a.action == update {
			assignments[i] = d.prepare(ctx, cluster, a)
		}
	}

	// Copy Secrets and ConfigMaps, and grant the right to read the copies and the Secrets with Helm values. Then write the specs, because an agent reads
	// these objects when it receives the spec, which has the digest of the values. A new BundleDeployment without Helm values has its whole spec already
	// (prepare): its agent tries again until the copies exist.
	overStorage := map[key]storageExcess{} // by Bundle
	for _, a := range assignments {
		noteStorageExcess(overStorage, a.err)
	}
	stored := slices.DeleteFunc(slices.Clone(assignments), func(a assignment) bool { return a.existing == nil || a.action == remove })
	secrets, configMaps, copiesOverStorage, failures := d.ensureCopies(ctx, cluster, stored)
	maps.Copy(overStorage, copiesOverStorage)
	d.noteStorageLimits(keyOf(cluster), overStorage)
	for _, a := range assignments {
		secrets = append(secrets, a.secrets...)
	}
	for _, deployment := range foreign {
		secrets = append(secrets, secretsOf(deployment)...)
	}
	notAllowed := d.roles.AllowObjects(ctx, cluster, secrets, configMaps)
	failures = append(failures, notAllowed)
	for i, a := range assignments {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		if a.action == remove || a.existing == nil || notAllowed != nil {
			continue
		}
		if latest, err := d.write(ctx, a); err == nil {
			assignments[i].existing = latest
		} else {
			assignments[i].err = errors.Join(a.err, err)
		}
	}

	d.noteRefusals(keyOf(cluster), assignments)
	for _, a := range assignments {
		failures = append(failures, a.err)
		recheck = result.Earliest(recheck, a.recheck)
		if deployment := cmp.Or(a.existing, a.wanted); deployment != nil && a.action != remove {
			current = append(current, deployment)
		}
	}
	if notAllowed != nil {
		return current, recheck, joinErrors(failures...)
	}

	// The agents of this project set the display of their BundleDeployments themselves.
	if agentspec.IsOfFleet(cluster.Status.Agent) {
		for i, deployment := range current {
			if cluster.Status.Agent.LastSeen.IsZero() && len(deployment.Status.Conditions) == 0 {
				continue // the agent may be one of this project that has not sent a heartbeat yet
			}
			current[i], err = d.setDisplay(ctx, deployment)
			failures = append(failures, err)
		}
	}

	for _, a := range assignments {
		if a.action == remove {
			failures = append(failures, d.delete(ctx, a.existing))
		}
	}
	return current, recheck, joinErrors(failures...)
}

// assign decides what becomes of each BundleDeployment of a Cluster, in the order of the names of the Bundles. It writes nothing.
func (d *Deployer) assign(
	ctx context.Context, cluster *fleet.Cluster, own []*fleet.BundleDeployment, foreign map[string]*fleet.BundleDeployment,
) (assignments []assignment, err error) {
	untargeted := map[string]*fleet.BundleDeployment{}
	for _, deployment := range own {
		untargeted[deployment.Name] = deployment
	}
	targeting, err := d.targetingBundles(ctx, cluster)
	if err != nil {
		return nil, err
	}
	for _, t := range targeting {
		name := t.bundle.Name
		switch other := foreign[name]; {
		case other == nil:
			a := d.assignBundle(ctx, cluster, t, untargeted[name])
			a.bundle = t.bundle
			assignments = append(assignments, a)
			delete(untargeted, name)
		case len(t.targets) > 0: // otherwise the status of the Bundle reports the problem
			assignments = append(assignments, assignment{action: asIs, bundle: t.bundle, wanted: other, err: foreignDeployment(other)})
		}
	}
	if ctx.Err() == nil {
		d.noteRenderErrors(ctx, keyOf(cluster), targeting, assignments)
	}

	d.freeRetained()
	// Leave a BundleDeployment that no Bundle requires unless the API server confirms it: at a takeover the caches may lag behind those of the
	// previous hub, and the agent uninstalls what is deleted.
	for _, name := range slices.Sorted(maps.Keys(untargeted)) {
		deployment := untargeted[name]
		if d.isBeingDeleted(deployment) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		confirmed := d.confirmUnlessRetained(ctx, cluster, deployment)
		a := leaveAsIs(deployment, confirmed.err)
		if a.recheck = confirmed.after; confirmed.isUntargeted {
			a = assignment{action: remove, existing: deployment}
		}
		assignments = append(assignments, a)
	}
	return assignments, nil
}

// assignBundle decides about the BundleDeployment of a Bundle that targets the Cluster: it merges the options of the targets into those of
// the Bundle. If that fails, the BundleDeployment stays as it is.
func (d *Deployer) assignBundle(ctx context.Context, cluster *fleet.Cluster, t targeting, existing *fleet.BundleDeployment) assignment {
	b, plan := t.bundle, t.plan
	if plan.err != nil {
		return leaveAsIs(existing, fmt.Errorf("Bundle %s: %w", b.Name, plan.err))
	}
	if len(t.targets) == 0 { // the status of the Bundle reports the problem
		if plan.lacksValues() {
			d.noteMissingValues(keyOf(b))
		}
		return leaveAsIs(existing, nil)
	}
	v, err := plan.variant(ctx, t.targets, cluster)
	if err != nil {
		return leaveAsIs(existing, fmt.Errorf("Bundle %s: %w", b.Name, err))
	}
	isPostponed := isPaused(b, cluster)
	if !isPostponed {
		mayUpdate, isDecided := d.mayUpdate(b, plan, keyOf(cluster), existing, v.deploymentID)
		if !isDecided && existing == nil {
			// The rollout decision will enqueue the Cluster: the pass after it creates the BundleDeployment in its final form, with one write.
			return leaveAsIs(nil, nil)
		}
		isPostponed = !mayUpdate
	}
	values, err := d.valuesFor(ctx, b, v, isPostponed, cluster, existing)
	if err != nil {
		return leaveAsIs(existing, err)
	}
	size := plan.wantedSize(v, isPostponed, existing)
	wanted := withSize(desired(b, v, values, isPostponed, cluster, existing), size)
	// With the groups that are missing, another target might apply, or one might exclude the Cluster. The hub asks only before a write.
	if t.isAssumed && (existing == nil || !isAsWanted(existing, wanted)) {
		missing, err := d.missingGroups(ctx, b.CreationTimestamp, d.Clock.Now())
		if missing == anyMissing {
			err = &kindDeletedError{key: keyOf(wanted), resource: "clustergroups", isHeld: true}
			d.bundles.EnqueueAfter(b.Namespace, b.Name, d.RecheckDelay()) // its status names the groups; each recheck of many Clusters comes here
		}
		if err != nil {
			a := leaveAsIs(existing, err)
			a.recheck = d.RecheckDelay() // the group may select other Clusters, so that its event does not enqueue this one
			return a
		}
	}
	if err := d.reserveDeploymentStorage(ctx, cluster, size, existing, wanted); err != nil {
		return leaveAsIs(existing, err)
	}
	return assignment{
		action: update, existing: existing, wanted: wanted,
		plan: plan, variant: v, values: values, isPostponed: isPostponed, size: size,
	}
}

// noteRenderErrors enqueues the Bundles with templates that target a Cluster if the errors of rendering them have changed since the last pass over the
// Cluster: the rollout and the status of a Bundle depend on these errors, and perhaps no BundleDeployment is written whose event would enqueue the Bundle.
// It remembers one digest for each Cluster, because there may be millions of pairs of Clusters and Bundles.
func (d *Deployer) noteRenderErrors(ctx context.Context, cluster key, targeting []targeting, assignments []assignment) {
	var now [sha256.Size]byte
	for _, a := range assignments {
		if failed := new(templates.RenderError); errors.As(a.err, &failed) {
			now = sha256.Sum256(fmt.Append(now[:], a.err)) // the error names the Bundle
		}
	}
	d.mu.Lock()
	before := d.renderErrors[cluster]
	if d.renderErrors[cluster] = now; now == ([sha256.Size]byte{}) {
		delete(d.renderErrors, cluster)
	}
	d.mu.Unlock()
	if now == before {
		return
	}
	for _, t := range targeting {
		if len(t.targets) == 0 {
			continue
		}
		if merged, err := t.plan.mergedOptions(ctx, t.targets); err != nil || merged.hasTemplate { // an error may be that of ctx
			d.bundleChanged(keyOf(t.bundle))
		}
	}
}

// noteRefusals remembers which Bundles a Cluster has no BundleDeployment of because of an error, for enqueueRefusing. As the message that lists the errors, it
// has maxErrors of them at most, so that it stays small.
func (d *Deployer) noteRefusals(cluster key, assignments []assignment) {
	var refused []string
	for _, a := range assignments {
		if a.err != nil && a.existing == nil && a.bundle != nil && len(refused) < maxErrors {
			refused = append(refused, a.bundle.Name)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refusals[cluster] = refused; len(refused) == 0 {
		delete(d.refusals, cluster)
	}
}

// prepare creates the Content that a BundleDeployment names, the BundleDeployment and the Secret with its Helm values if they do not
// exist. It brings an existing Secret up to date. The BundleDeployment owns the Secret, so it comes first, and waits for the values until
// write completes it. If that fails, the BundleDeployment stays as it is.
func (d *Deployer) prepare(ctx context.Context, cluster *fleet.Cluster, a assignment) assignment {
	if a.existing == nil && d.written.IsExpected(keyOf(a.wanted).String()) { // this hub has created it, and its event is late
		a.action, a.recheck = asIs, expectations.Timeout
		if d.values.hasWritten(keyOf(a.wanted)) { // otherwise another owner may have created a Secret of that name
			a.secrets = secretsOf(a.wanted)
		}
		return a
	}
	failed := func(err error) assignment {
		stays := leaveAsIs(a.existing, err)
		stays.bundle = a.bundle
		if stays.wanted == nil {
			stays.wanted = a.wanted // it is reported, although it does not exist yet
		}
		if unusable := new(unusableError); errors.As(err, &unusable) {
			stays.secrets = nil // they belong to another owner
		}
		return stays
	}
	a.secrets = secretsOf(a.wanted)
	if a.existing != nil && d.mustNotWrite(a.existing) {
		return a
	}
	if a.plan.hasContent {
		check := func() error { return d.checkEarlierContents(ctx, a.bundle, a.plan) }
		if err := d.contents.ensure(ctx, a.plan.content, a.bundle, check); err != nil {
			return failed(err)
		}
	}
	if a.existing == nil {
		first := a.wanted
		if !a.values.isEmpty() {
			first = a.wanted.DeepCopy()
			first.Spec.WaitingForValues, first.Spec.ValuesHash = true, ""
		}
		client := d.FleetClient.BundleDeployments(first.Namespace)
		made, err := client.Create(ctx, first, metav1.CreateOptions{})
		if err == nil {
			d.written.Expect(keyOf(made).String())
		} else if apierrors.IsAlreadyExists(err) {
			// It is not in the cache: either the event is late, or somebody else has created it.
			made, err = client.Get(ctx, first.Name, metav1.GetOptions{})
			if err == nil && !isFromWorkspace(made, cluster.Namespace) {
				return failed(foreignDeployment(made))
			}
		}
		if err != nil {
			return failed(fmt.Errorf("creating BundleDeployment %s/%s: %w", first.Namespace, first.Name, err))
		}
		a.existing, a.wanted = made, withSize(desired(a.bundle, a.variant, a.values, a.isPostponed, cluster, made), a.size)
	}
	if err := d.values.ensure(ctx, a.existing, a.values); err != nil {
		return failed(err)
	}
	return a
}

// write brings the spec and the labels of a BundleDeployment up to date, and returns the BundleDeployment as it is afterwards.
func (d *Deployer) write(ctx context.Context, a assignment) (*fleet.BundleDeployment, error) {
	if d.mustNotWrite(a.existing) || isAsWanted(a.existing, a.wanted) {
		return a.existing, nil // as in most passes
	}
	if a.existing.Spec.ValuesHash != "" && a.values.isEmpty() {
		if err := d.values.delete(ctx, keyOf(a.existing)); err != nil {
			return nil, err
		}
	}
	operations, err := specChanges(a.existing, a.wanted)
	if err != nil {
		return nil, err
	}
	latest, written, err := writes.Fields(ctx, d.FleetClient.BundleDeployments(a.wanted.Namespace), a.existing, operations)
	if err != nil {
		return nil, fmt.Errorf("updating a BundleDeployment: %w", err)
	}
	if written {
		d.written.Wrote(latest)
	}
	return latest, nil
}

// isAsWanted reports whether a BundleDeployment has the wanted spec and labels. Its size does not matter: Fleet's hub writes none, and a move from
// that hub must not change all BundleDeployments.
func isAsWanted(existing, wanted *fleet.BundleDeployment) bool {
	labels := wanted.Labels
	if size := existing.Labels[fleet.SizeLabel]; size != labels[fleet.SizeLabel] {
		labels = maps.Clone(labels)
		if delete(labels, fleet.SizeLabel); size != "" {
			labels[fleet.SizeLabel] = size
		}
	}
	return maps.Equal(existing.Labels, labels) && isSpecEqual(&existing.Spec, &wanted.Spec)
}

// mustNotWrite reports whether a BundleDeployment is being deleted, or older than the version that this hub wrote last. The event of its next version
// enqueues the Cluster.
func (d *Deployer) mustNotWrite(deployment *fleet.BundleDeployment) bool {
	return d.isBeingDeleted(deployment) || d.written.IsStale(deployment)
}

// isBeingDeleted reports whether a BundleDeployment is being deleted: the cache shows that, or this hub has deleted it.
func (d *Deployer) isBeingDeleted(deployment *fleet.BundleDeployment) bool {
	return deployment.DeletionTimestamp != nil || d.deleted.IsExpected(string(deployment.UID))
}

// setDisplay sets the display of a BundleDeployment of Fleet's agent, which leaves that to the hub.
func (d *Deployer) setDisplay(ctx context.Context, deployment *fleet.BundleDeployment) (*fleet.BundleDeployment, error) {
	if !lacksDisplay(deployment) || deployment.DeletionTimestamp != nil || d.written.IsStale(deployment) {
		return deployment, nil
	}
	after := *deployment
	after.Status.Display = fleetstatus.Display(deployment.Spec, deployment.Status)
	latest, _, err := writes.Status(ctx, d.FleetClient.BundleDeployments(deployment.Namespace), deployment, &after)
	if err != nil {
		return deployment, fmt.Errorf("updating a BundleDeployment: %w", err)
	}
	d.written.Wrote(latest)
	return latest, nil
}

// lacksDisplay reports whether a BundleDeployment has another display than its conditions imply. Without a report it needs none, unless it is paused:
// Fleet's agent reports nothing then. An agent that writes other reasons into the conditions than Fleet's agent sets the display itself.
func lacksDisplay(deployment *fleet.BundleDeployment) bool {
	if len(deployment.Status.Conditions) == 0 && !deployment.Spec.Paused && !deployment.Spec.OffSchedule {
		return false
	}
	for _, conditionType := range []string{fleet.ConditionDeployed, fleet.ConditionInstalled, fleet.ConditionMonitored} {
		reason := fleetstatus.Condition(deployment.Status.Conditions, conditionType).Reason
		if reason != "" && reason != fleet.ReasonError {
			return false
		}
	}
	return deployment.Status.Display != fleetstatus.Display(deployment.Spec, deployment.Status)
}

// confirmation is the result of confirmUntargeted, made by one of the following functions.
type confirmation struct {
	isUntargeted bool
	after        time.Duration // after which to decide again; 0 for never
	err          error         // why the BundleDeployment stays; nil if nothing failed
}

// notConfirmed means that it is not known whether a Bundle requires the BundleDeployment, perhaps because of an error. The BundleDeployment stays, and
// another pass must decide after the given time: an event is not enough, because enqueueAffected ignores the first version of a Bundle that this hub
// sees if its status has the current generation.
func notConfirmed(after time.Duration, err error) confirmation {
	return confirmation{after: after, err: err}
}

// leftToEvents means that the BundleDeployment stays, and that an event follows if it must not stay: of the BundleDeployment, of its Bundle, which may be
// invalid, or of the values of the Bundle. The BundleDeployments of a Bundle that is being deleted are left to finalizeBundle.
func leftToEvents() confirmation { return confirmation{} }

// keptWithoutKind means that the BundleDeployment stays, because no object of the kind requires it any more only because the kind was deleted.
func keptWithoutKind(deployment *fleet.BundleDeployment, resource string) confirmation {
	return confirmation{err: &kindDeletedError{key: keyOf(deployment), resource: resource}}
}

// confirmedUntargeted means that no Bundle requires the BundleDeployment: it is to be deleted.
func confirmedUntargeted() confirmation { return confirmation{isUntargeted: true} }

// confirmUntargeted finds out whether no Bundle requires a BundleDeployment of the Cluster, according to objects of which the API server confirms that
// they are current: the Bundle, the Cluster and, if the targets select ClusterGroups, the groups. The pass has decided the same, perhaps with earlier
// versions.
func (d *Deployer) confirmUntargeted(ctx context.Context, cluster *fleet.Cluster, deployment *fleet.BundleDeployment) confirmation {
	bundle := bundleOf(deployment)
	failed := func(err error) confirmation {
		return notConfirmed(result.MissedEvent, fmt.Errorf("checking that Bundle %s no longer targets the Cluster: %w", bundle, err))
	}
	cached, err := d.bundleCache.Get(bundle.Namespace, bundle.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return failed(err)
	}
	if err == nil && cached.DeletionTimestamp != nil && slices.Contains(cached.Finalizers, fleet.BundleFinalizer) {
		return leftToEvents()
	}
	isCached := err == nil && cached.DeletionTimestamp == nil
	// While a Schedule of Fleet forbids changes, a BundleDeployment is deleted only with its Bundle.
	if isCached && deployment.Spec.OffSchedule {
		return leftToEvents()
	}
	groups := d.groupsOf(cluster.Namespace)
	groups.list() // before the API server is asked, so that all objects were current at one time
	var p *plan
	if isCached {
		p = d.plans.of(ctx, cached)
		switch {
		case p.err != nil:
			return failed(p.err)
		case p.lacksValues():
			d.noteMissingValues(bundle)
			return leftToEvents()
		case p.problem != nil:
			return leftToEvents()
		}
	}

	// The metadata is enough: a Bundle may be as large as the API server permits.
	resource := func(name string) metadata.ResourceInterface {
		return d.Metadata.Resource(fleet.SchemeGroupVersion.WithResource(name)).Namespace(cluster.Namespace)
	}
	liveBundle, err := resource("bundles").Get(ctx, bundle.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && liveBundle.DeletionTimestamp != nil && !slices.Contains(liveBundle.Finalizers, fleet.BundleFinalizer):
		kindDeleted, kindErr := d.KindDeleted(ctx, "bundles", deployment.CreationTimestamp, d.Clock.Now())
		switch {
		case kindErr != nil:
			return failed(kindErr)
		case kindDeleted:
			return keptWithoutKind(deployment, "bundles")
		case err != nil && !writes.IsMissing(err): // the kind exists, so this answer says nothing about the Bundle
			return failed(err)
		}
		return confirmedUntargeted()
	case err != nil:
		return failed(err)
	case !isCached || liveBundle.UID != cached.UID || liveBundle.Generation != cached.Generation ||
		liveBundle.Annotations[apply.LabelID] != cached.Annotations[apply.LabelID]: // it marks the Bundle of an agent
		return notConfirmed(result.MissedEvent, nil)
	}
	switch mayTarget, err := d.mayTarget(ctx, cached, p, cluster, groups); {
	case err != nil:
		return failed(err)
	case mayTarget: // the Bundle or a group has changed since the pass has decided
		return notConfirmed(result.MissedEvent, nil)
	}
	liveCluster, err := resource("clusters").Get(ctx, cluster.Name, metav1.GetOptions{})
	if err != nil {
		return failed(err)
	}
	if liveCluster.UID != cluster.UID || !maps.Equal(liveCluster.Labels, cluster.Labels) {
		return notConfirmed(result.MissedEvent, nil)
	}
	if !p.selectsGroups() {
		return confirmedUntargeted()
	}
	liveGroups, listErr := resource("clustergroups").List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(listErr): // the API server does not serve the kind
		groups = newWorkspaceGroups(func() []*fleet.ClusterGroup { return nil }, d.groupSelectors.Of)
	case listErr != nil:
		return failed(fmt.Errorf("listing the ClusterGroups: %w", listErr))
	case !areCurrent(groups, liveGroups.Items):
		return notConfirmed(result.MissedEvent, nil)
	}
	groups.missing, err = d.missingForRemoval(ctx, cached, deployment)
	if err != nil || listErr != nil && groups.missing == noneMissing {
		return failed(cmp.Or(err, listErr))
	}
	switch mayTarget, err := d.mayTarget(ctx, cached, p, cluster, groups); {
	case err != nil:
		return failed(err)
	case mayTarget:
		d.bundles.EnqueueAfter(bundle.Namespace, bundle.Name, d.RecheckDelay()) // its status names the groups
		return keptWithoutKind(deployment, "clustergroups")
	}
	return confirmedUntargeted()
}

// areCurrent reports whether the ClusterGroups of the cache are those of the API server. The cache does not have all labels of a large group: a Bundle that
// does not target a Cluster does not target it whatever they are.
func areCurrent(cached *workspaceGroups, live []metav1.PartialObjectMetadata) bool {
	return len(cached.list()) == len(live) && !slices.ContainsFunc(live, func(group metav1.PartialObjectMetadata) bool {
		i, found := cached.positions()[group.Name]
		return !found || !cached.list()[i].Spec.MetadataTooLarge && !isSameGroupVersion(cached.list()[i], &group)
	})
}

// mayTarget reports whether a Bundle targets a Cluster, or whether that depends on a ClusterGroup that may be missing or cannot be read.
func (d *Deployer) mayTarget(ctx context.Context, b *fleet.Bundle, p *plan, cluster *fleet.Cluster, groups *workspaceGroups) (bool, error) {
	end, err := d.Matching.Begin(ctx, b.Namespace)
	if err != nil {
		return false, err
	}
	defer end()
	m := candidateOf(cluster, groups)
	targets, isKnown := p.choose(b, m)
	return len(targets) > 0 || !isKnown || p.dependsOn(groups.missing, b, m), nil
}

// kindRecheck is how many times as long as after another stalled pass the hub waits until it decides again about a BundleDeployment that stays because a
// kind was deleted: it sends some requests for each of them. The recreation of the objects enqueues the Cluster.
const kindRecheck = 30

// retainedKey identifies a decision to retain a BundleDeployment because a kind was deleted. Another version of its Bundle requires another decision.
type retainedKey struct {
	deployment, bundle types.UID // bundle is "" if the cache does not have the Bundle
	generation         int64     // of the Bundle
}

// confirmUnlessRetained is confirmUntargeted, and remembers which BundleDeployments stay because a kind was deleted: passes for other reasons, for example
// for a stalled Bundle, ask nothing about them.
func (d *Deployer) confirmUnlessRetained(ctx context.Context, cluster *fleet.Cluster, deployment *fleet.BundleDeployment) confirmation {
	decision, bundle := retainedKey{deployment: deployment.UID}, bundleOf(deployment)
	if cached, err := d.bundleCache.Get(bundle.Namespace, bundle.Name); err == nil {
		decision.bundle, decision.generation = cached.UID, cached.Generation
	}
	if known, found := d.retained.Get(decision); found {
		return notConfirmed(kindRecheck*d.RecheckDelay(), known.(*kindDeletedError))
	}
	confirmed := d.confirmUntargeted(ctx, cluster, deployment)
	var kindDeleted *kindDeletedError
	if errors.As(confirmed.err, &kindDeleted) {
		confirmed.after = kindRecheck * d.RecheckDelay()
		d.retained.Set(decision, kindDeleted, confirmed.after-d.RecheckDelay()) // ends before the next pass
	}
	return confirmed
}

// freeRetained frees the decisions to retain a BundleDeployment that have expired. The cache itself does so only in Set, for which no pass has a reason
// once the kind exists again.
func (d *Deployer) freeRetained() {
	if d.retained.Len() > 0 {
		d.retained.Set(retainedKey{}, nil, 0)
		d.retained.Delete(retainedKey{})
	}
}

// groupsRestoreTime is the time after the kind of ClusterGroups was created again in which people create the groups again.
const groupsRestoreTime = 24 * time.Hour

// missingGroups returns which ClusterGroups may be missing because their kind was deleted after a time, for example the creation of a Bundle. seen is when
// the hub has read the groups that exist: see KindDeleted.
func (d *Deployer) missingGroups(ctx context.Context, since metav1.Time, seen time.Time) (missingGroups, error) {
	deleted, err := d.KindDeleted(ctx, "clustergroups", since, seen)
	if err != nil || !deleted {
		return noneMissing, err
	}
	now, err := d.ServerNow(ctx)
	if err != nil {
		return noneMissing, err
	}
	isRecent, err := d.KindDeleted(ctx, "clustergroups", metav1.NewTime(now.Add(-groupsRestoreTime)), seen)
	if err != nil || !isRecent {
		return missingIfEmpty, err
	}
	return anyMissing, nil
}

// missingForRemoval is missingGroups for a BundleDeployment that no target requires. The agent uninstalls what is deleted, so a group that exists may not
// select yet what it selected before, and one that is missing may select the Cluster of a BundleDeployment that was created in between.
func (d *Deployer) missingForRemoval(ctx context.Context, b *fleet.Bundle, deployment *fleet.BundleDeployment) (missingGroups, error) {
	seen := d.Clock.Now()
	sinceDeployment, err := d.missingGroups(ctx, deployment.CreationTimestamp, seen)
	if err != nil {
		return noneMissing, err
	}
	sinceBundle, err := d.missingGroups(ctx, b.CreationTimestamp, seen)
	if sinceDeployment == anyMissing || sinceBundle == anyMissing {
		return anyChanged, err
	}
	return sinceDeployment, err
}

// delete deletes a BundleDeployment, unless this hub has deleted it before and the cache does not show that yet.
func (d *Deployer) delete(ctx context.Context, deployment *fleet.BundleDeployment) error {
	if d.deleted.IsExpected(string(deployment.UID)) {
		return nil
	}
	err := d.FleetClient.BundleDeployments(deployment.Namespace).Delete(ctx, deployment.Name, writes.IfUID(deployment))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting BundleDeployment %s/%s: %w", deployment.Namespace, deployment.Name, err)
	}
	d.deleted.Expect(string(deployment.UID))
	return nil
}

// desired returns the BundleDeployment of a Bundle for a Cluster. It is based on the existing one, if any, so that fields which the
// hub does not set keep their values. While it is postponed, because the Bundle or the Cluster is paused or the rollout has not
// come to the Cluster yet, spec.options and spec.deploymentID stay, and the staged fields follow the Bundle. dependsOn, correctDrift,
// ociContents and helmChartOptions stay only if the agent acts on them: if the BundleDeployment is not paused and has a deployment ID.
func desired(
	b *fleet.Bundle, v variant, values helmValues, isPostponed bool, cluster *fleet.Cluster, existing *fleet.BundleDeployment,
) *fleet.BundleDeployment {
	deployment := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: registration.ClusterNamespace(cluster.Namespace, cluster.Name), Name: b.Name,
	}}
	if existing != nil {
		deployment.ObjectMeta, deployment.Spec = *existing.ObjectMeta.DeepCopy(), *existing.Spec.DeepCopy()
	}
	spec := &deployment.Spec
	spec.Paused = isPaused(b, cluster)
	spec.StagedOptions, spec.StagedDeploymentID = v.options, v.deploymentID
	options, digest := v.options, v.digest
	if existing != nil && existing.Spec.DeploymentID == v.deploymentID {
		// The deployment ID does not cover options.correctDrift, so, as with Fleet's hub, its value stays until the ID changes. Agents use
		// spec.correctDrift instead.
		if options.CorrectDrift = deployedDrift(&existing.Spec); !equality.Semantic.DeepEqual(options.CorrectDrift, v.options.CorrectDrift) {
			digest, _ = digestOf(options, options.DownstreamResources)
		}
	}
	if !isPostponed {
		spec.Options, spec.DeploymentID = options, v.deploymentID
	} else if spec.Options.Helm != nil {
		spec.Options.Helm.Values = nil // older versions of Fleet wrote the values into the options
	}
	if spec.DeploymentID == "" && agentspec.IsOfFleet(cluster.Status.Agent) && !cluster.Status.Agent.LastSeen.IsZero() {
		spec.Paused = true // whether an agent of Fleet waits without an ID is not known
	}
	isInUse := isPostponed && !spec.Paused && spec.DeploymentID != "" // the agent acts on the fields of an earlier version
	spec.ValuesHash, spec.WaitingForValues = values.hash(), false
	if !isInUse {
		spec.DependsOn = b.Spec.DependsOn
		spec.CorrectDrift = v.options.CorrectDrift
		spec.OCIContents, spec.HelmChartOptions = b.Spec.ContentsID != "", b.Spec.HelmOpOptions
	}
	// A BundleDeployment in the cache has digests instead of its large fields. Fields that do not change keep their digests, the others get new ones.
	if spec.CachedDigests != nil {
		digests := *spec.CachedDigests
		digests.StagedOptions = v.digest
		if !isPostponed {
			digests.Options = digest
			setDeployedDrift(&digests, options.CorrectDrift)
		}
		if !isInUse {
			set := digestsOf(&fleet.BundleDeploymentSpec{DependsOn: spec.DependsOn, CorrectDrift: spec.CorrectDrift, HelmChartOptions: spec.HelmChartOptions})
			digests.DependsOn, digests.CorrectDrift, digests.HelmChartOptions = set.DependsOn, set.CorrectDrift, set.HelmChartOptions
		}
		spec.CachedDigests = &digests
	}

	// The labels of the Bundle are copied, because dependsOn selects BundleDeployments by them, except for those by which other
	// tools mark the objects that they manage.
	deployment.Labels = map[string]string{}
	for label, value := range b.Labels {
		isOfTool := strings.Contains(label, "cattle.io") || strings.Contains(label, "kubectl.kubernetes.io")
		if strings.HasPrefix(label, fleet.ReservedPrefix) || !isOfTool {
			deployment.Labels[label] = value
		}
	}
	delete(deployment.Labels, fleet.ContentNameLabel) // only the hub sets it
	maps.Copy(deployment.Labels, map[string]string{
		fleet.ManagedLabel:         fleet.ManagedValue,
		fleet.BundleNameLabel:      registration.LabelValue(b.Name),
		fleet.BundleNamespaceLabel: b.Namespace,
		fleet.ClusterLabel:         registration.LabelValue(cluster.Name),
		fleet.WorkspaceLabel:       cluster.Namespace,
	})
	// As with Fleet's hub, the label has the name of the newest Content, even while an older one is deployed.
	if name := contentOf(spec.StagedDeploymentID); name != "" && b.Spec.ContentsID == "" {
		deployment.Labels[fleet.ContentNameLabel] = name
	}
	return deployment
}

// withSize sets the label with the size of a BundleDeployment that is larger than unlabelledSize.
func withSize(deployment *fleet.BundleDeployment, size int64) *fleet.BundleDeployment {
	if size > 0 {
		deployment.Labels[fleet.SizeLabel] = strconv.FormatInt(size, 10)
	}
	return deployment
}

// isPaused reports whether the agent must not change the deployment.
func isPaused(b *fleet.Bundle, cluster *fleet.Cluster) bool {
	return b.Spec.Paused || cluster.Spec.Paused
}

// secretsOf returns the names of the Secrets that the agent reads for a BundleDeployment.
func secretsOf(deployment *fleet.BundleDeployment) []string {
	if deployment.Spec.ValuesHash == "" {
		return nil
	}
	return []string{deployment.Name}
}

// unusableError reports an object of another owner whose name the hub needs, or an object that cannot be copied. A retry does not help.
type unusableError struct {
	kind string
	key
	problem string // what is wrong with it and what to do
}

// Error names the object, the problem and what to do about it.
func (e *unusableError) Error() string { return fmt.Sprintf("%s %s %s", e.kind, e.key, e.problem) }

// kindDeletedError reports a BundleDeployment that stays, although no Bundle or ClusterGroup requires it, because their kind was deleted.
type kindDeletedError struct {
	key      // of the BundleDeployment
	resource string
	isHeld   bool // a Bundle requires another BundleDeployment, or a new one, perhaps only because a group is missing
}

// Error names the BundleDeployment, the kind, and what to do.
func (e *kindDeletedError) Error() string {
	if e.isHeld {
		return fmt.Sprintf("BundleDeployment %s is not created or changed: CustomResourceDefinition %s was deleted, and a ClusterGroup that its Bundle selects "+
			"may be missing; create the group again, or change the targets of the Bundle", e.key, app.DefinitionName(e.resource))
	}
	return fmt.Sprintf("BundleDeployment %s stays: CustomResourceDefinition %s was deleted after the BundleDeployment was created; "+
		"create the objects of that kind again, or delete the BundleDeployment to uninstall its release", e.key, app.DefinitionName(e.resource))
}

func foreignDeployment(deployment *fleet.BundleDeployment) error {
	owner := "was not made from a Bundle"
	if namespace := deployment.Labels[fleet.BundleNamespaceLabel]; namespace != "" {
		owner = "belongs to a Bundle of namespace " + namespace
	}
	return &unusableError{deploymentKind.Kind, keyOf(deployment), "exists and " + owner +
		"; if it is deleted, the agent uninstalls its release: to keep that, deploy this Bundle under another name"}
}

// maxErrors is the number of errors that a message lists, so that a status stays small.
const maxErrors = 10

// bundleErrors are the errors about several Bundles of one Cluster.
type bundleErrors []error

// joinErrors returns the errors that are not nil as bundleErrors, or nil if there is none.
func joinErrors(errs ...error) error {
	left := bundleErrors(slices.DeleteFunc(errs, func(err error) bool { return err == nil }))
	if len(left) == 0 {
		return nil
	}
	return left
}

// Error lists the first errors.
func (l bundleErrors) Error() string {
	var texts []string
	for _, err := range l[:min(len(l), maxErrors)] {
		texts = append(texts, err.Error())
	}
	if more := len(l) - maxErrors; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// Unwrap makes errors.Is and errors.As consider each error.
func (l bundleErrors) Unwrap() []error { return l }

// isOnlyKindDeleted reports whether each error is about a BundleDeployment that stays because a kind was deleted.
func isOnlyKindDeleted(err error) bool {
	var all bundleErrors
	return errors.As(err, &all) && !slices.ContainsFunc(all, func(one error) bool {
		var kindDeleted *kindDeletedError
		return !errors.As(one, &kindDeleted)
	})
}

// stalledReason returns the reason of a condition, or "" if a retry may help one of the errors. It does not help if an object belongs to another
// owner, a source is missing, a person has to correct a template, the workspace has reached its limit, or a kind was deleted.
func stalledReason(err error) (reason string) {
	var all bundleErrors
	if !errors.As(err, &all) {
		return ""
	}
	for _, one := range all {
		var unusable *unusableError
		var role *desiredset.ForeignError
		var missing *missingSourceError
		var template *templates.RenderError
		var limit *storageError
		var kindDeleted *kindDeletedError
		switch {
		case errors.As(one, &unusable), errors.As(one, &role):
			reason = fleet.ReasonNameConflict
		case errors.As(one, &kindDeleted):
			reason = cmp.Or(reason, fleet.ReasonKindDeleted)
		case errors.As(one, &missing):
			reason = cmp.Or(reason, fleet.ReasonDownstreamMissing)
		case errors.As(one, &template):
			reason = cmp.Or(reason, fleet.ReasonBundleInvalid)
		case errors.As(one, &limit):
			reason = cmp.Or(reason, fleet.ReasonWorkspaceLimitReached)
		default:
			return ""
		}
	}
	return reason
}

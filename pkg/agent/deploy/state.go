package deploy

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/muster-fleet/muster/pkg/agent/timing"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/release"
)

// deploymentState is the memory of this run about one BundleDeployment. A restarted agent begins without it. Only the worker that reconciles the
// BundleDeployment uses it, except for sharedState; the queue admits one worker at a time.
type deploymentState struct {
	attempts    attempts
	corrections corrections
	sharedState

	// unsyncedSince is the time since which the caches of the release's kinds are incomplete; zero if they are complete.
	unsyncedSince time.Time
	// goneSince is the time since which the BundleDeployment is missing on the hub; zero if it exists.
	goneSince time.Time
	// ignoredSince is the time since which the BundleDeployment is for an agent in another namespace that has reported nothing; otherwise zero.
	ignoredSince time.Time
	// revisionNotSigned is the revision for which release.ErrNotSigned was returned last; "" if there is none.
	revisionNotSigned string
	// unsignedWhenAsked are the revisions of which mayAskHub has found none signed last; "" if there are none.
	unsignedWhenAsked string
	// sought is the release that adopt last looked for on the member.
	sought string
	// dependenciesMet is the dependencyRequest for which all of dependsOn was met; "" if it was not.
	dependenciesMet string
	// copiedFor are the releases for which a deployment may have copied Secrets and ConfigMaps of the hub without storing a revision whose removal
	// deletes them.
	copiedFor sets.Set[releaseName]
	// mustSweep is whether the release has to be swept because an earlier run may have ended before it has removed what failed attempts left.
	mustSweep bool
	// applied is the release that this run has deployed, if it has tried to deploy no other one since. The objects of a release that another one was to
	// replace may have the marks of that one.
	applied releaseName
	// replaces is whether this agent has deployed a release under another name. A user who may write Secrets in a namespace can store one as well.
	replaces bool
	// labelled are the namespaceOptions that this run has applied last; "" if it has not compared them yet: they may have changed before its start.
	labelled string
}

// endConflictIfOver shortens the pause after a conflict of owners if the other release was removed.
func (s *deploymentState) endConflictIfOver() {
	if !s.hasTried() {
		s.attempts.endConflict()
	}
}

// attempts are the last failure to carry out a BundleDeployment, and the pauses after failures.
type attempts struct {
	// failedID and failedGeneration are the deployment ID and the generation whose deployment failed last; failedAt is when, and failure the reason.
	// failure is nil after a success.
	failedID         string
	failedGeneration int64
	failedAt         time.Time
	failure          error
	// retryAt is the earliest time of the next attempt. resolvedAt is that after a conflict of owners that seems to have ended.
	retryAt, resolvedAt time.Time
	// retries are the pauses after failures of any step; nil if the last pass had none.
	retries *wait.Backoff
}

// failureOf returns why the deployment of this deployment ID has failed last, nil if it has not.
func (a *attempts) failureOf(bd *fleet.BundleDeployment) error {
	if a.failedID != bd.Spec.DeploymentID {
		return nil
	}
	return a.failure
}

// next returns the earliest time of the next attempt. A change of the spec that does not change the deployment ID may remove the cause of a failure,
// for example a new generation of copies: it ends the pause as soon as the shortest pause is over. The following pauses go on growing.
func (a *attempts) next(bd *fleet.BundleDeployment, t Timing) time.Time {
	if a.failureOf(bd) != nil && a.failedGeneration != bd.Generation {
		if first := a.failedAt.Add(t.RetryFirst); first.Before(a.retryAt) {
			return first
		}
	}
	return a.retryAt
}

// failed records a failure and returns the pause until the next attempt.
func (a *attempts) failed(bd *fleet.BundleDeployment, err error, now time.Time, t Timing) (pause time.Duration) {
	if a.failureOf(bd) == nil {
		a.retries = nil
	}
	pause = a.pause(t)
	a.resolvedAt = now.Add(pause)
	if needsChange(err) {
		pause = t.RetryMax
	}
	a.failedID, a.failedGeneration, a.failedAt, a.failure = bd.Spec.DeploymentID, bd.Generation, now, err
	a.retryAt = now.Add(pause)
	return pause
}

// pause returns the pause after a failure. The pauses grow.
func (a *attempts) pause(t Timing) time.Duration {
	if a.retries == nil {
		a.retries = timing.Backoff(t.RetryFirst, t.RetryMax)
	}
	return a.retries.Step()
}

// succeeded records a success. A correction leaves the objects of earlier attempts where they are.
func (a *attempts) succeeded(done action) {
	a.retries, a.retryAt = nil, time.Time{}
	if done != correct || !isLeftover(a.failure) {
		a.endFailure()
	}
}

func (a *attempts) endFailure() { a.failedID, a.failure = "", nil }

// endConflict shortens the pause after a conflict of owners to that after any other failure: the other release was removed, or it belongs to this agent
// now. A hub with a kubeconfig changes the labels of the releases on the member, for example, when it moves an agent to another namespace. There is still a
// pause, because users who may write Secrets in the namespace can make it look so any number of times.
func (a *attempts) endConflict() {
	if isConflict(a.failure) && a.resolvedAt.Before(a.retryAt) {
		a.retryAt = a.resolvedAt
	}
}

// postpone makes the next attempt wait until a time.
func (a *attempts) postpone(until time.Time) {
	if until.After(a.retryAt) {
		a.retryAt = until
	}
}

// corrections are the pauses of a release that another program keeps changing, or that another agent deploys in turn.
type corrections struct {
	// last is the time of the last correction, and lastPause the pause after it.
	last      time.Time
	lastPause time.Duration
	// quick is how many corrections have had the shortest pause; pauses has the growing pauses that follow them.
	quick  int
	pauses *wait.Backoff
}

// maxQuickCorrections is the number of corrections with the shortest pause: a person may change a release several times within a minute.
const maxQuickCorrections = 5

// next records a correction, or a repeated deployment, which began and ended at the given times. It returns until when the release may not be corrected
// or deployed again. The pauses grow. They begin again when the release has not been changed for a minute, with the default of Timing.CorrectFirst, and
// for twice the last pause. The duration of the operation does not count: a deployment may take minutes.
func (c *corrections) next(done action, began, ended time.Time, t Timing) (until time.Time) {
	if c.pauses == nil || began.Sub(c.last) > max(12*t.CorrectFirst, 2*c.lastPause) {
		c.pauses, c.quick = timing.Backoff(t.CorrectFirst, t.CorrectMax), 0
	}
	c.last = ended
	if done == correct && c.quick < maxQuickCorrections {
		c.quick++
		c.lastPause = t.CorrectFirst
	} else {
		c.lastPause = c.pauses.Step()
	}
	return c.last.Add(c.lastPause)
}

// sharedState is the part of the memory that drift workers and event handlers use as well.
type sharedState struct {
	mu sync.Mutex
	// deployed is the release; nil until it was deployed or read.
	deployed *release.Deployed
	// drift is the result of the last comparison of deployed with the cluster.
	drift drift
	// waitsFor names the Bundles that must be ready first; "" if none is missing.
	waitsFor string
	// tried is the release that this run tried to deploy last; zero if none, or if a release of that name was removed since.
	tried releaseName
	// written is the status that this run wrote last.
	written writtenStatus
	// seen is whether this run has seen the BundleDeployment.
	seen bool
	// keepsResources is fleetstatus.KeepsResources of the BundleDeployment when it was last deleted: its releases lose only their history.
	keepsResources bool
	// unmanaged is whether the BundleDeployment had UnmanagedAnnotation when it was last deleted.
	unmanaged bool
}

func (s *sharedState) release() (*release.Deployed, drift) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deployed, s.drift
}

// setRelease replaces the release, and drops the drift of the previous one.
func (s *sharedState) setRelease(deployed *release.Deployed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deployed, s.drift = deployed, drift{}
}

// setDrift replaces the result of the comparison before, unless the release was replaced meanwhile.
func (s *sharedState) setDrift(of *release.Deployed, before, after drift) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deployed == of {
		after.comparisonsRequested, after.comparisonsDone = s.drift.comparisonsRequested, before.comparisonsRequested // a request that came meanwhile stays
		s.drift = after
	}
}

// dropDriftUnlessOf drops the result of a comparison with other ComparePatches, and reports whether there was one.
func (s *sharedState) dropDriftUnlessOf(patches []fleet.ComparePatch) (isDropped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drift.compared() || equality.Semantic.DeepEqual(s.drift.patches, patches) {
		return false
	}
	s.drift = drift{comparisonsRequested: s.drift.comparisonsRequested, comparisonsDone: s.drift.comparisonsDone}
	return true
}

// requestComparison makes the next comparison include all objects.
func (s *sharedState) requestComparison() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drift.comparisonsRequested++
}

func (s *sharedState) setWaitsFor(bundles string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waitsFor = bundles
}

func (s *sharedState) isWaiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waitsFor != ""
}

func (s *sharedState) setTried(name releaseName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried = name
}

// forgetTried forgets that a release was tried to be deployed, because a release of that name was removed, and reports whether it was.
func (s *sharedState) forgetTried(removed releaseName) (wasTried bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tried != removed {
		return false
	}
	s.tried = releaseName{}
	return true
}

func (s *sharedState) hasTried() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tried != releaseName{}
}

// latestStatus returns the newer of the status that this run wrote last and the cached one.
func (s *sharedState) latestStatus(bd *fleet.BundleDeployment) fleet.BundleDeploymentStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.latest(bd)
}

func (s *sharedState) setWritten(status writtenStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = status
}

// noteDeleted notes what a deleted BundleDeployment says about its releases.
func (s *sharedState) noteDeleted(bd *fleet.BundleDeployment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = true
	_, s.unmanaged = bd.Annotations[fleet.UnmanagedAnnotation]
	s.keepsResources = fleetstatus.KeepsResources(bd.Spec)
}

func (s *sharedState) noteSeen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = true
}

func (s *sharedState) wasSeen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// deleted returns what noteDeleted has noted last.
func (s *sharedState) deleted() (keepsResources, unmanaged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keepsResources, s.unmanaged
}

// releaseName identifies a Helm release.
type releaseName struct{ namespace, name string }

// deploymentStates holds the state of each BundleDeployment by its key, and the BundleDeployment that has deployed each release: only it gets the
// events of the objects.
type deploymentStates struct {
	mu        sync.Mutex
	byKey     map[string]*deploymentState
	byRelease map[releaseName]string
}

func newDeploymentStates() *deploymentStates {
	return &deploymentStates{byKey: map[string]*deploymentState{}, byRelease: map[releaseName]string{}}
}

// get returns the state of a key and creates it if it is missing.
func (s *deploymentStates) get(key string) *deploymentState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[key] == nil {
		s.byKey[key] = &deploymentState{}
	}
	return s.byKey[key]
}

// find returns the state of a key, nil if it is missing. A worker that does not reconcile the BundleDeployment uses it: a state that it creates after
// the BundleDeployment was removed would stay.
func (s *deploymentStates) find(key string) *deploymentState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[key]
}

// all returns the states by key.
func (s *deploymentStates) all() map[string]*deploymentState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.byKey)
}

func (s *deploymentStates) drop(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, key)
	maps.DeleteFunc(s.byRelease, func(_ releaseName, of string) bool { return of == key })
}

func (s *deploymentStates) setKey(name releaseName, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byRelease[name] = key
}

func (s *deploymentStates) keyOf(name releaseName) (key string, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, found = s.byRelease[name]
	return key, found
}

// waiting returns the keys of the BundleDeployments that wait for others.
func (s *deploymentStates) waiting() (keys []string) {
	for key, state := range s.all() {
		if state.isWaiting() {
			keys = append(keys, key)
		}
	}
	return keys
}

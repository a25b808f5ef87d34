package deploy

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/release"
)

// handle looks at one BundleDeployment, does what is to be done, and reports.
func (d *deployer) handle(ctx context.Context, key string) {
	bd := d.bundle(key)
	it := d.items.get(key)
	f := d.facts(key, bd, it)
	switch does := decide(f); does {
	case remove, forget:
		d.clear(ctx, key, it)
		return
	case ignore:
		return
	case deploy, correct, sweep:
		d.deploy(ctx, key, bd, it, does)
	case observe, await, hold:
	}
	if ctx.Err() == nil && d.look(ctx, key, bd, it) {
		d.show(ctx, key, bd, it, f.Paused)
	}
}

func (d *deployer) facts(key string, bd *fleet.BundleDeployment, it *item) facts {
	f := facts{Name: key, Wanted: bd != nil && bd.DeletionTimestamp == nil}
	if !f.Wanted {
		return f
	}
	spec := bd.Spec
	f.Empty = spec.DeploymentID == ""
	f.Elsewhere = isAgent(key) && spec.Options.DefaultNamespace != "" && spec.Options.DefaultNamespace != d.AgentNamespace
	f.Paused = spec.Paused || spec.OffSchedule
	_, f.Current = d.current(key, bd, it)
	f.Unswept = f.Current && it.review(spec.DeploymentID)
	f.Correct = correcting(spec)
	if !f.Current {
		f.WaitsFor = unmet(bd, d.allBundles())
		if spec.WaitingForValues {
			f.WaitsFor = "waiting for the Secret with the values"
		}
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	it.waitsFor, it.gone = f.WaitsFor, time.Time{}
	f.Drifted = it.drift.any()
	f.Held = it.held(spec.DeploymentID, f.Current, d.Clock.Now())
	return f
}

func correcting(spec fleet.BundleDeploymentSpec) bool {
	enabled := func(c *fleet.CorrectDrift) bool { return c != nil && c.Enabled }
	return enabled(spec.CorrectDrift) || enabled(spec.Options.CorrectDrift)
}

// held: what failed is not tried again before its time, unless it is something else that is wanted now.
func (it *item) held(deploymentID string, current bool, now time.Time) bool {
	return now.Before(it.until) && (current || it.failed == deploymentID)
}

// review is about a release that is what is wanted. A failure is over when nothing differs, because somebody undid what could not
// be undone, unless it is that something was left behind.
func (it *item) review(deploymentID string) (unswept bool) {
	it.mu.Lock()
	defer it.mu.Unlock()
	unswept = it.failed == deploymentID && isLeftover(it.failure)
	if !unswept && it.drift.clean() {
		it.failed, it.failure = "", nil
	}
	return unswept
}

func isLeftover(err error) bool {
	var leftover *release.LeftoverError
	return errors.As(err, &leftover)
}

// current is the release, when it is what the BundleDeployment asks for. The watch may still show as pending what this run
// has finished.
func (d *deployer) current(key string, bd *fleet.BundleDeployment, it *item) (release.Found, bool) {
	namespace, name := release.Place(bd.Name, bd.Spec.Options)
	it.mu.Lock()
	defer it.mu.Unlock()
	for _, f := range d.shelf.of(key) {
		if f.Namespace != namespace || f.Name != name || f.Labels[release.DeploymentIDLabel] != release.DeploymentIDValue(bd.Spec.DeploymentID) {
			continue
		}
		made := it.deployed != nil && it.deployed.Namespace == namespace && it.deployed.Name == name && it.deployed.Version == f.Version
		return f, f.Deployed || made
	}
	return release.Found{}, false
}

// deploy installs, upgrades, undoes drift, or sweeps up.
func (d *deployer) deploy(ctx context.Context, key string, bd *fleet.BundleDeployment, it *item, does action) {
	lasting, cancel := lingering(ctx, d.Clock, d.Timing.Grace)
	defer cancel()
	request, err := d.request(lasting, key, bd, does == correct)
	if err == nil {
		bounded, cancel := context.WithTimeout(lasting, d.Timing.Operation+request.Bound())
		defer cancel()
		d.items.settle(place{request.Namespace, request.Name}, key)
		var made release.Deployed
		if made, err = d.carryOut(bounded, request, does); err == nil {
			d.succeeded(key, it, made, does == correct)
			return
		}
	}
	if does == sweep {
		err = asLeftover(err)
	}
	if ctx.Err() == nil {
		d.failed(key, bd, it, err)
	}
}

func (d *deployer) carryOut(ctx context.Context, r release.Request, does action) (release.Deployed, error) {
	if does == sweep {
		return d.releases.Sweep(ctx, r)
	}
	return d.releases.Deploy(ctx, r)
}

// asLeftover: whatever keeps something from being swept up, it is still there.
func asLeftover(err error) error {
	if isLeftover(err) {
		return err
	}
	return &release.LeftoverError{Err: err}
}

func (d *deployer) succeeded(key string, it *item, made release.Deployed, correcting bool) {
	d.log(key).Infof("Deployed Helm release %s", made)
	d.shelf.put(release.Found{Namespace: made.Namespace, Name: made.Name, Version: made.Version, Deployed: true, Labels: made.Labels})
	it.mu.Lock()
	defer it.mu.Unlock()
	it.deployed, it.drift = &made, drift{}
	it.pauses, it.until = nil, time.Time{}
	if !correcting || !isLeftover(it.failure) { // what an earlier attempt left is still there
		it.failure, it.failed = nil, ""
	}
	if correcting {
		d.rest(it)
	}
	d.drifts.AddAfter(key, d.Timing.Settle)
}

// rest keeps corrections of one release apart.
func (d *deployer) rest(it *item) {
	if it.corrections == nil || d.since(it.corrected) > 2*d.Timing.CorrectMax {
		it.corrections = backoff(d.Timing.CorrectFirst, d.Timing.CorrectMax)
	}
	it.corrected = d.Clock.Now()
	it.until = it.corrected.Add(it.corrections.Step())
}

func (d *deployer) failed(key string, bd *fleet.BundleDeployment, it *item, err error) {
	d.log(key).Warnf("Deploying failed: %s", release.Explain(err))
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.failed != bd.Spec.DeploymentID || it.pauses == nil {
		it.pauses = backoff(d.Timing.RetryFirst, d.Timing.RetryMax)
	}
	pause := it.pauses.Step()
	if hopeless(err) {
		pause = d.Timing.RetryMax
	}
	it.failed, it.failure, it.until = bd.Spec.DeploymentID, err, d.Clock.Now().Add(pause)
	d.queue.AddAfter(key, pause)
}

// hopeless: only a change helps, of the BundleDeployment, which is an event, or of something on the member.
func hopeless(err error) bool {
	var unsupported *release.UnsupportedError
	var invalid *release.InvalidError
	var conflict *release.ConflictError
	return errors.As(err, &unsupported) || errors.As(err, &invalid) || errors.As(err, &conflict)
}

func (d *deployer) uninstall(ctx context.Context, key string, f release.Found, options release.Options) error {
	lasting, cancel := lingering(ctx, d.Clock, d.Timing.Grace)
	defer cancel()
	bounded, cancel := context.WithTimeout(lasting, d.Timing.Operation)
	defer cancel()
	options.KeepResources = options.KeepResources || isAgent(key)
	err := d.releases.Uninstall(bounded, f.Namespace, f.Name, options)
	if err == nil {
		d.shelf.forget(key, f.Namespace, f.Name)
		d.log(key).Infof("Removed Helm release %s/%s", f.Namespace, f.Name)
	}
	return err
}

func (d *deployer) again(ctx context.Context, key string, it *item, err error) {
	if ctx.Err() != nil {
		return
	}
	d.log(key).Warnf("Trying again: %s", release.Explain(err))
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.pauses == nil {
		it.pauses = backoff(d.Timing.RetryFirst, d.Timing.RetryMax)
	}
	d.queue.AddAfter(key, it.pauses.Step())
}

// look makes sure that the objects of the release are watched, and says whether there is something to show.
func (d *deployer) look(ctx context.Context, key string, bd *fleet.BundleDeployment, it *item) bool {
	found, current := d.current(key, bd, it)
	it.mu.Lock()
	deployed := it.deployed
	it.mu.Unlock()
	if current && (deployed == nil || deployed.Version != found.Version || deployed.Name != found.Name || deployed.Namespace != found.Namespace) {
		read, err := d.releases.Get(ctx, found)
		if err != nil {
			d.again(ctx, key, it, err)
			return false
		}
		d.adopt(key, it, read)
		deployed = read
	}
	if current && !d.tidy(ctx, key, it, found) {
		return false
	}
	if len(d.shelf.of(key)) == 0 && deployed != nil {
		it.mu.Lock()
		it.deployed = nil // somebody removed it
		it.mu.Unlock()
		deployed = nil
	}
	return deployed == nil || d.known(key, it, deployed)
}

func (d *deployer) adopt(key string, it *item, read *release.Deployed) {
	d.items.settle(place{read.Namespace, read.Name}, key)
	it.mu.Lock()
	it.deployed, it.drift = read, drift{}
	it.mu.Unlock()
	d.drifts.AddAfter(key, d.Timing.Settle)
}

// tidy removes releases under other names or in other namespaces, from before the options changed.
func (d *deployer) tidy(ctx context.Context, key string, it *item, current release.Found) bool {
	for _, other := range d.shelf.of(key) {
		if other.Namespace == current.Namespace && other.Name == current.Name {
			continue
		}
		if err := d.uninstall(ctx, key, other, leftover(other, current, it)); err != nil {
			d.again(ctx, key, it, err)
			return false
		}
	}
	return true
}

// leftover are the options with which to remove a release that another one replaces: what that one needs stays, its
// namespace, those of its objects, and the kinds the chart brought.
func leftover(old, current release.Found, it *item) release.Options {
	options := old.Options()
	options.DeleteCRDs = false
	it.mu.Lock()
	defer it.mu.Unlock()
	if old.Namespace == current.Namespace || it.deployed != nil && occupies(*it.deployed, old.Namespace) {
		options.DeleteNamespace = false
	}
	return options
}

func occupies(d release.Deployed, namespace string) bool {
	return slices.ContainsFunc(d.Objects, func(o release.Object) bool {
		return o.Desired.GetNamespace() == namespace || o.Desired.GetKind() == "Namespace" && o.Desired.GetName() == namespace
	})
}

// patience is how long a status waits for a kind to be known: one whose objects may not be listed never is.
const patience = 10 * time.Second

// longestLook is how long it takes at most until a kind that took its time is noticed. The pauses grow with what was waited: a kind
// that is never known would be asked for some times a second, for each BundleDeployment that has one.
const longestLook = 30 * time.Second

// known says whether everything about the objects is known; if not, it comes again.
func (d *deployer) known(key string, it *item, deployed *release.Deployed) bool {
	synced := d.live.watch(deployed.Objects)
	it.mu.Lock()
	defer it.mu.Unlock()
	switch {
	case synced && !it.unwatched.IsZero():
		it.unwatched = time.Time{}
		d.drifts.AddAfter(key, d.Timing.Settle)
	case !synced && it.unwatched.IsZero():
		it.unwatched = d.Clock.Now()
	}
	if !synced {
		waited := d.since(it.unwatched)
		d.queue.AddAfter(key, min(max(d.Timing.Settle, waited-patience), longestLook))
		return waited > patience
	}
	// Right after a deployment nothing was compared yet; the status waits for it, and is written once.
	return it.drift.verdicts != nil || it.drift.err != "" || len(deployed.Objects) == 0
}

// installed: of a failed first attempt there is a history too.
func (d *deployer) installed(key string, base fleet.BundleDeploymentStatus) bool {
	found := d.shelf.of(key)
	return slices.ContainsFunc(found, func(f release.Found) bool { return f.Deployed }) ||
		len(found) > 0 && fleetstatus.Condition(base.Conditions, fleet.ConditionInstalled).Status == corev1.ConditionTrue
}

// show writes the status.
func (d *deployer) show(ctx context.Context, key string, bd *fleet.BundleDeployment, it *item, paused bool) {
	v := d.view(key, bd, it)
	v.paused = paused
	wrote, err := d.report(ctx, bd, v.base, assess(v))
	if err != nil {
		d.again(ctx, key, it, err)
		return
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	if wrote.version != "" {
		it.written = wrote
	}
	if it.failure == nil {
		it.pauses = nil // the next trouble is another one, and begins with short pauses
	}
}

// view gathers what the status is made of. What is too early to correct is looked at again in time.
func (d *deployer) view(key string, bd *fleet.BundleDeployment, it *item) view {
	_, current := d.current(key, bd, it)
	it.mu.Lock()
	defer it.mu.Unlock()
	base := it.written.base(bd)
	v := view{
		spec: bd.Spec, base: base, current: current, installed: it.deployed != nil || d.installed(key, base),
		deployed: it.deployed, failure: it.failure, waitsFor: it.waitsFor, drift: it.drift, now: d.Clock.Now(), live: d.live.get,
	}
	if it.failed != bd.Spec.DeploymentID {
		v.failure = nil // of something else than what is wanted now
	}
	if now := d.Clock.Now(); v.deployed != nil && it.drift.any() && now.Before(it.until) {
		d.queue.AddAfter(key, it.until.Sub(now))
	}
	return v
}

package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

// hubRecord is what the agent has recorded about the hub, in order to detect that the hub was restored from a backup.
//
// After a restore of its etcd, the hub lacks the BundleDeployments that were created since the backup, and it answers as if they had been deleted. The
// resourceVersion of the hub shows the restore: it is lower than before, or, with `etcdutl snapshot restore --bump-revision`, much higher. So the agent
// records the highest resourceVersion that it has seen: at its start, after each CompareInterval, and before the first deployment of a BundleDeployment.
// If the hub has a later resourceVersion and not the BundleDeployment, the agent takes it that the BundleDeployment was deleted. If the hub was
// restored, the agent records the BundleDeployments that are missing, and keeps their releases until the BundleDeployment exists again or a person has
// uninstalled the releases.
//
// The agent does the same in three further cases in which the hub may not have the Bundles yet:
//   - The agent has registered at another hub, that is another management cluster. A new address or CA of the same hub looks like another hub.
//   - The agent's own BundleDeployment has another UID: the hub has created it anew, because its objects were deleted and restored, for example with
//     their CustomResourceDefinition or their namespace. Those of the agents are the first to be back.
//   - Nothing is recorded although there are releases: the Secret with the record was deleted.
//
// Without --bump-revision, the agent detects the restore only if it reads from the hub before the resourceVersion has passed the recorded one.
//
// The lock is held from a decision to its record, requests to the hub and the member included. keepMissing, writeRecord, reportKept, hubChanged and
// mayBeOtherHub are called with the lock held; the other methods of reconciler that use the record take it.
type hubRecord struct {
	sync.Mutex
	hub     string           // "" if none is recorded
	version uint64           // 0 if none is recorded
	own     types.UID        // of the agent's own BundleDeployment; "" if it did not exist
	ownGone time.Time        // since when the agent's own BundleDeployment is gone, ownExists or unmanagedSince
	kept    sets.Set[string] // keys of missing BundleDeployments whose releases stay
}

// maxAdvance is the largest number of versions by which a hub is ahead of the recorded version without a restore. The documentation of etcd
// recommends to bump the revision by a billion. A hub with 200 writes per second makes half a billion versions in four weeks; the record of a
// connected agent is at most one CompareInterval old.
const maxAdvance = 500_000_000

// The annotations of Secret registration.HistoryKeySecret with the highest resourceVersion of the hub that the agent has seen, and with
// Config.HubID and the UID of the agent's own BundleDeployment at that time, and since when that is gone. registration.KeptAnnotation is beside them.
const (
	hubVersionAnnotation = "muster.fleet.cattle.io/hub-resource-version"
	hubIDAnnotation      = "muster.fleet.cattle.io/hub-id"
	hubOwnUIDAnnotation  = "muster.fleet.cattle.io/hub-agent-uid"
	hubOwnGoneAnnotation = "muster.fleet.cattle.io/hub-agent-gone-since"
)

// isOther reports whether the record is of another hub.
func (r *hubRecord) isOther(hub string) bool { return r.hub != "" && r.hub != hub }

// isEmpty reports whether nothing is recorded.
func (r *hubRecord) isEmpty() bool { return r.hub == "" && r.version == 0 }

// isRecreated reports whether the agent's own BundleDeployment, which has this UID, is another one than the recorded one. "" means that it does not exist.
func (r *hubRecord) isRecreated(own types.UID) bool { return r.own != "" && own != "" && r.own != own }

func isRestored(recorded, current uint64) bool {
	return recorded != 0 && (current < recorded || isBumped(recorded, current))
}

func isBumped(recorded, current uint64) bool { return recorded != 0 && current > recorded+maxAdvance }

// readRecord reads the record of the previous run.
func (d *reconciler) readRecord(ctx context.Context) error {
	secret, err := d.core.Secrets(d.AgentNamespace).Get(ctx, registration.HistoryKeySecret, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the recorded resourceVersion of the hub: %w", err)
	}
	d.record.hub, d.record.version = secret.Annotations[hubIDAnnotation], number(secret.Annotations[hubVersionAnnotation])
	d.record.own = types.UID(secret.Annotations[hubOwnUIDAnnotation])
	if since, err := time.Parse(time.RFC3339, secret.Annotations[hubOwnGoneAnnotation]); err == nil {
		d.record.ownGone = since
	}
	d.record.kept = registration.KeptDeployments(secret)
	return nil
}

// writeRecord is called with the lock held.
func (d *reconciler) writeRecord(ctx context.Context, version uint64, own types.UID, ownGone time.Time, kept sets.Set[string]) error {
	since := ""
	if !ownGone.IsZero() {
		since = ownGone.UTC().Format(time.RFC3339)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		hubIDAnnotation: d.HubID, hubVersionAnnotation: strconv.FormatUint(version, 10), hubOwnUIDAnnotation: string(own), hubOwnGoneAnnotation: since,
		registration.KeptAnnotation: strings.Join(sets.List(kept), " "),
	}}})
	if err != nil {
		return err
	}
	_, err = d.core.Secrets(d.AgentNamespace).Patch(ctx, registration.HistoryKeySecret, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: registration.FieldManager})
	if err != nil && !apierrors.IsNotFound(err) { // a deleted Secret is created again at the next start
		return fmt.Errorf("recording the resourceVersion of the hub: %w", err)
	}
	d.record.hub, d.record.version, d.record.own, d.record.ownGone, d.record.kept = d.HubID, version, own, ownGone, kept
	return nil
}

// recordVersion records the resourceVersion of the last list or event, or that of an object if it is higher. If the hub may be another one, or the
// version is much higher than the recorded one, the releases whose BundleDeployment is missing are kept first. A lower version is not recorded:
// keepIfRestored finds it.
func (d *reconciler) recordVersion(ctx context.Context, ofObject string) error {
	d.record.Lock()
	defer d.record.Unlock()
	version, own := max(number(d.seenVersion()), number(ofObject)), cmp.Or(d.record.own, d.ownUID())
	switch {
	case d.mayBeOtherHub() || isBumped(d.record.version, version):
		return d.keepMissing(ctx) // with a later record, the restore would not be detected any more
	case version > d.record.version || own != d.record.own:
		return d.writeRecord(ctx, max(version, d.record.version), own, d.record.ownGone, d.record.kept)
	}
	return nil
}

// isLater reports whether a resourceVersion is later than the recorded one.
func (d *reconciler) isLater(version string) bool {
	d.record.Lock()
	defer d.record.Unlock()
	return number(version) > d.record.version
}

// checkForRestore detects that the hub was restored, or records its resourceVersion, and reports the kept releases. After an error, nothing is
// removed before keepIfRestored has succeeded.
func (d *reconciler) checkForRestore(ctx context.Context) {
	err := d.keepIfRestored(ctx)
	if err == nil {
		err = d.recordVersion(ctx, "")
	}
	if err != nil && ctx.Err() == nil {
		d.Log.Warnf("Trying again later: %s", release.Explain(err))
	}
	d.record.Lock()
	defer d.record.Unlock()
	d.reportKept()
}

// keepIfRestored keeps the releases whose BundleDeployment is missing, if the hub was restored or may be another one. decideRemoval requires that
// before a release is removed.
func (d *reconciler) keepIfRestored(ctx context.Context) error {
	d.record.Lock()
	defer d.record.Unlock()
	if d.hubChanged() {
		return d.keepMissing(ctx)
	}
	return nil
}

// keepIfRecreated keeps the releases whose BundleDeployment is missing, if the agent's own BundleDeployment is another one than the recorded one.
func (d *reconciler) keepIfRecreated(ctx context.Context, own *fleet.BundleDeployment) error {
	d.record.Lock()
	defer d.record.Unlock()
	if d.record.isRecreated(own.UID) {
		return d.keepMissing(ctx)
	}
	return nil
}

// keepMissing lists the BundleDeployments on the hub, to confirm what the watch showed, and records which are missing, with the resourceVersion of the
// hub. It is called with the lock held.
func (d *reconciler) keepMissing(ctx context.Context) error {
	list, err := d.listBundleDeployments(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("asking the hub whether it was restored from a backup: %w", err)
	}
	recorded, current, own := d.record.version, number(list.ResourceVersion), types.UID("")
	missing := sets.New(d.index.keys()...).Union(sets.KeySet(d.states.all())).Delete(d.ownKey)
	for _, bd := range list.Items {
		key := registration.LabelValue(bd.Name)
		if missing.Delete(key); key == d.ownKey {
			own = bd.UID
		}
	}
	switch {
	case d.record.isOther(d.HubID):
		d.Log.Warn("The agent is connected to another hub, or to a new address of its hub. Releases without a BundleDeployment stay")
	case isRestored(recorded, current):
		d.Log.Warnf("The hub was restored from a backup: its resourceVersion was %d and is %d. Releases without a BundleDeployment stay", recorded, current)
	case d.record.isRecreated(own):
		d.Log.Warn("The hub has created the agent's own BundleDeployment anew: its objects were deleted. Releases without a BundleDeployment stay")
	case d.record.isEmpty():
		d.Log.Warnf("Secret %s/%s has no record of the hub, although there are releases. Those without a BundleDeployment stay",
			d.AgentNamespace, registration.HistoryKeySecret)
	case d.record.isRecreated(d.ownUID()):
		return errors.New("the watch shows the agent's own BundleDeployment with another UID than the hub has: waiting until both agree")
	default:
		// One of several API servers is behind the others, or has not been restarted since the restore.
		return fmt.Errorf("the resourceVersion of the hub is %s in one answer and %d in another: waiting until its API servers agree", d.seenVersion(), current)
	}
	kept, err := d.withoutForged(ctx, d.record.kept.Union(missing))
	if err != nil {
		return err
	}
	if err := d.writeRecord(ctx, current, own, ownExists, kept); err != nil {
		return err
	}
	for _, name := range d.reportKept() {
		namespace, name, _ := strings.Cut(name, "/")
		d.Log.Warnf("Helm release %s/%s stays: the hub has no BundleDeployment for it. To remove it, run: helm uninstall --namespace %s %s",
			namespace, name, namespace, name)
	}
	return nil
}

// Recorded instead of the time since which the agent's own BundleDeployment is gone.
var (
	ownExists      = time.Time{}     // it exists
	unmanagedSince = time.Unix(0, 0) // the hub has deleted it because it no longer manages the agent
)

// maxKeptBytes is how many bytes the keys of kept releases may have. All annotations of an object may have 256 KiB.
const maxKeptBytes = 128 << 10

// withoutForged leaves out the keys of which no last revision is signed, if the keys are too large for an annotation: users who may write Secrets in one
// namespace can store revisions with any number of keys.
func (d *reconciler) withoutForged(ctx context.Context, keys sets.Set[string]) (sets.Set[string], error) {
	if len(strings.Join(sets.List(keys), " ")) <= maxKeptBytes {
		return keys, nil
	}
	d.Log.Warnf("Helm releases name %d BundleDeployments that the hub does not have, which is too many: those stay whose last revision this agent has stored", keys.Len())
	signed := sets.New[string]()
	for key := range keys {
		isSigned, err := d.hasSigned(ctx, d.index.of(key))
		if err != nil {
			return nil, err
		}
		if isSigned {
			signed.Insert(key)
		}
	}
	return signed, nil
}

// ownGoneSince returns since when the agent's own BundleDeployment, which has this state, is gone: the recorded time if it is earlier than that of this
// run, and unmanagedSince if the hub no longer manages the agent.
func (d *reconciler) ownGoneSince(state *deploymentState) time.Time {
	_, unmanaged := state.deleted()
	d.record.Lock()
	defer d.record.Unlock()
	switch {
	case unmanaged:
		return unmanagedSince
	case !d.record.ownGone.IsZero() && d.record.ownGone.Before(state.goneSince):
		return d.record.ownGone
	}
	return state.goneSince
}

// recordOwnState records since when the agent's own BundleDeployment is gone, or ownExists, for later runs. Until it is recorded that the hub has
// changed, it does nothing: keepMissing then begins again.
func (d *reconciler) recordOwnState(ctx context.Context, since time.Time) error {
	d.record.Lock()
	defer d.record.Unlock()
	if d.record.ownGone.Equal(since) || d.hubChanged() {
		return nil
	}
	return d.writeRecord(ctx, d.record.version, d.record.own, since, d.record.kept)
}

// isKept reports whether the releases of a missing BundleDeployment stay.
func (d *reconciler) isKept(key string) bool {
	d.record.Lock()
	defer d.record.Unlock()
	return d.record.kept.Has(key)
}

// recordedOwn returns the recorded UID of the agent's own BundleDeployment, "" if none is recorded.
func (d *reconciler) recordedOwn() types.UID {
	d.record.Lock()
	defer d.record.Unlock()
	return d.record.own
}

// keptOrChanged reports whether the releases of a missing BundleDeployment stay, and whether keepIfRestored has to decide that. It reads both at
// once: while it does not hold the lock, another worker may record the releases that stay.
func (d *reconciler) keptOrChanged(key string) (isKept, hasChanged bool) {
	d.record.Lock()
	defer d.record.Unlock()
	return d.record.kept.Has(key), d.hubChanged()
}

// hubChanged reports whether the hub was restored from a backup or may be another one, as far as the watch shows. It is called with the lock held.
func (d *reconciler) hubChanged() bool {
	return d.mayBeOtherHub() || isRestored(d.record.version, number(d.seenVersion()))
}

// mayBeOtherHub reports whether the record is of another hub or of objects that the hub has created anew, or whether there are releases and no record.
// It is called with the lock held.
func (d *reconciler) mayBeOtherHub() bool {
	isUnrecorded := d.record.isEmpty() && slices.ContainsFunc(d.index.keys(), func(key string) bool { return key != d.ownKey })
	return d.record.isOther(d.HubID) || d.record.isRecreated(d.ownUID()) || isUnrecorded
}

// ownUID returns the UID of the agent's own BundleDeployment in the cache, "" if there is none.
func (d *reconciler) ownUID() types.UID {
	if bd := d.bundleDeployment(d.ownKey); bd != nil {
		return bd.UID
	}
	return ""
}

// endKept ends the protection of the releases of a BundleDeployment that exists again, so that its deletion removes them, or of one whose
// releases a person has uninstalled.
func (d *reconciler) endKept(ctx context.Context, key, ofObject string) error {
	d.record.Lock()
	defer d.record.Unlock()
	version := max(d.record.version, number(ofObject))
	if d.mayBeOtherHub() || isBumped(d.record.version, version) {
		return errors.New("the hub is another one or was restored from a backup again: waiting for its list of BundleDeployments")
	}
	if err := d.writeRecord(ctx, version, d.record.own, d.record.ownGone, d.record.kept.Difference(sets.New(key))); err != nil {
		return err
	}
	d.reportKept()
	return nil
}

// endKeptIfBack ends the protection of releases whose BundleDeployment exists again. It asks the hub, because the cache may be older than the restore.
func (d *reconciler) endKeptIfBack(ctx context.Context, key string, bd *fleet.BundleDeployment) error {
	live, err := d.onHub(ctx, key)
	if err != nil {
		return err
	}
	if live == nil {
		return errors.New("the watch shows a BundleDeployment that the hub does not have")
	}
	if err := d.keepIfRestored(ctx); err != nil {
		return err
	}
	return d.endKept(ctx, key, bd.ResourceVersion)
}

// reportKept passes the releases that stay to Config.ReportKept and returns them. It is called with the lock held, so that a later report is not
// overtaken by an earlier one.
func (d *reconciler) reportKept() (names []string) {
	for key := range d.record.kept {
		for _, f := range d.index.of(key) {
			names = append(names, f.Namespace+"/"+f.Name)
		}
	}
	slices.Sort(names)
	d.ReportKept(names)
	return names
}

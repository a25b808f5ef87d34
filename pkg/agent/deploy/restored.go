package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

// After a restore of its etcd, the hub lacks the BundleDeployments that were created since the backup, and it answers as if they had been
// deleted. The resourceVersion of the hub shows the restore: it is lower than before, or, with `etcdutl snapshot restore --bump-revision`, much
// higher. So the agent records the highest resourceVersion that it has seen: at its start, at each resync, and before the first deployment of a
// BundleDeployment. A hub that has a later resourceVersion and not the BundleDeployment has deleted it. If the hub was restored, the agent marks
// the releases whose BundleDeployment is missing. It keeps a marked release until the BundleDeployment exists again, or until a person uninstalls
// the release.
//
// An agent cannot detect the restore if it has no connection to the restored hub before the resourceVersion of that hub has passed the recorded
// one. With --bump-revision, that does not happen.

// maxAdvance is the largest number of versions by which a hub is ahead of the recorded version without a restore. The documentation of etcd
// recommends to bump the revision by a billion. A hub with 200 writes per second makes half a billion versions in four weeks; the record of a
// connected agent is at most one resync interval old.
const maxAdvance = 500_000_000

// hubVersionAnnotation is the annotation of Secret registration.HistoryKeySecret with the highest resourceVersion of the hub that the agent has seen.
const hubVersionAnnotation = "muster.fleet.cattle.io/hub-resource-version"

// hubVersion is the recorded resourceVersion of the hub.
type hubVersion struct {
	sync.Mutex
	recorded uint64 // 0 if none is recorded
	// kept has the keys whose releases this run has marked: an earlier event of a release may arrive after the mark was written.
	kept sets.Set[string]
}

func isRestored(recorded, current uint64) bool {
	return recorded != 0 && (current < recorded || current-recorded > maxAdvance)
}

// readHubVersion reads the record of the previous run.
func (d *reconciler) readHubVersion(ctx context.Context) error {
	secret, err := d.core.Secrets(d.AgentNamespace).Get(ctx, registration.HistoryKeySecret, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the recorded resourceVersion of the hub: %w", err)
	}
	d.hubVersion.recorded = number(secret.Annotations[hubVersionAnnotation])
	return nil
}

// recordHubVersion records the resourceVersion of the last list or event, or that of an object if it is higher. If the hub was restored, it marks
// the releases whose BundleDeployment is missing.
func (d *reconciler) recordHubVersion(ctx context.Context, ofObject string) error {
	d.hubVersion.Lock()
	defer d.hubVersion.Unlock()
	version := max(number(d.seenVersion()), number(ofObject))
	switch {
	case isRestored(d.hubVersion.recorded, version):
		return d.keepMissing(ctx) // with a later record, the restore would not be detected any more
	case version > d.hubVersion.recorded:
		return d.writeHubVersion(ctx, version)
	}
	return nil
}

// writeHubVersion is called with the lock held.
func (d *reconciler) writeHubVersion(ctx context.Context, version uint64) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{hubVersionAnnotation: strconv.FormatUint(version, 10)},
	}})
	if err != nil {
		return err
	}
	_, err = d.core.Secrets(d.AgentNamespace).Patch(ctx, registration.HistoryKeySecret, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: registration.FieldManager})
	if err != nil && !apierrors.IsNotFound(err) { // a deleted Secret is created again at the next start
		return fmt.Errorf("recording the resourceVersion of the hub: %w", err)
	}
	d.hubVersion.recorded = version
	return nil
}

// keepIfRestored marks the releases whose BundleDeployment is missing, if the hub was restored. It must return nil before a release is removed
// because its BundleDeployment is missing.
func (d *reconciler) keepIfRestored(ctx context.Context) error {
	d.hubVersion.Lock()
	defer d.hubVersion.Unlock()
	if !isRestored(d.hubVersion.recorded, number(d.seenVersion())) {
		return nil
	}
	return d.keepMissing(ctx)
}

// keepMissing asks the hub whether it was restored, marks the releases whose BundleDeployment is missing, and records the resourceVersion of
// the restored hub. It is called with the lock held.
func (d *reconciler) keepMissing(ctx context.Context) error {
	// This list is read from etcd. An API server that is behind the others would list an old state from its cache.
	list, err := d.listBundleDeployments(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("asking the hub whether it was restored from a backup: %w", err)
	}
	recorded, restored := d.hubVersion.recorded, number(list.ResourceVersion)
	if !isRestored(recorded, restored) {
		return nil
	}
	d.Log.Warnf("The hub was restored from a backup: its resourceVersion was %d and is %d. Releases without a BundleDeployment stay", recorded, restored)
	existing, kept := sets.New(d.ownKey), sets.New[string]()
	for _, bd := range list.Items {
		existing.Insert(registration.LabelValue(bd.Name))
	}
	for _, key := range d.index.keys() {
		if existing.Has(key) {
			continue
		}
		for _, f := range d.index.of(key) {
			marked, err := d.releases.SetKept(ctx, f, true)
			if err != nil {
				return err
			}
			d.index.add(marked)
			kept.Insert(key)
			d.log(key).Warnf("Helm release %s/%s stays: the restored hub has no BundleDeployment for it. To remove it, run: helm uninstall --namespace %s %s",
				f.Namespace, f.Name, f.Namespace, f.Name)
		}
	}
	if err := d.writeHubVersion(ctx, restored); err != nil {
		return err
	}
	d.hubVersion.kept = d.hubVersion.kept.Union(kept)
	return nil
}

// removable returns the releases of a missing BundleDeployment, except the kept ones.
func (d *reconciler) removable(key string) []release.Found {
	d.hubVersion.Lock()
	defer d.hubVersion.Unlock()
	if d.hubVersion.kept.Has(key) {
		return nil
	}
	return slices.DeleteFunc(d.index.of(key), func(f release.Found) bool { return f.Kept })
}

// endKept removes the marks from the releases of a BundleDeployment that exists again, so that a later deletion of it removes them.
func (d *reconciler) endKept(ctx context.Context, key string) error {
	for _, f := range d.index.of(key) {
		if !f.Kept {
			continue
		}
		unmarked, err := d.releases.SetKept(ctx, f, false)
		if err != nil {
			return err
		}
		d.index.add(unmarked)
	}
	d.hubVersion.Lock()
	d.hubVersion.kept.Delete(key)
	d.hubVersion.Unlock()
	d.reportKept()
	return nil
}

// reportKept passes the marked releases to Config.ReportKept.
func (d *reconciler) reportKept() {
	var kept []string
	for _, key := range d.index.keys() {
		for _, f := range d.index.of(key) {
			if f.Kept {
				kept = append(kept, f.Namespace+"/"+f.Name)
			}
		}
	}
	slices.Sort(kept)
	d.ReportKept(kept)
}

package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/release"
)

// drift is what of one release differs from what was deployed.
type drift struct {
	verdicts map[string]verdict // by object
	// err says why something could not be compared; "" when everything was.
	err string
	// again says that everything is to be compared, whether it seems to have changed or not.
	again bool
}

// verdict is the difference of an object as it was at a time.
type verdict struct {
	seen string // fingerprint
	release.Difference
}

func (d drift) any() bool {
	for _, v := range d.verdicts {
		if !v.None() {
			return true
		}
	}
	return false
}

// clean says that all was compared, and nothing differs.
func (d drift) clean() bool { return d.verdicts != nil && d.err == "" && !d.any() }

func identify(o release.Object) string {
	return o.Resource.GroupResource().String() + " " + o.Desired.GetNamespace() + "/" + o.Desired.GetName()
}

// absent is the fingerprint of what the watch does not have.
const absent = "absent"

// fingerprint changes when something changed that can be drift: the status of an object changes all the time, and counts
// for nothing.
func fingerprint(live *unstructured.Unstructured, ignored []fleet.ComparePatch) string {
	if live == nil {
		return absent
	}
	if live.GetGeneration() == 0 {
		return live.GetResourceVersion() + told(ignored)
	}
	annotations := map[string]string{}
	for key, value := range live.GetAnnotations() {
		if !strings.HasPrefix(key, "deployment.kubernetes.io/") {
			annotations[key] = value
		}
	}
	return fmt.Sprint(live.GetUID(), live.GetGeneration(), live.GetLabels(), annotations, told(ignored))
}

func told(ignored []fleet.ComparePatch) string {
	if len(ignored) == 0 {
		return ""
	}
	data, err := json.Marshal(ignored)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// compare looks at all objects of a release that may have changed, and has what it found shown or undone.
func (d *deployer) compare(ctx context.Context, key string) {
	it := d.items.get(key)
	it.mu.Lock()
	deployed, before := it.deployed, it.drift
	it.mu.Unlock()
	bd := d.bundle(key)
	if deployed == nil || bd == nil || !d.live.watch(deployed.Objects) {
		return // work brings it back
	}
	after := d.judgeAll(ctx, deployed.Objects, before, comparePatches(bd))
	if ctx.Err() != nil {
		return
	}
	it.mu.Lock()
	if it.deployed == deployed {
		it.drift = after
	}
	it.mu.Unlock()
	if after.err != "" {
		d.log(key).Warnf("Comparing with what was deployed: %s", after.err)
		d.drifts.AddAfter(key, d.Timing.RetryMax)
	}
	d.queue.Add(key)
}

func comparePatches(bd *fleet.BundleDeployment) []fleet.ComparePatch {
	if bd.Spec.Options.Diff == nil {
		return nil
	}
	return bd.Spec.Options.Diff.ComparePatches
}

func (d *deployer) judgeAll(ctx context.Context, objects []release.Object, before drift, ignored []fleet.ComparePatch) drift {
	after := drift{verdicts: map[string]verdict{}}
	for _, o := range objects {
		id, live := identify(o), d.live.get(o)
		seen := fingerprint(live, ignored)
		if old, known := before.verdicts[id]; known && old.seen == seen && !before.again {
			after.verdicts[id] = old
			continue
		}
		found, err := d.releases.Compare(ctx, o, live, ignored)
		if err != nil {
			after.err = release.Explain(err)
			if old, known := before.verdicts[id]; known {
				after.verdicts[id] = verdict{Difference: old.Difference} // and looked at again
			}
			continue
		}
		after.verdicts[id] = verdict{seen: seen, Difference: found}
	}
	return after
}

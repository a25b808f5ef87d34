package deploy

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// written is the status this agent wrote last; the watch may not have it yet.
type written struct {
	version string
	status  fleet.BundleDeploymentStatus
}

// base is the newest status known.
func (w written) base(bd *fleet.BundleDeployment) fleet.BundleDeploymentStatus {
	if number(w.version) > number(bd.ResourceVersion) {
		return w.status
	}
	return bd.Status
}

func number(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// report writes a status when it is not the one there is.
func (d *deployer) report(ctx context.Context, bd *fleet.BundleDeployment, base, status fleet.BundleDeploymentStatus) (written, error) {
	stamp(base, &status, d.Clock.Now())
	patch, err := statusPatch(base, status)
	if err != nil || patch == nil {
		return written{}, err
	}
	made, err := d.Hub.FleetV1alpha1().BundleDeployments(bd.Namespace).Patch(ctx, bd.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err = d.heard(err); err != nil {
		return written{}, err
	}
	return written{version: made.ResourceVersion, status: made.Status}, nil
}

// stamp dates the conditions that changed.
func stamp(before fleet.BundleDeploymentStatus, after *fleet.BundleDeploymentStatus, now time.Time) {
	text := now.UTC().Format(time.RFC3339)
	for i := range after.Conditions {
		c := &after.Conditions[i]
		old := conditionOf(before, c.Type)
		if old.Status != c.Status {
			c.LastTransitionTime = text
		}
		if old.Status != c.Status || old.Reason != c.Reason || old.Message != c.Message {
			c.LastUpdateTime = text
		}
	}
}

// statusPatch is a merge patch of what differs, nil when nothing does.
func statusPatch(before, after fleet.BundleDeploymentStatus) ([]byte, error) {
	from, err := json.Marshal(map[string]any{"status": before})
	if err != nil {
		return nil, err
	}
	to, err := json.Marshal(map[string]any{"status": after})
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.CreateMergePatch(from, to)
	if err != nil || string(patch) == "{}" {
		return nil, err
	}
	return patch, nil
}

package deploy

import (
	"context"
	"encoding/json"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
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
	difference, err := fleetstatus.MergePatch(base, status)
	if err != nil || difference == nil {
		return written{}, err
	}
	patch, err := json.Marshal(map[string]any{"status": difference})
	if err != nil {
		return written{}, err
	}
	made, err := d.Hub.FleetV1alpha1().BundleDeployments(bd.Namespace).Patch(ctx, bd.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err = d.heard(err); err != nil {
		return written{}, err
	}
	return written{version: made.ResourceVersion, status: made.Status}, nil
}

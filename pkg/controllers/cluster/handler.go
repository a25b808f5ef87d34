package cluster

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rancher/wrangler/v3/pkg/randomtoken"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
)

func (h *handler) onChange(key string, cluster *fleet.Cluster) (*fleet.Cluster, error) {
	if cluster == nil {
		h.forget(key)
		return nil, nil
	}
	if h.fresh.IsStale(cluster) {
		return cluster, nil
	}
	ctx, cancel := h.Passes.Context()
	defer cancel()
	if cluster.DeletionTimestamp != nil {
		return h.finalize(ctx, cluster)
	}
	cluster, err := h.complete(cluster)
	if err != nil {
		return cluster, err
	}
	return h.reconcile(ctx, cluster)
}

func (h *handler) forget(key string) {
	for _, step := range h.steps {
		step.Forget(key)
	}
}

// complete writes what the hub owns outside the status: the finalizer, without which a deleted Cluster would leave its
// namespace behind, and the identity of a Cluster that is to be imported.
func (h *handler) complete(cluster *fleet.Cluster) (*fleet.Cluster, error) {
	fields := map[string]any{}
	// The version keeps a second identity from being made over one the cache has not seen yet.
	metadata := map[string]any{"resourceVersion": cluster.ResourceVersion}
	if !slices.Contains(cluster.Finalizers, fleet.ClusterFinalizer) && !managedElsewhere(cluster) {
		metadata["finalizers"] = append(slices.Clone(cluster.Finalizers), fleet.ClusterFinalizer)
		fields["metadata"] = metadata
	}
	if cluster.Spec.ClientID == "" && cluster.Spec.KubeConfigSecret != "" && !managedElsewhere(cluster) {
		clientID, err := randomtoken.Generate()
		if err != nil {
			return cluster, err
		}
		fields["metadata"], fields["spec"] = metadata, map[string]any{"clientID": clientID}
	}
	if len(fields) == 0 {
		return cluster, nil
	}
	latest, err := writes.Merge(h.clusters, cluster, fields)
	if err == nil {
		h.fresh.Wrote(latest)
	}
	return latest, err
}

func managedElsewhere(cluster *fleet.Cluster) bool {
	return cluster.Labels[fleet.ClusterManagementLabel] != ""
}

// reconcile runs the steps and writes what they came to, once.
func (h *handler) reconcile(ctx context.Context, cluster *fleet.Cluster) (*fleet.Cluster, error) {
	after := cluster.DeepCopy()
	report := h.runSteps(ctx, after)
	latest, written, err := writes.Status(h.clusters, cluster, after)
	if err != nil {
		return cluster, errors.Join(err, report.err)
	}
	if written {
		h.fresh.Wrote(latest)
		for _, transition := range report.transitions {
			transition.Record(h.Events, latest)
		}
	}
	if report.next > 0 {
		h.clusters.EnqueueAfter(latest.Namespace, latest.Name, report.next)
	}
	return latest, report.err
}

type report struct {
	transitions []*result.Transition
	next        time.Duration
	err         error
}

// runSteps stops after the first step, which makes the namespace, if that does not succeed: nothing can be built on it. A
// Cluster that is managed elsewhere is for those steps only that take something back then.
func (h *handler) runSteps(ctx context.Context, cluster *fleet.Cluster) (r report) {
	elsewhere := managedElsewhere(cluster)
	for i, step := range h.steps {
		if _, leaves := step.(Leaver); i > 0 && elsewhere && !leaves {
			continue
		}
		out := step.Reconcile(ctx, cluster)
		r.transitions = append(r.transitions, result.Set(&cluster.Status.Conditions, step.Condition(), out, h.Clock.Now()))
		r.next = result.Earliest(r.next, out.After)
		r.err = errors.Join(r.err, out.Err)
		if i == 0 && !out.IsDone() {
			break
		}
	}
	return r
}

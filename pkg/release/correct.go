package release

import (
	"context"
	"errors"
	"fmt"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Correct undoes drift: Helm rolls the release back to the deployed revision, which applies the objects of that revision again. It reads
// only the history of the release, so it works after the hub has deleted the Content. If the rollback fails, Correct marks that revision as
// deployed again and deletes the failed one. With keepFailHistory the failed revision stays in the history without labels: its objects are
// not on the cluster, so List must not return it as the newest revision. Without takeOwnership, objects that another release has adopted stay as they are.
func (c *Client) Correct(ctx context.Context, r Request) (Deployed, error) {
	c, end := c.beginAction(true)
	defer end()
	op, revisions, err := c.resume(ctx, &r)
	if err != nil {
		return Deployed{}, err
	}
	latest := last(revisions)
	correct := ptr.Deref(r.Options.CorrectDrift, fleet.CorrectDrift{})
	op.cluster.replace = r.helm().Force || correct.Force
	if _, isOutdated, err := op.cluster.buildEarlier(latest.Manifest); err == nil && isOutdated {
		op.cluster.outdated = latest.Manifest
	}

	rollback := action.NewRollback(op.config)
	rollback.Version, rollback.MaxHistory, rollback.Timeout = latest.Version, r.maxHistory(), r.timeout()
	rollback.ServerSideApply, rollback.ForceConflicts = "true", true
	rollback.WaitStrategy, rollback.WaitOptions = kube.HookOnlyStrategy, []kube.WaitOption{kube.WithWaitContext(ctx)}
	err = rollback.Run(r.Name)
	if ctx.Err() != nil {
		return Deployed{}, context.Cause(ctx)
	}
	if err != nil {
		// Helm has added a failed revision, and has marked the revision whose objects are on the cluster as superseded. The failed revision is
		// deleted last: without it, a watch would show the other one as the newest, and as superseded.
		failed, readErr := op.revisions(r.Name)
		latest.Info.Status = common.StatusDeployed
		err = errors.Join(err, readErr, op.config.Releases.Update(latest))
		if f := last(failed); f != nil && f.Version > latest.Version && f.Labels[AgentLabel] != "" {
			if correct.KeepFailHistory {
				f.Labels = nil
				return Deployed{}, errors.Join(err, op.config.Releases.Update(f))
			}
			return Deployed{}, errors.Join(err, op.forget(failed[len(failed)-1:]))
		}
		return Deployed{}, err
	}
	made, err := op.config.Releases.Last(r.Name)
	if err != nil {
		return Deployed{}, fmt.Errorf("reading Helm release %s/%s: %w", r.Namespace, r.Name, err)
	}
	return op.deployed(made)
}

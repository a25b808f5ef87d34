package deploy

import (
	"context"
	"errors"
	"fmt"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

func asksToLeave(bd *fleet.BundleDeployment) bool {
	if bd == nil {
		return false
	}
	_, asked := bd.Annotations[fleet.FarewellAnnotation]
	return asked
}

// leave removes all that this agent deployed, until it has worked. The workers have ended: nothing is deployed beside it.
func (d *deployer) leave(ctx context.Context) error {
	d.Log.Info("The hub says farewell: removing everything that was deployed")
	pauses := backoff(d.Timing.RetryFirst, d.Timing.RetryMax)
	noted := false // once: what comes after that, a new installation say, is no part of this farewell
	for ctx.Err() == nil {
		left := d.removeAll(ctx)
		if left == nil && !noted {
			left = d.Leaving(ctx)
			noted = left == nil
		}
		told := d.tell(ctx, left)
		if verdict := d.Judge(told); verdict != nil {
			return verdict
		}
		if left == nil && told == nil {
			return ErrFarewell
		}
		if ctx.Err() == nil {
			d.Log.Warnf("Farewell is not done, trying again: %s", release.Explain(errors.Join(left, told)))
		}
		d.pause(ctx, pauses.Step())
	}
	return nil
}

// removeAll goes through all of them, whatever becomes of one: as much as possible is to be gone. The agent's own release
// comes last, and only its history goes: its objects are for the agent itself to remove.
func (d *deployer) removeAll(ctx context.Context) error {
	found, err := d.releases.List(ctx, d.owner.Selector())
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range found {
		if key := f.Labels[release.DeploymentLabel]; key != d.own {
			errs = append(errs, d.uninstall(ctx, key, f, f.Options()))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, f := range found {
		if f.Labels[release.DeploymentLabel] == d.own {
			errs = append(errs, d.releases.Forget(ctx, f.Namespace, f.Name))
		}
	}
	return errors.Join(errs...)
}

// tell writes the condition that the hub waits for. A hub that has already given up has nothing left to be told.
func (d *deployer) tell(ctx context.Context, left error) error {
	bd, err := d.Hub.FleetV1alpha1().BundleDeployments(d.Namespace).Get(ctx, registration.AgentBundleName(d.ClusterName), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("telling the hub: %w", err)
	}
	condition := genericcondition.GenericCondition{Type: fleet.ConditionFarewell, Status: corev1.ConditionTrue, Reason: fleet.ReasonFarewell}
	if left != nil {
		condition.Status, condition.Reason, condition.Message = corev1.ConditionFalse, fleet.ReasonFarewellFailed, release.Explain(left)
	}
	status := *bd.Status.DeepCopy()
	fleetstatus.SetCondition(&status.Conditions, condition, d.Clock.Now())
	if _, err = d.report(ctx, bd, bd.Status, status); apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

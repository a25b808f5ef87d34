package clusterregistration

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/index"
	"github.com/muster-fleet/muster/pkg/controllers/outcome"
	"github.com/muster-fleet/muster/pkg/registration"
)

// refuseLatecomer stops an old request that is looked at late from taking the credential away from the current one.
func (p *pass) refuseLatecomer(context.Context) outcome.Outcome {
	rivals, err := p.rivals()
	if err != nil {
		return failed(err)
	}
	if newer := registration.NewerGranted(rival(p.request), rivals); newer != "" {
		return outcome.Stalled(fleet.ReasonSuperseded, fmt.Sprintf("the agent registered again with ClusterRegistration %s", newer))
	}
	return ok
}

// supersede deletes the older requests of the same agent; their rights go with them, so an old credential stops working.
func (p *pass) supersede(context.Context) outcome.Outcome {
	rivals, err := p.rivals()
	if err != nil {
		return failed(err)
	}
	for _, name := range registration.Superseded(rival(p.request), rivals) {
		err := p.requests.Delete(p.request.Namespace, name, &metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return failed(fmt.Errorf("deleting the superseded ClusterRegistration %s: %w", name, err))
		}
	}
	return ok
}

func (p *pass) rivals() ([]registration.Rival, error) {
	requests, err := p.cache.GetByIndex(index.ByClientID, index.Key(p.request.Namespace, p.request.Spec.ClientID))
	if err != nil {
		return nil, err
	}
	rivals := make([]registration.Rival, 0, len(requests))
	for _, r := range requests {
		if r.DeletionTimestamp == nil {
			rivals = append(rivals, rival(r))
		}
	}
	return rivals, nil
}

func rival(r *fleet.ClusterRegistration) registration.Rival {
	return registration.Rival{
		Name:         r.Name,
		ClientRandom: r.Spec.ClientRandom,
		Created:      r.CreationTimestamp.Time,
		Granted:      r.Status.Granted,
	}
}

package clusterregistration

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// refuseLatecomer stops an old request that is looked at late from taking the credential away from the current one.
func (p *pass) refuseLatecomer(context.Context) result.Result {
	rivals, err := p.rivals()
	if err != nil {
		return failed(err)
	}
	if newer := registration.NewerGranted(rival(p.request), rivals); newer != "" {
		return result.Stalled(fleet.ReasonSuperseded, fmt.Sprintf("the agent registered again with ClusterRegistration %s", newer))
	}
	return ok
}

// supersede deletes the older requests of the same agent; their rights go with them, so an old credential stops working.
// An agent that tells which credential it uses keeps the old one until it uses the new one: an answer that is lost costs it
// nothing then. Of others nobody would learn that.
func (p *pass) supersede(ctx context.Context) result.Result {
	if renews(p.request) {
		return p.supersedeUsed(ctx)
	}
	return p.deleteSuperseded("")
}

// supersedeUsed spares the request the agent vouches for: it may be of the same second, and is the next one.
func (p *pass) supersedeUsed(context.Context) result.Result {
	if !renews(p.request) || !p.isInUse() {
		return ok
	}
	return p.deleteSuperseded(p.cluster.Status.Agent.Vouches)
}

func (p *pass) deleteSuperseded(spared string) result.Result {
	rivals, err := p.rivals()
	if err != nil {
		return failed(err)
	}
	for _, name := range registration.Superseded(rival(p.request), rivals) {
		if name == spared {
			continue
		}
		err := p.requests.Delete(p.request.Namespace, name, &metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return failed(fmt.Errorf("deleting the superseded ClusterRegistration %s: %w", name, err))
		}
	}
	return ok
}

// inUse finds, among the requests of a Cluster's agent, the one the agent uses, if that makes something superfluous: older
// requests, or the credential Secret of this one.
func (h *handler) inUse(cluster *fleet.Cluster, own []*fleet.ClusterRegistration) (keys []types.NamespacedName) {
	for _, r := range own {
		if r.Name != cluster.Status.Agent.Registration || !r.Status.Granted || !renews(r) {
			continue
		}
		secrets, _ := h.secrets.GetByIndex(secretsByRequest, index.Key(r.Namespace, r.Name))
		if len(secrets) > 0 || len(registration.Superseded(rival(r), living(own))) > 0 {
			keys = append(keys, types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
		}
	}
	return keys
}

func (p *pass) rivals() ([]registration.Rival, error) {
	requests, err := p.cache.GetByIndex(index.ByClientID, index.Key(p.request.Namespace, p.request.Spec.ClientID))
	if err != nil {
		return nil, err
	}
	return living(requests), nil
}

func living(requests []*fleet.ClusterRegistration) []registration.Rival {
	rivals := make([]registration.Rival, 0, len(requests))
	for _, r := range requests {
		if r.DeletionTimestamp == nil {
			rivals = append(rivals, rival(r))
		}
	}
	return rivals
}

func rival(r *fleet.ClusterRegistration) registration.Rival {
	return registration.Rival{
		Name:         r.Name,
		ClientRandom: r.Spec.ClientRandom,
		Created:      r.CreationTimestamp.Time,
		Granted:      r.Status.Granted,
	}
}

package clusterregistration

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	rbaccontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/rbac/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/contentrole"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/controllers/leaving"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/policy"
)

const (
	// patience is how old a waiting request gets before its status says what it waits for. Most waits end within
	// milliseconds, in a storm within seconds, and a write for each would cost as much as the registration. What a person is to
	// hear of is said at once.
	patience = 10 * time.Second
)

type handler struct {
	*app.Context
	requests fleetcontrollers.ClusterRegistrationController
	cache    fleetcontrollers.ClusterRegistrationCache
	clusters fleetcontrollers.ClusterClient
	known    fleetcontrollers.ClusterCache
	tokens   fleetcontrollers.ClusterRegistrationTokenCache
	accounts corecontrollers.ServiceAccountCache
	secrets  corecontrollers.SecretCache
	sets     desiredset.Sets
	agents   leaving.Agents
	fresh    expectations.Expectations
	grants   expectations.Expectations // requests this hub granted; never overlooked, so the timeout is long
	policy   atomic.Pointer[policy.Policy]
	turns    turns
	granted  sync.Map                   // UID -> the version by which this hub granted the request, until its event comes
	made     *expectations.Expectations // Clusters, and by the UID of a request what it was given

	bindings        rbaccontrollers.RoleBindingCache
	clusterBindings rbaccontrollers.ClusterRoleBindingCache
	// Where Fleet's own controllers make the BundleDeployments these are nil.
	contentRoles *contentrole.Roles
	deployed     fleetcontrollers.BundleDeploymentCache
}

func (h *handler) onChange(key string, request *fleet.ClusterRegistration) (*fleet.ClusterRegistration, error) {
	ctx, cancel := h.Passes.Context()
	defer cancel()
	switch {
	case request == nil:
		return nil, h.removeUnlessNeeded(ctx, key)
	case request.DeletionTimestamp != nil, request.Labels[fleet.ClusterManagementLabel] != "", h.isStale(request):
		return request, nil
	}
	if h.isOwnGrant(request) {
		h.requests.EnqueueAfter(request.Namespace, request.Name, enqueue.RepairDelay)
		return request, nil
	}
	if !request.Status.Granted {
		done := h.turns.take(request)
		if done == nil {
			h.requests.EnqueueAfter(request.Namespace, request.Name, nextTurn())
			return request, nil
		}
		defer done()
	}
	p := &pass{handler: h, request: request, after: request.Status.DeepCopy()}
	out := p.takeBack(ctx, p.run(ctx))
	if err := p.answer(ctx, out); err != nil {
		out.Err = errors.Join(out.Err, err)
	}
	return h.finish(p, out)
}

// isStale asks both, for what is seen is forgotten by that.
func (h *handler) isStale(request *fleet.ClusterRegistration) bool {
	stale, unseen := h.fresh.IsStale(request), h.grants.IsStale(request)
	return stale || unseen
}

// finish writes the status, emits the event of a transition and says when the request is looked at next.
func (h *handler) finish(p *pass, out result.Result) (*fleet.ClusterRegistration, error) {
	if h.tooEarlyToTell(p.request, out) {
		h.requests.EnqueueAfter(p.request.Namespace, p.request.Name, patience)
		return p.request, nil
	}
	after := p.request.DeepCopy()
	after.Status = *p.after
	transition := result.Set(&after.Status.Conditions, fleet.ConditionGranted, out, h.Clock.Now())
	latest, written, err := writes.Status(h.requests, p.request, after)
	if err != nil {
		return p.request, errors.Join(err, out.Err)
	}
	if written {
		h.fresh.Wrote(latest)
		if latest.Status.Granted {
			h.grants.Wrote(latest)
		}
		h.noteGrant(p.request, latest)
		transition.Record(h.Events, latest)
		p.alarm(transition)
		p.recordApproval(latest)
	}
	if out.After > 0 {
		h.requests.EnqueueAfter(latest.Namespace, latest.Name, out.After)
	}
	return latest, errors.Join(out.Err, h.forget(latest, out))
}

// noteGrant counts a grant. It has the first look at the request after it wait until the caches know what was made for it: what
// they do not know yet would be made again, in vain.
func (h *handler) noteGrant(before, after *fleet.ClusterRegistration) {
	if after.Status.Granted && !before.Status.Granted {
		h.granted.Store(after.UID, after.ResourceVersion)
		h.Metrics.Granted(h.Clock.Since(after.CreationTimestamp.Time))
	}
}

func (h *handler) isOwnGrant(request *fleet.ClusterRegistration) bool {
	version, known := h.granted.LoadAndDelete(request.UID)
	return known && version == request.ResourceVersion && !h.isQuarantined(request)
}

// isQuarantined says whether the rights of a granted request are to go at once: the look that was asked for when its Cluster
// was put into quarantine may be the one that the event of the grant is for too.
func (h *handler) isQuarantined(request *fleet.ClusterRegistration) bool {
	cluster, err := h.known.Get(request.Namespace, request.Status.ClusterName)
	return err == nil && cluster.Spec.Quarantined
}

func (h *handler) tooEarlyToTell(request *fleet.ClusterRegistration, out result.Result) bool {
	return out.IsWait() && !out.Tell && h.Clock.Since(request.CreationTimestamp.Time) < patience
}

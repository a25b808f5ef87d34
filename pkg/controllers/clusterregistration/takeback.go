package clusterregistration

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// takeBack removes what an earlier pass made for a request, before that is refused: rights and credential come before the
// write that grants it, and where that failed and the next pass decides otherwise, the agent would work though it is denied.
// The refusal is for the pass after, when the caches know nothing of it any more.
func (p *pass) takeBack(ctx context.Context, out result.Result) result.Result {
	if p.request.Status.Granted || !p.isDecidedAgainst(out) {
		return out
	}
	key := index.Key(p.request.Namespace, p.request.Name)
	accounts, err := p.accounts.GetByIndex(index.ByRequest, key)
	switch {
	case err != nil:
		return failed(err)
	case len(accounts) > 0:
		return p.takeBackUngranted(ctx, key)
	case p.made.IsExpected(string(p.request.UID)):
		return result.Skip().In(aMoment) // what is not in the cache yet could not be found
	}
	return out
}

// takeBackUngranted asks the API server first, which costs the ordinary refusal nothing: what a granted request has is not
// taken because the cache of a hub that has just begun is behind.
func (p *pass) takeBackUngranted(ctx context.Context, key string) result.Result {
	latest, err := p.requests.Get(p.request.Namespace, p.request.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err): // its removal takes everything back
		return result.Skip()
	case err != nil:
		return failed(err)
	case !latest.Status.Granted:
		if err := p.remove(ctx, key); err != nil {
			return failed(err)
		}
		p.made.Observed(string(p.request.UID))
	}
	return result.Skip().In(aMoment)
}

// isDecidedAgainst says whether the agent is not to have what it may have been given. In quarantine cutOff leaves it the bare
// identity, and a request that is superseded goes with the first heartbeat of the newer one.
func (p *pass) isDecidedAgainst(out result.Result) bool {
	switch out.Reason {
	case fleet.ReasonQuarantined, fleet.ReasonSuperseded:
		return false
	case fleet.ReasonClientIDInUse:
		return p.isAnothers()
	case fleet.ReasonTokenNotFound:
		return out.IsStalled()
	}
	return out.IsStalled() && isFinal(out.Reason)
}

// isAnothers says whether another request has the identity. Where none was granted, the agent that was heard of may be the
// one of this request, at work with the credential.
func (p *pass) isAnothers() bool {
	if p.cluster == nil || p.isInUse() {
		return false
	}
	rivals, err := p.rivals()
	return err == nil && slices.ContainsFunc(rivals, func(r registration.Rival) bool {
		return r.Granted && r.Name != p.request.Name
	})
}

package clusterregistration

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	gather        = 20 * time.Millisecond
	gatherInStorm = 250 * time.Millisecond // less than a request takes then in any case
	few           = 2                      // requests that a token names, or that want to be counted: this one, and the one before it
	storm         = 10                     // requests that a token names at a time
)

// gathering is how long a token waits for more requests that want to be counted, so that a storm of them costs few writes, and one
// that comes alone no time.
func gathering(named, asking int) time.Duration {
	switch {
	case named+asking <= few:
		return 0
	case named < storm:
		return gather
	}
	return gatherInStorm
}

// countUse sees to it that the request counts as a use of its token before anything is made for it, where the token has a
// limit; otherwise while its Cluster is made. It only asks: the controller of tokens counts, and the event of its write brings
// the request back. What is counted stays counted: the token names the request until the request's own status says so.
func (p *pass) countUse(context.Context) result.Result {
	if p.reader == nil {
		return ok
	}
	token, err := p.tokens.Get(p.request.Namespace, p.reader.Name)
	switch {
	case apierrors.IsNotFound(err):
		return countingUse(p.reader.Name)
	case err != nil:
		return failed(err)
	}
	uses := registration.UsesOf(token)
	switch uses.State(string(p.request.UID), p.request.Status.TokenUID) {
	case registration.UseCounted:
		p.after.TokenUID = string(token.UID)
		return ok
	case registration.UseRefused:
		return refused(uses.UsedUp())
	case registration.UseUncounted:
		p.ask(token)
	}
	if token.Spec.UsageLimit == nil {
		p.uncounted = token.Name
		return ok
	}
	return countingUse(token.Name)
}

func (p *pass) ask(token *fleet.ClusterRegistrationToken) {
	key := types.NamespacedName{Namespace: token.Namespace, Name: token.Name}
	p.Uses.Add(key, p.use())
	wait := gathering(len(token.Status.PendingUses), p.Uses.Count(key))
	p.Fleet.ClusterRegistrationToken().EnqueueAfter(token.Namespace, token.Name, wait)
}

// awaitCount comes before the identity is given away: what is granted is counted.
func (p *pass) awaitCount(context.Context) result.Result {
	if p.uncounted != "" {
		return countingUse(p.uncounted)
	}
	return ok
}

func countingUse(token string) result.Result {
	return result.Wait(fleet.ReasonCountingUse, fmt.Sprintf("waiting for ClusterRegistrationToken %s to count this use", token))
}

func (p *pass) use() registration.Use {
	use := registration.Use{
		UID: string(p.request.UID), Name: p.request.Name, Created: p.request.CreationTimestamp.Time,
		Cluster: registration.ClusterName(p.request.Spec.ClientID),
	}
	if p.cluster != nil {
		use.Cluster = p.cluster.Name
	}
	return use
}

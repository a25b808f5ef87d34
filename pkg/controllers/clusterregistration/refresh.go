package clusterregistration

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

// refreshCredential puts a new token into the credential Secret when half the life of the one in it is over and the agent has
// not come for it: whenever it comes while the Secret is there, what it finds works. Once the agent uses the credential, which it
// does from a Secret of its own, the one here only waits to be stolen: whoever holds the same token can find out its name.
func (p *pass) refreshCredential(ctx context.Context) result.Result {
	if !renews(p.request) {
		return ok
	}
	existing, err := p.secrets.Get(p.RegistrationNamespace(), p.secretName())
	switch {
	case apierrors.IsNotFound(err):
		return ok
	case err != nil:
		return failed(err)
	case !isFor(existing, p.request):
		return ok
	case p.isInUse():
		return p.dropCredential(ctx, existing)
	}
	left, limited := halfLife(existing, p.Clock.Now())
	if !limited {
		return ok
	}
	if left > 0 {
		p.requests.EnqueueAfter(p.request.Namespace, p.request.Name, left)
		return ok
	}
	p.requests.EnqueueAfter(p.request.Namespace, p.request.Name, p.Config.Get().Registration.Lifetime()/2) // nothing else brings it back
	return p.renewCredential(ctx, existing)
}

func (p *pass) dropCredential(ctx context.Context, existing *corev1.Secret) result.Result {
	if err := p.deleteSecret(ctx, existing); err != nil {
		return failed(err)
	}
	return ok
}

// halfLife is the time until half the life of the token in the Secret is over; false for one that does not end.
func halfLife(secret *corev1.Secret, now time.Time) (left time.Duration, limited bool) {
	claims, err := credential.Inspect(credential.Token(secret.Data[registration.CredentialToken]))
	if err != nil || claims.Expires.IsZero() {
		return 0, false
	}
	return claims.Expires.Add(-claims.Lifetime() / 2).Sub(now), true
}

// isInUse says whether the agent has said that it uses the credential of this request.
func (p *pass) isInUse() bool { return p.cluster.Status.Agent.Registration == p.request.Name }

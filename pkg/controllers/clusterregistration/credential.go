package clusterregistration

import (
	"context"
	"errors"
	"fmt"

	"github.com/rancher/wrangler/v3/pkg/apply"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

// refuseTaken looks whose the credential Secret of that name is, before anybody is given the right to read it. The name
// follows from the request, so a copy of somebody else's request asks for somebody else's credential.
func (p *pass) refuseTaken(context.Context) result.Result {
	existing, err := p.secrets.Get(p.RegistrationNamespace(), p.secretName())
	switch {
	case apierrors.IsNotFound(err):
		return ok
	case err != nil:
		return failed(err)
	case !isFor(existing, p.request):
		return p.taken(existing)
	}
	return ok
}

func (p *pass) taken(existing *corev1.Secret) result.Result {
	return result.Stalled(fleet.ReasonNameConflict, fmt.Sprintf(
		"Secret %s/%s exists and is not of this request; the agent has to register with another clientRandom",
		existing.Namespace, existing.Name)).In(p.RecheckDelay())
}

// ensureCredential hands over the credential: it comes last, after all rights, because the agent uses it the moment it
// can read it.
func (p *pass) ensureCredential(ctx context.Context) result.Result {
	existing, err := p.secrets.Get(p.RegistrationNamespace(), p.secretName())
	if apierrors.IsNotFound(err) {
		return p.createCredential(ctx)
	} else if err != nil {
		return failed(err)
	}
	if isRefusal(existing) { // the time of the credential begins with a Secret of its own
		if err := p.withdrawRefusal(ctx); err != nil {
			return failed(err)
		}
		return p.createCredential(ctx)
	}
	return p.keepCredential(ctx, existing)
}

func (p *pass) createCredential(ctx context.Context) result.Result {
	secret, out := p.newCredential(ctx)
	if secret == nil {
		return out
	}
	_, err := p.Kubernetes.CoreV1().Secrets(secret.Namespace).Create(ctx, secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return p.takenCredential(ctx)
	} else if err != nil {
		return failed(fmt.Errorf("creating credential Secret %s/%s: %w", secret.Namespace, secret.Name, err))
	}
	return ok
}

// takenCredential looks at a Secret the cache does not have: our own of a moment ago, or one of somebody else.
func (p *pass) takenCredential(ctx context.Context) result.Result {
	existing, err := p.Kubernetes.CoreV1().Secrets(p.RegistrationNamespace()).Get(ctx, p.secretName(), metav1.GetOptions{})
	if err != nil {
		return failed(err)
	}
	return p.keepCredential(ctx, existing)
}

// keepCredential accepts what an earlier pass handed over, if it is of this request and its token still works: the
// ServiceAccount may have been deleted and made again in between.
func (p *pass) keepCredential(ctx context.Context, existing *corev1.Secret) result.Result {
	if !isFor(existing, p.request) { // it was made a moment ago, after refuseTaken looked: take the right to read it back
		p.reader = nil
		if out := p.ensureRights(ctx); !out.IsDone() {
			return out
		}
		return p.taken(existing)
	}
	good, err := p.works(ctx, existing)
	if err != nil {
		return failed(err)
	}
	if good {
		return ok
	}
	return p.renewCredential(ctx, existing)
}

func (p *pass) works(ctx context.Context, secret *corev1.Secret) (bool, error) {
	claims, err := credential.Inspect(credential.Token(secret.Data[registration.CredentialToken]))
	if err != nil {
		return false, nil // no token at all: a Secret of an interrupted release; it is renewed
	}
	account, err := p.Kubernetes.CoreV1().ServiceAccounts(p.clusterNamespace()).Get(ctx, p.accountName(), metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return claims.ServesUntil(string(account.UID), p.Clock.Now()), nil
}

func (p *pass) renewCredential(ctx context.Context, existing *corev1.Secret) result.Result {
	secret, out := p.newCredential(ctx)
	if secret == nil {
		return out
	}
	secret.ResourceVersion = existing.ResourceVersion
	if _, err := p.Kubernetes.CoreV1().Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		return failed(fmt.Errorf("renewing credential Secret %s/%s: %w", secret.Namespace, secret.Name, err))
	}
	return ok
}

// newCredential returns the Secret, or nil and why there is none yet.
func (p *pass) newCredential(ctx context.Context) (*corev1.Secret, result.Result) {
	issued, err := p.issue(ctx)
	switch {
	case errors.Is(err, credential.ErrPending):
		return nil, result.Wait(fleet.ReasonWaitingForCredential, err.Error())
	case err != nil:
		return nil, failed(err)
	}
	return p.credentialSecret(issued.Token), ok
}

// issue gives a short life only to what is renewed. If the API server makes it shorter still, that is as good.
func (p *pass) issue(ctx context.Context) (credential.Issued, error) {
	account := credential.Account{Namespace: p.clusterNamespace(), Name: p.accountName()}
	if renews(p.request) {
		return p.Issuer.Request(ctx, account, p.Config.Get().Registration.Lifetime())
	}
	return p.Issuer.Issue(ctx, account, credential.LongLived)
}

func (p *pass) credentialSecret(token credential.Token) *corev1.Secret {
	meta := managed(p.RegistrationNamespace(), p.secretName())
	meta.Labels[fleet.ClusterLabel] = registration.LabelValue(p.cluster.Name)
	meta.Annotations = map[string]string{
		fleet.ClusterRegistrationAnnotation:          p.request.Name,
		fleet.ClusterRegistrationNamespaceAnnotation: p.request.Namespace,
	}
	return &corev1.Secret{
		ObjectMeta: meta,
		Type:       registration.SecretTypeCredential,
		Data: map[string][]byte{
			registration.CredentialToken:               []byte(token.Reveal()),
			registration.CredentialDeploymentNamespace: []byte(p.clusterNamespace()),
			registration.CredentialClusterNamespace:    []byte(p.cluster.Namespace),
			registration.CredentialClusterName:         []byte(p.cluster.Name),
			registration.CredentialSystemNamespace:     []byte(p.SystemNamespace),
		},
	}
}

// isFor compares the whole key of the request: the Secret's name is a hash of two strings without a separator, and two
// requests can share it.
func isFor(secret *corev1.Secret, request *fleet.ClusterRegistration) bool {
	key := requestKeyOf(secret)
	return secret.Type == registration.SecretTypeCredential && key.Namespace == request.Namespace && key.Name == request.Name
}

// noticeRevocation says so when the ServiceAccount of a granted request is gone. It is not made again: its old token would
// not work with the new one, and somebody may have deleted it to lock the agent out.
func (p *pass) noticeRevocation(ctx context.Context) result.Result {
	if _, err := p.accounts.Get(p.clusterNamespace(), p.accountName()); err == nil {
		return ok
	}
	_, err := p.Kubernetes.CoreV1().ServiceAccounts(p.clusterNamespace()).Get(ctx, p.accountName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return result.Stalled(fleet.ReasonCredentialRevoked, fmt.Sprintf(
			"ServiceAccount %s/%s was deleted; the agent has to register again", p.clusterNamespace(), p.accountName()))
	case err != nil:
		return failed(err)
	}
	return ok
}

// ownerAnnotations are where releases that passed credentials through apply recorded the request.
var ownerAnnotations = [2]string{apply.LabelNamespace, apply.LabelName}

package credential

import (
	"context"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	// LongLived is the requested lifetime for agents that cannot renew their credential. API servers grant it unless they run
	// with --service-account-max-token-expiration.
	LongLived = 10 * 365 * 24 * time.Hour
	// MinLifetime is the shortest lifetime an API server issues.
	MinLifetime = 10 * time.Minute
	// tolerance is the difference to the requested lifetime that still counts as granted: servers round.
	tolerance = time.Minute
)

// ErrPending means that a token Secret exists and Kubernetes has not filled it yet. Wait for its update event; do not poll.
var ErrPending = errors.New("waiting for Kubernetes to fill the token Secret")

// ServiceAccounts is the part of a Kubernetes client that Issuer uses.
type ServiceAccounts interface {
	corev1client.ServiceAccountsGetter
	corev1client.SecretsGetter
}

// Issuer issues tokens for ServiceAccounts.
type Issuer struct {
	Client ServiceAccounts
	Clock  clock.PassiveClock
	// Keys observes the issued tokens; nil observes none.
	Keys *SigningKeys
}

// Issued is a token with its expiry; Expires is zero if it does not expire.
type Issued struct {
	Token   Token
	Expires time.Time
	// Audiences are those of the API server; empty for a token from a Secret.
	Audiences []string
}

// Account names a ServiceAccount.
type Account struct {
	Namespace string
	Name      string
}

// IssueAtLeast returns a token for the ServiceAccount with the requested lifetime. Only if the API server grants less, the token comes
// from a Secret of type kubernetes.io/service-account-token, which does not expire; the first call then creates that Secret
// and returns ErrPending. Both kinds become invalid with the ServiceAccount.
func (i Issuer) IssueAtLeast(ctx context.Context, account Account, lifetime time.Duration) (Issued, error) {
	issued, err := i.Request(ctx, account, lifetime)
	if err != nil {
		return Issued{}, err
	}
	if issued.Expires.After(i.Clock.Now().Add(lifetime - tolerance)) {
		return issued, nil
	}
	claims, err := Inspect(issued.Token)
	switch {
	case err != nil:
		return Issued{}, fmt.Errorf("the token issued for ServiceAccount %s/%s: %w", account.Namespace, account.Name, err)
	case claims.UID == "": // without an owner the Secret would outlive its ServiceAccount
		return Issued{}, fmt.Errorf("the token issued for ServiceAccount %s/%s has no UID", account.Namespace, account.Name)
	case !claims.Issued.IsZero() && claims.Expires.Sub(claims.Issued) > lifetime-tolerance:
		return issued, nil // it only looks short, because the local clock is ahead of the API server's
	}
	return i.fromSecret(ctx, account, claims.UID)
}

// Request returns a token from the TokenRequest API. Its lifetime is shorter than the requested one if the API server limits it.
func (i Issuer) Request(ctx context.Context, account Account, lifetime time.Duration) (Issued, error) {
	seconds := int64(max(lifetime, MinLifetime) / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	reply, err := i.Client.ServiceAccounts(account.Namespace).CreateToken(ctx, account.Name, request, metav1.CreateOptions{})
	if err != nil {
		return Issued{}, fmt.Errorf("requesting a token for ServiceAccount %s/%s: %w", account.Namespace, account.Name, err)
	}
	if reply.Status.Token == "" {
		return Issued{}, fmt.Errorf("requesting a token for ServiceAccount %s/%s: the answer has no token", account.Namespace, account.Name)
	}
	i.Keys.Observe(Token(reply.Status.Token))
	return Issued{Token: Token(reply.Status.Token), Expires: reply.Status.ExpirationTimestamp.Time, Audiences: reply.Spec.Audiences}, nil
}

func (i Issuer) fromSecret(ctx context.Context, account Account, uid string) (Issued, error) {
	name := registration.ServiceAccountTokenSecret(account.Name)
	secret, err := i.Client.Secrets(account.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if _, err := i.Client.Secrets(account.Namespace).Create(ctx, tokenSecret(account, uid), metav1.CreateOptions{}); err != nil {
			return Issued{}, fmt.Errorf("creating token Secret %s/%s: %w", account.Namespace, name, err)
		}
		return Issued{}, ErrPending
	}
	if err != nil {
		return Issued{}, fmt.Errorf("reading token Secret %s/%s: %w", account.Namespace, name, err)
	}
	if err := checkSecret(secret, account, uid); err != nil {
		return Issued{}, err
	}
	token := Token(secret.Data[corev1.ServiceAccountTokenKey])
	if token == "" {
		return Issued{}, ErrPending
	}
	return Issued{Token: token}, nil
}

// tokenSecret has the label that selects Secrets for the hub's cache, so that the update event reaches the hub.
func tokenSecret(account Account, uid string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:        registration.ServiceAccountTokenSecret(account.Name),
			Namespace:   account.Namespace,
			Labels:      map[string]string{fleet.ManagedLabel: fleet.ManagedValue},
			Annotations: map[string]string{corev1.ServiceAccountNameKey: account.Name},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "ServiceAccount", Name: account.Name, UID: types.UID(uid),
			}},
		},
		Type: corev1.SecretTypeServiceAccountToken,
	}
}

// checkSecret refuses a Secret of another ServiceAccount, which would give the agent another identity.
func checkSecret(secret *corev1.Secret, account Account, uid string) error {
	recorded := secret.Annotations[corev1.ServiceAccountUIDKey]
	if secret.Type == corev1.SecretTypeServiceAccountToken &&
		secret.Annotations[corev1.ServiceAccountNameKey] == account.Name && (recorded == "" || recorded == uid) {
		return nil
	}
	return fmt.Errorf("Secret %s/%s is not the token Secret of ServiceAccount %s; delete or rename it",
		secret.Namespace, secret.Name, account.Name)
}

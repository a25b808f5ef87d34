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
	// LongLived is the lifetime asked for agents that cannot renew their credential. API servers grant it unless they run
	// with --service-account-max-token-expiration.
	LongLived = 10 * 365 * 24 * time.Hour
	// MinLifetime is the shortest lifetime an API server issues.
	MinLifetime = 10 * time.Minute
	// tolerance is how much less life than asked counts as granted: servers round.
	tolerance = time.Minute
)

// ErrPending says that a token Secret exists and Kubernetes has not filled it yet. Its update event, not a poll, tells
// when it has.
var ErrPending = errors.New("waiting for Kubernetes to fill the token Secret")

// Client is what issuing needs of the API server.
type Client interface {
	corev1client.ServiceAccountsGetter
	corev1client.SecretsGetter
}

// Issuer issues tokens for ServiceAccounts.
type Issuer struct {
	Client Client
	Clock  clock.PassiveClock
}

// Issued is a token and the end of its life; Expires is zero for one that has none.
type Issued struct {
	Token   Token
	Expires time.Time
}

// Account names a ServiceAccount.
type Account struct {
	Namespace string
	Name      string
}

// Issue returns a token for the ServiceAccount that lives as long as asked. Where the API server grants less, and only
// there, the token comes from a Secret of type kubernetes.io/service-account-token, which does not expire; the first
// call then creates that Secret and returns ErrPending. Either kind dies with the ServiceAccount.
func (i Issuer) Issue(ctx context.Context, account Account, lifetime time.Duration) (Issued, error) {
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
	case claims.UID == "": // a Secret without an owner would outlive its ServiceAccount
		return Issued{}, fmt.Errorf("the token issued for ServiceAccount %s/%s does not say whose it is", account.Namespace, account.Name)
	case !claims.Issued.IsZero() && claims.Expires.Sub(claims.Issued) > lifetime-tolerance:
		return issued, nil // it only looks short, because this clock is ahead of the API server's
	}
	return i.fromSecret(ctx, account, claims.UID)
}

// Request returns a token from the TokenRequest API, whatever lifetime the API server grants.
func (i Issuer) Request(ctx context.Context, account Account, lifetime time.Duration) (Issued, error) {
	seconds := int64(max(lifetime, MinLifetime) / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	reply, err := i.Client.ServiceAccounts(account.Namespace).CreateToken(ctx, account.Name, request, metav1.CreateOptions{})
	if err != nil {
		return Issued{}, fmt.Errorf("requesting a token for ServiceAccount %s/%s: %w", account.Namespace, account.Name, err)
	}
	if reply.Status.Token == "" {
		return Issued{}, fmt.Errorf("requesting a token for ServiceAccount %s/%s: the answer has none", account.Namespace, account.Name)
	}
	return Issued{Token: Token(reply.Status.Token), Expires: reply.Status.ExpirationTimestamp.Time}, nil
}

func (i Issuer) fromSecret(ctx context.Context, account Account, uid string) (Issued, error) {
	name := registration.ServiceAccountTokenSecret(account.Name)
	secret, err := i.Client.Secrets(account.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Issued{}, i.createSecret(ctx, tokenSecret(account, uid))
	} else if err != nil {
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

func (i Issuer) createSecret(ctx context.Context, secret *corev1.Secret) error {
	if _, err := i.Client.Secrets(secret.Namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating token Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return ErrPending
}

// tokenSecret carries our label, so that the event of its being filled reaches the hub's bounded cache.
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

// checkSecret refuses a Secret that is not this ServiceAccount's own: somebody else's would hand out another identity.
func checkSecret(secret *corev1.Secret, account Account, uid string) error {
	recorded := secret.Annotations[corev1.ServiceAccountUIDKey]
	if secret.Type == corev1.SecretTypeServiceAccountToken &&
		secret.Annotations[corev1.ServiceAccountNameKey] == account.Name && (recorded == "" || recorded == uid) {
		return nil
	}
	return fmt.Errorf("Secret %s/%s is not the token Secret of ServiceAccount %s; delete or rename it",
		secret.Namespace, secret.Name, account.Name)
}

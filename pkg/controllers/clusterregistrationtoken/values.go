package clusterregistrationtoken

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

// ensureValues writes the Secret with the values of the chart fleet-agent. It keeps the bearer token as long as that works, because others
// may hold a copy; the other values follow the configuration.
func (h *handler) ensureValues(ctx context.Context, token *fleet.ClusterRegistrationToken, expires *metav1.Time) result.Result {
	existing, err := h.currentSecret(ctx, token)
	if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	if existing != nil && !ownedBy(existing, token) {
		return foreignSecret(token).In(h.RecheckDelay())
	}
	return h.fill(ctx, token, existing, expires)
}

// fill writes the Secret if it differs.
func (h *handler) fill(ctx context.Context, token *fleet.ClusterRegistrationToken, existing *corev1.Secret, expires *metav1.Time) result.Result {
	bearer, err := h.bearer(ctx, token, existing, expires)
	if errors.Is(err, credential.ErrPending) {
		return result.Wait(fleet.ReasonWaitingForCredential, err.Error())
	} else if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	values, err := h.rendered.encode(keyOf(token), h.values(token, bearer))
	if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	err = h.write(ctx, token, existing, values)
	switch {
	case apierrors.IsAlreadyExists(err):
		return h.taken(ctx, token, expires)
	case err != nil:
		return result.Retry(fleet.ReasonError, err)
	}
	return result.Done(fleet.ReasonTokenReady, "")
}

// taken reads a Secret that exists, but not in the cache. It either belongs to somebody else and stays, or an earlier pass created it
// whose status write failed.
func (h *handler) taken(ctx context.Context, token *fleet.ClusterRegistrationToken, expires *metav1.Time) result.Result {
	secret, err := h.Kubernetes.CoreV1().Secrets(token.Namespace).Get(ctx, token.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return result.Retry(fleet.ReasonError, err)
	case !ownedBy(secret, token):
		return foreignSecret(token).In(h.RecheckDelay())
	}
	return h.fill(ctx, token, secret, expires)
}

func foreignSecret(token *fleet.ClusterRegistrationToken) result.Result {
	message := fmt.Sprintf("Secret %s/%s exists and does not belong to this token; rename or delete it", token.Namespace, token.Name)
	return result.Stalled(fleet.ReasonNameConflict, message)
}

// currentSecret reads the cache, and asks the API server if the cache has none: the cache holds only Secrets with the label of the hub,
// and a Secret of somebody else must not be overwritten.
func (h *handler) currentSecret(ctx context.Context, token *fleet.ClusterRegistrationToken) (*corev1.Secret, error) {
	secret, err := h.secrets.Get(token.Namespace, token.Name)
	if apierrors.IsNotFound(err) && token.Status.SecretName == "" {
		return nil, nil // probably the first pass; the create fails if the name is taken
	}
	if apierrors.IsNotFound(err) {
		secret, err = h.Kubernetes.CoreV1().Secrets(token.Namespace).Get(ctx, token.Name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return secret, err
}

func ownedBy(secret *corev1.Secret, token *fleet.ClusterRegistrationToken) bool {
	if secret.Type != registration.SecretTypeValues {
		return false
	}
	for _, owner := range secret.OwnerReferences {
		if owner.UID == token.UID {
			return true
		}
	}
	return false
}

func (h *handler) bearer(ctx context.Context, token *fleet.ClusterRegistrationToken, existing *corev1.Secret, expires *metav1.Time) (credential.Token, error) {
	lifetime := credential.LongLived
	if expires != nil {
		lifetime = expires.Sub(h.Clock.Now())
	}
	if bearer, good := h.reusable(ctx, token, existing, expires); good {
		return bearer, nil
	}
	issued, err := h.Issuer.Issue(ctx, accountOf(token), lifetime)
	if short := shortBy(issued, expires); err == nil && short > tolerance {
		issued, err = h.Issuer.Issue(ctx, accountOf(token), lifetime+short)
	}
	return issued.Token, err
}

// tolerance is how much earlier than its ClusterRegistrationToken a bearer token may expire.
const tolerance = time.Minute

// shortBy is how much too early a bearer token expires because the clock of the hub is ahead of that of the API server, which sets both
// creation times and expiry. Such a token would be replaced in every pass.
func shortBy(issued credential.Issued, expires *metav1.Time) time.Duration {
	if expires == nil || issued.Expires.IsZero() {
		return 0
	}
	return expires.Sub(issued.Expires)
}

// renewBefore is the remaining lifetime below which a bearer token is replaced, if the ClusterRegistrationToken does not expire.
const renewBefore = 30 * 24 * time.Hour

func (h *handler) reusable(ctx context.Context, token *fleet.ClusterRegistrationToken, existing *corev1.Secret, expires *metav1.Time) (credential.Token, bool) {
	if existing == nil {
		return "", false
	}
	values, err := h.rendered.decode(keyOf(token), existing.Data[registration.ValuesKey])
	if err != nil {
		return "", false
	}
	account, err := h.account(ctx, accountOf(token))
	if err != nil {
		return "", false
	}
	bearer := credential.Token(values.Token)
	claims, err := credential.Inspect(bearer)
	moment := h.Clock.Now().Add(renewBefore)
	if expires != nil {
		moment = expires.Add(-tolerance)
	}
	return bearer, err == nil && claims.ServesUntil(string(account.UID), moment)
}

// account reads the cache, and asks the API server for an account that was created a moment ago.
func (h *handler) account(ctx context.Context, a credential.Account) (*corev1.ServiceAccount, error) {
	cached, err := h.accounts.Get(a.Namespace, a.Name)
	if apierrors.IsNotFound(err) {
		return h.Kubernetes.CoreV1().ServiceAccounts(a.Namespace).Get(ctx, a.Name, metav1.GetOptions{})
	}
	return cached, err
}

func (h *handler) values(token *fleet.ClusterRegistrationToken, bearer credential.Token) registration.Values {
	hub := h.Config.Get()
	values := registration.Values{
		ClusterNamespace:            token.Namespace,
		APIServerURL:                hub.APIServerURL,
		APIServerCA:                 string(hub.APIServerCA),
		Token:                       bearer.Reveal(),
		TokenName:                   registration.LabelValue(token.Name),
		SystemRegistrationNamespace: h.RegistrationNamespace(),
	}
	if h.SystemNamespace != registration.DefaultSystemNamespace {
		values.Internal = &registration.ValuesInternal{SystemNamespace: h.SystemNamespace}
	}
	return values
}

func (h *handler) write(ctx context.Context, token *fleet.ClusterRegistrationToken, existing *corev1.Secret, values []byte) error {
	client := h.Kubernetes.CoreV1().Secrets(token.Namespace)
	if existing == nil {
		_, err := client.Create(ctx, valuesSecret(token, values), metav1.CreateOptions{})
		return err
	}
	if bytes.Equal(existing.Data[registration.ValuesKey], values) {
		return nil
	}
	changed := existing.DeepCopy()
	changed.Data = map[string][]byte{registration.ValuesKey: values}
	_, err := client.Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

func valuesSecret(token *fleet.ClusterRegistrationToken, values []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: token.Namespace,
			Name:      token.Name,
			Labels:    map[string]string{fleet.ManagedLabel: fleet.ManagedValue},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: tokenKind.GroupVersion().String(), Kind: tokenKind.Kind, Name: token.Name, UID: token.UID,
			}},
		},
		Type: registration.SecretTypeValues,
		Data: map[string][]byte{registration.ValuesKey: values},
	}
}

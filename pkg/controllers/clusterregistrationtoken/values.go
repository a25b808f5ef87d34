package clusterregistrationtoken

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

// ensureValues writes the Secret with the values for the chart fleet-agent. It keeps the bearer token in the Secret while that is valid,
// because people may have copied it. It updates the other values when the configuration changes.
func (h *handler) ensureValues(ctx context.Context, token *fleet.ClusterRegistrationToken, expires *metav1.Time) result.Result {
	if expires != nil && expires.Sub(h.Clock.Now()) > credential.LongLived {
		expires = nil // an API server refuses to issue a bearer token for centuries
	}
	existing, err := h.currentSecret(ctx, token)
	if problem := h.Config.Problem(); problem != "" && err == nil {
		// The address and the CA of the hub may not be known. Values without the CA would let an agent trust every authority of its system.
		if existing != nil && registration.HoldsValuesOf(existing, token) {
			if _, good := h.reusable(ctx, token, existing, expires); good {
				return valuesResult(nil)
			}
		}
		return result.Wait(fleet.ReasonConfigInvalid, problem).In(h.RecheckDelay())
	}
	if err == nil && existing == nil {
		if err = h.writeValues(ctx, token, nil, expires); !apierrors.IsAlreadyExists(err) {
			return valuesResult(err)
		}
		// The Secret exists but is not in the cache: it belongs to somebody else, or an earlier reconcile created it a moment ago and could
		// not write the status.
		existing, err = h.Kubernetes.CoreV1().Secrets(token.Namespace).Get(ctx, token.Name, metav1.GetOptions{})
	}
	if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	if !registration.HoldsValuesOf(existing, token) {
		return result.Stalled(fleet.ReasonNameConflict, fmt.Sprintf(
			"Secret %s/%s exists and does not belong to this token; rename or delete it", token.Namespace, token.Name)).In(h.RecheckDelay())
	}
	return valuesResult(h.writeValues(ctx, token, existing, expires))
}

func valuesResult(err error) result.Result {
	switch {
	case errors.Is(err, credential.ErrPending):
		return result.Wait(fleet.ReasonWaitingForCredential, err.Error())
	case err != nil:
		return result.Retry(fleet.ReasonError, err)
	}
	return result.Done(fleet.ReasonTokenReady, "")
}

// writeValues creates the Secret, or updates it if it differs.
func (h *handler) writeValues(ctx context.Context, token *fleet.ClusterRegistrationToken, existing *corev1.Secret, expires *metav1.Time) error {
	bearer, err := h.bearer(ctx, token, existing, expires)
	if err != nil {
		return err
	}
	values, err := h.rendered.encode(keyOf(token), h.values(token, bearer))
	if err != nil {
		return err
	}
	client := h.Kubernetes.CoreV1().Secrets(token.Namespace)
	switch {
	case existing == nil:
		return h.createValues(ctx, token, values)
	case !bytes.Equal(existing.Data[registration.ValuesKey], values):
		// The cache has only what the hub reads of a Secret. Labels and annotations of others stay.
		var changed *corev1.Secret
		if changed, err = client.Get(ctx, token.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		changed.ResourceVersion = existing.ResourceVersion
		if ptr.Deref(changed.Immutable, false) { // a user has made it so, and the API server refuses each update
			stored := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &existing.UID, ResourceVersion: &existing.ResourceVersion}}
			if err = client.Delete(ctx, token.Name, stored); err != nil {
				return err
			}
			return h.createValues(ctx, token, values)
		}
		changed.Data = map[string][]byte{registration.ValuesKey: values}
		_, err = client.Update(ctx, changed, metav1.UpdateOptions{})
	}
	return err
}

func (h *handler) createValues(ctx context.Context, token *fleet.ClusterRegistrationToken, values []byte) error {
	secret := &corev1.Secret{
		ObjectMeta: desiredset.Managed(token.Namespace, token.Name),
		Type:       registration.SecretTypeValues,
		Data:       map[string][]byte{registration.ValuesKey: values},
	}
	secret.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: tokenKind.GroupVersion().String(), Kind: tokenKind.Kind, Name: token.Name, UID: token.UID,
	}}
	secret, err := h.Kubernetes.CoreV1().Secrets(token.Namespace).Create(ctx, secret, metav1.CreateOptions{})
	if err == nil {
		h.createdSecrets.Expect(string(secret.UID))
	}
	return err
}

// currentSecret returns the Secret with the values, nil if there is none. If the cache has none although the token's status names it, it
// reads the Secret from the API server: the cache holds only Secrets with the label of the hub, which somebody may have removed. It does the same
// if the cache has left out the values because they are large.
func (h *handler) currentSecret(ctx context.Context, token *fleet.ClusterRegistrationToken) (*corev1.Secret, error) {
	secret, err := h.secrets.Get(token.Namespace, token.Name)
	if apierrors.IsNotFound(err) && token.Status.SecretName == "" {
		return nil, nil // probably the first reconcile of the token; creating the Secret fails if there is one of that name
	}
	if apierrors.IsNotFound(err) || err == nil && secret.Type == registration.SecretTypeValues && len(secret.Data) == 0 {
		secret, err = h.Kubernetes.CoreV1().Secrets(token.Namespace).Get(ctx, token.Name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return secret, err
}

// tolerance is how much earlier or later than its ClusterRegistrationToken a bearer token may expire.
const tolerance = time.Minute

// bearer returns the bearer token in the Secret, or a new one if the Secret has none that works long enough.
func (h *handler) bearer(ctx context.Context, token *fleet.ClusterRegistrationToken, existing *corev1.Secret, expires *metav1.Time) (credential.Token, error) {
	if bearer, good := h.reusable(ctx, token, existing, expires); good {
		return bearer, nil
	}
	if expires == nil {
		issued, err := h.Issuer.IssueAtLeast(ctx, accountOf(token), credential.LongLived)
		return issued.Token, err
	}
	lifetime := max(expires.Sub(h.Clock.Now()), credential.MinLifetime)
	issued, err := h.Issuer.IssueAtLeast(ctx, accountOf(token), lifetime)
	if err != nil || issued.Expires.IsZero() {
		return issued.Token, err
	}
	// The API server's clock decides when the ClusterRegistrationToken was created and when the bearer token expires. If the hub's clock is
	// ahead of it, the lifetime above is too short: the bearer token would expire too early, and each reconcile would replace it. If the hub's clock is
	// behind, the lifetime is too long: agents could register after the ClusterRegistrationToken has expired.
	off := expires.Sub(issued.Expires)
	if off > tolerance || off < -tolerance && lifetime > credential.MinLifetime {
		issued, err = h.Issuer.IssueAtLeast(ctx, accountOf(token), max(lifetime+off, credential.MinLifetime))
	}
	return issued.Token, err
}

// renewBefore is the remaining lifetime below which a bearer token is replaced, if the ClusterRegistrationToken does not expire.
const renewBefore = 30 * 24 * time.Hour

// reusable returns the bearer token in the Secret, and whether it may stay there: it must be a token of the ServiceAccount that exists now,
// expire late enough, and not be signed with an earlier key of the API server. Without an expiry it is the token of a Secret, which Kubernetes does
// not sign again.
func (h *handler) reusable(ctx context.Context, token *fleet.ClusterRegistrationToken, existing *corev1.Secret, expires *metav1.Time) (credential.Token, bool) {
	if existing == nil {
		return "", false
	}
	values, err := h.rendered.decode(keyOf(token), existing.Data[registration.ValuesKey], h.Config.Get().APIServerCA)
	if err != nil {
		return "", false
	}
	of := accountOf(token)
	account, err := h.accounts.Get(of.Namespace, of.Name)
	if apierrors.IsNotFound(err) { // created a moment ago
		account, err = h.Kubernetes.CoreV1().ServiceAccounts(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
	}
	if err != nil {
		return "", false
	}
	bearer := credential.Token(values.Token)
	claims, err := credential.Inspect(bearer)
	until := h.Clock.Now().Add(renewBefore)
	if expires != nil {
		until = expires.Add(-tolerance)
	}
	return bearer, err == nil && claims.ServesUntil(string(account.UID), until) && !h.Issuer.Keys.IsOutdated(claims)
}

func (h *handler) values(token *fleet.ClusterRegistrationToken, bearer credential.Token) registration.Values {
	hub := h.Config.Get()
	values := registration.Values{
		Workspace:                   token.Namespace,
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

// renderedKept is the number of values files in the cache. It is limited because each of ten thousand imports has a token, which is used only
// once.
const renderedKept = 256

// valuesCache caches the values files of the tokens that were used last. With each use of a token the hub compares the token's Secret with
// the values that it should have, and encoding YAML would take most of that time. It is safe for concurrent use.
type valuesCache struct {
	files *lru.Cache // of valuesFile, by types.NamespacedName
}

type valuesFile struct {
	values registration.Values
	data   []byte // of EncodeValues; never changed
}

func newValuesCache() valuesCache { return valuesCache{files: lru.New(renderedKept)} }

// encode returns the result of registration.EncodeValues, from the cache if the values are the same as before.
func (r valuesCache) encode(token types.NamespacedName, values registration.Values) ([]byte, error) {
	if last, ok := r.last(token); ok && reflect.DeepEqual(last.values, values) {
		return last.data, nil
	}
	data, err := registration.EncodeValues(values)
	if err == nil {
		r.files.Add(token, valuesFile{values: values, data: data})
	}
	return data, err
}

// decode returns the result of registration.DecodeLimitedValues, from the cache if encode made this file. It adds nothing to the cache: encode must
// not return a file that a person wrote.
func (r valuesCache) decode(token types.NamespacedName, data, hubCA []byte) (registration.Values, error) {
	if last, ok := r.last(token); ok && bytes.Equal(last.data, data) {
		return last.values, nil
	}
	return registration.DecodeLimitedValues(data, hubCA)
}

// forget removes the file of a deleted token: it contains a secret.
func (r valuesCache) forget(token types.NamespacedName) { r.files.Remove(token) }

func (r valuesCache) last(token types.NamespacedName) (valuesFile, bool) {
	last, ok := r.files.Get(token)
	if !ok {
		return valuesFile{}, false
	}
	return last.(valuesFile), true
}

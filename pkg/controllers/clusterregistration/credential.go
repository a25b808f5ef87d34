package clusterregistration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

// answerLifetime is how long an answer Secret stays on the hub. A waiting agent polls for it every half minute, a refused one
// every ten to twelve minutes, and an agent that may have missed it creates another request. Later, no agent needs the Secret.
const answerLifetime = 40 * time.Minute

// ensureCredential creates the answer Secret, or accepts the existing one, which an earlier pass created. It stalls with reason NameConflict
// if the cache does not show the Secret yet, and it belongs to another request.
func (h *handler) ensureCredential(
	ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, existing *corev1.Secret,
) result.Result {
	var err error
	if isRefusal(existing) {
		// The Secret is not updated: the lifetime of the credential starts with the creation of its Secret.
		if err := h.deleteAnswerOnly(ctx, existing); err != nil {
			return failed(err)
		}
		existing = nil
	}
	secrets := h.Kubernetes.CoreV1().Secrets(h.RegistrationNamespace())
	if existing == nil {
		secret, out := h.newCredential(ctx, request, cluster)
		if secret == nil {
			return out
		}
		if err = h.createAnswer(ctx, secret); err == nil {
			h.createdAnswers.Expect(string(request.UID))
			return done
		} else if !apierrors.IsAlreadyExists(err) {
			return failed(fmt.Errorf("creating answer Secret %s/%s: %w", secret.Namespace, secret.Name, err))
		}
		// The cache lacks a Secret of an earlier pass, or of another request.
		if existing, err = secrets.Get(ctx, secret.Name, metav1.GetOptions{}); err != nil {
			return failed(err)
		}
	}
	if !isFor(existing, request) {
		return h.answerTaken(existing)
	}

	// The token works unless it has expired, its ServiceAccount was deleted and created again, somebody removed it, or the key that signed it is
	// no longer valid.
	claims, err := credential.Inspect(credential.Token(existing.Data[registration.CredentialToken]))
	if err != nil {
		return h.reissueCredential(ctx, request, cluster, existing)
	}
	account, err := h.Kubernetes.CoreV1().ServiceAccounts(clusterNamespace(cluster)).Get(ctx, accountName(request), metav1.GetOptions{})
	if err != nil {
		return failed(err)
	}
	if h.Issuer.Keys.IsOutdated(claims) {
		return h.reissueCredential(ctx, request, cluster, existing)
	}
	isUseless, _, err := h.HasPassedOnServer(ctx, func(now time.Time) bool { return !claims.ServesUntil(string(account.UID), now) })
	switch {
	case err != nil:
		return failed(err)
	case !isUseless:
		return done
	}
	return h.reissueCredential(ctx, request, cluster, existing)
}

// createAnswer creates an answer Secret, and the registration namespace if somebody has deleted that.
func (h *handler) createAnswer(ctx context.Context, secret *corev1.Secret) error {
	secrets := h.Kubernetes.CoreV1().Secrets(secret.Namespace)
	_, err := secrets.Create(ctx, secret, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		if err = writes.EnsureNamespace(ctx, h.Kubernetes, secret.Namespace); err == nil {
			_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
		}
	}
	return err
}

// maintainCredential replaces the token in the answer Secret of an agent that can renew once half the token's lifetime is over, so
// that the agent finds a working one for answerLifetime: an agent that was refused reads the answer up to twelve minutes after an approval, and the
// shortest lifetime that can be configured is not longer. Once the agent uses the credential, from a Secret of its own, the hub
// deletes this Secret: until then, every holder of the same ClusterRegistrationToken who learns the agent's clientRandom can read it. A Secret that
// another client has deleted is created again.
func (h *handler) maintainCredential(
	ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, token *fleet.ClusterRegistrationToken,
) result.Result {
	existing, err := h.cachedAnswer(request)
	_, isLost := h.lostAnswers.Get(request.UID) // the Secret is missing although the agent may still poll for it
	switch {
	case err != nil:
		return failed(err)
	case existing == nil && isLost:
		return h.replaceLostAnswer(ctx, request, cluster, token)
	case existing == nil || !isFor(existing, request):
		return done
	case isInUse(request, cluster):
		if err := h.deleteAnswer(ctx, request, existing); err != nil {
			return failed(err)
		}
		return done
	}
	h.lostAnswers.Delete(request.UID)
	claims, err := credential.Inspect(credential.Token(existing.Data[registration.CredentialToken]))
	if err != nil || claims.Expires.IsZero() {
		return done
	}
	left := func(now time.Time) time.Duration { return claims.Expires.Add(-claims.Lifetime() / 2).Sub(now) }
	isHalfOver, now, err := h.HasPassedOnServer(ctx, func(now time.Time) bool { return left(now) <= 0 })
	if err != nil {
		return failed(err)
	}
	if !isHalfOver {
		h.queue.EnqueueAfter(request.Namespace, request.Name, left(now))
		return done
	}
	h.queue.EnqueueAfter(request.Namespace, request.Name, h.Config.Get().Registration.Lifetime()/2) // no event enqueues it when the new token is half over
	return h.reissueCredential(ctx, request, cluster, existing)
}

// answerPause is the shortest time between two replacements of a lost answer Secret.
const answerPause = time.Minute

// replaceLostAnswer creates the answer Secret of a granted request again, if the agent has not used the credential and the Secret was deleted by
// another client, or with the registration namespace, or was too old when a quarantine ended: the agent may still poll for it. The hub does not
// replace a Secret that it has deleted after answerLifetime. A client that deletes each new Secret, such as a clean-up, gets one every answerPause.
func (h *handler) replaceLostAnswer(
	ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, token *fleet.ClusterRegistrationToken,
) result.Result {
	if token == nil || cluster.Spec.Quarantined || isInUse(request, cluster) {
		return done
	}
	if _, isRecent := h.replacedAnswers.Get(request.UID); isRecent {
		h.queue.EnqueueAfter(request.Namespace, request.Name, answerPause)
		return done
	}
	if out := h.ensureCredential(ctx, request, cluster, nil); !out.IsDone() {
		return out
	}
	h.lostAnswers.Delete(request.UID)
	h.replacedAnswers.Set(request.UID, nil, answerPause)
	return h.addReader(ctx, request, token)
}

func (h *handler) reissueCredential(
	ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, existing *corev1.Secret,
) result.Result {
	secret, out := h.newCredential(ctx, request, cluster)
	if secret == nil {
		return out
	}
	secret.ResourceVersion = existing.ResourceVersion
	if _, err := h.Kubernetes.CoreV1().Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		return failed(fmt.Errorf("replacing the token in answer Secret %s/%s: %w", secret.Namespace, secret.Name, err))
	}
	return done
}

// newCredential issues a token, with a short lifetime only if the agent renews it. It returns the Secret to write, or nil and a result with the
// reason.
func (h *handler) newCredential(ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster) (*corev1.Secret, result.Result) {
	account := credential.Account{Namespace: clusterNamespace(cluster), Name: accountName(request)}
	var issued credential.Issued
	var err error
	if registration.Renews(request) {
		issued, err = h.Issuer.Request(ctx, account, h.Config.Get().Registration.Lifetime())
	} else {
		issued, err = h.Issuer.IssueAtLeast(ctx, account, credential.LongLived)
	}
	switch {
	case errors.Is(err, credential.ErrPending):
		return nil, result.Wait(fleet.ReasonWaitingForCredential, err.Error())
	case err != nil:
		return nil, failed(err)
	}
	secret := h.answerSecret(request, map[string][]byte{
		registration.CredentialToken:               []byte(issued.Token.Reveal()),
		registration.CredentialDeploymentNamespace: []byte(clusterNamespace(cluster)),
		registration.CredentialWorkspace:           []byte(cluster.Namespace),
		registration.CredentialClusterName:         []byte(cluster.Name),
		registration.CredentialSystemNamespace:     []byte(h.SystemNamespace),
	})
	if h.usesLease(request) {
		secret.Data[registration.CredentialLease] = []byte(account.Name)
	}
	secret.Labels[fleet.ClusterLabel] = registration.LabelValue(cluster.Name)
	return secret, done
}

// isRevoked reports whether the ServiceAccount of a granted request was deleted.
func (h *handler) isRevoked(ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster) (bool, error) {
	if _, err := h.accounts.Get(clusterNamespace(cluster), accountName(request)); err == nil {
		return false, nil
	}
	_, err := h.Kubernetes.CoreV1().ServiceAccounts(clusterNamespace(cluster)).Get(ctx, accountName(request), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// answerSecret returns the Secret for which the agent of a request polls. Its data is the credential, or the reason of a refusal.
func (h *handler) answerSecret(request *fleet.ClusterRegistration, data map[string][]byte) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: desiredset.Managed(h.RegistrationNamespace(), secretName(request)), Type: registration.SecretTypeAnswer, Data: data}
	secret.Annotations = map[string]string{
		fleet.ClusterRegistrationAnnotation:          request.Name,
		fleet.ClusterRegistrationNamespaceAnnotation: request.Namespace,
	}
	return secret
}

// cachedAnswer returns the Secret with the name of the request's answer, which may belong to another request; nil if the cache has none.
func (h *handler) cachedAnswer(request *fleet.ClusterRegistration) (*corev1.Secret, error) {
	secret, err := h.secrets.Get(h.RegistrationNamespace(), secretName(request))
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return secret, err
}

func (h *handler) answerTaken(existing *corev1.Secret) result.Result {
	return result.Stalled(fleet.ReasonNameConflict, fmt.Sprintf(
		"Secret %s/%s exists and belongs to another request; the agent has to register with another clientRandom",
		existing.Namespace, existing.Name)).In(h.RecheckDelay())
}

// deleteOldAnswer handles Secrets: it deletes an answer Secret after answerLifetime, and a refusal whose request is gone. The
// credential itself stays valid: the agent has its own copy.
func (h *handler) deleteOldAnswer(_ string, secret *corev1.Secret) (*corev1.Secret, error) {
	if secret == nil || secret.DeletionTimestamp != nil || secret.Namespace != h.RegistrationNamespace() ||
		secret.Type != registration.SecretTypeAnswer || secret.Labels[fleet.ClusterLabel] == "" && !isRefusal(secret) {
		return secret, nil
	}
	ctx, cancel := h.Passes.Context()
	defer cancel()
	if isRefusal(secret) {
		key := requestKeyOf(secret)
		if _, err := h.requests.Get(key.Namespace, key.Name); !apierrors.IsNotFound(err) {
			return secret, err
		}
		return secret, h.deleteAnswerOnly(ctx, secret)
	}
	left := func(now time.Time) time.Duration { return secret.CreationTimestamp.Add(answerLifetime).Sub(now) }
	isOld, now, err := h.HasPassedOnServer(ctx, func(now time.Time) bool { return left(now) <= 0 })
	if err != nil {
		return secret, err
	}
	if !isOld {
		h.Core.Secret().EnqueueAfter(secret.Namespace, secret.Name, left(now))
		return secret, nil
	}
	key := requestKeyOf(secret)
	request, err := h.requests.Get(key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		return secret, h.deleteAnswerOnly(ctx, secret)
	} else if err != nil {
		return secret, err
	}
	return secret, h.deleteAnswer(ctx, request, secret)
}

// deleteAnswer deletes the answer Secret of a request, and before it the right to read it: see readerRights. The event of the Secret
// enqueues the request, whose pass deletes the Role.
func (h *handler) deleteAnswer(ctx context.Context, request *fleet.ClusterRegistration, secret *corev1.Secret) error {
	if err := h.withdrawReader(ctx, request); err != nil {
		return err
	}
	return h.deleteAnswerOnly(ctx, secret)
}

// withdrawReader deletes the right to read the answer Secret of a request. The cache may not show yet that it was given.
func (h *handler) withdrawReader(ctx context.Context, request *fleet.ClusterRegistration) error {
	name, bindings := registration.CredentialReaderName(accountName(request)), h.Kubernetes.RbacV1().RoleBindings(h.RegistrationNamespace())
	binding, err := h.bindings.Get(h.RegistrationNamespace(), name)
	if apierrors.IsNotFound(err) {
		binding, err = bindings.Get(ctx, name, metav1.GetOptions{})
	}
	if err == nil && slices.Contains(requestOf(binding), types.NamespacedName{Namespace: request.Namespace, Name: request.Name}) {
		err = bindings.Delete(ctx, name, writes.IfUID(binding))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the right to read the answer Secret, RoleBinding %s/%s: %w", h.RegistrationNamespace(), name, err)
	}
	return nil
}

// deleteAnswerOnly does not delete the right to read the Secret: the caller has deleted that, or the request is gone, whose removal deletes it.
func (h *handler) deleteAnswerOnly(ctx context.Context, secret *corev1.Secret) error {
	h.deletedAnswers.Expect(string(secret.UID))
	err := h.Kubernetes.CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name, writes.IfUID(secret))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting answer Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return nil
}

func secretName(request *fleet.ClusterRegistration) string {
	return registration.AnswerSecretName(request.Spec.ClientID, request.Spec.ClientRandom)
}

// isFor compares the whole key of the request: the name of the Secret is a hash of two strings without a separator, which two
// requests can share.
func isFor(secret *corev1.Secret, request *fleet.ClusterRegistration) bool {
	key := requestKeyOf(secret)
	return secret.Type == registration.SecretTypeAnswer && key.Namespace == request.Namespace && key.Name == request.Name
}

// isRefusal reports whether an answer contains no credential.
func isRefusal(secret *corev1.Secret) bool {
	return secret != nil && secret.Type == registration.SecretTypeAnswer && len(secret.Data[registration.RefusalReason]) > 0
}

// secretsByRequest finds answer Secrets by the key of their request.
var secretsByRequest = index.Bucketed[*corev1.Secret]{Name: "muster.fleet.cattle.io/secret-by-request", Keys: requestOfSecret}

// answersOf returns the answer Secrets of a request.
func (h *handler) answersOf(request string) ([]*corev1.Secret, error) {
	found, err := secretsByRequest.Find(h.secrets, request)
	return slices.DeleteFunc(found, func(secret *corev1.Secret) bool { return secret.Namespace != h.RegistrationNamespace() }), err
}

func requestOfSecret(secret *corev1.Secret) []string {
	key := requestKeyOf(secret)
	if secret.Type != registration.SecretTypeAnswer || key.Name == "" {
		return nil
	}
	return []string{index.Key(key.Namespace, key.Name)}
}

// requestKeyOf returns the key of the request that a Secret answers. Fleet's hub writes credentials with wrangler's apply and its annotations.
func requestKeyOf(secret *corev1.Secret) types.NamespacedName {
	a := secret.Annotations
	if name := a[fleet.ClusterRegistrationAnnotation]; name != "" {
		return types.NamespacedName{Namespace: a[fleet.ClusterRegistrationNamespaceAnnotation], Name: name}
	}
	return types.NamespacedName{Namespace: a[apply.LabelNamespace], Name: a[apply.LabelName]}
}

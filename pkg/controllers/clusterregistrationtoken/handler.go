package clusterregistrationtoken

import (
	"context"
	"errors"
	"fmt"
	"time"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	"github.com/rancher/wrangler/v3/pkg/kv"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/credential"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

type handler struct {
	*app.Context
	tokens   fleetcontrollers.ClusterRegistrationTokenController
	cache    fleetcontrollers.ClusterRegistrationTokenCache
	accounts corecontrollers.ServiceAccountCache
	secrets  corecontrollers.SecretCache
	requests fleetcontrollers.ClusterRegistrationCache
	sets     desiredset.Sets
	written  expectations.Expectations // versions of tokens
	rendered valuesCache
}

func (h *handler) onChange(key string, token *fleet.ClusterRegistrationToken) (*fleet.ClusterRegistrationToken, error) {
	if token == nil {
		h.forget(key)
		return nil, nil
	}
	if token.DeletionTimestamp != nil || h.written.IsStale(token) {
		return token, nil
	}
	ctx, cancel := h.Passes.Context()
	defer cancel()

	expires := expiry(token)
	if registration.Expired(token, h.Clock.Now()) {
		return token, h.expire(token)
	}
	out := h.reconcile(ctx, token, expires)
	return h.finish(ctx, token, expires, out)
}

// forget drops what is in memory about a deleted token.
func (h *handler) forget(key string) {
	namespace, name := kv.RSplit(key, "/")
	gone := types.NamespacedName{Namespace: namespace, Name: name}
	h.TokenUsage.Forget(gone)
	h.rendered.forget(gone)
}

// expiry is the time at which the token expires; nil if it does not.
func expiry(token *fleet.ClusterRegistrationToken) *metav1.Time {
	end, limited := registration.Expires(token)
	if !limited {
		return nil
	}
	return &metav1.Time{Time: end}
}

// expire deletes the token. Kubernetes then deletes its ServiceAccount by owner reference, which invalidates every bearer token that was
// issued. An error is retried: until the deletion, the bearer tokens may still work.
func (h *handler) expire(token *fleet.ClusterRegistrationToken) error {
	err := h.tokens.Delete(token.Namespace, token.Name, &metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &token.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting the expired ClusterRegistrationToken %s/%s: %w", token.Namespace, token.Name, err)
	}
	return nil
}

func (h *handler) reconcile(ctx context.Context, token *fleet.ClusterRegistrationToken, expires *metav1.Time) result.Result {
	if h.ttlRequired(h.Config.Get()) && expires == nil {
		return h.withdraw(ctx, token)
	}
	if out := h.ensureRights(ctx, token); !out.IsDone() {
		return out
	}
	return h.ensureValues(ctx, token, expires)
}

// ttlRequired reports whether the options of the process or the configuration require a TTL.
func (h *handler) ttlRequired(hub config.Hub) bool {
	return h.TokenTTLRequired || hub.Registration.RequireTokenTTL
}

// withdraw refuses a token without a TTL, and deletes what the token got before the hub required one.
func (h *handler) withdraw(ctx context.Context, token *fleet.ClusterRegistrationToken) result.Result {
	if err := h.sets.Ensure(ctx, ownedSet(token), token); err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	return result.Stalled(fleet.ReasonTTLRequired,
		"spec.ttl is missing and this hub requires one; create a token with a ttl such as 24h")
}

func ownedSet(token *fleet.ClusterRegistrationToken) string {
	return registration.OwnedSetID(setID, token.Namespace, token.Name)
}

func (h *handler) ensureRights(ctx context.Context, token *fleet.ClusterRegistrationToken) result.Result {
	err := h.sets.Ensure(ctx, ownedSet(token), token, rights(token)...)
	var foreign *desiredset.ForeignError
	switch {
	case errors.As(err, &foreign):
		return result.Stalled(fleet.ReasonNameConflict, foreign.Error()).In(h.RecheckDelay())
	case err != nil:
		return result.Retry(fleet.ReasonError, err)
	}
	return result.Done("", "")
}

func accountOf(token *fleet.ClusterRegistrationToken) credential.Account {
	return credential.Account{
		Namespace: token.Namespace,
		Name:      registration.TokenServiceAccount(token.Name, string(token.UID)),
	}
}

// rights let the holder of the token create ClusterRegistrations, and nothing else. The right to read a credential is created with each
// granted request.
func rights(token *fleet.ClusterRegistrationToken) []runtime.Object {
	account := accountOf(token).Name
	named := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: token.Namespace,
			Name:      name,
			Labels:    map[string]string{fleet.ManagedLabel: fleet.ManagedValue},
		}
	}
	return []runtime.Object{
		&corev1.ServiceAccount{ObjectMeta: named(account)},
		&rbacv1.Role{
			ObjectMeta: named(registration.RoleName(account)),
			Rules: []rbacv1.PolicyRule{{
				Verbs: []string{"create"}, APIGroups: []string{fleet.SchemeGroupVersion.Group}, Resources: []string{"clusterregistrations"},
			}},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: named(registration.RoleBindingName(account)),
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: token.Namespace, Name: account}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: registration.RoleName(account)},
		},
	}
}

// finish counts uses, writes the status, records the event of a transition, and enqueues the token for the next deadline.
func (h *handler) finish(
	ctx context.Context, token *fleet.ClusterRegistrationToken, expires *metav1.Time, out result.Result,
) (*fleet.ClusterRegistrationToken, error) {
	after := token.DeepCopy()
	after.Status.Expires = expires
	switch {
	case out.IsDone():
		after.Status.SecretName = token.Name
	case out.IsStalled(): // a wait or an error deletes nothing
		after.Status.SecretName = ""
	}
	counted, failure := h.countUses(ctx, after)
	transition := result.Set(&after.Status.Conditions, fleet.ConditionReady, out, h.Clock.Now())
	latest, written, err := writes.Status(h.tokens, token, after)
	if err != nil {
		return token, errors.Join(err, out.Err, failure)
	}
	h.TokenUsage.Done(keyOf(token), counted.answered)
	if written {
		h.written.Wrote(latest)
		transition.Record(h.Events, latest)
	}
	h.enqueueNext(token, expires, result.Earliest(out.After, counted.next))
	return latest, errors.Join(out.Err, failure)
}

func (h *handler) enqueueNext(token *fleet.ClusterRegistrationToken, expires *metav1.Time, next time.Duration) {
	if expires != nil {
		next = result.Earliest(next, max(expires.Sub(h.Clock.Now()), time.Millisecond))
	}
	if next > 0 {
		h.tokens.EnqueueAfter(token.Namespace, token.Name, next)
	}
}

// everyToken lists all tokens, for changes of the configuration.
func (h *handler) everyToken() []*fleet.ClusterRegistrationToken {
	tokens, err := h.cache.List("", labels.Everything())
	if err != nil {
		return nil // listing a cache fails only if the selector is invalid
	}
	return tokens
}

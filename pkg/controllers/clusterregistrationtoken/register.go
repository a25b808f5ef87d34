// Package clusterregistrationtoken gives every ClusterRegistrationToken a ServiceAccount with the right to create requests and a Secret
// with chart values for agents, counts the uses of the token, and deletes the token when it expires.
//
// onChange in token.go is the flow of a token; values.go writes its Secret.
package clusterregistrationtoken

import (
	"context"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	name  = "cluster-registration-token"
	setID = "cluster-group-token" // the ID that Fleet's hubs use, so that this hub prunes the objects they created for a token
)

var tokenKind = fleet.SchemeGroupVersion.WithKind("ClusterRegistrationToken")

// Register sets up the controller. It watches tokens; the objects created for them, to repair them; token Secrets, which Kubernetes
// fills; the configuration of the hub, which the values Secrets repeat; and the admission policies and refused requests, which conditions
// report.
func Register(ctx context.Context, c *app.Context) {
	tokens := c.Fleet.ClusterRegistrationToken()
	accounts, secrets := c.Core.ServiceAccount(), c.Core.Secret()
	roles, bindings := c.RBAC.Role(), c.RBAC.RoleBinding()
	h := &handler{
		Context:  c,
		queue:    tokens,
		tokens:   tokens.Cache(),
		accounts: accounts.Cache(),
		secrets:  secrets.Cache(),
		requests: c.Fleet.ClusterRegistration().Cache(),
		sets: desiredset.New(c.Kubernetes, accounts.Informer(), c.Coordination.Lease().Informer(), roles.Informer(), bindings.Informer(),
			c.RBAC.ClusterRoleBinding().Informer()),
		rendered: newValuesCache(),
	}

	h.requests.AddIndexer(refusedByToken, tokenOfRefused)

	tokens.OnChange(ctx, name, app.Handler(c.Passes, name, h.onChange))

	enqueue.OnDamage(accounts, tokens, c.RepairDelay(), tokenOf)
	enqueue.OnDamage(roles, tokens, c.RepairDelay(), tokenOf)
	enqueue.OnDamage(bindings, tokens, c.RepairDelay(), tokenOf)
	if c.Clusternet != nil {
		enqueue.OnDamage(c.RBAC.ClusterRoleBinding(), tokens, c.RepairDelay(), tokenOf)
		enqueue.OnAnyChange(c.RBAC.ClusterRoleBinding(), tokens, h.deletedToken)
	}
	enqueue.OnTransition(secrets, tokens, h.tokensOfSecret)
	enqueue.OnTransition(c.Fleet.ClusterRegistration(), tokens, h.tokensOfRequest)
	c.Config.OnChange(h.onConfigChange)
	if c.Issuer.Keys != nil {
		c.Issuer.Keys.OnChange = h.onKeyChange
	}
	if c.Admission != nil {
		c.Admission.OnChange(h.enqueueAll)
	}
}

// tokenOf returns the token that an object was created for. All of its objects are in its namespace or in none: annotations that users of
// other workspaces write have no effect.
func tokenOf(object metav1.Object) []types.NamespacedName {
	in := object.GetNamespace()
	return slices.DeleteFunc(ownerOf(object), func(token types.NamespacedName) bool { return in != "" && in != token.Namespace })
}

var ownerOf = enqueue.OwnerOf(tokenKind)

// deletedToken returns the token for which a ClusterRoleBinding was created if the token is gone: a binding without a namespace cannot have
// the token as its owner, so Kubernetes does not delete it.
func (h *handler) deletedToken(binding metav1.Object) (keys []types.NamespacedName) {
	for _, key := range tokenOf(binding) {
		if _, err := h.tokens.Get(key.Namespace, key.Name); apierrors.IsNotFound(err) {
			keys = append(keys, key)
		}
	}
	return keys
}

// tokensOfSecret returns the token with the name of a values Secret, or the token for whose ServiceAccount Kubernetes issues a long-lived token in
// the Secret. It ignores the event of a Secret that this hub has just created: a pass would change nothing, and if the events of the other
// objects of the token arrive later, it would try to create these again.
func (h *handler) tokensOfSecret(before, after *corev1.Secret) []types.NamespacedName {
	secret := after
	if secret == nil {
		secret = before
	}
	if before == nil && h.createdSecrets.IsExpected(string(secret.UID)) {
		return nil
	}
	if secret.Type != corev1.SecretTypeServiceAccountToken {
		if _, err := h.tokens.Get(secret.Namespace, secret.Name); err != nil {
			return nil
		}
		return []types.NamespacedName{{Namespace: secret.Namespace, Name: secret.Name}}
	}
	account, err := h.accounts.Get(secret.Namespace, secret.Annotations[corev1.ServiceAccountNameKey])
	if err != nil {
		return nil
	}
	return tokenOf(account)
}

// refusedByToken finds the refused requests that name a token, by the TokenKey.
const refusedByToken = "muster.fleet.cattle.io/refused-by-token"

func tokenOfRefused(r *fleet.ClusterRegistration) ([]string, error) {
	if refusalOf(r) == "" {
		return nil, nil
	}
	return []string{index.Key(r.Namespace, r.Labels[fleet.RegistrationTokenLabel])}, nil
}

// refusalOf is the reason why a request is refused, or empty. A superseded request needs no attention.
func refusalOf(r *fleet.ClusterRegistration) string {
	refusal, _ := registration.RefusalOf(r)
	if refusal.Reason == fleet.ReasonSuperseded {
		return ""
	}
	return refusal.Reason
}

// tokensOfRequest returns the token that a request names when the request is refused, when the refusal changes or ends, and when the agent of
// an earlier refused request is granted one. Other requests, all of an undisturbed registration among them, return none.
func (h *handler) tokensOfRequest(before, after *fleet.ClusterRegistration) (keys []types.NamespacedName) {
	was, is := "", ""
	if before != nil {
		was = refusalOf(before)
	}
	if after != nil {
		is = refusalOf(after)
	}
	newlyGranted := after != nil && after.Status.Granted && (before == nil || !before.Status.Granted)
	if was == is && !newlyGranted {
		return nil
	}
	request := after
	if request == nil {
		request = before
	}
	tokens, _ := h.tokens.GetByIndex(index.ByToken, index.Key(request.Namespace, request.Labels[fleet.RegistrationTokenLabel]))
	for _, token := range tokens {
		if was != is || fleetstatus.IsFalse(token.Status.Conditions, fleet.ConditionRequestsAccepted) {
			keys = append(keys, types.NamespacedName{Namespace: token.Namespace, Name: token.Name})
		}
	}
	return keys
}

// onConfigChange enqueues every token if a change of the configuration affects the values Secrets, tokens without a TTL, the labels that agents
// choose, or the bootstrap tokens that stand for a token.
func (h *handler) onConfigChange(before, after config.Hub) {
	if before.SameForAgents(after) && h.ttlRequired(before) == h.ttlRequired(after) && copiesUnmentionedLabels(before) == copiesUnmentionedLabels(after) &&
		reflect.DeepEqual(before.Clusternet.BootstrapTokens, after.Clusternet.BootstrapTokens) {
		return
	}
	h.enqueueAll()
}

// settlingTime is the age from which a token is checked after a change of the signing keys. The bearer token of a younger one is new, and another pass
// might create its objects again before the cache shows them.
const settlingTime = time.Minute

// onKeyChange enqueues the tokens whose bearer token may be signed with an earlier key.
func (h *handler) onKeyChange() {
	enqueue.All(h.tokens, h.queue, func(token *fleet.ClusterRegistrationToken) bool {
		return h.Clock.Since(token.CreationTimestamp.Time) > settlingTime
	})
}

func (h *handler) enqueueAll() { enqueue.All(h.tokens, h.queue, nil) }

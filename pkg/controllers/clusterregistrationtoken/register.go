// Package clusterregistrationtoken gives every ClusterRegistrationToken a ServiceAccount with the right to create requests and a Secret
// with chart values for agents, counts the uses of the token, and deletes the token when it expires.
//
// onChange in handler.go is the flow of a token, values.go writes its Secret, and uses.go counts.
package clusterregistrationtoken

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/guard"
)

const (
	name  = "cluster-registration-token"
	setID = "cluster-group-token"
)

var tokenKind = fleet.SchemeGroupVersion.WithKind("ClusterRegistrationToken")

// Register sets up the controller. It watches tokens; the objects created for them, to repair them; token Secrets, which Kubernetes
// fills; and the configuration of the hub, which the values Secrets repeat.
func Register(ctx context.Context, c *app.Context) {
	tokens := c.Fleet.ClusterRegistrationToken()
	accounts, secrets := c.Core.ServiceAccount(), c.Core.Secret()
	roles, bindings := c.RBAC.Role(), c.RBAC.RoleBinding()
	h := &handler{
		Context:  c,
		tokens:   tokens,
		cache:    tokens.Cache(),
		accounts: accounts.Cache(),
		secrets:  secrets.Cache(),
		requests: c.Fleet.ClusterRegistration().Cache(),
		sets:     desiredset.New(c.Apply, c.Kubernetes, accounts, roles, bindings),
		rendered: newValuesCache(),
	}

	tokens.OnChange(ctx, name, guard.Handler(c.Passes, name, h.onChange))

	enqueue.OnDamage(accounts, tokens, tokenOf)
	enqueue.OnDamage(roles, tokens, tokenOf)
	enqueue.OnDamage(bindings, tokens, tokenOf)
	enqueue.OnAnyChange(secrets, tokens, h.tokensOfSecret)
	c.Config.OnChange(h.renderAll)
}

var tokenOf = enqueue.MadeFor(tokenKind)

// tokensOfSecret finds the token of a values Secret by its name, and that of a ServiceAccount's token Secret by the account.
func (h *handler) tokensOfSecret(secret *corev1.Secret) []types.NamespacedName {
	if secret.Type != corev1.SecretTypeServiceAccountToken {
		if _, err := h.cache.Get(secret.Namespace, secret.Name); err != nil {
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

// renderAll enqueues every token when the values Secrets have to change, or whether tokens without a TTL are refused.
func (h *handler) renderAll(before, after config.Hub) {
	if before.SameForAgents(after) && h.ttlRequired(before) == h.ttlRequired(after) {
		return
	}
	for _, token := range h.everyToken() {
		h.tokens.EnqueueAfter(token.Namespace, token.Name, 0)
	}
}

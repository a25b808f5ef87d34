// Package clusterregistrationtoken gives every ClusterRegistrationToken its ServiceAccount, the right to register
// clusters, and a Secret with the values to install agents with; and it ends the token when its time is over.
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

// Register sets up the controller. It watches tokens; what was made for them, to repair it; token Secrets, to use them
// once Kubernetes has filled them; and the hub's configuration, which the values Secrets repeat.
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
		rendered: newRendered(),
	}

	tokens.OnChange(ctx, name, guard.Handler(c.Passes, name, h.onChange))

	enqueue.OnDamage(accounts, tokens, tokenOf)
	enqueue.OnDamage(roles, tokens, tokenOf)
	enqueue.OnDamage(bindings, tokens, tokenOf)
	enqueue.OnAnyChange(secrets, tokens, h.tokensOfSecret)
	c.Config.OnChange(h.renderAll)
}

var tokenOf = enqueue.MadeFor(tokenKind)

// tokensOfSecret finds the token of a values Secret by name, and of a ServiceAccount's token Secret by its account.
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

// renderAll brings every token back when the values Secrets have become wrong, or when tokens without an end are refused
// from now on, or are no more.
func (h *handler) renderAll(before, after config.Hub) {
	if before.SameForAgents(after) && h.ttlRequired(before) == h.ttlRequired(after) {
		return
	}
	for _, token := range h.everyToken() {
		h.tokens.EnqueueAfter(token.Namespace, token.Name, 0)
	}
}

// Package clusterregistration answers the requests of agents: it finds or creates the Cluster a request is about, gives
// the agent a ServiceAccount with the rights it needs, and hands over the credential.
package clusterregistration

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/contentrole"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/guard"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/leaving"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	name       = "cluster-registration"
	expiryName = "credential-expiry"
)

var requestKind = fleet.SchemeGroupVersion.WithKind("ClusterRegistration")

// Register sets up the controller. It watches requests; Clusters and tokens, which requests wait for; what was made for a
// request, to repair it; and credential Secrets, to remove them when their time is over.
func Register(ctx context.Context, c *app.Context) {
	requests, clusters, tokens := c.Fleet.ClusterRegistration(), c.Fleet.Cluster(), c.Fleet.ClusterRegistrationToken()
	accounts, secrets := c.Core.ServiceAccount(), c.Core.Secret()
	roles, bindings, clusterBindings := c.RBAC.Role(), c.RBAC.RoleBinding(), c.RBAC.ClusterRoleBinding()
	h := &handler{
		Context:  c,
		requests: requests,
		cache:    requests.Cache(),
		clusters: clusters,
		known:    clusters.Cache(),
		tokens:   tokens.Cache(),
		accounts: accounts.Cache(),
		secrets:  secrets.Cache(),
		sets:     desiredset.New(c.Apply, c.Kubernetes, accounts, roles, bindings, clusterBindings),
		made:     expectations.New(c.Clock),
	}
	h.grants.Timeout = time.Hour
	h.agents = leaving.Agents{Kubernetes: c.Kubernetes, Accounts: h.accounts, Clusters: clusters}
	h.bindings, h.clusterBindings = bindings.Cache(), clusterBindings.Cache()
	if !c.DisableBundles {
		h.contentRoles, h.deployed = contentrole.New(c), c.Fleet.BundleDeployment().Cache()
		enqueue.OnAnyChange(clusterBindings, requests, h.withWideRights)
	}
	secrets.Cache().AddIndexer(secretsByRequest, requestOfSecret)
	requests.Cache().AddIndexer(refusedByCreator, creatorOfRefused)

	requests.OnChange(ctx, name, guard.Handler(c.Passes, name, h.onChange))
	secrets.OnChange(ctx, expiryName, guard.Handler(c.Passes, expiryName, h.expireCredential))

	h.watchRules()
	enqueue.OnAnyChange(clusters, requests, h.waitingForCluster)
	h.onQuarantine(clusters)
	enqueue.OnTransition(tokens, requests, h.helpedByToken)
	enqueue.OnAnyChange(secrets, requests, h.waitingForTokenSecret)
	enqueue.OnAnyChange(secrets, requests, h.waitingForAnswer)
	made := []enqueue.Source{accounts, secrets, roles, bindings, clusterBindings}
	for _, source := range made {
		enqueue.OnAnyChange(source, requests, h.orphanOf)
	}
	enqueue.OnDamage(accounts, requests, requestOf)
	enqueue.OnDamage(roles, requests, requestOf)
	enqueue.OnDamage(bindings, requests, requestOf)
	enqueue.OnDamage(clusterBindings, requests, requestOf)
}

var requestOf = enqueue.MadeFor(requestKind)

// waitingForCluster finds the requests that a change of a Cluster may help: those of its agent, and those whose new Cluster
// it keeps from being made by having its name. Also the one whose credential the agent has begun to use.
func (h *handler) waitingForCluster(cluster *fleet.Cluster) []types.NamespacedName {
	requests, _ := h.cache.GetByIndex(index.ByNewCluster, index.Key(cluster.Namespace, cluster.Name))
	var own []*fleet.ClusterRegistration
	if cluster.Spec.ClientID != "" {
		own, _ = h.cache.GetByIndex(index.ByClientID, index.Key(cluster.Namespace, cluster.Spec.ClientID))
	}
	return append(ungranted(append(requests, own...)), h.inUse(cluster, own)...)
}

// waitingForToken finds the requests that name a token, and those that name none: whether theirs can be told depends on
// how many there are.
func (h *handler) waitingForToken(token *fleet.ClusterRegistrationToken) []types.NamespacedName {
	naming, _ := h.cache.GetByIndex(index.ByToken, index.TokenKey(token.Namespace, token.Name))
	silent, _ := h.cache.GetByIndex(index.ByNoToken, token.Namespace)
	return append(ungranted(naming), ungranted(silent)...)
}

// waitingForTokenSecret finds the request whose agent gets the token that Kubernetes put into a Secret.
func (h *handler) waitingForTokenSecret(secret *corev1.Secret) []types.NamespacedName {
	if secret.Type != corev1.SecretTypeServiceAccountToken {
		return nil
	}
	account, err := h.accounts.Get(secret.Namespace, secret.Annotations[corev1.ServiceAccountNameKey])
	if err != nil {
		return nil
	}
	return requestOf(account)
}

// waitingForAnswer finds the requests of the agent whose answer is made, or taken away: while it is there the identity is held.
func (h *handler) waitingForAnswer(secret *corev1.Secret) []types.NamespacedName {
	if secret.Type != registration.SecretTypeCredential || isRefusal(secret) {
		return nil
	}
	key := requestKeyOf(secret)
	answered, err := h.cache.Get(key.Namespace, key.Name)
	if err != nil {
		return nil
	}
	rivals, _ := h.cache.GetByIndex(index.ByClientID, index.Key(answered.Namespace, answered.Spec.ClientID))
	return ungranted(rivals)
}

// orphanOf finds the request something was made for when that request is gone already, deleted while no hub was running,
// say. Looking at a request that is gone removes what it left.
func (h *handler) orphanOf(made enqueue.Made) []types.NamespacedName {
	var orphaned []types.NamespacedName
	for _, key := range requestOf(made) {
		if _, err := h.cache.Get(key.Namespace, key.Name); apierrors.IsNotFound(err) {
			orphaned = append(orphaned, key)
		}
	}
	return orphaned
}

func ungranted(requests []*fleet.ClusterRegistration) (keys []types.NamespacedName) {
	for _, r := range requests {
		if !r.Status.Granted {
			keys = append(keys, types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
		}
	}
	return keys
}

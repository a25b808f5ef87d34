// Package clusterimport installs the agent on the member clusters whose kubeconfig the hub was given. Calls to members
// run in a pool of their own; the controller's workers only decide.
package clusterimport

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/cluster"
	"github.com/muster-fleet/muster/pkg/controllers/index"
	"github.com/muster-fleet/muster/pkg/controllers/related"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Step is the import's contribution to the status of a Cluster: condition Imported.
type Step struct {
	*app.Context
	tokens  fleetcontrollers.ClusterRegistrationTokenController
	known   fleetcontrollers.ClusterRegistrationTokenCache
	values  corecontrollers.SecretCache
	secrets *secretVersions
	pool    *pool
}

// Register sets up the step for the cluster controller. It watches kubeconfig Secrets, by metadata only; the tokens that
// imports wait for, with the Secrets of their values; and the configuration. The pool stops when ctx ends; Wait waits for it.
func Register(ctx context.Context, c *app.Context) *Step {
	clusters, tokens := c.Fleet.Cluster(), c.Fleet.ClusterRegistrationToken()
	known := clusters.Cache()
	s := &Step{
		Context: c,
		tokens:  tokens,
		known:   tokens.Cache(),
		values:  c.Core.Secret().Cache(),
		secrets: newSecretVersions(c.Metadata),
	}
	s.pool = newPool(ctx, c.Clock, c.ImportBackoff, func(key types.NamespacedName) {
		clusters.EnqueueAfter(key.Namespace, key.Name, 0)
	})

	related.OnAnyChange(s.secrets, clusters, func(secret *metav1.PartialObjectMetadata) []types.NamespacedName {
		found, _ := known.GetByIndex(index.ByKubeconfig, index.Key(secret.Namespace, secret.Name))
		return cluster.Keys(found)
	})
	related.OnAnyChange(tokens, clusters, clusterOfToken)
	related.OnAnyChange(c.Core.Secret(), clusters, s.clusterOfValues)
	c.Config.OnChange(func(before, after config.Hub) {
		if settingsHash(before) == settingsHash(after) && before.Bootstrap.LocalAgentDisabled == after.Bootstrap.LocalAgentDisabled {
			return
		}
		all, _ := known.List("", labels.Everything())
		for _, key := range cluster.Keys(all) {
			clusters.EnqueueAfter(key.Namespace, key.Name, 0)
		}
	})
	return s
}

// Start begins to watch kubeconfig Secrets, until ctx ends.
func (s *Step) Start(ctx context.Context) { s.secrets.start(ctx) }

// Synced returns when they are known.
func (s *Step) Synced(ctx context.Context) error { return s.secrets.synced(ctx) }

// Wait returns when no call to a member is left.
func (s *Step) Wait() {
	s.pool.wait()
	s.secrets.wait()
}

// clusterOfValues finds the Cluster of an import token by the Secret with its values, which the hub may see later than that
// the token is ready.
func (s *Step) clusterOfValues(secret *corev1.Secret) []types.NamespacedName {
	if secret.Type != registration.SecretTypeValues {
		return nil
	}
	token, err := s.known.Get(secret.Namespace, secret.Name)
	if err != nil {
		return nil
	}
	return clusterOfToken(token)
}

// clusterOfToken finds the Cluster that owns an import token.
func clusterOfToken(token *fleet.ClusterRegistrationToken) []types.NamespacedName {
	for _, owner := range token.OwnerReferences {
		if owner.Kind == "Cluster" {
			return []types.NamespacedName{{Namespace: token.Namespace, Name: owner.Name}}
		}
	}
	return nil
}

// Package clusterimport installs the agent on the member clusters whose kubeconfig the hub was given. Calls to members
// run in a pool of their own; the controller's workers only decide.
package clusterimport

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/cluster"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/standing"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Step is the import's contribution to the status of a Cluster: condition Imported.
type Step struct {
	*app.Context
	// clusters are all there are.
	clusters fleetcontrollers.ClusterCache
	tokens   fleetcontrollers.ClusterRegistrationTokenController
	known    fleetcontrollers.ClusterRegistrationTokenCache
	made     *expectations.Expectations // tokens that the cache has not seen yet
	values   corecontrollers.SecretCache
	secrets  *secretVersions
	digests  *lru.Cache // of image pull Secrets, by their version
	// requests are those of the agents.
	requests standing.Requests
	pool     *pool
	forms    *agentmanifest.Forms
	prepared preparations
	// deployments are read as they are: the caches may not have them.
	deployments deployments
}

type deployments interface {
	Get(namespace, name string, options metav1.GetOptions) (*fleet.BundleDeployment, error)
}

// digestsKept is far more than the image pull Secrets of any hub.
const digestsKept = 256

// Register sets up the step for the cluster controller. It watches kubeconfig Secrets, by metadata only; the tokens that
// imports wait for, with the Secrets of their values; and the configuration. The pool stops when ctx ends; Wait waits for it.
func Register(ctx context.Context, c *app.Context) *Step {
	clusters, tokens := c.Fleet.Cluster(), c.Fleet.ClusterRegistrationToken()
	known := clusters.Cache()
	s := &Step{
		Context:  c,
		clusters: known,
		tokens:   tokens,
		known:    tokens.Cache(),
		made:     expectations.New(c.Clock),
		values:   c.Core.Secret().Cache(),
		secrets:  &secretVersions{informer: c.Secrets},
		digests:  lru.New(digestsKept),
		forms:    agentmanifest.NewForms(),

		requests:    c.Fleet.ClusterRegistration().Cache(),
		deployments: c.Fleet.BundleDeployment(),
	}
	s.pool = newPool(ctx, c.Clock, c.ImportBackoff, func(key types.NamespacedName) {
		clusters.EnqueueAfter(key.Namespace, key.Name, 0)
	})

	enqueue.OnAnyChange(s.secrets, clusters, func(secret *metav1.PartialObjectMetadata) []types.NamespacedName {
		if s.isPullSecret(secret) {
			all, _ := known.List("", labels.Everything())
			return cluster.Keys(all)
		}
		found, _ := known.GetByIndex(index.ByKubeconfig, index.Key(secret.Namespace, secret.Name))
		return cluster.Keys(found)
	})
	enqueue.OnAnyChange(tokens, clusters, clusterOfToken)
	enqueue.OnAnyChange(c.Core.Secret(), clusters, s.clusterOfValues)
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

// isPullSecret says whether a Secret is one that is copied to the members.
func (s *Step) isPullSecret(secret metav1.Object) bool {
	return secret.GetNamespace() == s.SystemNamespace && slices.Contains(s.Config.Get().PullSecretNames(), secret.GetName())
}

// Wait returns when no call to a member is left.
func (s *Step) Wait() { s.pool.wait() }

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

// Package clusterimport installs the agent on the member clusters whose kubeconfig the hub has, and removes it when the Cluster is
// deleted. Requests to members are sent by calls beside the passes, so that no worker of the controller waits for a member:
//
//	import.go      Importer.Reconcile: the flow of an import
//	decide.go      whether an import is required, with which hub address and registration, as pure functions
//	kubeconfig.go  the kubeconfig Secret, and the connection made from it
//	install.go     what an import installs, and its order
//	calls.go       the states of a call to a member; slots.go limits the number of calls; memberlocks.go keeps calls to one member apart
//	member.go      the client for a member; failure.go its errors
//	maintain.go    after an import: copies of pull Secrets, and the removal of agents in earlier namespaces and of the hub's own agent
//	uninstall.go   Importer.Uninstall: the removal of the agent of a deleted Cluster
//	hubcluster.go  the client for the hub's own cluster
package clusterimport

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"sync"

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
	"github.com/muster-fleet/muster/pkg/controllers/internal/credentialstatus"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Importer sets condition Imported of a Cluster.
type Importer struct {
	*app.Context
	clusters          fleetcontrollers.ClusterCache
	tokens            fleetcontrollers.ClusterRegistrationTokenCache
	createdTokens     *expectations.Expectations // tokens that the cache does not contain yet
	secrets           corecontrollers.SecretCache
	kubeconfigs       kubeconfigs
	pullSecretDigests *lru.Cache // of image pull Secrets, by their version
	requests          credentialstatus.Requests
	renderer          *agentmanifest.Renderer
	calls             *memberCalls
	claiming          sync.Mutex // is held by reserveUnclaimed
}

// maxPullSecretDigests is much larger than the number of image pull Secrets of a hub.
const maxPullSecretDigests = 256

// Register sets up the Importer for the controller of Clusters, which watches kubeconfig Secrets. It watches image pull Secrets, by metadata
// only; the tokens for which imports wait, with the Secrets of their values; and the hub's configuration. Calls to members end
// with ctx; Wait waits for them.
func Register(ctx context.Context, c *app.Context) *Importer {
	clusters, tokens := c.Fleet.Cluster(), c.Fleet.ClusterRegistrationToken()
	clusterCache := clusters.Cache()
	enqueueCluster := func(key types.NamespacedName) { clusters.EnqueueAfter(key.Namespace, key.Name, 0) }
	i := &Importer{
		Context:           c,
		clusters:          clusterCache,
		tokens:            tokens.Cache(),
		createdTokens:     expectations.New(c.Clock),
		secrets:           c.Core.Secret().Cache(),
		pullSecretDigests: lru.New(maxPullSecretDigests),
		requests:          c.Fleet.ClusterRegistration().Cache(),
		renderer:          agentmanifest.NewRenderer(),
		calls:             newMemberCalls(ctx, c.Clock, c.ImportBackoff, enqueueCluster),
	}

	enqueue.OnAnyChange(enqueue.Metadata{SharedIndexInformer: c.SecretMetadata}, clusters, func(secret *metav1.PartialObjectMetadata) []types.NamespacedName {
		if !i.isPullSecret(secret) {
			return nil
		}
		all, _ := clusterCache.List("", labels.Everything())
		return index.Names(all)
	})
	enqueue.OnAnyChange(tokens, clusters, clusterOfToken)
	enqueue.OnTransition(clusters, clusters, i.waitingForKubeconfigOf)
	enqueue.OnTransition(clusters, clusters, replacedClusters)
	// The cache may contain the Secret with the values later than the token that refers to it.
	enqueue.OnAnyChange(c.Core.Secret(), clusters, func(secret *corev1.Secret) []types.NamespacedName {
		if secret.Type != registration.SecretTypeValues {
			return nil
		}
		token, err := i.tokens.Get(secret.Namespace, secret.Name)
		if err != nil {
			return nil
		}
		return clusterOfToken(token)
	})
	c.Config.OnChange(func(before, after config.Hub) {
		if settingsHash(before) == settingsHash(after) && before.Bootstrap.LocalAgentDisabled == after.Bootstrap.LocalAgentDisabled &&
			reflect.DeepEqual(before.Members, after.Members) {
			return
		}
		enqueue.All(clusterCache, clusters, nil)
	})
	return i
}

// Wait returns when all calls to members have ended.
func (i *Importer) Wait() { i.calls.wait() }

// isPullSecret reports whether a Secret is copied to the members.
func (i *Importer) isPullSecret(secret metav1.Object) bool {
	return secret.GetNamespace() == i.SystemNamespace && slices.Contains(i.Config.Get().PullSecretNames(), secret.GetName())
}

// waitingForKubeconfigOf finds the Clusters that may import the agent of a Cluster once that is deleted: see checkUnclaimed.
func (i *Importer) waitingForKubeconfigOf(before, after *fleet.Cluster) []types.NamespacedName {
	isDeleted := after == nil || before != nil && before.DeletionTimestamp == nil && after.DeletionTimestamp != nil
	if !isDeleted || before.Spec.KubeConfigSecret == "" {
		return nil
	}
	users, _ := i.clusters.GetByIndex(index.ByKubeconfig, index.Key(index.KubeconfigNamespace(before), before.Spec.KubeConfigSecret))
	return slices.DeleteFunc(index.Names(users), func(key types.NamespacedName) bool { return key == nameOf(before) })
}

// replacedClusters finds the Clusters for which replacedBy may have another result after a change of a Cluster.
func replacedClusters(before, after *fleet.Cluster) (replaced []types.NamespacedName) {
	var imports [2]fleet.ImportStatus
	for i, cluster := range []*fleet.Cluster{before, after} {
		if cluster != nil && cluster.Status.Import != nil {
			imports[i] = *cluster.Status.Import
		}
	}
	if imports[0].ReplacedCluster == imports[1].ReplacedCluster && imports[0].AgentNamespace == imports[1].AgentNamespace &&
		imports[0].ReplacedTime.Equal(&imports[1].ReplacedTime) {
		return nil
	}
	for _, last := range imports {
		if parts := strings.Split(last.ReplacedCluster, "/"); len(parts) == 3 {
			replaced = append(replaced, types.NamespacedName{Namespace: parts[0], Name: parts[1]})
		}
	}
	return replaced
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

// Package manageagent keeps, for every Cluster whose agent has registered, the Bundle by which the agent keeps itself up to
// date: the running agent deploys it, and with it its own Deployment.
package manageagent

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/cluster"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/standing"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Step is the contribution to the status of a Cluster: condition Reconciled. It follows the import's: the Bundle moves to
// another namespace of the member only when the import is there.
type Step struct {
	*app.Context
	bundles  fleetcontrollers.BundleClient
	known    fleetcontrollers.BundleCache
	requests standing.Requests
	rendered *manifests
	fresh    expectations.Expectations
}

// Register sets up the step for the cluster controller. It watches the Bundles of agents, to repair them, and the
// configuration.
func Register(_ context.Context, c *app.Context) *Step {
	clusters, bundles := c.Fleet.Cluster(), c.Fleet.Bundle()
	s := &Step{
		Context:  c,
		bundles:  bundles,
		known:    bundles.Cache(),
		requests: c.Fleet.ClusterRegistration().Cache(),
		rendered: newManifests(),
	}
	known := clusters.Cache()
	enqueue.OnDamage(bundles, clusters, clusterOf)
	c.Config.OnChange(func(before, after config.Hub) {
		if reflect.DeepEqual(forAgents(before), forAgents(after)) {
			return
		}
		all, _ := known.List("", labels.Everything())
		for _, key := range cluster.Keys(all) {
			clusters.EnqueueAfter(key.Namespace, key.Name, 0)
		}
	})
	return s
}

// forAgents is the part of the configuration that says how agents are run.
func forAgents(hub config.Hub) config.Hub {
	return config.Hub{
		AgentImage:            hub.AgentImage,
		AgentImagePullPolicy:  hub.AgentImagePullPolicy,
		SystemDefaultRegistry: hub.SystemDefaultRegistry,
		AgentCheckinInterval:  hub.AgentCheckinInterval,
		ManageAgent:           hub.ManageAgent,
		APIServerURL:          hub.APIServerURL,
		APIServerCA:           hub.APIServerCA,
		AgentTLSMode:          hub.TLSMode(),
		AgentWorkers:          hub.AgentWorkers,
		ImagePullSecrets:      hub.ImagePullSecrets,
	}
}

// clusterOf finds the Cluster whose agent a Bundle is of, by its owner, which other releases give it, or else by its
// target.
func clusterOf(bundle *fleet.Bundle) []types.NamespacedName {
	if !agentspec.IsBundle(bundle) {
		return nil
	}
	for _, owner := range bundle.OwnerReferences {
		if owner.Kind == clusterKind {
			return []types.NamespacedName{{Namespace: bundle.Namespace, Name: owner.Name}}
		}
	}
	for _, target := range bundle.Spec.Targets {
		if target.ClusterName != "" && registration.AgentBundleName(target.ClusterName) == bundle.Name {
			return []types.NamespacedName{{Namespace: bundle.Namespace, Name: target.ClusterName}}
		}
	}
	return nil
}

const clusterKind = "Cluster"

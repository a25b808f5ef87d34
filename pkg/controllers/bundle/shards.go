package bundle

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/guard"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/shard"
)

func shardOf[T any](k string, _ T) shard.Shard {
	at := splitKey(k)
	return shard.Of(at.Namespace, at.Name)
}

func shardOfObject[T metav1.Object](object T) shard.Shard {
	return shard.Of(object.GetNamespace(), object.GetName())
}

// onTake looks at all that an earlier holder of a shard may have left half done, or was to look at later.
func (s *Step) onTake() {
	guard.OnTake(s.Shards,
		func() ([]*fleet.Bundle, error) { return s.bundleCache.List("", labels.Everything()) }, shardOfObject,
		func(namespace, name string) { s.bundles.EnqueueAfter(namespace, name, 0) })
	guard.OnTake(s.Shards,
		func() ([]*fleet.BundleDeployment, error) { return s.leaving() }, shardOfObject,
		func(namespace, name string) { s.deployments.EnqueueAfter(namespace, name, 0) })
	s.Shards.OnTake(func(taken shard.Set) {
		for _, name := range s.contents.informer.GetStore().ListKeys() {
			if taken.Has(shardOfContent(name)) {
				s.contents.consider(name)
			}
		}
	})
}

// leaving are the BundleDeployments that are being deleted: of others nothing is asked.
func (s *Step) leaving() ([]*fleet.BundleDeployment, error) {
	all, err := s.deployed.List("", labels.Everything())
	return slices.DeleteFunc(all, func(d *fleet.BundleDeployment) bool { return d.DeletionTimestamp == nil }), err
}

func shardOfContent(name string) shard.Shard { return shard.Of("", name) }

// onOthers brings the Clusters of this hub that a Bundle concerns which another hub looks after. That one puts the finalizer on
// it first: without it nobody would take back what is deployed.
func (s *Step) onOthers(k string, b *fleet.Bundle) (*fleet.Bundle, error) {
	switch {
	case b == nil:
		s.forgetBundle(splitKey(k))
	case b.DeletionTimestamp == nil && slices.Contains(b.Finalizers, fleet.BundleFinalizer):
		s.announce(b)
	}
	return b, nil
}

// Observe strikes a Cluster that another hub looks after from those that a Bundle waits for, when what is deployed there is
// what the Bundle asks for.
func (s *Step) Observe(cluster *fleet.Cluster) {
	namespace := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	var arrived []key
	for _, k := range s.tally.expectedIn(namespace) {
		if b, err := s.bundleCache.Get(k.Namespace, k.Name); err == nil && s.isCarriedOut(b, cluster, namespace) {
			arrived = append(arrived, k)
		}
	}
	s.bringBundles(s.tally.arrived(namespace, arrived, s.Clock.Now()))
}

func (s *Step) isCarriedOut(b *fleet.Bundle, cluster *fleet.Cluster, namespace string) bool {
	p := s.plans.of(b)
	chosen := p.choose(b, s.memberOf(cluster))
	if len(chosen) == 0 {
		return true
	}
	v, err := p.variant(chosen)
	if err != nil {
		return false
	}
	d, err := s.deployed.Get(namespace, b.Name)
	return err == nil && d.Spec.DeploymentID == v.deploymentID
}

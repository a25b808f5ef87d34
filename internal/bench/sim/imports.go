package sim

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/bench/figures"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Imports creates Clusters with a kubeconfig. Each Cluster has an agent namespace of its own, so that one member can serve as all of
// them.
type Imports struct {
	api       *API
	installed names // the Clusters whose agent the hub has installed
	failed    names // those whose import has failed at least once
	leaving   names // those whose agent the hub has begun to remove
}

// NewImports starts to watch the Clusters, until ctx ends.
func NewImports(ctx context.Context, api *API) (*Imports, error) {
	i := &Imports{api: api}
	return i, follow(ctx, &fleet.Cluster{}, api.Fleet.Clusters(api.Workspace), func(cluster *fleet.Cluster) {
		if cluster.Status.AgentDeployedGeneration != nil {
			i.installed.add(cluster.Name)
		}
		if fleetstatus.IsFalse(cluster.Status.Conditions, fleet.ConditionImported) {
			i.failed.add(cluster.Name)
		}
		if fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionProcessed).Reason == fleet.ReasonFarewell {
			i.leaving.add(cluster.Name)
		}
	})
}

// AwaitFailure waits until the import of a Cluster has failed.
func (i *Imports) AwaitFailure(ctx context.Context, cluster string) error {
	return i.failed.wait(ctx, cluster)
}

// AwaitRemoval waits until the hub has begun to remove the agent of a deleted Cluster.
func (i *Imports) AwaitRemoval(ctx context.Context, cluster string) error {
	return i.leaving.wait(ctx, cluster)
}

// Create creates Clusters and does not wait until they are imported. The kubeconfig may be another one for each number.
func (i *Imports) Create(ctx context.Context, prefix string, count, limit int, kubeconfig func(n int) []byte) error {
	return InParallel(count, limit, func(n int) error { return i.create(ctx, fmt.Sprintf("%s-%d", prefix, n), kubeconfig(n)) })
}

// Import creates Clusters, all at once, and returns how long each took until its agent was installed.
func (i *Imports) Import(ctx context.Context, prefix string, count int, kubeconfig []byte) (figures.Samples, error) {
	took := make(figures.Samples, count)
	return took, InParallel(count, count, func(n int) error {
		name, began := fmt.Sprintf("%s-%d", prefix, n), time.Now()
		if err := i.create(ctx, name, kubeconfig); err != nil {
			return err
		}
		if err := i.installed.wait(ctx, name); err != nil {
			return fmt.Errorf("Cluster %s was not imported: %w: %s", name, err, i.conditions(ctx, name))
		}
		took[n] = time.Since(began)
		return nil
	})
}

func (i *Imports) create(ctx context.Context, name string, kubeconfig []byte) error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-kubeconfig"}, Data: map[string][]byte{registration.KubeconfigValue: kubeconfig},
	}
	if _, err := i.api.Core.CoreV1().Secrets(i.api.Workspace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := i.api.Fleet.Clusters(i.api.Workspace).Create(ctx, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       fleet.ClusterSpec{KubeConfigSecret: secret.Name, AgentNamespace: name},
	}, metav1.CreateOptions{})
	return err
}

// conditions returns the conditions of a Cluster, for an error message.
func (i *Imports) conditions(ctx context.Context, name string) string {
	cluster, err := i.api.Fleet.Clusters(i.api.Workspace).Get(context.WithoutCancel(ctx), name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%+v", cluster.Status.Conditions)
}

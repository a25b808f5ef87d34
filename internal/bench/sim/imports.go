package sim

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/bench/figures"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Imports are clusters that a hub is given kubeconfigs of, each with an agent namespace of its own, so that all may be the same
// member.
type Imports struct {
	api       *API
	installed Signals
}

// NewImports listens, until ctx ends, for Clusters that have their agent.
func NewImports(ctx context.Context, api *API) (*Imports, error) {
	i := &Imports{api: api}
	return i, Follow(ctx, &fleet.Cluster{}, api.Fleet.Clusters(api.Workspace), func(cluster *fleet.Cluster) {
		if cluster.Status.AgentDeployedGeneration != nil {
			i.installed.Give(cluster.Name)
		}
	})
}

// Create gives the hub clusters and does not wait for them.
func (i *Imports) Create(ctx context.Context, prefix string, count, atATime int, kubeconfig []byte) error {
	return InParallel(count, atATime, func(n int) error { return i.create(ctx, nameOf(prefix, n), kubeconfig) })
}

// Import gives the hub clusters, all at once, and returns how long each took until its agent was installed.
func (i *Imports) Import(ctx context.Context, prefix string, count int, kubeconfig []byte) (figures.Times, error) {
	took := make(figures.Times, count)
	return took, InParallel(count, count, func(n int) error {
		name, began := nameOf(prefix, n), time.Now()
		if err := i.create(ctx, name, kubeconfig); err != nil {
			return err
		}
		if err := i.installed.Wait(ctx, name); err != nil {
			return fmt.Errorf("cluster %s was not imported: %w: %s", name, err, i.stateOf(ctx, name))
		}
		took[n] = time.Since(began)
		return nil
	})
}

func nameOf(prefix string, n int) string { return fmt.Sprintf("%s-%d", prefix, n) }

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

// stateOf is what the hub says of a cluster.
func (i *Imports) stateOf(ctx context.Context, name string) string {
	cluster, err := i.api.Fleet.Clusters(i.api.Workspace).Get(context.WithoutCancel(ctx), name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%+v", cluster.Status.Conditions)
}

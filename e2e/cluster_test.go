//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	fleetv1alpha1 "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
)

// cluster is the hub or the member, with the clients of its administrator.
type cluster struct {
	clusters.Cluster
	config *rest.Config
	kube   kubernetes.Interface
	fleet  fleetv1alpha1.FleetV1alpha1Interface
}

// newCluster creates a cluster and loads the images.
func newCluster(ctx context.Context, provider clusters.Provider, name string, archives []string) (*cluster, error) {
	created, err := provider.Create(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", name, err)
	}
	for _, archive := range archives {
		if err := created.Load(ctx, archive); err != nil {
			return nil, fmt.Errorf("image %s on cluster %s: %w", archive, name, err)
		}
	}
	return connect(created)
}

func connect(created clusters.Cluster) (*cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", created.Kubeconfig())
	if err != nil {
		return nil, err
	}
	// Many scenes use these clients at the same time, and a client-side limit would delay them.
	config.QPS, config.Burst = 200, 400
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	fleet, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &cluster{Cluster: created, config: config, kube: kube, fleet: fleet.FleetV1alpha1()}, nil
}

// kubeconfig is the content of the administrator's kubeconfig, for a kubeconfig Secret.
func (c *cluster) kubeconfig() ([]byte, error) { return os.ReadFile(c.Kubeconfig()) }

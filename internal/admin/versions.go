package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Versions contains the versions of a hub and its agents.
type Versions struct {
	// Hub is the version of the hub, from the annotation that the chart sets; empty for a hub without the chart.
	Hub string `json:"hub,omitempty"`
	// Kubernetes is the version of the hub's API server.
	Kubernetes string `json:"kubernetes"`
	// Agents counts the Clusters by the version of their agent.
	Agents []AgentVersion `json:"agents"`
}

// AgentVersion counts the Clusters whose agents have one version.
type AgentVersion struct {
	// Version is empty for agents that have not reported their version.
	Version  string `json:"version"`
	Clusters int    `json:"clusters"`
	// Differs is true if hub and agents have different versions.
	Differs bool `json:"differs"`
}

// Versions reads the versions of the hub, and of the agents of all Clusters in a namespace; empty means all namespaces.
func (h *Hub) Versions(ctx context.Context, systemNamespace, namespace string) (v Versions, err error) {
	served, err := h.Kubernetes.Discovery().ServerVersion()
	if err != nil {
		return v, fmt.Errorf("the hub's API server: %w", err)
	}
	v.Kubernetes = served.GitVersion
	if v.Hub, err = h.version(ctx, systemNamespace); err != nil {
		return v, err
	}

	count := map[string]int{}
	err = h.EachCluster(ctx, namespace, metav1.ListOptions{}, func(c *fleet.Cluster) error {
		count[c.Status.Agent.Version]++
		return nil
	})
	if err != nil {
		return v, err
	}
	v.Agents = []AgentVersion{}
	for version, clusters := range count {
		v.Agents = append(v.Agents, AgentVersion{version, clusters, version != "" && v.Hub != "" && version != v.Hub})
	}
	slices.SortFunc(v.Agents, func(a, b AgentVersion) int { return cmp.Compare(a.Version, b.Version) })
	return v, nil
}

// version reads the version of the hub from the annotation that the chart sets on the hub's ConfigMap.
func (h *Hub) version(ctx context.Context, systemNamespace string) (string, error) {
	config, err := h.Kubernetes.CoreV1().ConfigMaps(systemNamespace).Get(ctx, registration.HubConfigMap, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading the version of the hub from ConfigMap %s/%s: %w", systemNamespace, registration.HubConfigMap, err)
	}
	return config.Annotations[fleet.VersionAnnotation], nil
}

// Package agentmanifest gives the objects of an agent as the hub installs and updates it on a cluster. They are rendered
// from the chart fleet-agent, which people install themselves, so both ways in have one source.
package agentmanifest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rancher/wrangler/v3/pkg/name"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Options are the settings of one cluster's agent. Of the zero values only Namespace and Image are refused.
type Options struct {
	// Namespace of the agent on its cluster. Required.
	Namespace string
	// Scope is the Cluster's spec.agentNamespace, which may be empty. Agents of several hubs on one cluster tell their Helm
	// releases apart by it.
	Scope string

	// Image is the reference from the hub's configuration. Required. Where PrivateRepoURL is set, it is pulled from there.
	Image string
	// ImagePullPolicy is Kubernetes' own default when empty.
	ImagePullPolicy string
	// SystemDefaultRegistry is the registry that Image already begins with, if any; it makes way for PrivateRepoURL.
	SystemDefaultRegistry string
	// PrivateRepoURL is the Cluster's spec.privateRepoURL: host, port and path of a registry.
	PrivateRepoURL string
	// ImagePullSecrets are names of Secrets in Namespace.
	ImagePullSecrets []string

	// Replicas of the Deployment; one of them works, the others wait. 0 means 1.
	Replicas int
	// CheckinInterval is how often the agent reports; 0 leaves it to the agent.
	CheckinInterval time.Duration
	// BundleDeploymentWorkers and DriftWorkers are numbers as text; empty leaves them to the agent.
	BundleDeploymentWorkers, DriftWorkers string
	// LeaderElection is between the replicas.
	LeaderElection LeaderElection

	// EnvVars come after the agent's own environment variables, in this order, and win over them.
	EnvVars []corev1.EnvVar
	// Tolerations come after the two every agent has. Their order here does not matter.
	Tolerations []corev1.Toleration
	// Affinity replaces the preference for nodes labelled fleet.cattle.io/agent=true; an empty one removes it.
	Affinity *corev1.Affinity
	// Resources of the agent's container.
	Resources *corev1.ResourceRequirements
	// HostNetwork also makes updates stop the old pod first, for both would want the same ports.
	HostNetwork bool
	// PriorityClassName of the pod; see Scheduling for a class of the agent's own.
	PriorityClassName string

	// DisableProbes leaves out the probes, for an image that does not answer them: a rolling update would wait for ever for a
	// pod that is never ready. With HostNetwork there are none anyway. It is left out of the hash of these options where it
	// is not set, so that a hub that learns of it does not install every agent again.
	DisableProbes bool `json:",omitempty"`

	// Debug and DebugLevel are the agent's --debug and --debug-level.
	Debug      bool
	DebugLevel int
	// DisableSecurityContext leaves out every security context, for debuggers.
	DisableSecurityContext bool
}

// LeaderElection is how replicas of an agent take turns. A zero duration means the chart's default.
type LeaderElection struct {
	// LeaseDuration is how long the others wait for a leader that is gone.
	LeaseDuration time.Duration
	// RenewDeadline is how long a leader tries before it gives up.
	RenewDeadline time.Duration
	// RetryPeriod is between two tries.
	RetryPeriod time.Duration
}

// ClusterRoleName is the agent's ClusterRole on its cluster; agents in two namespaces have one each.
func ClusterRoleName(namespace string) string {
	return name.SafeConcatName(namespace, registration.AgentName, "role")
}

// ClusterRoleBindingName binds ClusterRoleName to the agent.
func ClusterRoleBindingName(namespace string) string {
	return name.SafeConcatName(namespace, registration.AgentName, "role", "binding")
}

// agentChart is parsed once: every import and every update of every cluster renders it.
var agentChart = sync.OnceValues(func() (*chart.Chart, error) { return charts.Load(charts.Agent) })

// Render gives the agent's objects with TypeMeta set: ClusterRole, ClusterRoleBinding, ServiceAccount fleet-agent,
// ServiceAccount default, Deployment, NetworkPolicy. Equal options give equal objects, whatever the order of
// Tolerations, so that comparing tells whether an agent must change. The options are not modified.
func Render(o Options) ([]runtime.Object, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	parsed, err := agentChart()
	if err != nil {
		return nil, err
	}
	values, err := o.values()
	if err != nil {
		return nil, err
	}
	release := charts.Release{Name: registration.AgentName, Namespace: o.Namespace}
	manifests, err := charts.RenderChart(parsed, release, values)
	if err != nil {
		return nil, fmt.Errorf("agent in namespace %s: %w", o.Namespace, err)
	}
	return decode(manifests)
}

func (o Options) validate() error {
	switch {
	case o.Namespace == "":
		return errors.New("agent manifest: the agent's namespace is empty")
	case o.Image == "":
		return fmt.Errorf("agent manifest: no agent image is known: set agentImage in the hub's ConfigMap %s", registration.HubConfigMap)
	case o.Replicas < 0:
		return fmt.Errorf("agent manifest: %d replicas of the agent cannot be: set 1 or more", o.Replicas)
	default:
		return nil
	}
}

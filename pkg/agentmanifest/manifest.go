// Package agentmanifest renders the objects of an agent that the hub installs and updates on a cluster. The source is the
// chart fleet-agent, with which people install agents themselves.
package agentmanifest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rancher/wrangler/v3/pkg/name"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Options are the settings of one cluster's agent. Namespace and Image are required.
type Options struct {
	// Namespace of the agent on its cluster. Required.
	Namespace string
	// Scope is the Cluster's spec.agentNamespace, which may be empty. It is part of the object-set label on the objects that the agent deploys or
	// that an import installs.
	Scope string

	// Image is the reference from the hub's configuration. Required. If PrivateRepoURL is set, it is pulled from there.
	Image string
	// ImagePullPolicy has Kubernetes' own default if it is empty.
	ImagePullPolicy string
	// SystemDefaultRegistry is the registry that Image already begins with, if any; PrivateRepoURL replaces it.
	SystemDefaultRegistry string
	// PrivateRepoURL is the Cluster's spec.privateRepoURL: host, port and path of a registry.
	PrivateRepoURL string
	// ImagePullSecrets are names of Secrets in Namespace.
	ImagePullSecrets []string

	// Replicas is the number of pods; one works, the others stand by. 0 means 1.
	Replicas int
	// CheckinInterval is the interval of the agent's heartbeat; 0 means the agent's default.
	CheckinInterval time.Duration
	// CredentialLifetime is the lifetime that the agent requests when it renews its credential; 0 means that of its current one.
	CredentialLifetime time.Duration `json:",omitempty"`
	// BundleDeploymentWorkers and DriftWorkers are numbers as text; empty means the agent's default.
	BundleDeploymentWorkers, DriftWorkers string
	// LeaderElection holds the times of the election between the replicas. A zero duration means the chart's default.
	LeaderElection leader.Times

	// EnvVars come after the agent's own environment variables, in this order, and override them.
	EnvVars []corev1.EnvVar
	// Tolerations are added to the two that every agent has. Their order does not matter.
	Tolerations []corev1.Toleration
	// Affinity replaces the preference for nodes labelled fleet.cattle.io/agent=true; an empty one removes it.
	Affinity *corev1.Affinity
	// Resources of the agent's container.
	Resources *corev1.ResourceRequirements
	// HostNetwork also makes updates stop the old pod first, because both would use the same ports.
	HostNetwork bool
	// PriorityClassName of the pod; see Scheduling for a class of the agent's own.
	PriorityClassName string

	// DisableProbes leaves out the probes, for an image that does not answer them: a rolling update would never complete. With
	// HostNetwork there are no probes.
	DisableProbes bool
	// ServeMetrics lets the agent serve metrics at port 8080.
	ServeMetrics bool

	// LogJSON lets the agent log in JSON.
	LogJSON bool
	// Debug and DebugLevel are the agent's --debug and --debug-level.
	Debug      bool
	DebugLevel int
	// DisableSecurityContext leaves out every security context, for debuggers.
	DisableSecurityContext bool
}

// ClusterRoleName returns the name of the agent's ClusterRole; agents in two namespaces have one each.
func ClusterRoleName(namespace string) string {
	return name.SafeConcatName(namespace, registration.AgentName, "role")
}

// ClusterRoleBindingName returns the name of the binding of that ClusterRole to the agent.
func ClusterRoleBindingName(namespace string) string {
	return name.SafeConcatName(namespace, registration.AgentName, "role", "binding")
}

// agentChart is parsed once: each import and update renders it.
var agentChart = sync.OnceValues(func() (*chart.Chart, error) { return charts.Load(charts.Agent) })

// Render returns the agent's objects with TypeMeta set: ClusterRole, ClusterRoleBinding, ServiceAccount fleet-agent,
// ServiceAccount default, Deployment, NetworkPolicy. Equal options give equal objects, whatever the order of Tolerations, so
// that a comparison shows whether an agent must change. The options are not modified.
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
		return fmt.Errorf("agent manifest: the agent's image is empty: set agentImage in the hub's ConfigMap %s", registration.HubConfigMap)
	case o.Replicas < 0:
		return fmt.Errorf("agent manifest: %d replicas of the agent: set 1 or more", o.Replicas)
	default:
		return nil
	}
}

// order is the order of the objects: what a pod needs comes before the pod. Kinds that are not listed come last.
var order = []string{"ClusterRole", "ClusterRoleBinding", "ServiceAccount", "Deployment", "NetworkPolicy"}

// decode returns the typed objects of rendered files in a fixed order.
func decode(manifests map[string]string) ([]runtime.Object, error) {
	var objects []runtime.Object
	for _, file := range slices.Sorted(maps.Keys(manifests)) {
		documents, err := charts.Documents(manifests[file])
		if err != nil {
			return nil, fmt.Errorf("decoding %s: %w", file, err)
		}
		for _, document := range documents {
			object, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
			if err != nil {
				return nil, fmt.Errorf("decoding %s: %w", file, err)
			}
			object.GetObjectKind().SetGroupVersionKind(*gvk)
			objects = append(objects, object)
		}
	}
	rank := func(object runtime.Object) int {
		if i := slices.Index(order, object.GetObjectKind().GroupVersionKind().Kind); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortStableFunc(objects, func(a, b runtime.Object) int { return cmp.Compare(rank(a), rank(b)) })
	return objects, nil
}

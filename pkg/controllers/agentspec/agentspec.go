// Package agentspec determines the settings of a Cluster's agent. The import, which installs the agent, and the agent's Bundle, which
// updates it, both use it, so that neither undoes the changes of the other.
package agentspec

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rancher/wrangler/v3/pkg/apply"
	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Namespace is the namespace of a Cluster's agent on the member.
func Namespace(c *app.Context, cluster *fleet.Cluster) string {
	return cmp.Or(cluster.Spec.AgentNamespace, c.SystemNamespace)
}

// IsOfFleet reports whether an agent that has sent a heartbeat is Fleet's own, which does not report its version.
func IsOfFleet(agent fleet.AgentStatus) bool { return agent.Version == "" }

// IsBundle reports whether a hub, this one or Fleet's, created the Bundle for an agent. A Bundle of a user may have the same name.
func IsBundle(bundle *fleet.Bundle) bool {
	return bundle.Annotations[apply.LabelID] == registration.SetIDManageAgent
}

// ClusterOfBundle returns the name of the Cluster whose agent a Bundle is for: the Cluster in its target. It returns "" if the Bundle is not for
// an agent, or names no Cluster whose agent has a Bundle of this name. The name of such a Bundle is shortened for a Cluster with a long name, so
// that two Clusters may share it.
func ClusterOfBundle(bundle *fleet.Bundle) string {
	if !IsBundle(bundle) {
		return ""
	}
	for _, target := range bundle.Spec.Targets {
		if name := target.ClusterName; name != "" && registration.AgentBundleName(name) == bundle.Name {
			return name
		}
	}
	return ""
}

// IsBundleOfOther reports whether a Bundle is for the agent of another Cluster.
func IsBundleOfOther(bundle *fleet.Bundle, cluster string) bool {
	owner := ClusterOfBundle(bundle)
	return owner != "" && owner != cluster
}

// PullSecrets returns the names of the agent's image pull Secrets, and whether they are copies of Secrets of the hub. A Cluster that names its
// own Secrets gets no copies, nor does a Cluster of a workspace that the configuration does not name.
func PullSecrets(hub config.Hub, cluster *fleet.Cluster) (names []string, copied bool) {
	own := cluster.Spec.AgentPullSecrets
	switch {
	case own == nil && hub.CopiesPullSecretsTo(cluster.Namespace):
		return hub.PullSecretNames(), true
	case own == nil:
		return nil, true
	}
	for _, ref := range *own {
		names = append(names, ref.Name)
	}
	return names, false
}

// Options returns the settings of a Cluster's agent, from the configuration of the hub, the options of its process, and the Cluster.
func Options(c *app.Context, cluster *fleet.Cluster, generation string) agentmanifest.Options {
	hub, spec := c.Config.Get(), cluster.Spec
	pullSecrets, _ := PullSecrets(hub, cluster)
	return agentmanifest.Options{
		Namespace:               Namespace(c, cluster),
		Scope:                   spec.AgentNamespace,
		Image:                   cmp.Or(hub.AgentImage, c.Agent.Image),
		ImagePullPolicy:         hub.AgentImagePullPolicy,
		SystemDefaultRegistry:   hub.SystemDefaultRegistry,
		PrivateRepoURL:          spec.PrivateRepoURL,
		ImagePullSecrets:        pullSecrets,
		Replicas:                c.Agent.Replicas,
		CheckinInterval:         hub.AgentCheckinInterval.Duration,
		BundleDeploymentWorkers: hub.AgentWorkers.BundleDeployment,
		DriftWorkers:            hub.AgentWorkers.Drift,
		LeaderElection: agentmanifest.LeaderElection{
			LeaseDuration: c.Agent.LeaseDuration, RenewDeadline: c.Agent.RenewDeadline, RetryPeriod: c.Agent.RetryPeriod,
		},
		EnvVars:                append([]corev1.EnvVar{{Name: registration.GenerationEnv, Value: generation}}, spec.AgentEnvVars...),
		Tolerations:            spec.AgentTolerations,
		Affinity:               spec.AgentAffinity,
		Resources:              spec.AgentResources,
		HostNetwork:            spec.HostNetwork != nil && *spec.HostNetwork,
		PriorityClassName:      priorityClass(cluster),
		DisableProbes:          c.Agent.DisableProbes,
		ServeMetrics:           c.Agent.ServeMetrics,
		LogJSON:                c.Agent.LogJSON,
		Debug:                  c.Agent.Debug,
		DebugLevel:             c.Agent.DebugLevel,
		DisableSecurityContext: c.Agent.DisableSecurityContext,
	}
}

// ManifestHash is a digest of the options without the GENERATION.
func ManifestHash(o agentmanifest.Options) string {
	o.EnvVars = slices.DeleteFunc(slices.Clone(o.EnvVars), func(v corev1.EnvVar) bool { return v.Name == registration.GenerationEnv })
	hash, err := registration.StatusHash(o)
	if err != nil {
		panic(fmt.Sprintf("options of an agent cannot be encoded: %v", err))
	}
	return hash
}

func priorityClass(cluster *fleet.Cluster) string {
	if s := cluster.Spec.AgentSchedulingCustomization; s != nil && s.PriorityClass != nil {
		return agentmanifest.PriorityClassName
	}
	return ""
}

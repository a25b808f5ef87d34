// Package agentspec determines the settings of a Cluster's agent. The import, which installs the agent, and the agent's Bundle, which
// updates it, both use it, so that neither undoes the changes of the other.
package agentspec

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/rancher/wrangler/v3/pkg/apply"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Namespace is the namespace of a Cluster's agent on the member.
func Namespace(c *app.Context, cluster *fleet.Cluster) string {
	return cmp.Or(cluster.Spec.AgentNamespace, c.SystemNamespace)
}

// IsOfFleet reports whether an agent that has sent a heartbeat is Fleet's own, which does not report its version. Before its first heartbeat, each
// agent looks like one.
func IsOfFleet(agent fleet.AgentStatus) bool { return agent.Version == "" }

// IsAgentBundle reports whether a hub, this one or Fleet's, created the Bundle for an agent. A Bundle of a user may have the same name.
func IsAgentBundle(bundle *fleet.Bundle) bool {
	return bundle.Annotations[apply.LabelID] == registration.SetIDManageAgent
}

// ClusterOfBundle returns the name of the Cluster whose agent a Bundle is for: the Cluster in its target. It returns "" if the Bundle is not for
// an agent, or names no Cluster whose agent has a Bundle of this name. The name of such a Bundle is shortened for a Cluster with a long name, so
// that two Clusters may share it.
func ClusterOfBundle(bundle *fleet.Bundle) string {
	if !IsAgentBundle(bundle) {
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
		CredentialLifetime:      hub.Registration.Lifetime(),
		BundleDeploymentWorkers: hub.AgentWorkers.BundleDeployment,
		DriftWorkers:            hub.AgentWorkers.Drift,
		LeaderElection: leader.Times{
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
	o.CredentialLifetime = 0 // no reason to install the agent again
	hash, err := registration.StatusHash(o)
	if err != nil {
		panic(fmt.Sprintf("options of an agent cannot be encoded: %v", err))
	}
	return hash
}

// changedByBundle is the ManifestHash of an import after which the agent's Bundle has delivered another manifest.
const changedByBundle = "changed"

// RecordDelivery records in status.import that the agent's Bundle delivers a manifest. If the agent is disconnected later, it is installed
// once more, even if the Bundle has the manifest of the import again by then: the one between may keep the agent from starting.
func RecordDelivery(cluster *fleet.Cluster, manifestHash string) {
	if last := cluster.Status.Import; last != nil && last.ManifestHash != "" && last.ManifestHash != manifestHash {
		changed := last.DeepCopy()
		changed.ManifestHash = changedByBundle
		cluster.Status.Import = changed
	}
}

func priorityClass(cluster *fleet.Cluster) string {
	if s := cluster.Spec.AgentSchedulingCustomization; s != nil && s.PriorityClass != nil {
		return agentmanifest.PriorityClassName
	}
	return ""
}

// WhyUnmanaged returns why a Cluster's agent has no Bundle; an empty reason means that it has one.
func WhyUnmanaged(hub config.Hub, cluster *fleet.Cluster) (reason, message string) {
	_, labelled := cluster.Labels[fleet.NonManagedAgentLabel]
	switch {
	case cluster.Labels[fleet.ClusterManagementLabel] != "":
		return fleet.ReasonManagedElsewhere, "the label " + fleet.ClusterManagementLabel + " assigns this Cluster to another controller"
	case LocalDisabled(hub, cluster):
		return fleet.ReasonLocalAgentDisabled, "bootstrap.localAgentDisabled is true in the configuration of the hub"
	case hub.ManageAgent != nil && !*hub.ManageAgent:
		return fleet.ReasonAgentNotManaged, "the configuration says manageAgent: false"
	case labelled:
		return fleet.ReasonAgentNotManaged, "the Cluster has the label " + fleet.NonManagedAgentLabel
	}
	return "", ""
}

// LocalDisabled reports whether the Cluster is the hub's own cluster and the configuration disables the agent there.
func LocalDisabled(hub config.Hub, cluster *fleet.Cluster) bool {
	return hub.Bootstrap.LocalAgentDisabled && cluster.Namespace == hub.Bootstrap.Namespace && cluster.Name == registration.LocalCluster
}

// ServedByBundle reports whether new settings reach the agent by its Bundle alone: the agent deploys its Bundle, and is not disconnected.
// Any other agent may be unable to start, and only another import can repair it.
func ServedByBundle(hub config.Hub, cluster *fleet.Cluster) bool {
	reason, _ := WhyUnmanaged(hub, cluster)
	return reason == "" && registration.IsManagedGeneration(cluster.Status.Agent.Generation) && !Disconnected(cluster)
}

// Disconnected reports whether the agent has stopped sending heartbeats.
func Disconnected(cluster *fleet.Cluster) bool {
	return fleetstatus.IsFalse(cluster.Status.Conditions, fleet.ConditionConnected)
}

// InstalledGeneration is the GENERATION with which an import installs the agent. An agent that has deployed its Bundle keeps the
// GENERATION of the Bundle: with another one it would restart twice, now and when it deploys its Bundle again. Otherwise
// it is the registration key.
func InstalledGeneration(hub config.Hub, cluster *fleet.Cluster, registrationKey string) string {
	if reason, _ := WhyUnmanaged(hub, cluster); reason == "" && runsFromBundle(cluster.Status) {
		return registration.ManagedGeneration(cluster.Spec.RedeployAgentGeneration)
	}
	return registrationKey
}

// runsFromBundle reports whether the agent has deployed its Bundle. Until the first heartbeat after an import, the GENERATION that was
// installed decides.
func runsFromBundle(status fleet.ClusterStatus) bool {
	if status.Agent.LastSeen.IsZero() && status.Import != nil {
		return registration.IsManagedGeneration(status.Import.Generation)
	}
	return registration.IsManagedGeneration(status.Agent.Generation)
}

// ErrBadCA means that agents could not use the CA in the hub's configuration.
var ErrBadCA = errors.New("apiServerCA is not a PEM certificate; correct it in the hub's configuration (ConfigMap " + registration.HubConfigMap + ")")

// AgentHubConfigMap returns the ConfigMap with the address, CA and TLS mode of the hub for an agent that a person installed. Agents that the
// hub installs get these with their import.
func AgentHubConfigMap(hub config.Hub, namespace string) (*corev1.ConfigMap, error) {
	if len(hub.APIServerCA) > 0 && !registration.IsCABundle(hub.APIServerCA) {
		return nil, ErrBadCA
	}
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: registration.AgentHubConfigMap},
		Data: map[string]string{
			registration.BootstrapAPIServerURL: hub.APIServerURL,
			registration.BootstrapAPIServerCA:  string(hub.APIServerCA),
			registration.AgentHubTLSMode:       string(hub.TLSMode()),
		},
	}, nil
}

package agentmanifest

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// chartValues is the part of the chart's values that the hub sets. A field left out has the chart's default.
type chartValues struct {
	Internal               internalValues `json:"internal"`
	Image                  imageValues    `json:"image"`
	FleetAgent             podValues      `json:"fleetAgent"`
	Agent                  agentValues    `json:"agent"`
	LeaderElection         electionValues `json:"leaderElection"`
	Global                 globalValues   `json:"global"`
	Debug                  bool           `json:"debug"`
	DebugLevel             int            `json:"debugLevel"`
	DisableSecurityContext bool           `json:"disableSecurityContext"`
}

type internalValues struct {
	Managed            bool   `json:"managed"`
	Image              string `json:"image"`
	ClusterRole        string `json:"clusterRole"`
	ClusterRoleBinding string `json:"clusterRoleBinding"`
	Scope              string `json:"scope"`
	CheckinInterval    string `json:"checkinInterval"`
}

type imageValues struct {
	ImagePullPolicy string `json:"imagePullPolicy"`
}

type podValues struct {
	Tolerations       []corev1.Toleration          `json:"tolerations"`
	HostNetwork       bool                         `json:"hostNetwork"`
	Affinity          *corev1.Affinity             `json:"affinity,omitempty"`
	Resources         *corev1.ResourceRequirements `json:"resources,omitempty"`
	PriorityClassName string                       `json:"priorityClassName"`
	ExtraEnv          []corev1.EnvVar              `json:"extraEnv"`
	Probes            probeValues                  `json:"probes"`
}

type probeValues struct {
	Enabled bool `json:"enabled"`
}

type agentValues struct {
	Replicas   int              `json:"replicas"`
	Reconciler reconcilerValues `json:"reconciler"`
}

type reconcilerValues struct {
	Workers workerValues `json:"workers"`
}

type workerValues struct {
	BundleDeployment string `json:"bundledeployment"`
	Drift            string `json:"drift"`
}

type electionValues struct {
	LeaseDuration string `json:"leaseDuration,omitempty"`
	RenewDeadline string `json:"renewDeadline,omitempty"`
	RetryPeriod   string `json:"retryPeriod,omitempty"`
}

type globalValues struct {
	Cattle cattleValues `json:"cattle"`
}

type cattleValues struct {
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets"`
}

// values are what Helm takes: plain maps and lists.
func (o Options) values() (map[string]any, error) {
	data, err := json.Marshal(o.chartValues())
	if err != nil {
		return nil, fmt.Errorf("values of the agent in namespace %s: %w", o.Namespace, err)
	}
	values := map[string]any{}
	if err := json.Unmarshal(data, &values); err != nil {
		return nil, fmt.Errorf("values of the agent in namespace %s: %w", o.Namespace, err)
	}
	return values, nil
}

func (o Options) chartValues() chartValues {
	return chartValues{
		Internal: internalValues{
			Managed:            true,
			Image:              image(o.Image, o.SystemDefaultRegistry, o.PrivateRepoURL),
			ClusterRole:        ClusterRoleName(o.Namespace),
			ClusterRoleBinding: ClusterRoleBindingName(o.Namespace),
			Scope:              o.Scope,
			CheckinInterval:    o.CheckinInterval.String(),
		},
		Image:                  imageValues{ImagePullPolicy: o.ImagePullPolicy},
		FleetAgent:             o.podValues(),
		Agent:                  o.agentValues(),
		LeaderElection:         o.LeaderElection.values(),
		Global:                 globalValues{Cattle: cattleValues{ImagePullSecrets: references(o.ImagePullSecrets)}},
		Debug:                  o.Debug,
		DebugLevel:             o.DebugLevel,
		DisableSecurityContext: o.DisableSecurityContext,
	}
}

func (o Options) podValues() podValues {
	return podValues{
		Tolerations:       sortedTolerations(o.Tolerations),
		HostNetwork:       o.HostNetwork,
		Affinity:          o.Affinity,
		Resources:         o.Resources,
		PriorityClassName: o.PriorityClassName,
		ExtraEnv:          slices.Clone(o.EnvVars),
		Probes:            probeValues{Enabled: !o.DisableProbes},
	}
}

func (o Options) agentValues() agentValues {
	return agentValues{
		Replicas:   max(1, o.Replicas),
		Reconciler: reconcilerValues{Workers: workerValues{BundleDeployment: o.BundleDeploymentWorkers, Drift: o.DriftWorkers}},
	}
}

func (l LeaderElection) values() electionValues {
	return electionValues{
		LeaseDuration: duration(l.LeaseDuration),
		RenewDeadline: duration(l.RenewDeadline),
		RetryPeriod:   duration(l.RetryPeriod),
	}
}

func duration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func references(names []string) []corev1.LocalObjectReference {
	var references []corev1.LocalObjectReference
	for _, name := range names {
		references = append(references, corev1.LocalObjectReference{Name: name})
	}
	return references
}

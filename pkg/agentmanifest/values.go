package agentmanifest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// values returns the values of the chart that the hub sets, as Helm takes them: plain maps and lists. A value that is left out
// has the chart's default.
func (o Options) values() (map[string]any, error) {
	pod := map[string]any{
		"tolerations":       sortedTolerations(o.Tolerations),
		"hostNetwork":       o.HostNetwork,
		"priorityClassName": o.PriorityClassName,
		"extraEnv":          o.EnvVars,
		"probes":            map[string]any{"enabled": !o.DisableProbes},
		"metrics":           map[string]any{"enabled": o.ServeMetrics},
	}
	if o.Affinity != nil {
		pod["affinity"] = o.Affinity
	}
	if o.Resources != nil {
		pod["resources"] = o.Resources
	}
	election := map[string]any{}
	for key, duration := range map[string]time.Duration{
		"leaseDuration": o.LeaderElection.LeaseDuration, "renewDeadline": o.LeaderElection.RenewDeadline, "retryPeriod": o.LeaderElection.RetryPeriod,
	} {
		if duration != 0 {
			election[key] = duration.String()
		}
	}
	logFormat := "text"
	if o.LogJSON {
		logFormat = "json"
	}
	var pullSecrets []corev1.LocalObjectReference
	for _, name := range o.ImagePullSecrets {
		pullSecrets = append(pullSecrets, corev1.LocalObjectReference{Name: name})
	}
	typed := map[string]any{
		"internal": map[string]any{
			"managed":            true,
			"image":              image(o.Image, o.SystemDefaultRegistry, o.PrivateRepoURL),
			"clusterRole":        ClusterRoleName(o.Namespace),
			"clusterRoleBinding": ClusterRoleBindingName(o.Namespace),
			"scope":              o.Scope,
			"checkinInterval":    o.CheckinInterval.String(),
			"credentialLifetime": o.CredentialLifetime.String(),
		},
		"image":      map[string]any{"imagePullPolicy": o.ImagePullPolicy},
		"fleetAgent": pod,
		"agent": map[string]any{
			"replicas":   max(1, o.Replicas),
			"reconciler": map[string]any{"workers": map[string]any{"bundledeployment": o.BundleDeploymentWorkers, "drift": o.DriftWorkers}},
		},
		"leaderElection":         election,
		"global":                 map[string]any{"cattle": map[string]any{"imagePullSecrets": pullSecrets}},
		"logFormat":              logFormat,
		"debug":                  o.Debug,
		"debugLevel":             o.DebugLevel,
		"disableSecurityContext": o.DisableSecurityContext,
	}
	values := map[string]any{}
	data, err := json.Marshal(typed)
	if err == nil {
		err = json.Unmarshal(data, &values)
	}
	if err != nil {
		return nil, fmt.Errorf("values of the agent in namespace %s: %w", o.Namespace, err)
	}
	return values, nil
}

// image returns the reference with which the agent's image is pulled. A private registry replaces the system's default
// registry, and is put in front of any other image that does not come from it already.
func image(reference, systemDefaultRegistry, privateRepoURL string) string {
	private := registry(privateRepoURL)
	if private == "" || strings.HasPrefix(reference, private+"/") {
		return reference
	}
	if systemDefault := registry(systemDefaultRegistry); systemDefault != "" {
		reference = strings.TrimPrefix(reference, systemDefault+"/")
	}
	return path.Join(private, reference)
}

// registry returns the part of a URL that image references begin with: people also write https:// and a final slash.
func registry(url string) string {
	url = strings.TrimPrefix(url, "https://")
	url = strings.TrimPrefix(url, "http://")
	return strings.TrimSuffix(url, "/")
}

// sortedTolerations returns a sorted copy. Management servers list the taints of nodes in any order, and a changed order must not
// restart an agent. The slice itself may belong to a cache.
func sortedTolerations(tolerations []corev1.Toleration) []corev1.Toleration {
	sorted := slices.Clone(tolerations)
	slices.SortStableFunc(sorted, func(a, b corev1.Toleration) int {
		return cmp.Or(
			cmp.Compare(a.Key, b.Key),
			cmp.Compare(a.Value, b.Value),
			cmp.Compare(a.Operator, b.Operator),
			cmp.Compare(a.Effect, b.Effect),
			cmp.Compare(ptr.Deref(a.TolerationSeconds, math.MinInt64), ptr.Deref(b.TolerationSeconds, math.MinInt64)),
		)
	})
	return sorted
}

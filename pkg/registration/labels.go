package registration

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// reservedPrefixes are label keys an agent may not assert about itself: they steer targeting, what a management server
// shows, and which set of objects a Cluster belongs to, that is, who would prune it.
var reservedPrefixes = []string{fleet.ReservedManagementPrefix, fleet.ReservedPrefix, "objectset.rio.cattle.io/"}

// AcceptLabels divides the labels an agent sent into those its Cluster gets and the keys that are dropped, sorted.
// Dropped are reserved keys, and what is no valid label: one bad label must not cost the cluster its registration.
func AcceptLabels(sent map[string]string) (accepted map[string]string, dropped []string) {
	accepted = map[string]string{}
	for key, value := range sent {
		if reserved(key) || invalid(key, value) {
			dropped = append(dropped, key)
			continue
		}
		accepted[key] = value
	}
	slices.Sort(dropped)
	return accepted, dropped
}

func reserved(key string) bool {
	if key == fleet.CreatedByAgentPodLabel {
		return false
	}
	return slices.ContainsFunc(reservedPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

func invalid(key, value string) bool {
	return len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0
}

// NewClusterLabels are the labels of a Cluster the hub creates: what the agent may say, unless the hub is configured to
// ignore it, and the Cluster's own name.
func NewClusterLabels(cluster string, sent map[string]string, ignoreSent bool) map[string]string {
	labels := map[string]string{}
	if !ignoreSent {
		accepted, _ := AcceptLabels(sent)
		maps.Copy(labels, accepted)
	}
	labels[fleet.ClusterLabel] = LabelValue(cluster)
	return labels
}

// DroppedLabelsMessage tells a person which labels were not taken over; "" when all were.
func DroppedLabelsMessage(dropped []string) string {
	if len(dropped) == 0 {
		return ""
	}
	return fmt.Sprintf("labels not taken over because they are reserved or invalid: %s", strings.Join(dropped, ", "))
}

// AgentConfigLabels are the labels of a Cluster that its agent is told, to send them should it register again: neither
// those of management servers nor kubectl's own.
func AgentConfigLabels(cluster map[string]string) map[string]string {
	labels := map[string]string{}
	for key, value := range cluster {
		if strings.HasPrefix(key, "kubectl.kubernetes.io/") || strings.Contains(key, "cattle.io/") {
			continue
		}
		labels[key] = value
	}
	return labels
}

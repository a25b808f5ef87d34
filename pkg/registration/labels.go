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

// maxLabels is how many labels an agent may give its Cluster. Every controller has each Cluster in memory.
const maxLabels = 100

// AcceptLabels divides the labels an agent sent into those its Cluster gets and the keys that are dropped, sorted.
// Dropped are reserved keys, what is no valid label, and the last ones where there are too many: one bad label must not cost
// the cluster its registration.
func AcceptLabels(sent map[string]string) (accepted map[string]string, dropped []string) {
	accepted = map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(sent)) {
		if reserved(key) || invalid(key, sent[key]) || len(accepted) == maxLabels {
			dropped = append(dropped, key)
			continue
		}
		accepted[key] = sent[key]
	}
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

// ImposeLabels adds what the token says to the labels of a new Cluster. A person wrote it, so nothing is reserved but the
// Cluster's own name.
func ImposeLabels(labels, imposed map[string]string) {
	for key, value := range imposed {
		if key != fleet.ClusterLabel {
			labels[key] = value
		}
	}
}

// DroppedLabelsMessage tells a person which labels were not taken over; "" when all were. It is in a status, so that it names
// only some of very many.
func DroppedLabelsMessage(dropped []string) string {
	const most = 10
	if len(dropped) == 0 {
		return ""
	}
	named := make([]string, 0, most)
	for _, key := range dropped[:min(len(dropped), most)] {
		named = append(named, Brief(key))
	}
	text := "labels not taken over because they are reserved, invalid or too many: " + strings.Join(named, ", ")
	if more := len(dropped) - len(named); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
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

package registration

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// reservedPrefixes are the prefixes of label keys that an agent may not set: they control targeting, the display of management
// servers, and the object set of a Cluster, which decides who prunes it.
var reservedPrefixes = []string{fleet.ReservedManagementPrefix, fleet.ReservedPrefix, "objectset.rio.cattle.io/"}

// maxLabels is the maximum number of labels that an agent may set on its Cluster. Every controller keeps each Cluster in memory.
const maxLabels = 100

// AcceptLabels splits the labels of an agent into accepted labels and the sorted keys of dropped ones. It drops reserved keys,
// invalid labels, and the last labels above the maximum, so that a bad label does not prevent the registration.
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

// NewClusterLabels returns the labels of a Cluster that the hub creates: the accepted labels of the agent, unless the hub is
// configured to ignore them, and the Cluster's own name.
func NewClusterLabels(cluster string, sent map[string]string, ignoreSent bool) map[string]string {
	labels := map[string]string{}
	if !ignoreSent {
		accepted, _ := AcceptLabels(sent)
		maps.Copy(labels, accepted)
	}
	labels[fleet.ClusterLabel] = LabelValue(cluster)
	return labels
}

// ImposeLabels adds the labels of the token to those of a new Cluster. A person wrote them, so only the label with the Cluster's
// own name is reserved.
func ImposeLabels(labels, imposed map[string]string) {
	for key, value := range imposed {
		if key != fleet.ClusterLabel {
			labels[key] = value
		}
	}
}

// DroppedLabelsMessage names the dropped labels for people; "" if there are none. The message is part of a status, so it names a
// limited number.
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

// AgentConfigLabels returns the labels of a Cluster for the configuration of its agent, which sends them when it registers again.
// It omits the labels of management servers and of kubectl.
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

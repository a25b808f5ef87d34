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

// Limits of the memory that the labels and the annotations of an object take in the caches of the hub, which drop larger ones: an object of the
// 1.5 MiB that the API server stores has room for 100,000 labels, which take 10 MiB. The limit of labels has room for some 250 of 80 bytes. The API
// server permits annotations of 256 KiB, which may be a single one.
const (
	MaxLabelsMemory      = 32 << 10
	MaxAnnotationsMemory = 320 << 10
)

// MetadataTooLarge explains that an object exceeds these limits. That of labels also applies to finalizers and to owners.
var MetadataTooLarge = fmt.Sprintf("metadata.labels takes more than %d KiB of the hub's memory, as may finalizers or ownerReferences, or metadata.annotations more than %d KiB; remove some of them",
	MaxLabelsMemory>>10, MaxAnnotationsMemory>>10)

// TooLarge explains why the caches of the hub lack parts of an object: it is too large by itself, or the workspace has no room for it.
func TooLarge(excess fleet.MemoryExcess, byItself string) string {
	if excess.Limit == 0 {
		return byItself
	}
	return fmt.Sprintf("this object takes %d KiB of the hub's memory, and the large objects of this workspace would take more than %d MiB together; "+
		"make Bundles, Clusters or ClusterGroups of the workspace smaller, delete some, or raise bundles.workspaceMemoryMiB of the hub",
		(excess.Size+1023)>>10, excess.Limit>>20)
}

// AllowedLabels splits the labels of an agent into those that it may choose and the sorted keys of the others. The token says which keys
// are allowed; if it does not, byDefault decides whether all are. others never contains CreatedByAgentPodLabel, which every agent sends.
func AllowedLabels(sent map[string]string, token fleet.ClusterRegistrationTokenSpec, byDefault bool) (allowed map[string]string, others []string) {
	if token.AllowedLabelKeys == nil && byDefault {
		return sent, nil
	}
	var keys []string
	if token.AllowedLabelKeys != nil {
		keys = *token.AllowedLabelKeys
	}
	allowed = map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(sent)) {
		switch {
		case slices.Contains(keys, key):
			allowed[key] = sent[key]
		case key != fleet.CreatedByAgentPodLabel:
			others = append(others, key)
		}
	}
	return allowed, others
}

// ManyMayChooseLabels reports whether several agents may register with a token and choose any label for their Clusters. byDefault has the same
// meaning as for AllowedLabels.
func ManyMayChooseLabels(token *fleet.ClusterRegistrationToken, byDefault bool) bool {
	spec := token.Spec
	once := spec.UsageLimit != nil && *spec.UsageLimit == 1
	oneIdentity := len(spec.ClientIDs) == 1 && spec.ClientIDPattern == ""
	return byDefault && spec.AllowedLabelKeys == nil && !once && !oneIdentity && owningCluster(token) == ""
}

// ValidLabels splits the labels of an agent into those that a Cluster may have and the sorted keys of dropped ones. It drops reserved keys,
// invalid labels, and the last labels above the maximum, so that a bad label does not prevent the registration.
func ValidLabels(sent map[string]string) (valid map[string]string, dropped []string) {
	valid = map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(sent)) {
		if reserved(key) || invalid(key, sent[key]) || len(valid) == maxLabels {
			dropped = append(dropped, key)
			continue
		}
		valid[key] = sent[key]
	}
	return valid, dropped
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

// NewClusterLabels returns the labels of a Cluster that the hub creates: the valid labels of the agent, unless the hub is
// configured to ignore them, and the Cluster's own name.
func NewClusterLabels(cluster string, sent map[string]string, ignoreSent bool) map[string]string {
	labels := map[string]string{}
	if !ignoreSent {
		valid, _ := ValidLabels(sent)
		maps.Copy(labels, valid)
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

// DroppedLabelsMessage names the labels that were dropped by ValidLabels, and those that AllowedLabels did not return, for people; "" if
// there are none. The message is part of a status, so it names a limited number.
func DroppedLabelsMessage(dropped, notAllowed []string) string {
	var texts []string
	if len(dropped) > 0 {
		texts = append(texts, "labels not taken over because they are reserved, invalid or too many: "+someKeys(dropped))
	}
	if len(notAllowed) > 0 {
		texts = append(texts, "labels not taken over because neither spec.allowedLabelKeys of the token nor registration.agentLabels "+
			"of the hub allows them: "+someKeys(notAllowed))
	}
	return strings.Join(texts, "; ")
}

func someKeys(keys []string) string {
	const most = 10
	named := make([]string, 0, most)
	for _, key := range keys[:min(len(keys), most)] {
		named = append(named, Brief(key))
	}
	text := strings.Join(named, ", ")
	if more := len(keys) - len(named); more > 0 {
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

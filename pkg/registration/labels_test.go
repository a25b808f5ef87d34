package registration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestAcceptLabels(t *testing.T) {
	for _, row := range []struct {
		name, key, value string
		accepted         bool
	}{
		{"an ordinary label is taken over", "env", "prod", true},
		{"one with a prefix of its own too", "example.com/env", "prod", true},
		{"an empty value is a value", "env", "", true},
		{"the pod's name is the one exception", fleet.CreatedByAgentPodLabel, "fleet-agent-0", true},
		{"the hub's prefix is reserved", fleet.ReservedPrefix + "managed", "true", false},
		{"the cluster's name is the hub's to say", fleet.ClusterLabel, "other", false},
		{"a management server's prefix is reserved", fleet.ReservedManagementPrefix + "cluster-display-name", "x", false},
		{"a prefix that only looks alike is not", "xfleet.cattle.io/managed", "true", true},
		{"an empty key is no label", "", "x", false},
		{"a key with a space is no label", "a b", "x", false},
		{"a key of 64 characters is no label", strings.Repeat("k", 64), "x", false},
		{"a value of 64 characters is no label", "env", strings.Repeat("v", 64), false},
		{"a value in unicode is no label", "env", "prød", false},
		{"the exception has to be valid as well", fleet.CreatedByAgentPodLabel, "a b", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			accepted, dropped := AcceptLabels(map[string]string{row.key: row.value})
			if row.accepted {
				assert.Equal(t, map[string]string{row.key: row.value}, accepted)
				assert.Empty(t, dropped)
				return
			}
			assert.Empty(t, accepted)
			assert.Equal(t, []string{row.key}, dropped)
		})
	}
}

func TestAcceptLabelsDropsOnlyBadOnes(t *testing.T) {
	accepted, dropped := AcceptLabels(map[string]string{"z b": "", "good": "1", "fleet.cattle.io/x": "", "a b": ""})
	assert.Equal(t, map[string]string{"good": "1"}, accepted)
	assert.Equal(t, []string{"a b", "fleet.cattle.io/x", "z b"}, dropped, "sorted, for the message must be stable")
	assert.Equal(t, "labels not taken over because they are reserved, invalid or too many: a b, fleet.cattle.io/x, z b", DroppedLabelsMessage(dropped))
}

func TestDroppedLabelsMessageOfNone(t *testing.T) {
	assert.Empty(t, DroppedLabelsMessage(nil))
}

func TestNewClusterLabels(t *testing.T) {
	sent := map[string]string{"env": "prod", fleet.ClusterLabel: "a-lie"}
	assert.Equal(t, map[string]string{"env": "prod", fleet.ClusterLabel: "real"}, NewClusterLabels("real", sent, false))
	assert.Equal(t, map[string]string{fleet.ClusterLabel: "real"}, NewClusterLabels("real", sent, true))
	assert.Equal(t, map[string]string{"env": "prod", fleet.ClusterLabel: "a-lie"}, sent, "what was sent stays as it is")
}

func TestNewClusterLabelsOfALongName(t *testing.T) {
	value := NewClusterLabels(strings.Repeat("n", 253), nil, false)[fleet.ClusterLabel]
	assert.Empty(t, validation.IsValidLabelValue(value))
}

func TestAgentConfigLabels(t *testing.T) {
	told := AgentConfigLabels(map[string]string{
		"env": "prod", "example.com/x": "y", "provider.cattle.io": "no slash, so it is nobody's",
		"management.cattle.io/cluster-display-name": "c", "fleet.cattle.io/cluster": "c",
		"kubectl.kubernetes.io/last-applied": "x", "objectset.rio.cattle.io/hash": "h",
	})
	assert.Equal(t, map[string]string{"env": "prod", "example.com/x": "y", "provider.cattle.io": "no slash, so it is nobody's"}, told)
	assert.NotNil(t, AgentConfigLabels(nil))
}

func TestAcceptLabelsLimitsTheirNumber(t *testing.T) {
	sent := map[string]string{}
	for n := range 5000 {
		sent[fmt.Sprintf("label-%04d", n)] = "v"
	}
	sent[strings.Repeat("k", 1<<20)] = "v"
	accepted, dropped := AcceptLabels(sent)
	assert.Len(t, accepted, maxLabels)
	assert.Contains(t, accepted, "label-0099", "the first ones, so that they are the same each time")
	assert.Len(t, dropped, 5001-maxLabels)
	message := DroppedLabelsMessage(dropped)
	assert.Contains(t, message, "and 4891 more")
	assert.Less(t, len(message), 4096)
}

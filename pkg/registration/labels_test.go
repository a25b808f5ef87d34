package registration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestValidLabels(t *testing.T) {
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
			accepted, dropped := ValidLabels(map[string]string{row.key: row.value})
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

func TestValidLabelsDropsOnlyBadOnes(t *testing.T) {
	accepted, dropped := ValidLabels(map[string]string{"z b": "", "good": "1", "fleet.cattle.io/x": "", "a b": ""})
	assert.Equal(t, map[string]string{"good": "1"}, accepted)
	assert.Equal(t, []string{"a b", "fleet.cattle.io/x", "z b"}, dropped, "sorted, for the message must be stable")
	assert.Equal(t, "labels not taken over because they are reserved, invalid or too many: a b, fleet.cattle.io/x, z b", DroppedLabelsMessage(dropped, nil))
}

func TestDroppedLabelsMessageOfNone(t *testing.T) {
	assert.Empty(t, DroppedLabelsMessage(nil, nil))
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

func TestValidLabelsLimitsTheirNumber(t *testing.T) {
	sent := map[string]string{}
	for n := range 5000 {
		sent[fmt.Sprintf("label-%04d", n)] = "v"
	}
	sent[strings.Repeat("k", 1<<20)] = "v"
	accepted, dropped := ValidLabels(sent)
	assert.Len(t, accepted, maxLabels)
	assert.Contains(t, accepted, "label-0099", "the first ones, so that they are the same each time")
	assert.Len(t, dropped, 5001-maxLabels)
	message := DroppedLabelsMessage(dropped, nil)
	assert.Contains(t, message, "and 4891 more")
	assert.Less(t, len(message), 4096)
}

func TestAllowedLabels(t *testing.T) {
	sent := map[string]string{"env": "prod", "team": "a", fleet.CreatedByAgentPodLabel: "fleet-agent-0"}
	for _, row := range []struct {
		name      string
		keys      *[]string
		byDefault bool
		allowed   map[string]string
		others    []string
	}{
		{"the token does not say, and the hub accepts all", nil, true, sent, nil},
		{"the token does not say, and the hub accepts none", nil, false, map[string]string{}, []string{"env", "team"}},
		{"the token allows one", &[]string{"team", "zone"}, true, map[string]string{"team": "a"}, []string{"env"}},
		{"the token allows one, and the hub accepts no others", &[]string{"team"}, false, map[string]string{"team": "a"}, []string{"env"}},
		{"the token allows none", &[]string{}, true, map[string]string{}, []string{"env", "team"}},
		{
			"the token allows the pod's name", &[]string{fleet.CreatedByAgentPodLabel}, true,
			map[string]string{fleet.CreatedByAgentPodLabel: "fleet-agent-0"},
			[]string{"env", "team"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			allowed, others := AllowedLabels(sent, fleet.ClusterRegistrationTokenSpec{AllowedLabelKeys: row.keys}, row.byDefault)
			assert.Equal(t, row.allowed, allowed)
			assert.Equal(t, row.others, others)
		})
	}
	assert.Equal(t, "labels not taken over because they are reserved, invalid or too many: a b; labels not taken over because neither "+
		"spec.allowedLabelKeys of the token nor registration.agentLabels of the hub allows them: env, team",
		DroppedLabelsMessage([]string{"a b"}, []string{"env", "team"}))
}

func TestManyMayChooseLabels(t *testing.T) {
	for _, row := range []struct {
		name      string
		change    func(*fleet.ClusterRegistrationToken)
		byDefault bool
		want      bool
	}{
		{"any agent, any label", func(*fleet.ClusterRegistrationToken) {}, true, true},
		{"the hub accepts no label by default", func(*fleet.ClusterRegistrationToken) {}, false, false},
		{"the token names the keys", func(t *fleet.ClusterRegistrationToken) { t.Spec.AllowedLabelKeys = &[]string{"env"} }, true, false},
		{"the token allows no label", func(t *fleet.ClusterRegistrationToken) { t.Spec.AllowedLabelKeys = &[]string{} }, true, false},
		{"one use", func(t *fleet.ClusterRegistrationToken) { t.Spec.UsageLimit = ptr.To(int32(1)) }, true, false},
		{"two uses", func(t *fleet.ClusterRegistrationToken) { t.Spec.UsageLimit = ptr.To(int32(2)) }, true, true},
		{"one identity", func(t *fleet.ClusterRegistrationToken) { t.Spec.ClientIDs = []string{"a"} }, true, false},
		{"one identity and a pattern", func(t *fleet.ClusterRegistrationToken) {
			t.Spec.ClientIDs, t.Spec.ClientIDPattern = []string{"a"}, "b-*"
		}, true, true},
		{"the token of an import", func(t *fleet.ClusterRegistrationToken) {
			t.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", UID: "c"}}
		}, true, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			token := &fleet.ClusterRegistrationToken{}
			row.change(token)
			assert.Equal(t, row.want, ManyMayChooseLabels(token, row.byDefault))
		})
	}
}

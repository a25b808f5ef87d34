package rancherlike

import (
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestObserver(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*fleet.Cluster)
		want   string
	}{
		"nothing":                    {func(*fleet.Cluster) {}, ""},
		"what the server never sets": {func(c *fleet.Cluster) { c.Spec.RedeployAgentGeneration = -1 }, ""},
		"a foreign label":            {func(c *fleet.Cluster) { c.Labels["mine"] = "yes" }, ""},
		"a condition in progress":    {condition("Registered", corev1.ConditionUnknown), ""},
		"an import that failed":      {condition("Imported", corev1.ConditionFalse), ""},
		"a red condition":            {condition("Registered", corev1.ConditionFalse), "is red"},
		"another one":                {condition("Reconciled", corev1.ConditionFalse), "is red"},
		"a field of the server":      {func(c *fleet.Cluster) { c.Spec.PrivateRepoURL = "" }, "differs from the one that the server applied"},
		"pull Secrets of nobody":     {func(c *fleet.Cluster) { c.Spec.AgentPullSecrets = nil }, "differs from the one that the server applied"},
		"a label of the server":      {func(c *fleet.Cluster) { delete(c.Labels, "env") }, "label env"},
		"the record of what it was":  {func(c *fleet.Cluster) { delete(c.Annotations, apply.LabelApplied) }, "is gone"},
		"another identity":           {func(c *fleet.Cluster) { c.Spec.ClientID = "other" }, "changed its clientID"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Managed{Name: "edge", ID: "c-m-1", Namespace: "fleet-default", Workspace: "fleet-default"}
			o := &Observer{clientIDs: map[types.UID]string{}, addresses: map[types.UID][]string{}}
			o.Expect(m)
			o.see(applied(m))
			require.Empty(t, o.Problems())

			cluster := applied(m)
			test.change(cluster)
			o.see(cluster)
			if test.want == "" {
				require.Empty(t, o.Problems())
				return
			}
			require.Len(t, o.Problems(), 1)
			require.Contains(t, o.Problems()[0], test.want)
		})
	}
}

func TestObserverAddresses(t *testing.T) {
	o := &Observer{clientIDs: map[types.UID]string{}, addresses: map[types.UID][]string{}}
	for _, address := range []string{"", "a", "a", "b", "a"} {
		cluster := &fleet.Cluster{}
		cluster.UID, cluster.Status.APIServerURL = "u", address
		o.see(cluster)
	}
	require.Equal(t, []string{"a", "b", "a"}, o.Addresses("u"))
}

func condition(conditionType string, status corev1.ConditionStatus) func(*fleet.Cluster) {
	return func(c *fleet.Cluster) {
		c.Status.Conditions = []genericcondition.GenericCondition{{Type: conditionType, Status: status}}
	}
}

// applied is the Cluster after the server has applied it and the hub has worked on it.
func applied(m *Managed) *fleet.Cluster {
	c := m.Cluster()
	c.UID, c.Spec.ClientID = "u", "client"
	c.Labels[apply.LabelHash] = "x"
	for _, key := range []string{apply.LabelID, apply.LabelGVK, apply.LabelName, apply.LabelNamespace, apply.LabelApplied} {
		c.Annotations[key] = "x"
	}
	return c
}

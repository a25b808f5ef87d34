package cli

import (
	"testing"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/describe"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestNextSteps_states(t *testing.T) {
	to := newConnection()
	assert.NoError(t, to.flags.Parse([]string{"--context=hub"}))
	hub := &namespacedHub{&admin.Hub{}, to, "ws"}
	deployments := []*describe.Related{{Kind: "Namespace", Name: "cluster-ws-east", Objects: []*describe.Related{
		{Kind: "BundleDeployment", Namespace: "cluster-ws-east", Name: "good", State: string(fleet.Ready)},
		{Kind: "BundleDeployment", Namespace: "cluster-ws-east", Name: "shop", State: string(fleet.NotReady)},
	}}}
	refused := []*describe.Related{{Kind: "Bundle", Namespace: "ws", Name: "values", State: "NotDeployed"}}
	ready := genericcondition.GenericCondition{Type: fleet.ConditionReady, Status: corev1.ConditionFalse, Message: "why"}
	notReady := func(reason string) *view.Cluster {
		return &view.Cluster{State: view.StateRegistered, Reason: reason, Message: ready.Message}
	}
	waits := []*describe.Related{{Kind: "ClusterRegistration", Name: "r", State: view.StateWaiting, Reason: fleet.ReasonWaitingForApproval}}
	checkIt, ofShop := "muster --context=hub -n ws check east", "kubectl --context=hub -n cluster-ws-east describe bundledeployments.fleet.cattle.io shop"
	ofValues := "kubectl --context=hub -n ws describe bundles.fleet.cattle.io values"
	const again = "muster --context=hub -n ws token create --cluster east --usage-limit 1 --ttl 1h -o values | muster join - --kubeconfig MEMBER"
	tests := map[string]struct {
		cluster *view.Cluster
		objects []*describe.Related
		want    []string
	}{
		"only a request":                   {nil, nil, []string{checkIt}},
		"a request that waits":             {nil, waits, []string{"muster --context=hub -n ws approve r", "muster --context=hub -n ws deny r"}},
		"good":                             {&view.Cluster{State: view.StateRegistered}, nil, nil},
		"of another controller":            {&view.Cluster{State: view.StateManaged}, nil, nil},
		"offline":                          {&view.Cluster{State: view.StateOffline}, nil, []string{checkIt}},
		"quarantined":                      {&view.Cluster{State: view.StateQuarantined}, nil, []string{"muster --context=hub -n ws revoke east # if the credential may be stolen; then release", "muster --context=hub -n ws release east"}},
		"a Bundle is not ready":            {notReady(fleet.ReasonNotReady), deployments, []string{ofShop}},
		"a Bundle failed":                  {notReady(fleet.ReasonDeployFailed), deployments, []string{ofShop}},
		"the Bundle cannot be read":        {notReady(fleet.ReasonNotReady), nil, nil},
		"a Bundle is refused":              {notReady(fleet.ReasonBundleInvalid), refused, []string{ofValues}},
		"one is refused, one not ready":    {notReady(fleet.ReasonBundleInvalid), append(refused, deployments...), []string{ofValues, ofShop}},
		"a Secret is missing":              {notReady(fleet.ReasonDownstreamMissing), nil, nil},
		"the agent deploys nothing":        {notReady(fleet.ReasonDeploymentsStalled), deployments, []string{checkIt}},
		"the import fails under the agent": {&view.Cluster{State: view.StateRegistered, Reason: fleet.ReasonUnreachable}, nil, []string{checkIt}},
		"releases without a Bundle":        {&view.Cluster{State: view.StateRegistered, Reason: fleet.ReasonBundlesMissing}, nil, nil},
		"expired":                          {&view.Cluster{State: view.StateRefused, Reason: fleet.ReasonCredentialExpired, WayIn: view.WayAgent}, nil, []string{again}},
		"revoked":                          {&view.Cluster{State: view.StateRefused, Reason: fleet.ReasonCredentialRevoked, WayIn: view.WayAgent}, nil, []string{again}},
		"revoked, and the hub imports it":  {&view.Cluster{State: view.StateRefused, Reason: fleet.ReasonCredentialRevoked, WayIn: view.WayManager}, nil, []string{checkIt}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := &describe.Description{Namespace: "ws", Name: "east", Cluster: test.cluster, Objects: test.objects}
			if test.cluster != nil && test.cluster.Message != "" {
				ready.Reason = test.cluster.Reason
				d.Conditions = append(d.Conditions, ready)
			}
			assert.Equal(t, test.want, nextSteps(hub, d))
		})
	}
}

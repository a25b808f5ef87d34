package faults

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// The hub issues the credential before it writes that the request is granted. The agent does not wait for that write: here it fails until the
// hub has seen the agent's first heartbeat.
func TestRegistration_heartbeatBeforeTheGrant(t *testing.T) {
	sample.Long(t)
	hub, member := testenv.Clusters(t)
	hub.Configure(t, hub.Reachable())
	wire := &testenv.Recorder{}
	hub.Hub(t, wire.Wrap, testenv.FastRecheck)
	ns, agentNS, cluster := hub.Namespace(t), member.Namespace(t), registration.ClusterName("edge")
	values := hub.Token(t, ns, "tok", fleet.ClusterRegistrationTokenSpec{})

	wire.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if req.Method == http.MethodPatch && strings.Contains(req.URL.Path, "/clusterregistrations/") && strings.HasSuffix(req.URL.Path, "/status") {
			return nil, errors.New("the API server is overloaded")
		}
		return send()
	})
	testenv.BootstrapAgent(t, member, agentNS, values, map[string]string{"config": `{"clientID":"edge"}`})
	member.Agent(t, agentNS)
	testenv.Eventually(t, func() (bool, string) {
		c, err := hub.Fleet.Clusters(ns).Get(t.Context(), cluster, metav1.GetOptions{})
		return err == nil && !c.Status.Agent.LastSeen.IsZero(), "no heartbeat"
	})
	accounts := func() []string {
		list := testenv.List(t, hub.Kubernetes.CoreV1().ServiceAccounts(registration.ClusterNamespace(ns, cluster)).List, testenv.Ours())
		var uids []string
		for _, account := range list.Items {
			uids = append(uids, string(account.UID))
		}
		return uids
	}
	before := accounts()
	require.Len(t, before, 1)

	wire.Inject(nil)
	testenv.Eventually(t, func() (bool, string) {
		list := testenv.List(t, hub.Fleet.ClusterRegistrations(ns).List, metav1.ListOptions{})
		require.Len(t, list.Items, 1, "the agent does not register again")
		got := testenv.Condition(list.Items[0].Status.Conditions, fleet.ConditionGranted)
		return list.Items[0].Status.Granted, got
	})
	require.Equal(t, before, accounts(), "the agent keeps its ServiceAccount")
	testenv.RequireCredential(t, member, agentNS, cluster)
	hub.ClusterCondition(t, ns, cluster, fleet.ConditionRegistered, "True Registered")
}

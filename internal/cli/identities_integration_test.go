package cli

import (
	"encoding/json"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// asks creates a request of an agent with a token whose requests wait for approval.
func (p person) asks(token, clientID string) (registration.Values, *fleet.ClusterRegistration) {
	p.t.Helper()
	values := p.hub.Values(p.t, p.namespace, token)
	request := p.hub.Request(p.t, values, fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: clientID + p.namespace})
	p.hub.WaitCondition(p.t, testenv.KindRequest, p.namespace, request.Name, fleet.ConditionGranted, "Unknown WaitingForApproval")
	return values, request
}

func (p person) token(name string) *fleet.ClusterRegistrationToken {
	p.t.Helper()
	return testenv.RequireThere(p.t, p.hub.Fleet.ClusterRegistrationTokens(p.namespace).Get, name)
}

func TestRequests(t *testing.T) {
	p := atHub(t)
	p.mustRun("token", "create", "careful", "--timeout", "5m", "--approval", "Manual")
	values, east := p.asks("careful", "east")
	_, west := p.asks("careful", "west")
	require.Regexp(t, p.namespace+` +`+east.Name+` +`+registration.ClusterName("east")+` +careful +Waiting +WaitingForApproval +\d+s ago`, p.mustRun("requests"))
	var all items[view.Request]
	require.NoError(t, json.Unmarshal([]byte(p.mustRun("requests", "-o", "json")), &all))
	require.Len(t, all.Items, 2)

	labelled := p.hub.Request(t, values, fleet.ClusterRegistrationSpec{
		ClientID: "north", ClientRandom: "1" + p.namespace, ClusterLabels: map[string]string{"env": "prod"},
	})
	p.hub.WaitCondition(t, testenv.KindRequest, p.namespace, labelled.Name, fleet.ConditionGranted, "Unknown WaitingForApproval")
	require.Regexp(t, labelled.Name+` .* env=prod +waiting for`, p.mustRun("requests", "-o", "wide"))
	require.Regexp(t, labelled.Name+`.*; the agent requests the labels env=prod\)`, p.mustRun("describe", labelled.Name))
	require.Equal(t, "Request "+p.namespace+"/"+east.Name+" for Cluster "+registration.ClusterName("east")+" is granted. To see whether its agent connects: muster -n "+
		p.namespace+" clusters "+registration.ClusterName("east")+"\n", p.mustRun("approve", east.Name, "--timeout", "5m"))
	_, _, err := p.run("approve", east.Name)
	require.ErrorContains(t, err, "is granted already")
	p.hub.Granted(t, values, east)
	require.Contains(t, p.mustRun("deny", registration.ClusterName("west"), "--message", "who is that?"), west.Name+" for Cluster "+registration.ClusterName("west")+" is denied.")
	require.Contains(t, p.hub.WaitCondition(t, testenv.KindRequest, p.namespace, west.Name, fleet.ConditionGranted, "False Denied"), "who is that?")
	require.NotContains(t, p.mustRun("requests"), east.Name)
	require.Contains(t, p.mustRun("requests", "--granted"), east.Name)

	require.Contains(t, p.mustRun("approve", west.Name, "--timeout", "5m"), "is granted")
	p.hub.Granted(t, values, west)
	said := testenv.RequireThere(t, p.hub.Fleet.ClusterRegistrations(p.namespace).Get, west.Name).Status.Approval
	require.Equal(t, &fleet.RegistrationApproval{Decision: fleet.DecisionApproved}, said, "without the earlier message")
}

func TestTokenLimits(t *testing.T) {
	p := atHub(t)
	p.mustRun("token", "create", "narrow", "--timeout", "5m", "--usage-limit", "3", "--client-id", "a", "--client-id", "b",
		"--client-id-pattern", "edge-*", "--label", "env=prod", "--label", "region=eu", "--approval", "Auto", "--allow-label", "zone",
		"--long-lived-credentials", "Refuse")
	spec := p.token("narrow").Spec
	require.Equal(t, fleet.ClusterRegistrationTokenSpec{
		TTL: &metav1.Duration{Duration: 24 * time.Hour}, UsageLimit: ptr.To(int32(3)), ClientIDs: []string{"a", "b"}, ClientIDPattern: "edge-*",
		Labels: map[string]string{"env": "prod", "region": "eu"}, Approval: fleet.ApprovalAuto,
		AllowedLabelKeys: &[]string{"zone"}, LongLivedCredentials: fleet.LongLivedRefuse,
	}, spec)
	require.Regexp(t, `narrow +24h0m0s +in \S+ +0/3 +narrow +Ready +- +- +- +a,b,edge-\* +-`, p.mustRun("token", "list", "-o", "wide"))

	p.mustRun("token", "create", "plain", "--timeout", "5m")
	require.Equal(t, &[]string{}, p.token("plain").Spec.AllowedLabelKeys, "agents choose no label")

	_, _, err := p.run("token", "create", "again", "--cluster", "east")
	require.ErrorContains(t, err, "there is no Cluster "+p.namespace+"/east: `muster clusters -A` lists all Clusters")
	clusters := p.hub.Fleet.Clusters(p.namespace)
	testenv.Create(t, clusters.Create, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "nameless"}})
	_, _, err = p.run("token", "create", "again", "--cluster", "nameless")
	require.ErrorContains(t, err, "Cluster "+p.namespace+"/nameless has no clientID yet")
}

func TestQuarantineAndRevoke(t *testing.T) {
	p := atHub(t)
	p.mustRun("token", "create", "first", "--timeout", "5m")
	values := p.hub.Values(t, p.namespace, "first")
	request := p.hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "edge", ClientRandom: "1" + p.namespace})
	granted, secret := p.hub.Granted(t, values, request)
	cluster, bearer := granted.Status.ClusterName, string(secret.Data[registration.CredentialToken])
	reads := testenv.To("list", "bundledeployments.fleet.cattle.io", registration.ClusterNamespace(p.namespace, cluster), "")
	testenv.RequireMay(t, p.hub, bearer, reads)

	require.Equal(t, "Cluster "+p.namespace+"/"+cluster+" is in quarantine. The rights of its agent are withdrawn.\n", p.mustRun("quarantine", cluster, "--timeout", "5m"))
	require.Regexp(t, cluster+` +agent +Quarantined`, p.mustRun("clusters"))
	require.Equal(t, "Cluster "+p.namespace+"/"+cluster+" is released.\n", p.mustRun("release", cluster, "--timeout", "5m"))
	testenv.RequireMay(t, p.hub, bearer, reads)

	admitAgain := "The hub has no kubeconfig. To admit the agent again: muster -n " + p.namespace + " token create --cluster " + cluster +
		" --usage-limit 1 --ttl 1h -o values | muster join - --kubeconfig MEMBER\n"
	unconfirmed, _, err := p.run("revoke", cluster)
	require.EqualError(t, err, "nothing was revoked: repeat the command with --yes")
	require.Equal(t, "The agent of Cluster "+p.namespace+"/"+cluster+" loses its credential permanently.\n"+admitAgain, unconfirmed)
	testenv.RequireMay(t, p.hub, bearer, reads)
	require.Equal(t, "The credential of Cluster "+p.namespace+"/"+cluster+" is revoked; it was issued for "+request.Name+".\n"+admitAgain, p.mustRun("revoke", cluster, "--yes"))
	account := registration.RequestServiceAccount(request.Name, string(request.UID))
	testenv.RequireGone(t, p.hub.Kubernetes.CoreV1().ServiceAccounts(registration.ClusterNamespace(p.namespace, cluster)).Get, "ServiceAccount", account)
	p.hub.ClusterCondition(t, p.namespace, cluster, fleet.ConditionRegistered, "False CredentialRevoked")
	testenv.RequireUnauthorized(t, p.hub, bearer)
	p.mustRun("token", "create", "stolen", "--cluster", cluster, "--timeout", "5m")
	require.Equal(t, "Whoever holds token stolen can register the cluster again; delete it with `muster -n "+p.namespace+
		" token revoke stolen`, or all such tokens with --delete-tokens.\n", p.mustRun("revoke", cluster, "--yes"))
	out, said, err := p.run("revoke", cluster, "--delete-tokens", "--yes")
	require.NoError(t, err)
	require.Empty(t, out)
	require.Equal(t, "No agent has a credential for Cluster "+p.namespace+"/"+cluster+".\n", said)

	p.mustRun("token", "create", "again", "--cluster", cluster, "--usage-limit", "1", "--timeout", "5m")
	require.Equal(t, []string{"edge"}, p.token("again").Spec.ClientIDs)
	values = p.hub.Values(t, p.namespace, "again")
	again := p.hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "edge", ClientRandom: "2" + p.namespace})
	granted, _ = p.hub.Granted(t, values, again)
	require.Equal(t, cluster, granted.Status.ClusterName)
	testenv.Eventually(t, func() (bool, string) {
		shown := p.mustRun("token", "list")
		return regexp.MustCompile(`again +24h0m0s +in \S+ +1/1 +again +UsedUp +TokenUsedUp`).MatchString(shown), shown
	})

	// The command in the messages can be repeated before its first token has expired.
	for range 2 {
		require.Regexp(t, "^Token "+p.namespace+"/"+cluster+`-again-\w{5} is ready;`, p.mustRun("token", "create", "--cluster", cluster, "--timeout", "5m"))
	}
}

func TestQuarantineOfAMissingCluster(t *testing.T) {
	p := atHub(t)
	for _, command := range []string{"quarantine", "release", "revoke"} {
		_, _, err := p.run(command, "nobody")
		require.EqualError(t, err, "there is no Cluster "+p.namespace+"/nobody: `muster clusters -A` lists all Clusters")
	}
}

package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

var sentLabels = map[string]string{
	"env": "prod", "example.com/team": "a",
	"fleet.cattle.io/created-by-agent-pod":      "fleet-agent-0",
	"fleet.cattle.io/cluster":                   "somebody-else",
	"fleet.cattle.io/managed":                   "true",
	"fleet.cattle.io/cluster-management":        "mine",
	"management.cattle.io/cluster-display-name": "somebody-else",
	"management.cattle.io/anything":             "x",
	"not a label":                               "x",
}

func TestAnUnknownClientIDGetsAClusterWithTheLabelsItMayHave(t *testing.T) {
	s := newStage(t)
	values := s.token(t, "tok")
	request := s.hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "edge-6", ClientRandom: "r" + s.namespace, ClusterLabels: sentLabels})
	request, _ = s.hub.Granted(t, values, request)

	sum := sha256.Sum256([]byte("edge-6"))
	name := "cluster-" + hex.EncodeToString(sum[:])[:12]
	assert.Equal(t, name, request.Status.ClusterName)
	cluster := s.getCluster(t, name)
	assert.Equal(t, "edge-6", cluster.Spec.ClientID)
	assert.Equal(t, map[string]string{
		"fleet.cattle.io/cluster":              name,
		"env":                                  "prod",
		"example.com/team":                     "a",
		"fleet.cattle.io/created-by-agent-pod": "fleet-agent-0",
	}, cluster.Labels)
	granted := testenv.Condition(request.Status.Conditions, fleet.ConditionGranted)
	assert.Contains(t, granted, "True Granted")
	assert.Contains(t, granted, "management.cattle.io/anything", "the agent is told which labels it did not get")
}

func TestLabelsOfAgentsAreIgnoredFromTheMomentTheConfigurationSaysSo(t *testing.T) {
	s := newStage(t)
	values := s.token(t, "tok")
	settings := s.hub.Reachable()
	settings["ignoreClusterRegistrationLabels"] = true
	s.hub.Configure(t, settings)

	// The hub, which is not restarted, takes a moment to hear of it: agents come until one finds it in force.
	attempt := 0
	testenv.Eventually(t, func() (bool, string) {
		attempt++
		clientID := "quiet-" + time.Duration(attempt).String()
		request := s.hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: "r" + s.namespace, ClusterLabels: sentLabels})
		request, _ = s.hub.Granted(t, values, request)
		labels := s.getCluster(t, request.Status.ClusterName).Labels
		return len(labels) == 1 && labels["fleet.cattle.io/cluster"] == request.Status.ClusterName, "the Cluster still got labels of its agent"
	})
}

func TestAKnownClientIDRegistersForItsPreparedCluster(t *testing.T) {
	s := newStage(t)
	prepared := s.createCluster(t, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "prepared", Labels: map[string]string{"mine": "yes"}},
		Spec:       fleet.ClusterSpec{ClientID: "known"},
	})
	values := s.token(t, "tok")
	request := s.hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "known", ClientRandom: "r" + s.namespace, ClusterLabels: sentLabels})
	request, _ = s.hub.Granted(t, values, request)

	assert.Equal(t, "prepared", request.Status.ClusterName)
	assert.True(t, request.Status.Granted)
	assert.Equal(t, []metav1.OwnerReference{{
		APIVersion: "fleet.cattle.io/v1alpha1", Kind: "Cluster", Name: "prepared", UID: prepared.UID,
	}}, request.OwnerReferences)
	assert.Equal(t, map[string]string{"mine": "yes"}, s.getCluster(t, "prepared").Labels, "labels are taken only at creation")
	requireGone(t, s.hub.Fleet.Clusters(s.namespace).Get, "Cluster", registration.ClusterName("known"))
}

func TestTheCredentialSecretIsAsAgentsExpectIt(t *testing.T) {
	s := newStage(t)
	r := s.register(t, s.token(t, "tok"), "client", "random")
	cluster := r.request.Status.ClusterName

	sum := sha256.Sum256([]byte("client" + "random" + s.namespace))
	assert.Equal(t, "c-"+hex.EncodeToString(sum[:])[:61], r.secret.Name)
	assert.Equal(t, registrationNamespace, r.secret.Namespace)
	assert.Equal(t, "fleet.cattle.io/agent-credential", string(r.secret.Type))
	assert.Equal(t, map[string]string{"fleet.cattle.io/cluster": cluster, "fleet.cattle.io/managed": "true"}, r.secret.Labels)
	assert.Equal(t, []string{"clusterName", "clusterNamespace", "deploymentNamespace", "systemNamespace", "token"}, keysOf(r.secret.Data))
	assert.NotEmpty(t, r.bearer())
	assert.Equal(t, registration.ClusterNamespace(s.namespace, cluster), r.clusterNamespace())
	assert.Equal(t, r.clusterNamespace(), s.getCluster(t, cluster).Status.Namespace)
	assert.Equal(t, s.namespace, string(r.secret.Data["clusterNamespace"]))
	assert.Equal(t, cluster, string(r.secret.Data["clusterName"]))
	assert.Equal(t, "cattle-fleet-system", string(r.secret.Data["systemNamespace"]))
	for _, value := range r.secret.Annotations {
		assert.NotContains(t, value, r.bearer()[:20], "no part of the token is in an annotation")
	}
}

func TestTheCredentialMayDoWhatAnAgentNeedsAndNothingElse(t *testing.T) {
	s := newStage(t)
	values := s.token(t, "tok")
	r := s.register(t, values, "client-rights", "random")
	neighbour := s.register(t, values, "client-neighbour", "random")
	cluster, own := r.request.Status.ClusterName, r.clusterNamespace()

	everywhere := "get contents"
	assert.ElementsMatch(t, []string{
		everywhere,
		"get,list,watch bundledeployments",
		"update,patch bundledeployments/status",
		"get secrets", "get configmaps",
	}, rightsIn(t, s.hub, r.bearer(), own))
	assert.ElementsMatch(t, []string{everywhere, "patch clusters/status " + cluster}, rightsIn(t, s.hub, r.bearer(), s.namespace))
	for _, elsewhere := range []string{neighbour.clusterNamespace(), registrationNamespace, "cattle-fleet-system", "default", "kube-system"} {
		assert.Equal(t, []string{everywhere}, rightsIn(t, s.hub, r.bearer(), elsewhere), "in namespace %s", elsewhere)
	}
	requireMay(t, s.hub, r.bearer(),
		right{"list", "bundledeployments.fleet.cattle.io", own, ""},
		right{"watch", "bundledeployments.fleet.cattle.io", own, ""},
		right{"patch", "bundledeployments.fleet.cattle.io/status", own, "any"},
		right{"patch", "clusters.fleet.cattle.io/status", s.namespace, cluster},
		right{"get", "contents.fleet.cattle.io", "", "any"},
		right{"get", "secrets", own, "any"},
	)
	requireMayNot(t, s.hub, r.bearer(),
		right{"get", "clusters.fleet.cattle.io", s.namespace, cluster},
		right{"update", "clusters.fleet.cattle.io/status", s.namespace, cluster},
		right{"patch", "clusters.fleet.cattle.io", s.namespace, cluster},
		right{"patch", "clusters.fleet.cattle.io/status", s.namespace, neighbour.request.Status.ClusterName},
		right{"list", "bundledeployments.fleet.cattle.io", neighbour.clusterNamespace(), ""},
		right{"get", "secrets", neighbour.clusterNamespace(), "any"},
		right{"list", "contents.fleet.cattle.io", "", ""},
		right{"create", "bundledeployments.fleet.cattle.io", own, ""},
		right{"update", "bundledeployments.fleet.cattle.io", own, "any"},
		right{"delete", "bundledeployments.fleet.cattle.io", own, "any"},
		right{"list", "secrets", own, ""},
		right{"list", "configmaps", own, ""},
		right{"create", "clusterregistrations.fleet.cattle.io", s.namespace, ""},
		right{"get", "secrets", registrationNamespace, r.secret.Name},
		right{"create", "serviceaccounts/token", own, r.account()},
		right{"get", "namespaces", "", own},
	)
	s.requireHeartbeatWorks(t, r)
}

// requireHeartbeatWorks writes as the agent does.
func (s *stage) requireHeartbeatWorks(t *testing.T, r registered) {
	t.Helper()
	_, err := s.hub.ClientFor(t, r.bearer()).Fleet.Clusters(s.namespace).Patch(t.Context(), r.request.Status.ClusterName,
		types.JSONPatchType, []byte(`[{"op":"add","path":"/status/agent","value":{"lastSeen":"2026-01-02T03:04:05Z","namespace":"ns"}}]`),
		metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

func TestTheTokenMayReadTheOneCredentialItWasAskedForWith(t *testing.T) {
	s := newStage(t)
	mine, other := s.token(t, "mine"), s.token(t, "other")
	r := s.register(t, mine, "client-a", "random-a")
	foreign := s.register(t, other, "client-b", "random-b")

	assert.Equal(t, []string{"get secrets " + r.secret.Name}, rightsIn(t, s.hub, mine.Token, registrationNamespace))
	assert.Equal(t, []string{"get secrets " + foreign.secret.Name}, rightsIn(t, s.hub, other.Token, registrationNamespace))
	assert.Empty(t, rightsIn(t, s.hub, mine.Token, r.clusterNamespace()))

	secrets := s.hub.ClientFor(t, mine.Token).Kubernetes.CoreV1().Secrets(registrationNamespace)
	_, err := secrets.Get(t.Context(), r.secret.Name, metav1.GetOptions{})
	require.NoError(t, err)
	_, err = secrets.Get(t.Context(), foreign.secret.Name, metav1.GetOptions{})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	requireMayNot(t, s.hub, mine.Token,
		right{"list", "secrets", registrationNamespace, ""},
		right{"watch", "secrets", registrationNamespace, r.secret.Name},
		right{"delete", "secrets", registrationNamespace, r.secret.Name},
		right{"patch", "secrets", registrationNamespace, r.secret.Name},
	)
}

func TestASecondRegistrationMakesTheFirstWorthless(t *testing.T) {
	s := newStage(t)
	values := s.token(t, "tok")
	first := s.register(t, values, "twice", "random-1")
	requireMay(t, s.hub, first.bearer(), right{"list", "bundledeployments.fleet.cattle.io", first.clusterNamespace(), ""})

	second := s.register(t, values, "twice", "random-2")

	assert.Equal(t, first.request.Status.ClusterName, second.request.Status.ClusterName)
	assert.Equal(t, first.clusterNamespace(), second.clusterNamespace())
	s.requireRegistrationGone(t, first)
	requireUnauthorized(t, s.hub, first.bearer())
	requireMay(t, s.hub, second.bearer(), right{"list", "bundledeployments.fleet.cattle.io", second.clusterNamespace(), ""})
	assert.Equal(t, []string{"get secrets " + second.secret.Name}, rightsIn(t, s.hub, values.Token, registrationNamespace))
}

func TestACredentialSecretIsTakenFromTheHubAfterFortyMinutes(t *testing.T) {
	s := newStage(t)
	r := s.register(t, s.token(t, "tok"), "forty", "random")
	s.Stop(t)
	secrets := s.hub.Kubernetes.CoreV1().Secrets(registrationNamespace)

	young := s.hub.Hub(t, ahead(39*time.Minute))
	s.awaitBundleKnown(t) // and so whatever the hub had to do at its start
	requireThere(t, secrets.Get, r.secret.Name)
	young.Stop(t)

	s.hub.Hub(t, ahead(41*time.Minute))
	requireGone(t, secrets.Get, "Secret", r.secret.Name)
	requireMay(t, s.hub, r.bearer(), right{"list", "bundledeployments.fleet.cattle.io", r.clusterNamespace(), ""})
	requireThere(t, s.hub.Fleet.ClusterRegistrations(s.namespace).Get, r.request.Name)
}

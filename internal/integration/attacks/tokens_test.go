package attacks

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/registration"
)

const password = "hunter2"

// The thief of a shared token registers a cluster with the label that a Bundle selects, to read the Secret in the Bundle.
func TestLabelsOfAStolenToken(t *testing.T) {
	sample.Long(t)
	s := testenv.NewStage(t)
	for name, label := range map[string]string{"app": "env", "public": "zone"} {
		testenv.Create(t, s.Hub.Fleet.Bundles(s.Namespace).Create, &fleet.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: fleet.BundleSpec{
				Resources: []fleet.BundleResource{{Name: "secret.yaml", Content: "apiVersion: v1\nkind: Secret\nmetadata: {name: " + name + "}\nstringData: {password: " + password + label + "}\n"}},
				Targets:   []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{label: "a"}}}},
			},
		})
	}
	labels := map[string]string{"env": "a", "zone": "a"}
	s.Token(t, "open")
	configured := func(agentLabels, limited string) {
		settings := s.Hub.Reachable()
		settings["registration"] = map[string]any{"agentLabels": agentLabels}
		s.Hub.Configure(t, settings)
		s.Hub.WaitCondition(t, testenv.KindToken, s.Namespace, "open", fleet.ConditionLabelsLimited, limited)
	}

	for _, row := range []struct {
		name, agentLabels string
		allowed           *[]string
		own               map[string]string
		limited           string // condition LabelsLimited of the token
		obtains           []string
		dropped           string
	}{
		{"an open token of a hub that accepts labels", "Accept", nil, nil, "False AgentLabelsAccepted", []string{"app", "public"}, ""},
		{"a token that allows one key", "Accept", &[]string{"zone"}, nil, "absent", []string{"public"}, "allows them: env"},
		{"a token that allows no key", "Accept", &[]string{}, map[string]string{"zone": "a"}, "absent", []string{"public"}, "allows them: env, zone"},
		{"an open token of a hub that accepts only allowed labels", "Allowed", nil, map[string]string{"zone": "a"}, "absent", []string{"public"}, "allows them: env, zone"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.agentLabels == "Allowed" {
				configured(row.agentLabels, "True LabelsLimited")
			} else {
				configured(row.agentLabels, "False AgentLabelsAccepted")
			}
			token := "thief-" + registration.KeyHash(row.name)
			values := s.Hub.Token(t, s.Namespace, token, fleet.ClusterRegistrationTokenSpec{AllowedLabelKeys: row.allowed, Labels: row.own})
			request := s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: token, ClientRandom: token + s.Namespace, ClusterLabels: labels})
			granted, secret := s.Hub.Granted(t, values, request)
			thief := testenv.Registered{Values: values, Request: granted, Secret: secret}

			message := testenv.Condition(granted.Status.Conditions, fleet.ConditionGranted)
			assert.Contains(t, message, row.dropped)
			assert.Equal(t, row.dropped == "", message == "True Granted: ", message)
			assert.Regexp(t, "^"+row.limited, testenv.Condition(s.ReadyToken(t, token).Status.Conditions, fleet.ConditionLabelsLimited))

			client, obtained := s.Hub.ClientFor(t, thief.Bearer()), []string{}
			testenv.Eventually(t, func() (bool, string) {
				deployments, err := client.Fleet.BundleDeployments(thief.ClusterNamespace()).List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return false, err.Error()
				}
				obtained = obtained[:0]
				for _, d := range deployments.Items {
					c, err := client.Fleet.Contents().Get(t.Context(), d.Labels[fleet.ContentNameLabel], metav1.GetOptions{})
					if err != nil {
						return false, err.Error()
					}
					resources, err := content.Decode(c)
					require.NoError(t, err)
					require.Contains(t, resources[0].Content, password)
					obtained = append(obtained, d.Name)
				}
				return len(obtained) >= len(row.obtains), "waiting for the Bundles of the Cluster"
			})
			assert.ElementsMatch(t, row.obtains, obtained)
		})
	}
}

// A thief requests another credential, with the credential of an agent or with an import token, and without the annotation of agents that
// renew: the new credential would be valid years longer than the stolen one.
func TestShortCredential(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Hub.Token(t, s.Namespace, "own", fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"renewing"}})
	renewing := with("own", "renewing", "r"+s.Namespace)
	renewing.Annotations = map[string]string{registration.RenewalAnnotation: "true"}
	granted, secret := s.Hub.Granted(t, values, sends(t, s, values, renewing))
	v := &victim{Registered: testenv.Registered{Values: values, Request: granted, Secret: secret}, stage: s}
	beat(t, s, v, fleet.AgentStatus{Registration: granted.Name})

	made := sends(t, s, values, with("own", "renewing", "thief"+s.Namespace))
	refused(t, s, made, fleet.ReasonLongLivedRefused)
	provePossession(t, s, v, "request-long")
	next := with("own", "renewing", "next"+s.Namespace)
	next.Name = "request-long"
	refused(t, s, sends(t, s, values, next), fleet.ReasonLongLivedRefused)
	beat(t, s, v, fleet.AgentStatus{}) // a heartbeat does not change that the agent renews
	refused(t, s, sends(t, s, values, with("own", "renewing", "again"+s.Namespace)), fleet.ReasonLongLivedRefused)

	// An agent that never renewed registers again as before. So does the other agent, if its token allows long-lived credentials.
	unchanged := s.Token(t, "shared")
	first := newVictim(t, s, unchanged, "unchanged")
	only := s.Hub.Token(t, s.Namespace, "only", fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"unchanged"}})
	again, _ := s.Hub.Granted(t, only, sends(t, s, only, with("only", "unchanged", "again"+s.Namespace)))
	assert.Equal(t, first.cluster(), again.Status.ClusterName)
	allowed := s.Hub.Token(t, s.Namespace, "allowed", fleet.ClusterRegistrationTokenSpec{
		ClientIDs: []string{"renewing"}, LongLivedCredentials: fleet.LongLivedAllow,
	})
	long, _ := s.Hub.Granted(t, allowed, sends(t, s, allowed, with("allowed", "renewing", "allowed"+s.Namespace)))
	assert.Equal(t, granted.Status.ClusterName, long.Status.ClusterName)

	// With a token that refuses them, no agent gets a long-lived credential.
	short := s.Hub.Token(t, s.Namespace, "short", fleet.ClusterRegistrationTokenSpec{LongLivedCredentials: fleet.LongLivedRefuse})
	refused(t, s, sends(t, s, short, with("short", "new", "s"+s.Namespace)), fleet.ReasonLongLivedRefused)
}

// The thief of a token requests very many clusters. The number of objects that the hub creates and keeps is limited, the hub reports it to
// the owner of the token, and it grants requests with other tokens.
func TestVeryManyRequestsOfAStolenToken(t *testing.T) {
	sample.Long(t)
	hub := testenv.SharedCluster(t, "hub")
	const limit, many = 4, 60
	settings := hub.Reachable()
	settings["registration"] = map[string]any{"limits": map[string]any{"unconnectedPerToken": limit, "waitingPerToken": limit}}
	hub.Configure(t, settings)
	s := &testenv.Stage{Running: hub.Hub(t), Hub: hub, Member: hub, Namespace: hub.Namespace(t)}
	stolen, other := s.Token(t, "stolen"), s.Token(t, "other")
	for n := range many {
		sends(t, s, stolen, with("stolen", fmt.Sprint("many-", n), fmt.Sprint(n, s.Namespace)))
	}

	var granted []*fleet.ClusterRegistration
	testenv.Eventually(t, func() (bool, string) {
		all := testenv.List(t, hub.Fleet.ClusterRegistrations(s.Namespace).List, metav1.ListOptions{})
		answers := map[string]int{}
		granted = nil
		for i, r := range all.Items {
			answer, _, _ := strings.Cut(testenv.Condition(r.Status.Conditions, fleet.ConditionGranted), ":")
			if answers[answer]++; r.Status.Granted {
				granted = append(granted, &all.Items[i])
			}
		}
		return answers["True Granted"] > 0 && answers["Unknown TooManyUnconnected"] > 0 && answers["False TooManyWaiting"] > 0 &&
			answers["True Granted"]+answers["Unknown TooManyUnconnected"]+answers["False TooManyWaiting"] == many, fmt.Sprint(answers)
	})
	clusters := testenv.List(t, hub.Fleet.Clusters(s.Namespace).List, metav1.ListOptions{})
	assert.LessOrEqual(t, len(clusters.Items), limit)
	assert.LessOrEqual(t, len(granted), limit)

	hub.WaitCondition(t, testenv.KindToken, s.Namespace, "stolen", fleet.ConditionWithinLimits, "False LimitReached")
	warned(t, s, "stolen", fleet.ReasonLimitReached)
	v := newVictim(t, s, other, "victim")
	assert.Equal(t, "absent", testenv.Condition(s.ReadyToken(t, "other").Status.Conditions, fleet.ConditionWithinLimits))

	// When the first clusters have connected, the hub grants more requests.
	for _, r := range granted {
		secret := testenv.EventuallyThere(t, hub.Kubernetes.CoreV1().Secrets(testenv.RegistrationNamespace).Get,
			registration.AnswerSecretName(r.Spec.ClientID, r.Spec.ClientRandom))
		s.RequireHeartbeat(t, testenv.Registered{Values: stolen, Request: r, Secret: secret}, time.Now())
	}
	testenv.Eventually(t, func() (bool, string) {
		now := testenv.List(t, hub.Fleet.Clusters(s.Namespace).List, metav1.ListOptions{})
		return len(now.Items) > len(clusters.Items)+1, "waiting for the next Clusters"
	})
	v.undisturbed(t)
}

// The thief of a token sends requests that name another token, for a Cluster that another controller manages, so that the hub decides
// none of them. They do not count against the limit of the token that they name.
func TestRequestsThatNameTheTokenOfOthers(t *testing.T) {
	s := testenv.NewStage(t, testenv.Ahead(11*time.Second)) // the hub reports the wait of a request that is ten seconds old
	s.Hub.NeedsMutatingPolicies(t)                          // other API servers refuse the requests
	const limit = 3
	settings := s.Hub.Reachable()
	settings["registration"] = map[string]any{"limits": map[string]any{"unconnectedPerToken": limit}}
	s.Hub.Configure(t, settings)
	stolen, other := s.Token(t, "stolen"), s.Token(t, "other")
	testenv.Create(t, s.Hub.Fleet.Clusters(s.Namespace).Create, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "elsewhere", Labels: map[string]string{fleet.ClusterManagementLabel: "true"}},
		Spec:       fleet.ClusterSpec{ClientID: "elsewhere"},
	})
	var requests []*fleet.ClusterRegistration
	for n := range limit {
		requests = append(requests, sends(t, s, stolen, with("other", "elsewhere", fmt.Sprint(n, s.Namespace))))
	}
	for _, request := range requests {
		s.Hub.WaitCondition(t, testenv.KindRequest, s.Namespace, request.Name, fleet.ConditionGranted, "Unknown ManagedElsewhere:")
	}

	v := newVictim(t, s, other, "victim")
	assert.Equal(t, "absent", testenv.Condition(s.ReadyToken(t, "other").Status.Conditions, fleet.ConditionWithinLimits))
	v.undisturbed(t)
}

// The holder of a token for one Cluster gets any number of grants for it, as long as no agent uses one: the oldest are deleted.
func TestVeryManyGrantsOfOneIdentity(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	own := s.Hub.Token(t, s.Namespace, "own", fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"one"}})
	var last *fleet.ClusterRegistration
	for n := range registration.MostUnused + 5 {
		request := with("own", "one", fmt.Sprint(n, s.Namespace))
		request.Annotations = map[string]string{registration.RenewalAnnotation: "true"}
		last, _ = s.Hub.Granted(t, own, sends(t, s, own, request))
	}
	testenv.Eventually(t, func() (bool, string) {
		all := testenv.List(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).List, metav1.ListOptions{})
		return len(all.Items) <= registration.MostUnused+1, fmt.Sprint(len(all.Items), " requests")
	})
	testenv.RequireThere(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, last.Name)
}

// A user who may create Clusters gives many of them one clientID. The answers to requests for that clientID stay small.
func TestVeryManyClustersOfOneIdentity(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Token(t, "shared")
	for n := range 50 {
		s.CreateCluster(t, &fleet.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%02d", strings.Repeat("x", 40), n)}, Spec: fleet.ClusterSpec{ClientID: "same"},
		})
	}
	request := s.Hub.RenewingRequest(t, values, fleet.ClusterRegistrationSpec{ClientID: "same", ClientRandom: "same" + s.Namespace})
	refused(t, s, request, fleet.ReasonClientIDAmbiguous)
	name := registration.AnswerSecretName(request.Spec.ClientID, request.Spec.ClientRandom)
	testenv.Eventually(t, func() (bool, string) {
		answer, err := s.Hub.Kubernetes.CoreV1().Secrets(values.SystemRegistrationNamespace).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && len(answer.Data[registration.RefusalMessage]) < 1000, "the answer is large, or there is none"
	})
}

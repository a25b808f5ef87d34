package clusterimport

import (
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/standing"
	"github.com/muster-fleet/muster/pkg/registration"
)

func silent(c *fleet.Cluster) *fleet.Cluster {
	c.Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionConnected, Status: corev1.ConditionFalse}}
	return c
}

func TestWhatARegistrationIsMadeFor(t *testing.T) {
	heard := metav1.NewTime(time.Unix(1000, 0))
	revoked := standing.Standing{Revoked: &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{UID: "r1"}}}
	granted := standing.Standing{Granted: true}
	for _, row := range []struct {
		name     string
		change   func(*fleet.Cluster)
		standing standing.Standing
		want     string
	}{
		{name: "a first import", change: func(c *fleet.Cluster) { c.Status.Import = nil }, want: "uid"},
		{name: "an agent that works", standing: granted, want: "uid"},
		{name: "a void credential", standing: revoked, want: "uid/r1"},
		{
			name: "one that is over", standing: granted, want: "uid/r1",
			change: func(c *fleet.Cluster) { c.Status.Import.RegistrationOf = "uid/r1" },
		},
		{
			name: "another one", standing: revoked, want: "uid/r1",
			change: func(c *fleet.Cluster) { c.Status.Import.RegistrationOf = "uid/r0" },
		},
		{
			name: "what is remembered of an earlier Cluster", standing: granted, want: "uid",
			change: func(c *fleet.Cluster) { c.Status.Import.RegistrationOf = "earlier/r1" },
		},
		{name: "no request, and the agent is heard of", want: "uid"},
		{name: "no request, and the agent is silent", change: func(c *fleet.Cluster) { silent(c) }, want: "uid/lost-1000"},
		{name: "an agent that is silent and may come back", standing: granted, change: func(c *fleet.Cluster) { silent(c) }, want: "uid"},
		{
			name: "an agent that was never there", want: "uid",
			change: func(c *fleet.Cluster) { silent(c).Status.Agent.LastSeen = metav1.Time{} },
		},
		{name: "a credential that has ended while the agent was away", standing: granted, change: func(c *fleet.Cluster) {
			silent(c).Status.Agent.CredentialExpires = &metav1.Time{Time: heard.Add(58 * time.Minute)}
		}, want: "uid/expired-4480"},
		{name: "one that has ended a moment ago", standing: granted, change: func(c *fleet.Cluster) {
			silent(c).Status.Agent.CredentialExpires = &metav1.Time{Time: heard.Add(59*time.Minute + time.Second)}
		}, want: "uid"},
		{name: "one that was to end, and the agent is heard of", standing: granted, change: func(c *fleet.Cluster) {
			c.Status.Agent.CredentialExpires = &metav1.Time{Time: heard.Time}
		}, want: "uid"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := installed()
			c.Status.Agent.LastSeen = heard
			if row.change != nil {
				row.change(c)
			}
			assert.Equal(t, row.want, registrationFor(c, row.standing, heard.Add(time.Hour)))
		})
	}
}

// keyed is a Cluster whose agent was told of a registration.
func keyed(key, of string) *fleet.Cluster {
	c := installed()
	c.Status.APIServerURL, c.Status.APIServerCAHash = "https://hub", registration.CAHash([]byte("ca"))
	c.Status.Import.Registration, c.Status.Import.RegistrationOf = key, of
	return c
}

func TestRegistrationKeyChangesWithWhatMakesTheOldOneUseless(t *testing.T) {
	key := registrationKey(installed(), "uid")
	assert.Regexp(t, `^[0-9a-f]{12}/0$`, key)
	assert.Equal(t, key, registrationKey(keyed(key, "uid"), "uid"))

	asked := keyed(key, "uid")
	asked.Spec.RedeployAgentGeneration = -1
	keys := map[string]bool{key: true}
	for _, other := range []string{
		registrationKey(asked, "uid"), registrationKey(keyed(key, "uid"), "other"),
		registrationKey(keyed(key, "uid"), "uid/r1"), registrationKey(keyed(key, "uid"), "uid/r2"),
	} {
		assert.False(t, keys[other], other)
		keys[other] = true
	}
	assert.Contains(t, registrationKey(asked, "uid"), "/-1")
}

func TestAnotherWayToTheHubIsNoOtherRegistrationForAnAgentOfThisRelease(t *testing.T) {
	moved := delivery{apiServerURL: "https://moved", apiServerCA: []byte("ca")}
	same := delivery{apiServerURL: "https://hub", apiServerCA: []byte("ca")}
	for _, row := range []struct {
		name  string
		agent fleet.AgentStatus
		told  delivery
		same  bool
	}{
		{"one that says how it was started", fleet.AgentStatus{LastSeen: metav1.Now(), Generation: "x/0"}, moved, true},
		{"one that has its Bundle", fleet.AgentStatus{LastSeen: metav1.Now(), Generation: "managed/0"}, moved, true},
		{"one that the chart installed, with no generation", fleet.AgentStatus{LastSeen: metav1.Now(), Version: "v1"}, moved, true},
		{"one that was not heard of", fleet.AgentStatus{}, moved, true},
		{"one of another release", fleet.AgentStatus{LastSeen: metav1.Now()}, moved, false},
		{"one of another release at the same way", fleet.AgentStatus{LastSeen: metav1.Now()}, same, true},
	} {
		c := keyed("k/0", "uid")
		c.Status.Agent = row.agent
		assert.Equal(t, row.same, atAnotherWay(c, "uid", row.told) == "uid", row.name)
	}
}

func TestAgentOfAnotherReleaseIsSentToEachNewWayOnce(t *testing.T) {
	c := keyed("k/0", "uid")
	c.Status.Agent = fleet.AgentStatus{LastSeen: metav1.Now()}
	first := atAnotherWay(c, "uid", delivery{apiServerURL: "https://moved"})
	c.Status.APIServerURL, c.Status.APIServerCAHash, c.Status.Import.RegistrationOf = "https://moved", registration.CAHash(nil), first
	granted := standing.Standing{Granted: true}
	assert.Equal(t, first, atAnotherWay(c, registrationFor(c, granted, time.Unix(0, 0)), delivery{apiServerURL: "https://moved"}))
	assert.NotEqual(t, first, atAnotherWay(c, registrationFor(c, granted, time.Unix(0, 0)), delivery{apiServerURL: "https://again"}))
	assert.False(t, void(c.Status.Import, registrationFor(c, granted, time.Unix(0, 0))), "which is no reason for another import")
}

// The version before this one had URL and CA in the key, and did not note what it was for.
func TestAKeyOfTheVersionBeforeIsKept(t *testing.T) {
	c := keyed("", "")
	old := digest(c.UID, c.Status.APIServerURL, c.Status.APIServerCAHash)
	c.Status.Import.Registration = old + "/0"
	assert.Equal(t, old+"/0", registrationKey(c, "uid"))
	assert.NotContains(t, registrationKey(c, "uid/r1"), old, "unless there is a cause")

	again := c.DeepCopy()
	again.Spec.RedeployAgentGeneration = 1
	assert.NotContains(t, registrationKey(again, "uid"), old)

	restored := c.DeepCopy()
	restored.UID = "another"
	assert.NotContains(t, registrationKey(restored, "another"), old, "a status that was restored into another Cluster")
}

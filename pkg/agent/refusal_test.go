package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/pkg/registration"
)

func TestARefusedCredentialWithoutBootstrapSecretIsToldOnceKeptAndTriedAgain(t *testing.T) {
	f := newFixture(t)
	_, err := f.core.AppsV1().Deployments(agentNamespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: registration.AgentName, UID: "the-deployment"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.hub.refused[oldToken] = true
	f.has(f.stored())
	before := f.storedNow()
	f.starts()
	f.says("Failed to register agent: the hub rejects the stored credential")
	f.says("put its values into Secret cattle-fleet-system/fleet-agent-bootstrap")
	f.eventually(func() bool { return f.hub.count("bundledeployments") > 5*certainly }, "many tries")
	assert.Equal(t, before, f.storedNow())
	events := f.events("CredentialRefused")
	require.Len(t, events, 1)
	assert.EqualValues(t, 1, events[0].Count)
	assert.Equal(t, corev1.EventTypeWarning, events[0].Type)
	assert.Equal(t, corev1.ObjectReference{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: agentNamespace, Name: "fleet-agent", UID: "the-deployment",
	}, events[0].InvolvedObject)
	assert.Contains(t, events[0].Message, "create a ClusterRegistrationToken on the hub")
	told := 0
	for _, entry := range f.log.AllEntries() {
		if entry.Level.String() == "error" {
			told++
		}
	}
	assert.Equal(t, 1, told, "errors in the log")
	assert.Zero(t, f.hub.count("PATCH"), "nothing works without an identity")

	f.hub.set(func() { f.hub.refused[oldToken] = false })
	f.settles(oldToken)
	f.eventually(func() bool { return len(f.events("CredentialAccepted")) == 1 }, "the good news")
}

func TestEachRefusalIsOneEventThatCounts(t *testing.T) {
	f := newFixture(t)
	f.config.CheckinInterval = 2 * time.Millisecond
	f.has(f.stored())
	f.starts()
	f.settles(oldToken)
	for range 2 {
		refusals := f.counted("CredentialRefused")
		f.hub.set(func() { f.hub.refused[oldToken] = true })
		f.eventually(func() bool { return f.counted("CredentialRefused") == refusals+1 }, "told")
		f.hub.set(func() { f.hub.refused[oldToken] = false })
		f.eventually(func() bool { return f.counted("CredentialAccepted") == refusals+1 }, "good news")
	}
	assert.Len(t, f.events("CredentialRefused"), 1)
}

func (f *fixture) counted(reason string) int32 {
	f.Helper()
	if events := f.events(reason); len(events) > 0 {
		return events[0].Count
	}
	return 0
}

func TestARefusedAgentRegistersWhenABootstrapSecretComes(t *testing.T) {
	f := newFixture(t)
	f.config.Timing.RetryFirst, f.config.Timing.RetryMax = time.Hour, time.Hour
	f.hub.refused[oldToken] = true
	f.has(f.stored())
	f.starts()
	f.says("Failed to register agent: the hub rejects the stored credential")
	f.has(f.bootstrap())
	f.settles(newToken)
	f.eventually(func() bool { return len(f.events("CredentialAccepted")) == 1 }, "the good news")
}

func TestAnEventThatCannotBeWrittenStopsNothing(t *testing.T) {
	f := newFixture(t)
	f.core.PrependReactor("*", "events", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("events"), "", assert.AnError)
	})
	f.hub.refused[oldToken] = true
	f.has(f.stored())
	f.starts()
	f.says("Cannot write the event CredentialRefused")
	f.hub.set(func() { f.hub.refused[oldToken] = false })
	f.settles(oldToken)
}

package agent

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/registration"
)

const notGranted = "the hub did not grant ClusterRegistration fleet-default/request-"

// ignored is an agent whose request nobody answers for now.
func ignored(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.config.Timing.Registration = 20 * time.Millisecond
	f.hub.grantAt = 1 << 30
	f.has(f.bootstrap())
	return f
}

// answered has the hub answer the last request, and no other one.
func (f *fixture) answered() {
	f.hub.set(func() {
		f.hub.grantAt = 0
		f.hub.created = f.hub.created[len(f.hub.created)-1:]
	})
	f.settles(newToken)
}

func TestARequestThatWaitsForLongIsSentAgainAndNoOther(t *testing.T) {
	f := ignored(t)
	f.starts()
	f.eventually(func() bool { return f.said(notGranted) > 3 }, "it is told now and then")
	require.Len(t, f.hub.registrations(), 1)
	name := f.hub.registrations()[0].Name
	f.hub.set(func() { f.hub.created = nil })
	f.eventually(func() bool { return len(f.hub.registrations()) > 0 }, "somebody deleted it")
	told := f.said(notGranted)
	f.eventually(func() bool { return f.said(notGranted) > told+3 }, "still")
	require.Len(t, f.hub.registrations(), 1)
	assert.Equal(t, name, f.hub.registrations()[0].Name)
	f.answered()
}

func TestARequestThatMayHaveBeenAnsweredInVainIsGivenUp(t *testing.T) {
	t.Run("from before a restart", func(t *testing.T) {
		f := ignored(t)
		f.config.Timing.Registration = patience
		f.runsUntil(func() bool { return len(f.hub.registrations()) == 1 })
		f.config.Timing.Registration = 20 * time.Millisecond
		f.starts()
		f.eventually(func() bool { return f.said(notGranted) > 3 }, "given up, and waited for")
		assert.Len(t, f.hub.registrations(), 2, "the second one was looked after all the time")
		f.answered()
	})
	t.Run("after an outage", func(t *testing.T) {
		f := ignored(t)
		f.config.Timing.Unseen = time.Nanosecond // there is one after each look
		f.starts()
		f.eventually(func() bool { return len(f.hub.registrations()) > 2 }, "another request")
		f.answered()
	})
	t.Run("by a credential that did not work", func(t *testing.T) {
		f := ignored(t)
		f.config.Timing.RightsLag = time.Millisecond
		f.hub.fault = func(r *http.Request) (int, string) {
			if strings.HasSuffix(r.URL.Path, "bundledeployments") {
				return 403, status403
			}
			return 0, ""
		}
		f.hub.grantAt = 0
		f.starts()
		f.says("the credential from the hub for cluster fleet-default/one does not work")
		f.hub.set(func() { f.hub.grantAt = 1 << 30 })
		f.eventually(func() bool { return len(f.hub.registrations()) > 1 }, "another request")
		f.hub.set(func() { f.hub.fault = nil })
		f.answered()
	})
}

func TestARequestThatSaysOfTheClusterWhatIsNotTrueAnyMoreIsGivenUp(t *testing.T) {
	f := ignored(t)
	f.starts()
	f.says(notGranted)
	_, err := f.core.CoreV1().ConfigMaps(agentNamespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: registration.AgentConfigMap},
		Data:       map[string]string{registration.ConfigKey: `{"labels":{"a":"b"}}`},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.eventually(func() bool { return len(f.hub.registrations()) == 2 }, "another request")
	assert.Equal(t, "b", f.hub.registrations()[1].Spec.ClusterLabels["a"])
	f.answered()
}

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
	f.life.config.Timing.Registration = 20 * time.Millisecond
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
		f.life.config.Timing.Registration = patience
		runUntil(t, f.life, func() bool { return len(f.hub.registrations()) == 1 })
		f.life.config.Timing.Registration = 20 * time.Millisecond
		f.starts()
		f.eventually(func() bool { return f.said(notGranted) > 3 }, "given up, and waited for")
		assert.Len(t, f.hub.registrations(), 2, "the second one was looked after all the time")
		f.answered()
	})
	t.Run("after an outage", func(t *testing.T) {
		f := ignored(t)
		f.life.config.Timing.Unseen = time.Nanosecond // there is one after each look
		f.starts()
		f.eventually(func() bool { return len(f.hub.registrations()) > 2 }, "another request")
		f.answered()
	})
	t.Run("by a credential that did not work", func(t *testing.T) {
		f := ignored(t)
		f.life.config.Timing.RightsLag = time.Millisecond
		f.hub.fault = func(r *http.Request) (int, string) {
			if strings.HasSuffix(r.URL.Path, "bundledeployments") {
				return 403, status403
			}
			return 0, ""
		}
		f.hub.grantAt = 0
		f.starts()
		f.says("the credential the hub gave for cluster fleet-default/one does not work")
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

func TestWhatIsMissedOfAnAnswer(t *testing.T) {
	w := &waiting{}
	assert.False(t, w.missedNothing("request-1"), "it may be from before")
	w.hears(noon, time.Minute)
	assert.False(t, w.missedNothing("request-1"))
	w.begins("request-1", noon)
	for n := range 5 {
		w.hears(noon.Add(time.Duration(n)*time.Minute), time.Minute)
	}
	assert.True(t, w.missedNothing("request-1"))
	assert.False(t, w.missedNothing("request-2"))
	w.hears(noon.Add(6*time.Minute), time.Minute)
	w.hears(noon.Add(6*time.Minute), time.Minute)
	assert.False(t, w.missedNothing("request-1"), "what was missed stays missed")
	assert.Less(t, DefaultTiming().Unseen+DefaultTiming().PollLate*12/10, 40*time.Minute, "the hub keeps what it grants that long")
	assert.Less(t, DefaultTiming().RefusedMax*12/10, DefaultTiming().Unseen, "who is refused looks often enough")
}

func TestTheLongerAnAnswerTakesTheLessOftenItIsLookedFor(t *testing.T) {
	l := testLife(t)
	timing := DefaultTiming()
	l.config.Timing = &timing
	now := l.config.Clock.Now()
	l.waiting.begins("request-1", now)
	looks := (&attempt{life: l, pending: pending{name: "request-1"}}).looks()
	count := 0
	for end := now.Add(time.Hour); now.Before(end); count++ {
		pause := looks.next(now)
		assert.LessOrEqual(t, pause, timing.PollLate*12/10)
		now = now.Add(pause)
	}
	assert.Greater(t, count, 5*60/3, "in the first minutes it may come at any moment")
	assert.Less(t, count, 5*60/2+20+60*60/25)
	again := (&attempt{life: l, pending: pending{name: "request-1"}}).looks()
	assert.GreaterOrEqual(t, again.next(now), timing.PollMax, "sent again, it is late as before")
	other := (&attempt{life: l, pending: pending{name: "request-2"}}).looks()
	assert.Less(t, other.next(l.config.Clock.Now()), time.Second)
}

package agent

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/withkinds"
	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/registration"
)

var testClock = clock.RealClock{}

// world is one agent on a real member, with a hub on another real API server, a proxy before each, and namespaces of
// their own.
type world struct {
	*testing.T
	hub         *realHub
	hubFront    *front
	memberFront *front
	member      kubernetes.Interface
	config      Config
	log         *logtest.Hook
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, withkinds.Shared(t))
}

// newWorldWith is newWorld with another control plane of the hub.
func newWorldWith(t *testing.T, hub *controlplane.ControlPlane) *world {
	t.Helper()
	plane := controlplane.Shared(t, "member")
	member, err := kubernetes.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	w := &world{T: t, hub: newRealHub(t, hub), member: member, memberFront: newMemberFront(t, plane)}
	w.hubFront = newHubFront(t, w.hub.plane)
	namespace, err := member.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "agent-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	log, hook := agenttest.Log(t)
	w.log = hook
	timing := agenttest.Quick()
	timing.RightsLag = time.Minute
	w.config = Config{
		Member: &rest.Config{Host: w.memberFront.server.URL, QPS: -1}, Namespace: namespace.Name,
		CheckinInterval: 50 * time.Millisecond, Log: log, Timing: timing,
	}
	return w
}

// bootstraps puts the bootstrap Secret onto the member, or replaces it; edits are pairs of key and value.
func (w *world) bootstraps(token string, edits ...string) {
	w.Helper()
	secret := agenttest.BootstrapSecret(w.hubFront.server.URL, agenttest.PEM(w.hubFront.server), append([]string{
		registration.BootstrapToken, w.hub.issue(w.Context(), w.hub.workspace, token), registration.BootstrapTokenName, token,
		registration.BootstrapClusterNamespace, w.hub.workspace, registration.BootstrapSystemRegistrationNamespace, w.hub.system,
	}, edits...)...)
	secret.ObjectMeta = metav1.ObjectMeta{Namespace: w.config.Namespace, Name: secret.Name}
	secrets := w.member.CoreV1().Secrets(w.config.Namespace)
	_, err := secrets.Create(w.Context(), secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = secrets.Update(w.Context(), secret, metav1.UpdateOptions{})
	}
	require.NoError(w, err)
}

// hasToken makes the registration token and the bootstrap Secret for it.
func (w *world) hasToken(name string, edits ...string) {
	w.Helper()
	w.hub.token(name)
	w.bootstraps(name, edits...)
}

// starts runs the agent; the result stops it and waits for its end.
func (w *world) starts() (stop func()) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	return w.startsWith(ctx, cancel)
}

func (w *world) startsWith(ctx context.Context, cancel func()) (stop func()) {
	w.Helper()
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, w.config) }()
	stopped := false
	stop = func() {
		if cancel(); !stopped {
			stopped = true
			assert.NoError(w, <-ended)
		}
	}
	w.Cleanup(stop)
	return stop
}

func (w *world) secret(name string) *corev1.Secret {
	w.Helper()
	secret, err := w.member.CoreV1().Secrets(w.config.Namespace).Get(context.Background(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(w, err)
	return secret
}

func (w *world) eventually(condition func() bool, what string) {
	w.Helper()
	require.Eventually(w, condition, patience, 10*time.Millisecond, what)
}

func (w *world) says(text string) {
	w.Helper()
	w.eventually(func() bool { return w.said(text) > 0 }, "log line with: "+text)
}

func (w *world) said(text string) int { return count(w.log, text) }

// settles waits for the end of a registration and returns what is stored: the credential works, a heartbeat came after
// this was called, and nothing else is left on the member.
func (w *world) settles() *credential.Stored {
	w.Helper()
	return w.settlesAfter(testClock.Now())
}

// settlesAfter is settles with a heartbeat that came after start.
func (w *world) settlesAfter(start time.Time) *credential.Stored {
	w.Helper()
	start = start.Truncate(time.Second) // the precision of lastSeen
	w.eventually(func() bool {
		seen, from := w.hub.lastSeen()
		return from == w.config.Namespace && !seen.Before(start) && w.secret(registration.CredentialSecret) != nil &&
			w.secret(registration.BootstrapSecret) == nil && w.secret(registration.PendingSecret) == nil
	}, "settled")
	s, err := credential.Parse(w.secret(registration.CredentialSecret))
	require.NoError(w, err)
	return s
}

func TestRunRegisters(t *testing.T) {
	w := newWorld(t)
	w.hub.grants()
	w.hasToken("token")
	w.starts()
	s := w.settles()
	assert.Equal(t, w.hub.cluster, s.Namespace)
	assert.Equal(t, w.hub.workspace, s.ClusterNamespace)
	assert.Equal(t, clusterName, s.ClusterName)

	requests := w.hub.requests(t.Context())
	require.Len(t, requests, 1)
	kubeSystem, err := w.member.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, string(kubeSystem.UID), requests[0].Spec.ClientID)
	assert.True(t, strings.HasPrefix(requests[0].Name, "request-"))
}

func TestRunAfterARestart(t *testing.T) {
	w := newWorld(t)
	w.hub.grants()
	w.hasToken("token")
	stop := w.starts()
	first := w.settles()
	stop()
	version := w.secret(registration.CredentialSecret).ResourceVersion
	w.starts()
	second := w.settles()
	assert.Equal(t, first, second)
	assert.Equal(t, version, w.secret(registration.CredentialSecret).ResourceVersion)
	assert.Len(t, w.hub.requests(t.Context()), 1)
}

// The agent is stopped at its n-th write, for all n: before the write is carried out, or after it and before the agent gets the
// response. Started again, it must register as if nothing had happened.
func TestRunSurvivesAStopAtAnyWrite(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for n := 1; ; n++ {
			died := false
			name := fmt.Sprintf("write %d, carried out: %v", n, lost)
			require.True(t, t.Run(name, func(t *testing.T) { died = dieAtWrite(t, n, lost) }))
			if !died {
				require.Greater(t, n, 4, "a registration has more writes than that")
				break
			}
		}
	}
}

func dieAtWrite(t *testing.T, n int, carriedOut bool) (died bool) {
	t.Helper()
	w := newWorld(t)
	w.config.CheckinInterval = time.Hour // one heartbeat per life, so that the writes can be counted
	w.hub.grants()
	w.hasToken("token")
	ctx, cancel := context.WithCancel(context.Background())
	deaths := &countdown{left: n, reached: cancel}
	if carriedOut {
		w.hubFront.set(nil, deaths.write)
		w.memberFront.set(nil, deaths.write)
	} else {
		before := func(r *http.Request) (int, string) {
			if deaths.write(r) {
				panic(http.ErrAbortHandler)
			}
			return 0, ""
		}
		w.hubFront.set(before, nil)
		w.memberFront.set(before, nil)
	}
	stop := w.startsWith(ctx, cancel)
	w.eventually(func() bool { return ctx.Err() != nil || deaths.quiet(w) }, "death or the end of the registration")
	died = ctx.Err() != nil
	stop()
	w.hubFront.set(nil, nil)
	w.memberFront.set(nil, nil)
	again := testClock.Now() // before the agent is: its only heartbeat may be faster than this test
	w.starts()
	w.settlesAfter(again)
	assert.Len(t, w.hub.requests(t.Context()), 1, "requests on the hub")
	return died
}

func TestRunWaitsForAHubOutageToEnd(t *testing.T) {
	rows := map[string]struct {
		reach  func(w *world) // the step
		during func(w *world) // what is seen of the outage
		after  func(w *world)
	}{
		"before the request": {
			reach:  func(*world) {},
			during: func(w *world) { w.starts(); w.says("Failed to register agent: cannot create clusterregistration") },
			after:  func(w *world) { w.hub.grants() },
		},
		"while waiting for the answer": {
			reach:  func(w *world) { w.starts(); w.says("Waiting for the hub to grant") },
			during: func(w *world) { w.says("<h1>502</h1>") },
			after:  func(w *world) { w.hub.grants() },
		},
		"while registered": {
			reach:  func(w *world) { w.hub.grants(); w.starts(); w.settles() },
			during: func(w *world) { w.says("Heartbeat of cluster") },
			after:  func(*world) {},
		},
	}
	hub, err := controlplane.Start(t.Context(), controlplane.Options{Name: "hub", ControllerManager: true})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, hub.Stop()) })
	require.NoError(t, withkinds.Install(t.Context(), hub))
	worlds := map[string]*world{}
	for name, row := range rows { // one outage for all of them
		worlds[name] = newWorldWith(t, hub)
		worlds[name].hasToken("token")
		row.reach(worlds[name])
	}
	require.NoError(t, hub.StopAPIServer())
	for name, row := range rows {
		row.during(worlds[name])
	}
	require.NoError(t, hub.StartAPIServer(t.Context()))
	for name, row := range rows {
		w := worlds[name]
		row.after(w)
		w.settles()
		assert.Len(t, w.hub.requests(t.Context()), 1, name)
	}
}

func TestRunReplacesARevokedCredential(t *testing.T) {
	t.Parallel() // an API server remembers for ten seconds that a token was good
	w := newWorld(t)
	w.hub.grants()
	w.hasToken("token")
	w.starts()
	before := w.settles()
	w.hub.revokeAll(before.Token)
	w.says(": the hub rejects the credential")
	w.says("Failed to register agent: the hub rejects the stored credential")
	assert.NotNil(t, w.secret(registration.CredentialSecret), "kept until there is a better one")
	w.bootstraps("token")
	after := w.settles()
	assert.NotEqual(t, before.Token, after.Token)
}

func TestRunRegistersAgainForTheHub(t *testing.T) {
	w := newWorld(t)
	w.hub.grants()
	w.hasToken("token", registration.BootstrapRegistration, "uid/1")
	w.starts()
	before := w.settles()
	assert.Equal(t, "uid/1", before.Registration)

	w.bootstraps("token", registration.BootstrapRegistration, "uid/1")
	assert.Equal(t, before, w.settles(), "the same registration is not made twice")

	w.bootstraps("token", registration.BootstrapRegistration, "uid/2")
	after := w.settles()
	assert.Equal(t, "uid/2", after.Registration)
	assert.NotEqual(t, before.Token, after.Token)
	w.eventually(func() bool { return len(w.hub.requests(context.Background())) == 1 }, "the older one is revoked")
}

func TestDeleteSecretThatHasChanged(t *testing.T) {
	w := newWorld(t)
	w.hub.token("token")
	w.bootstraps("token")
	m, err := member.New(w.config.Member, w.config.Namespace, "test", time.Minute)
	require.NoError(t, err)
	defer m.Close()
	read, err := m.Secret(t.Context(), registration.BootstrapSecret)
	require.NoError(t, err)
	w.bootstraps("token", "extra", "x")
	require.Error(t, m.DeleteSecret(t.Context(), read))
	assert.NotNil(t, w.secret(registration.BootstrapSecret))
}

func TestRunLeavesNoGoroutine(t *testing.T) {
	w := newWorld(t)
	w.hub.grants()
	w.hasToken("token")
	w.config.LeaderElection = &LeaderElection{Identity: "a"}
	stop := w.starts()
	w.settles()
	stop()
	// The proxies and the hub have all the connections now that they need.
	before := goleak.IgnoreCurrent()
	w.bootstraps("token", registration.BootstrapRegistration, "uid/2")
	stop = w.starts()
	w.settles()
	stop()
	noLeak(t, before)
}

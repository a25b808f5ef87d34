package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// replica is a hub whose work waits until the test closes filled, and then reports that its caches are filled.
type replica struct {
	health *launch.Health
	filled chan struct{}
	stop   context.CancelFunc
	ended  chan error
}

func newNamespace(t *testing.T, plane *controlplane.ControlPlane) string {
	t.Helper()
	client, err := kubernetes.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "hub-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return namespace.Name
}

func startReplica(t *testing.T, identity, namespace string, plane *controlplane.ControlPlane) *replica {
	t.Helper()
	c := config{election: leader.Config{Client: plane.RESTConfig(), Namespace: namespace, Name: registration.HubLease, Identity: identity}}
	ctx, stop := context.WithCancel(t.Context())
	r := &replica{health: launch.NewHealth(), filled: make(chan struct{}), stop: stop, ended: make(chan error, 1)}
	work := func(o hub.Options) func(context.Context) error {
		return func(ctx context.Context) error {
			o.OnElected()
			select {
			case <-r.filled:
				o.OnReady()
			case <-ctx.Done():
			}
			<-ctx.Done()
			return nil
		}
	}
	go func() {
		r.ended <- runHub(ctx, c, r.health, func(ctx context.Context, o hub.Options) error { return leader.Run(ctx, *o.Election, work(o)) })
	}()
	return r
}

func (r *replica) readyz() (int, string) {
	answer := httptest.NewRecorder()
	r.health.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz?verbose", nil))
	return answer.Code, answer.Body.String()
}

func (r *replica) becomes(t *testing.T, code int, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		gotCode, gotText := r.readyz()
		return gotCode == code && gotText == text+"\n"
	}, 2*time.Minute, 10*time.Millisecond, "%d %s", code, text)
}

func TestReadiness(t *testing.T) {
	plane := controlplane.Shared(t, "member")
	namespace := newNamespace(t, plane)

	first := startReplica(t, "first", namespace, plane)
	first.becomes(t, http.StatusServiceUnavailable, "filling the caches")
	second := startReplica(t, "second", namespace, plane)
	second.becomes(t, http.StatusOK, "standing by: another hub holds the Lease")
	close(first.filled)
	first.becomes(t, http.StatusOK, "at work")

	first.stop()
	require.NoError(t, <-first.ended)
	second.becomes(t, http.StatusServiceUnavailable, "filling the caches")
	close(second.filled)
	second.becomes(t, http.StatusOK, "at work")
	second.stop()
	require.NoError(t, <-second.ended)
}

func TestReadinessWithoutTheLease(t *testing.T) {
	plane := controlplane.Shared(t, "member")
	r := startReplica(t, "lost", "no-such-namespace", plane)
	r.becomes(t, http.StatusServiceUnavailable, "asking for the Lease")
	r.stop()
	require.NoError(t, <-r.ended)
	code, _ := r.readyz()
	require.Equal(t, http.StatusServiceUnavailable, code)
}

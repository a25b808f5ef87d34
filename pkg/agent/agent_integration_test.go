package agent

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// realMember is a namespace on a real API server, with a garbage collector.
type realMember struct {
	*testing.T
	core      kubernetes.Interface
	dynamic   dynamic.Interface
	namespace string
	config    Config
}

func newRealMember(t *testing.T) *realMember {
	t.Helper()
	plane := controlplane.Shared(t, "member")
	core, err := kubernetes.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	client, err := dynamic.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	namespace, err := core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "agent-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	log, _ := agenttest.Log(t)
	return &realMember{T: t, core: core, dynamic: client, namespace: namespace.Name, config: Config{
		Member: plane.RESTConfig(), Namespace: namespace.Name, Log: log, Timing: agenttest.Quick(),
	}}
}

// The retry period is an hour: an agent that only polls would not get the Lease.
func TestLead(t *testing.T) {
	m := newRealMember(t)
	states, watches := make(chan string, 100), make(chan struct{}, 100)
	elected := func(identity string) Config {
		c := m.config
		c.OnState = func(state string) { states <- state }
		c.Member = rest.CopyConfig(m.config.Member)
		c.Member.Wrap(transport.Sender(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if r.URL.Query().Has("watch") {
				watches <- struct{}{}
			}
			return response, err
		}).Wrap)
		c.LeaderElection = &LeaderElection{identity, leader.Times{LeaseDuration: 3 * time.Hour, RenewDeadline: 2 * time.Hour, RetryPeriod: time.Hour}}
		return must(c.withDefaults())
	}
	holder := func() string {
		lease, err := m.core.CoordinationV1().Leases(m.namespace).Get(t.Context(), "fleet-agent", metav1.GetOptions{})
		require.NoError(t, err)
		return *lease.Spec.HolderIdentity
	}
	began, ended := make(chan string), make(chan error, 1)
	start := func(identity string, result error) (stop func()) {
		for len(watches) > 0 {
			<-watches
		}
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			ended <- lead(ctx, elected(identity), func(ctx context.Context) error { began <- identity; <-ctx.Done(); return result })
		}()
		<-watches
		return stop
	}

	stopFirst := start("first", nil)
	assert.Equal(t, "first", <-began)
	assert.Equal(t, "first", holder())

	stopSecond := start("second", nil)
	assert.Equal(t, "standing by: another agent of this namespace holds the Lease", <-states)
	stopSecond()
	require.NoError(t, <-ended, "stopped while it waits")
	assert.Equal(t, "first", holder())

	stopThird := start("third", assert.AnError)
	<-states
	stopFirst()
	require.NoError(t, <-ended)
	assert.Equal(t, "third", <-began, "the released Lease is taken over at once")
	stopThird()
	require.ErrorIs(t, <-ended, assert.AnError)
	assert.Empty(t, holder(), "released after an error")
}

func TestLeadLosesTheLease(t *testing.T) {
	m := newRealMember(t)
	var cut atomic.Bool
	m.config.Member.Wrap(transport.Sender(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if cut.Load() {
			return nil, assert.AnError
		}
		return next.RoundTrip(r)
	}).Wrap)
	m.config.LeaderElection = &LeaderElection{"me", leader.Times{LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond}}
	ended := false
	err := lead(t.Context(), must(m.config.withDefaults()), func(ctx context.Context) error {
		cut.Store(true)
		<-ctx.Done()
		ended = true
		return nil
	})
	require.ErrorContains(t, err, "lost Lease "+m.namespace+"/fleet-agent")
	assert.True(t, ended, "the work ends before")
}

func (m *realMember) client(object runtime.Object) (client dynamic.ResourceInterface, name string) {
	m.Helper()
	kind, namespace, name := describeObject(m.T, object)
	if namespace == "" {
		return m.dynamic.Resource(resourceOf(kind)), name
	}
	return m.dynamic.Resource(resourceOf(kind)).Namespace(namespace), name
}

func (m *realMember) put(object runtime.Object) {
	m.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	require.NoError(m, err)
	kind, _, _ := describeObject(m.T, object)
	created := &unstructured.Unstructured{Object: content}
	created.SetGroupVersionKind(kind)
	created.SetUID("")
	created.SetResourceVersion("")
	client, _ := m.client(object)
	_, err = client.Create(m.Context(), created, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) { // another row may have created the cluster-scoped ones
		require.NoError(m, err)
	}
}

func (m *realMember) exists(object runtime.Object) bool {
	m.Helper()
	client, name := m.client(object)
	_, err := client.Get(context.Background(), name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		require.NoError(m, err)
	}
	return err == nil
}

// The garbage collector deletes all objects of the agent and no others. If the agent was stopped, before or after a write was carried
// out, another process finishes.
func TestRunUninstallsWithItsOwnRights(t *testing.T) {
	sample.Long(t)
	for name, row := range map[string]struct {
		installation
		killAtWrite func(r *http.Request) bool
		carriedOut  bool
	}{
		"by the chart":       {installation: installation{chart: true}},
		"the chart, adopted": {installation: installation{managed: true, chart: true}},
		"imported, stopped in the middle": {
			installation: installation{managed: true},
			killAtWrite:  func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/deployments/") },
		},
		"imported, stopped after the last write": {
			installation: installation{managed: true},
			killAtWrite:  func(r *http.Request) bool { return r.Method == http.MethodDelete }, carriedOut: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newRealMember(t)
			row.namespace = m.namespace
			stored := agenttest.StoredSecret(t, agenttest.HubURL, "", oldToken)
			stored.Namespace, stored.Annotations = m.namespace, map[string]string{begunAnnotation: noBootstrap}
			objects := append(row.objects(), stored)
			for _, object := range append(row.bystanders(), objects...) {
				m.put(object)
			}
			token, err := m.core.CoreV1().ServiceAccounts(m.namespace).CreateToken(t.Context(), registration.AgentName,
				&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			require.NoError(t, err)
			m.config.Member = rest.AnonymousClientConfig(m.config.Member)
			m.config.Member.BearerToken = token.Status.Token
			run := func(ctx context.Context, c Config) (ended chan error) {
				ended = make(chan error, 1)
				go func() { ended <- Run(ctx, c) }()
				return ended
			}
			if row.killAtWrite != nil {
				ctx, die := context.WithCancel(t.Context())
				c := m.config
				c.Member = rest.CopyConfig(c.Member)
				c.Member.Wrap((&writeKiller{counts: row.killAtWrite, at: 1, kill: die, carriedOut: row.carriedOut}).wrap)
				require.NoError(t, <-run(ctx, c))
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := run(ctx, m.config)
			for _, object := range objects {
				require.Eventually(t, func() bool { return !m.exists(object) }, patience, 50*time.Millisecond, "%T", object)
			}
			stop()
			require.NoError(t, <-ended)
			for _, object := range row.bystanders() {
				assert.True(t, m.exists(object), "%T belongs to others", object)
			}
			namespace, err := m.core.CoreV1().Namespaces().Get(t.Context(), m.namespace, metav1.GetOptions{})
			require.NoError(t, err)
			assert.Nil(t, namespace.DeletionTimestamp, "the Namespace stays")
		})
	}
}

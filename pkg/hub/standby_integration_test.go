package hub_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/transport"
)

// replica is a hub that takes part in an election. Its requests are recorded, and can be cut off.
type replica struct {
	sent                     testenv.Recorder
	cut                      atomic.Bool
	standby, elected, atWork chan struct{}
	stop                     context.CancelFunc
	ended                    chan error
}

func startReplica(t *testing.T, cluster *testenv.Cluster, namespace, identity string) *replica {
	t.Helper()
	r := &replica{standby: make(chan struct{}), elected: make(chan struct{}), atWork: make(chan struct{}), ended: make(chan error, 1)}
	cfg := cluster.RESTConfig()
	cfg.Wrap(transport.Sender(r.send).Wrap)
	options := muster.Options{
		RESTConfig: rest.CopyConfig(cfg), DisableBootstrap: true, SystemNamespace: namespace, Delays: testenv.ShortDelays,
		Election: &leader.Config{
			Client: cfg, Namespace: namespace, Name: "lock", Identity: identity,
			Times: leader.Times{LeaseDuration: 4 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: time.Second},
		},
		OnStandby: func() { close(r.standby) },
		OnElected: func() { close(r.elected) },
		OnReady:   func() { close(r.atWork) },
	}
	r.sent.Wrap(&options) // after the election has its client: renewals are not recorded
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { r.ended <- muster.Run(ctx, options) }()
	t.Cleanup(r.stop)
	return r
}

func (r *replica) send(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	if r.cut.Load() {
		return nil, errors.New("the connection is cut")
	}
	return next.RoundTrip(req)
}

func await(t *testing.T, what string, happens <-chan struct{}) {
	t.Helper()
	select {
	case <-happens:
	case <-time.After(testenv.Patience):
		require.Fail(t, "timeout", "%s", what)
	}
}

// The leader stops in order, and a standby takes over. Then the new leader is cut off from the API server, and another standby takes over.
func TestRunWithElection(t *testing.T) {
	sample.Long(t)
	cluster := testenv.SharedCluster(t, "hub")
	namespace := cluster.Namespace(t)
	first := startReplica(t, cluster, namespace, "first")
	await(t, "the first hub is not at work", first.atWork)
	for i := range 3 {
		requireAdopted(t, cluster, namespace, fmt.Sprint("before-", i))
	}
	second := startReplica(t, cluster, namespace, "second")
	second.requireStandby(t)
	first.sent.Settle(t)
	first.stop()
	require.NoError(t, second.replaces(t, first))

	third := startReplica(t, cluster, namespace, "third")
	third.requireStandby(t)
	second.requireNothingWritten(t)
	requireAdopted(t, cluster, namespace, "between")
	second.sent.Settle(t)
	second.cut.Store(true)
	require.ErrorIs(t, third.replaces(t, second), leader.ErrLost)
	third.requireNothingWritten(t)
	requireAdopted(t, cluster, namespace, "after")
	third.stop()
	require.NoError(t, ended(t, third.ended, testenv.Patience))
}

func (r *replica) requireStandby(t *testing.T) {
	t.Helper()
	await(t, "the standby does not fill its caches", r.standby)
	for _, request := range r.sent.Settle(t) {
		assert.False(t, request.IsWrite(), "a standby sent %s", request)
	}
}

// replaces waits until this standby is at work in place of the leader, and returns how the run of that one ended.
func (r *replica) replaces(t *testing.T, old *replica) error {
	t.Helper()
	await(t, "the standby does not become the leader", r.elected)
	await(t, "the standby is not at work", r.atWork)
	return ended(t, old.ended, testenv.Patience)
}

// requireNothingWritten requires that the new leader has read nothing again that it had read as a standby, and has written nothing.
func (r *replica) requireNothingWritten(t *testing.T) {
	t.Helper()
	for _, request := range r.sent.Settle(t) {
		assert.False(t, request.IsWrite(), "nothing has changed, and the new leader sent %s", request)
		assert.False(t, strings.HasSuffix(request.Path, "/rolebindings") || strings.HasSuffix(request.Path, "/roles"),
			"the caches were filled before, and the new leader sent %s", request)
	}
}

// requireAdopted creates a Cluster and waits until a hub has given it its namespace.
func requireAdopted(t *testing.T, cluster *testenv.Cluster, namespace, name string) {
	t.Helper()
	clusters := cluster.Fleet.Clusters(namespace)
	_, err := clusters.Create(t.Context(), &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	testenv.Eventually(t, func() (bool, string) {
		c, err := clusters.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && c.Status.Namespace != "", "no hub works on Cluster " + name
	})
}

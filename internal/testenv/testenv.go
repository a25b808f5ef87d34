// Package testenv runs hubs and agents against real API servers for tests, with the production wiring.
package testenv

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/await"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/withkinds"
	"github.com/muster-fleet/muster/internal/testenv/withpolicies"
	"github.com/muster-fleet/muster/pkg/agent"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/preserve"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Patience limits the waits of a test. It does not measure speed: a machine can be very busy.
const Patience = 2 * time.Minute

var pace = await.Pace{First: 50 * time.Millisecond, Most: 500 * time.Millisecond}

// Cluster is a control plane with clients.
type Cluster struct {
	*controlplane.ControlPlane
	Kubernetes kubernetes.Interface
	Fleet      fleetclient.FleetV1alpha1Interface
}

// SharedCluster is the cluster with this name that all tests of a package share. It is reset before each test. "hub" has the kinds and the
// admission policies of a hub, "kinds" has only the kinds, and "member" is empty. TestMain must call controlplane.RunTests.
func SharedCluster(t testing.TB, name string) *Cluster {
	t.Helper()
	return On(t, controlplane.Clean(t, name, preparations[name]...))
}

// BorrowedCluster is like SharedCluster, for one test only.
func BorrowedCluster(t testing.TB, name string) *Cluster {
	t.Helper()
	return On(t, controlplane.Borrow(t, name, preparations[name]...))
}

// OwnCluster is an empty cluster for tests that stop its API server or restore etcd.
func OwnCluster(t testing.TB) *Cluster {
	t.Helper()
	return On(t, controlplane.Own(t, controlplane.Options{Name: "own"}))
}

// preparations create the initial objects of shared clusters.
var preparations = map[string][]controlplane.Prepare{"hub": {withpolicies.Install}, "kinds": {withkinds.Install}}

// On returns the clients for a control plane.
func On(t testing.TB, plane *controlplane.ControlPlane) *Cluster {
	t.Helper()
	return clients(t, plane, plane.RESTConfig())
}

// ClientFor returns clients of this cluster with a bearer token.
func (c *Cluster) ClientFor(t testing.TB, token string) *Cluster {
	t.Helper()
	config := rest.AnonymousClientConfig(c.RESTConfig())
	config.BearerToken, config.QPS = token, -1
	return clients(t, c.ControlPlane, config)
}

func clients(t testing.TB, plane *controlplane.ControlPlane, config *rest.Config) *Cluster {
	t.Helper()
	core, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	fleet, err := versioned.NewForConfig(config)
	require.NoError(t, err)
	return &Cluster{ControlPlane: plane, Kubernetes: core, Fleet: fleet.FleetV1alpha1()}
}

// Namespace creates a namespace for one test. Tests that share a cluster have different namespaces.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	created, err := c.Kubernetes.CoreV1().Namespaces().Create(context.Background(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ws-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return created.Name
}

// Running is a running hub or agent.
type Running struct {
	stop  context.CancelFunc
	ended chan error
}

// Stop stops it and waits until it has ended. It can be called twice.
func (r *Running) Stop(t testing.TB) {
	t.Helper()
	r.stop()
	select {
	case err, more := <-r.ended:
		if more {
			require.NoError(t, err)
			close(r.ended)
		}
	case <-time.After(Patience):
		t.Error("the hub or agent did not stop")
	}
}

// ShortDelays are a tenth of the delays of a hub.
var ShortDelays = app.Delays{Status: app.DefaultStatusDelay / 10, Repair: app.DefaultRepairDelay / 10}

// Hub runs a hub on the cluster until the test ends or Stop is called. It retries imports fast, and has short delays.
func (c *Cluster) Hub(t testing.TB, change ...func(*muster.Options)) *Running {
	t.Helper()
	r := c.startHub(t, change...)
	t.Cleanup(func() { r.Stop(t) })
	return r
}

// startHub runs a hub until Stop is called, and returns when it is ready.
func (c *Cluster) startHub(t testing.TB, change ...func(*muster.Options)) *Running {
	t.Helper()
	ready := make(chan struct{})
	options := muster.Options{
		RESTConfig:       c.RESTConfig(),
		DisableBootstrap: true,
		ImportBackoff:    app.Backoff{Base: 200 * time.Millisecond, Max: time.Second},
		Delays:           ShortDelays,
		OnReady:          func() { close(ready) },
	}
	for _, f := range change {
		f(&options)
	}
	r := run(func(ctx context.Context) error { return muster.Run(ctx, options) })
	isReady := false
	defer func() {
		if !isReady {
			r.stop()
		}
	}()
	select {
	case <-ready:
	case err := <-r.ended:
		require.NoError(t, err, "the hub did not start")
		t.Fatal("the hub ended during its start")
	case <-time.After(Patience):
		t.Fatal("the hub was not ready in time")
	}
	if !options.LeaveAdmission {
		c.AwaitAdmission(t)
	}
	isReady = true
	return r
}

// Agent runs an agent in a namespace of the cluster until the test ends or Stop is called.
func (c *Cluster) Agent(t testing.TB, namespace string, change ...func(*agent.Config)) *Running {
	t.Helper()
	log := logrus.New()
	log.SetOutput(testWriter{t})
	config := agent.Config{
		Member:          c.RESTConfig(),
		Namespace:       namespace,
		CheckinInterval: time.Second,
		Log:             log.WithField("agent", namespace),
	}
	for _, f := range change {
		f(&config)
	}
	r := run(func(ctx context.Context) error { return agent.Run(ctx, config) })
	t.Cleanup(func() { r.Stop(t) })
	return r
}

func run(work func(context.Context) error) *Running {
	ctx, stop := context.WithCancel(context.Background())
	r := &Running{stop: stop, ended: make(chan error, 1)}
	go func() { r.ended <- work(ctx) }()
	return r
}

// testWriter writes to the log of a test. After the end of the test it drops lines, where t.Log would panic.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(line []byte) (n int, err error) {
	defer func() { _ = recover() }()
	w.t.Log(strings.TrimRight(string(line), "\n"))
	return len(line), nil
}

// Configure writes the hub's configuration.
func (c *Cluster) Configure(t testing.TB, settings map[string]any) {
	t.Helper()
	document, err := yaml.Marshal(settings)
	require.NoError(t, err)
	c.ConfigureWith(t, string(document))
}

// ConfigureWith writes the hub's configuration as a document.
func (c *Cluster) ConfigureWith(t testing.TB, document string) {
	t.Helper()
	client := c.Kubernetes.CoreV1()
	_, err := client.Namespaces().Apply(context.Background(), corev1apply.Namespace(SystemNamespace), applied)
	require.NoError(t, err)
	_, err = client.ConfigMaps(SystemNamespace).Apply(context.Background(),
		corev1apply.ConfigMap(registration.HubConfigMap, SystemNamespace).WithData(map[string]string{registration.ConfigKey: document}), applied)
	require.NoError(t, err)
}

// applied creates an object or makes it have the given fields.
var applied = metav1.ApplyOptions{FieldManager: "test", Force: true}

// Reachable are the settings with which agents reach this cluster as their hub, and the hub reaches members on this machine.
func (c *Cluster) Reachable() map[string]any {
	return map[string]any{"apiServerURL": c.URL(), "apiServerCA": c.CA(), "agentTLSMode": "system-store", "members": MembersOnLoopback()}
}

// MembersOnLoopback are the settings of a hub, or the values of its chart, whose members are control planes on this machine.
func MembersOnLoopback() map[string]any {
	return map[string]any{"allowedCIDRs": []any{"127.0.0.0/8"}}
}

// Eventually waits until check returns true. If it does not within Patience, the test fails with the last text of check.
func Eventually(t testing.TB, check func() (bool, string)) {
	t.Helper()
	EventuallyWithin(t, Patience, check)
}

// EventuallyWithin is Eventually with another limit.
func EventuallyWithin(t testing.TB, patience time.Duration, check func() (bool, string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience) // a cleanup waits too
	defer cancel()
	if err := pace.Until(ctx, func(context.Context) (bool, string) { return check() }); err != nil {
		t.Fatal(err)
	}
}

// Condition describes a condition as "status reason: message", or "absent".
func Condition(conditions []Generic, conditionType string) string {
	for _, c := range conditions {
		if c.Type == conditionType {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return "absent"
}

// ClusterCondition waits until the description of a Cluster's condition begins with want, and returns the Cluster.
func (c *Cluster) ClusterCondition(t testing.TB, namespace, name, conditionType, want string) *fleet.Cluster {
	t.Helper()
	return EventuallyIs(t, c.Fleet.Clusters(namespace).Get, name, func(cluster *fleet.Cluster) (bool, string) {
		preserve.Restore(cluster)
		got := Condition(cluster.Status.Conditions, conditionType)
		return strings.HasPrefix(got, want), fmt.Sprintf("condition %s of Cluster %s is %q, want %q", conditionType, name, got, want)
	})
}

// WithBootstrap lets a hub register its own cluster if its configuration says so.
func WithBootstrap(o *muster.Options) { o.DisableBootstrap = false }

// WithoutBundles is for a hub on whose Bundles Fleet's own controllers work. It sets no finalizers on them.
func WithoutBundles(o *muster.Options) { o.DisableBundles = true }

// FastRecheck shortens the interval in which a hub checks objects that it does not watch.
func FastRecheck(o *muster.Options) { o.Recheck = time.Second }

// DefaultDelays is for a test that counts the writes of a hub whose objects keep changing.
func DefaultDelays(o *muster.Options) { o.Delays = app.Delays{} }

// Ahead is for a hub whose clock is ahead.
func Ahead(by time.Duration) func(*muster.Options) {
	return func(o *muster.Options) { o.Clock = shifted{by: by} }
}

// shifted is a clock that is ahead. Its timers are not changed.
type shifted struct {
	clock.RealClock
	by time.Duration
}

func (s shifted) Now() time.Time { return s.RealClock.Now().Add(s.by) }

func (s shifted) Since(moment time.Time) time.Duration { return s.Now().Sub(moment) }

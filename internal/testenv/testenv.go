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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/await"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/withkinds"
	"github.com/muster-fleet/muster/pkg/admission"
	"github.com/muster-fleet/muster/pkg/agent"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Patience is how long a test waits for something to become true. It is no measure of speed: a machine may be very busy.
const Patience = 2 * time.Minute

var pace = await.Pace{First: 50 * time.Millisecond, Most: 500 * time.Millisecond}

// Cluster is one real cluster with the clients a test needs.
type Cluster struct {
	*controlplane.ControlPlane
	Kubernetes kubernetes.Interface
	Fleet      fleetclient.FleetV1alpha1Interface
}

// SharedCluster is a cluster that all tests of a package share under that name. It is reset before a test, so that its hub
// finds nothing of the tests before. The one called "hub" has the kinds and the admission policies of a hub, "kinds" has
// the kinds alone, and "member" has nothing. The package's TestMain must return controlplane.RunTests.
func SharedCluster(t testing.TB, name string) *Cluster {
	t.Helper()
	return On(t, controlplane.Clean(t, name, preparations[name]...))
}

// BorrowedCluster is a cluster like those of SharedCluster, for one test alone.
func BorrowedCluster(t testing.TB, name string) *Cluster {
	t.Helper()
	return On(t, controlplane.Borrow(t, name, preparations[name]...))
}

// OwnCluster is an empty cluster for one test, which may stop its API server.
func OwnCluster(t testing.TB, name string) *Cluster {
	t.Helper()
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Name: name, ControllerManager: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	return On(t, plane)
}

// preparations are what the checkpoints of shared clusters have, by name.
var preparations = map[string][]controlplane.Prepare{"hub": {installHubAPI}, "kinds": {withkinds.Install}}

// installHubAPI installs what a hub installs into its cluster, and waits until all of it works: the admission policies
// are trusted only some seconds after their installation.
func installHubAPI(ctx context.Context, plane *controlplane.ControlPlane) error {
	if err := withkinds.Install(ctx, plane); err != nil {
		return err
	}
	monitor, err := admission.New(admission.Options{RESTConfig: plane.RESTConfig(), Namespace: metav1.NamespaceDefault, Install: true})
	if err != nil {
		return err
	}
	return awaitAdmission(ctx, monitor)
}

// On returns the clients for a control plane.
func On(t testing.TB, plane *controlplane.ControlPlane) *Cluster {
	t.Helper()
	client, err := kubernetes.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	fleet, err := versioned.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	return &Cluster{ControlPlane: plane, Kubernetes: client, Fleet: fleet.FleetV1alpha1()}
}

// Namespace makes a namespace for one test: every test has its own, so that they can share a cluster.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	created, err := c.Kubernetes.CoreV1().Namespaces().Create(context.Background(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ws-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return created.Name
}

// Running is a hub or an agent that runs.
type Running struct {
	stop  context.CancelFunc
	ended chan error
}

// Stop ends it and waits until all of it has ended. It may be called twice.
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
		t.Error("it did not stop")
	}
}

// Hub runs a hub on the cluster until the test ends or Stop is called. Imports are retried fast.
func (c *Cluster) Hub(t testing.TB, change ...func(*muster.Options)) *Running {
	t.Helper()
	ready := make(chan struct{})
	options := muster.Options{
		RESTConfig:       c.RESTConfig(),
		DisableBootstrap: true,
		ImportBackoff:    app.Backoff{Base: 200 * time.Millisecond, Max: time.Second},
		OnReady:          func() { close(ready) },
	}
	for _, f := range change {
		f(&options)
	}
	r := run(func(ctx context.Context) error { return muster.Run(ctx, options) })
	t.Cleanup(func() { r.Stop(t) })
	select {
	case <-ready:
	case err := <-r.ended:
		require.NoError(t, err, "the hub did not start")
		t.Fatal("the hub ended at once")
	case <-time.After(Patience):
		t.Fatal("the hub was not ready in time")
	}
	if !options.LeaveAdmission {
		c.AwaitAdmission(t)
	}
	return r
}

// Agent runs an agent on the cluster, in that namespace, until the test ends or Stop is called.
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

// testWriter writes into the test's log. A line after the end of the test is dropped instead of panicking.
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

// ConfigureWith writes the hub's configuration as it is.
func (c *Cluster) ConfigureWith(t testing.TB, document string) {
	t.Helper()
	client := c.Kubernetes.CoreV1()
	_, err := client.Namespaces().Create(context.Background(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: registration.DefaultSystemNamespace}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
	configMap := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: registration.HubConfigMap},
		Data:       map[string]string{registration.ConfigKey: document},
	}
	configMaps := client.ConfigMaps(registration.DefaultSystemNamespace)
	_, err = configMaps.Create(context.Background(), configMap, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = configMaps.Update(context.Background(), configMap, metav1.UpdateOptions{})
	}
	require.NoError(t, err)
}

// Reachable are the settings by which agents find this cluster as their hub.
func (c *Cluster) Reachable() map[string]any {
	return map[string]any{"apiServerURL": c.URL(), "apiServerCA": c.CA(), "agentTLSMode": "system-store"}
}

// Eventually waits until check says yes, and reports what it said last when it does not.
func Eventually(t testing.TB, check func() (bool, string)) {
	t.Helper()
	EventuallyWithin(t, Patience, check)
}

// EventuallyWithin is Eventually with another patience.
func EventuallyWithin(t testing.TB, patience time.Duration, check func() (bool, string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience) // a cleanup waits too
	defer cancel()
	if err := pace.Until(ctx, func(context.Context) (bool, string) { return check() }); err != nil {
		t.Fatal(err)
	}
}

// ClientFor is a client of this cluster with a bearer token.
func (c *Cluster) ClientFor(t testing.TB, token string) *Cluster {
	t.Helper()
	cfg := &rest.Config{Host: c.URL(), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: c.CA()}, QPS: -1}
	client, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	fleet, err := versioned.NewForConfig(cfg)
	require.NoError(t, err)
	return &Cluster{ControlPlane: c.ControlPlane, Kubernetes: client, Fleet: fleet.FleetV1alpha1()}
}

// Condition describes a condition of a list as "status reason: message", or "absent".
func Condition(conditions []Generic, conditionType string) string {
	for _, c := range conditions {
		if c.Type == conditionType {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return "absent"
}

// ClusterCondition waits until the Cluster's condition begins with want, as Condition describes it.
func (c *Cluster) ClusterCondition(t testing.TB, namespace, name, conditionType, want string) *fleet.Cluster {
	t.Helper()
	var found *fleet.Cluster
	Eventually(t, func() (bool, string) {
		cluster, err := c.Fleet.Clusters(namespace).Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		found = cluster
		got := Condition(cluster.Status.Conditions, conditionType)
		return strings.HasPrefix(got, want), fmt.Sprintf("condition %s of Cluster %s is %q, want %q", conditionType, name, got, want)
	})
	return found
}

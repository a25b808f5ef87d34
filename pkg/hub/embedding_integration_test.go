package hub_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rancher/lasso/pkg/controller"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// soon limits the time until an immediate failure is returned, on a very busy machine.
const soon = 2 * time.Minute

func TestRunInsideAnotherProgram(t *testing.T) {
	sample.Long(t)
	hub := testenv.SharedCluster(t, "hub")
	namespace := hub.Namespace(t)
	cfg := hub.RESTConfig()
	given := rest.CopyConfig(cfg)
	before := processState()

	// Two in a row, as in a program that loses its Lease and gets it again.
	for _, name := range []string{"first", "second"} {
		runs := start(t, hub, namespace, name, cfg)
		runs.requireAtWork(t, hub)
		runs.stopHub(t)
	}
	require.Equal(t, before, processState(), "the hub changed what belongs to the whole process")
	require.Equal(t, given, cfg, "the hub changed the configuration of the program")
}

// embedded is a program with a hub in it.
type embedded struct {
	namespace, name string
	factory         controller.SharedControllerFactory
	seen            chan string
	leaks           leaks
	stop            context.CancelFunc
	ended           chan error
}

func start(t *testing.T, hub *testenv.Cluster, namespace, name string, cfg *rest.Config) *embedded {
	t.Helper()
	factory, err := controller.NewSharedControllerFactoryFromConfig(cfg, nil)
	require.NoError(t, err)
	program, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	e := &embedded{namespace: namespace, name: name, factory: factory, seen: make(chan string, 100), ended: make(chan error, 1)}
	watchClusters(program, factory, func(c *fleet.Cluster) {
		if c.Status.Namespace != "" {
			e.seen <- c.Name
		}
	})
	e.leaks = lookForLeaks(cfg)
	ctx, stop := context.WithCancel(program)
	e.stop = stop
	go func() { e.ended <- runHub(ctx, cfg, factory) }()
	return e
}

// stopHub ends the hub, not the program.
func (e *embedded) stopHub(t *testing.T) {
	t.Helper()
	e.stop()
	require.NoError(t, ended(t, e.ended, testenv.Patience))
	e.leaks.requireNone(t)
}

// requireAtWork: the hub has worked on a Cluster, the program's own handler has seen that, and its cache has it.
func (e *embedded) requireAtWork(t *testing.T, hub *testenv.Cluster) {
	t.Helper()
	clusters := fleetcontrollers.New(e.factory).Cluster()
	testenv.Eventually(t, func() (bool, string) {
		_, err := hub.Fleet.Clusters(e.namespace).Create(t.Context(), &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: e.name}}, metav1.CreateOptions{})
		return err == nil, "the kinds are not served yet"
	})
	for deadline := time.After(testenv.Patience); ; {
		select {
		case name := <-e.seen:
			if name == e.name {
				testenv.Eventually(t, func() (bool, string) {
					cached, err := clusters.Cache().Get(e.namespace, e.name)
					return err == nil && cached.Status.Namespace != "", "the program's cache does not have what its handler has seen"
				})
				return
			}
		case err := <-e.ended:
			require.NoError(t, err, "the hub did not start")
			t.Fatal("the hub ended by itself")
		case <-deadline:
			t.Fatal("the program's handler did not see the Cluster")
		}
	}
}

func ended(t *testing.T, result <-chan error, patience time.Duration) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(patience):
		t.Fatalf("Run did not return in %s", patience)
		return nil
	}
}

// leaks finds the goroutines that were not there when it was made.
type leaks struct {
	known     goleak.Option
	transport http.RoundTripper
}

func lookForLeaks(cfg *rest.Config) leaks {
	l := leaks{transport: http.DefaultTransport}
	if cfg != nil {
		// Held, so that client-go gives the same one to the hub. An error is the hub's to report.
		l.transport, _ = rest.TransportFor(cfg)
	}
	l.known = goleak.IgnoreCurrent()
	return l
}

// requireNone closes connections that nobody uses any more: client-go keeps them for the next client with this
// configuration.
func (l leaks) requireNone(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		if l.transport != nil {
			utilnet.CloseIdleConnectionsFor(l.transport)
		}
		err := goleak.Find(l.known)
		return err == nil, fmt.Sprint(err)
	})
}

// process is what a process has once, and no library may change.
type process struct {
	environment []string
	flags       map[string]string
	logLevel    logrus.Level
	logFormat   logrus.Formatter
	logOutput   io.Writer
}

func processState() process {
	p := process{environment: os.Environ(), flags: map[string]string{}}
	flag.CommandLine.VisitAll(func(f *flag.Flag) { p.flags[f.Name] = f.Value.String() })
	log := logrus.StandardLogger()
	p.logLevel, p.logFormat, p.logOutput = log.Level, log.Formatter, log.Out
	return p
}

func TestRunRefusesAUsedFactory(t *testing.T) {
	hub := testenv.SharedCluster(t, "hub")
	first := start(t, hub, hub.Namespace(t), "once", hub.RESTConfig())
	first.requireAtWork(t, hub)
	first.stopHub(t)

	err := muster.Run(t.Context(), muster.Options{RESTConfig: hub.RESTConfig(), SharedControllerFactory: first.factory})
	require.ErrorContains(t, err, "SharedControllerFactory")
	require.ErrorContains(t, err, "create a new one")
}

func TestRunMetrics(t *testing.T) {
	sample.Long(t)
	hub, registry := testenv.SharedCluster(t, "hub"), prometheus.NewRegistry()
	measured := func(o *muster.Options) { o.Metrics = registry }
	series := func() int {
		families, err := registry.Gather()
		require.NoError(t, err)
		return len(families)
	}
	// Two in a row, as in a program that loses its Lease and gets it again.
	for range 2 {
		running := hub.Hub(t, measured)
		require.NotZero(t, series())
		err := muster.Run(t.Context(), muster.Options{RESTConfig: hub.RESTConfig(), Metrics: registry, DisableBootstrap: true})
		require.ErrorContains(t, err, "two hubs cannot")
		require.NotZero(t, series(), "the metrics of the hub that runs went with the one that could not start")
		running.Stop(t)
		require.Zero(t, series())
	}
}

func TestRunErrors(t *testing.T) {
	hub := testenv.SharedCluster(t, "hub")
	_ = hub.Namespace(t) // the connection of the test itself
	nobody := hub.RESTConfig()
	nobody.Impersonate.UserName = "nobody"
	silent, refused := testenv.SilentServer(t), "https://127.0.0.1:1" // where nobody listens
	for name, test := range map[string]struct {
		options muster.Options
		want    []string
	}{
		"no configuration":                    {muster.Options{}, []string{"RESTConfig is missing"}},
		"nobody is there":                     {muster.Options{RESTConfig: &rest.Config{Host: refused}}, []string{refused, "connection refused"}},
		"somebody is there and is silent":     {muster.Options{RESTConfig: &rest.Config{Host: silent, Timeout: time.Second}}, []string{silent}},
		"no rights":                           {muster.Options{RESTConfig: nobody}, []string{"nobody", "customresourcedefinitions"}},
		"a certificate nobody has signed":     {muster.Options{RESTConfig: &rest.Config{Host: hub.URL()}}, []string{"certificate"}},
		"a configuration that makes no sense": {muster.Options{RESTConfig: &rest.Config{Host: "::"}}, []string{"::"}},
	} {
		t.Run(name, func(t *testing.T) {
			leaks := lookForLeaks(test.options.RESTConfig)
			result := make(chan error, 1)
			go func() { result <- muster.Run(context.WithoutCancel(t.Context()), test.options) }()
			err := ended(t, result, soon)
			require.Error(t, err)
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
			leaks.requireNone(t)
		})
	}
}

func TestRunWithoutTheRightToList(t *testing.T) {
	hub := testenv.SharedCluster(t, "hub")
	limited := limitedTo(t, hub,
		rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{fleet.SchemeGroupVersion.Group, "apiextensions.k8s.io", "rbac.authorization.k8s.io"}, Resources: []string{"*"}},
		rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{"namespaces", "serviceaccounts", "configmaps", "events"}},
	)
	clock := clocktesting.NewFakeClock(time.Now())
	leaks := lookForLeaks(limited)
	result := make(chan error, 1)
	go func() {
		result <- muster.Run(context.WithoutCancel(t.Context()), muster.Options{RESTConfig: limited, Clock: clock})
	}()
	var err error
	testenv.Eventually(t, func() (bool, string) {
		select {
		case err = <-result:
			return true, ""
		default:
		}
		if clock.HasWaiters() { // not necessarily the one that waits for the caches
			clock.Step(time.Hour)
		}
		return false, "it does not give up"
	})
	require.ErrorContains(t, err, "the right to list a kind")
	leaks.requireNone(t)
}

// limitedTo is a user with these rights and no others.
func limitedTo(t *testing.T, hub *testenv.Cluster, rules ...rbacv1.PolicyRule) *rest.Config {
	t.Helper()
	user := hub.Namespace(t) // a name that nobody has
	rights := hub.Kubernetes.RbacV1()
	_, err := rights.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = rights.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	cfg := hub.RESTConfig()
	cfg.Impersonate.UserName = user
	return cfg
}

func TestRunStoppedWhileItStarts(t *testing.T) {
	hub := testenv.SharedCluster(t, "hub")
	held, release := holding(hub.RESTConfig())
	ctx, stop := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- muster.Run(ctx, muster.Options{RESTConfig: held}) }()
	<-release
	stop()
	require.NoError(t, ended(t, result, soon))
}

// holding is a configuration whose requests wait for the end of their context. The channel is closed at the first one.
func holding(cfg *rest.Config) (*rest.Config, <-chan struct{}) {
	asked := make(chan struct{}, 1)
	cfg.Wrap(func(http.RoundTripper) http.RoundTripper { return waiting(asked) })
	return cfg, asked
}

type waiting chan struct{}

// CloseIdleConnections is all that client-go wants of a connection.
func (waiting) CloseIdleConnections() {}

func (w waiting) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case w <- struct{}{}:
	default:
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestExampleIsInTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../docs/embedding.md")
	require.NoError(t, err)
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	_, shown, found := strings.Cut(string(page), "```go\n")
	require.True(t, found, "docs/embedding.md has no Go snippet")
	shown, _, _ = strings.Cut(shown, "```")
	begin := strings.Index(string(source), "// watchClusters")
	end := strings.Index(string(source), "// A program that has")
	require.Equal(t, strings.TrimSpace(string(source[begin:end])), strings.TrimSpace(shown), "docs/embedding.md shows an older example")
}

package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// stage is a hub and a member in one control plane, with the namespaces of one test.
type stage struct {
	*testenv.Cluster
	t       *testing.T
	hub     string // namespace of the BundleDeployments
	agent   string // namespace of the agent
	target  string // namespace that is deployed to
	cluster string
	hubAt   *rest.Config // of the API server of the hub
	member  *testenv.Recorder
	hubWire *testenv.Recorder
}

func onStage(t *testing.T) *stage {
	t.Helper()
	return stageOn(t, testenv.SharedCluster(t, "kinds"))
}

func stageOn(t *testing.T, cluster *testenv.Cluster) *stage {
	t.Helper()
	s := &stage{Cluster: cluster, t: t, hubAt: cluster.RESTConfig(), member: &testenv.Recorder{}, hubWire: &testenv.Recorder{}}
	s.hub, s.target = s.Namespace(t), s.Namespace(t)
	s.agent = s.target // an agent ignores objects of an agent in another namespace
	s.cluster = "c-" + s.hub
	return s
}

// config returns the configuration of an agent with short pauses.
func (s *stage) config() deploy.Config {
	s.t.Helper()
	hub := s.hubWire.On(s.hubAt)
	fleetClient, err := versioned.NewForConfig(hub)
	require.NoError(s.t, err)
	core, err := kubernetes.NewForConfig(hub)
	require.NoError(s.t, err)
	log := logrus.New()
	log.SetOutput(s.t.Output())
	return deploy.Config{
		Hub: fleetClient, Watching: fleetClient, HubCore: core, Namespace: s.hub, Workspace: "fleet-default", ClusterName: s.cluster,
		Member: s.member.On(s.RESTConfig()), AgentNamespace: s.agent, Workers: 2, DriftWorkers: 2, Log: log,
		Timing: deploy.Timing{
			RetryFirst: 20 * time.Millisecond, RetryMax: 500 * time.Millisecond, CorrectFirst: 50 * time.Millisecond, CorrectMax: time.Second,
			Settle: 20 * time.Millisecond, Grace: time.Second, RemovalDelay: 20 * time.Millisecond, RemovalRecheck: 50 * time.Millisecond, RemovalAlone: time.Hour,
		},
	}
}

// run runs an agent until stop is called or the test ends. stop returns the error of the agent.
func (s *stage) run(change ...func(*deploy.Config)) (stop func() error) {
	s.t.Helper()
	c := s.config()
	for _, f := range change {
		f(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- deploy.Run(ctx, c) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(testenv.Patience):
			return errors.New("the agent did not stop")
		}
	})
	s.t.Cleanup(func() { _ = stop() })
	return stop
}

// ends runs an agent that ends by itself. ended waits for that and returns its error.
func (s *stage) ends(change ...func(*deploy.Config)) (ended func() error) {
	s.t.Helper()
	c, result := s.config(), make(chan error, 1)
	for _, f := range change {
		f(&c)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*testenv.Patience)
	over := make(chan struct{})
	s.t.Cleanup(func() { cancel(); <-over })
	go func() { defer close(over); result <- deploy.Run(ctx, c) }()
	return func() error { return <-result }
}

// put creates a BundleDeployment with a manifest, or changes its manifest.
func (s *stage) put(name, manifest string, change ...func(*fleet.BundleDeployment)) {
	s.t.Helper()
	s.putFiles(name, []fleet.BundleResource{{Name: "all.yaml", Content: manifest}}, change...)
}

// putFiles creates a BundleDeployment with files, or changes its files.
func (s *stage) putFiles(name string, files []fleet.BundleResource, change ...func(*fleet.BundleDeployment)) {
	s.t.Helper()
	packed, err := content.Encode(files)
	require.NoError(s.t, err)
	ctx := context.Background()
	if _, err := s.Fleet.Contents().Create(ctx, packed, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		require.NoError(s.t, err)
	}
	client := s.Fleet.BundleDeployments(s.hub)
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the agent writes the status meanwhile
		bd, err := client.Get(ctx, name, metav1.GetOptions{})
		create := apierrors.IsNotFound(err)
		if create {
			bd = &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.hub, Name: name, Labels: map[string]string{
				fleet.BundleNameLabel: registration.LabelValue(name), fleet.BundleNamespaceLabel: "fleet-default",
			}}}
		} else if err != nil {
			return err
		}
		bd.Spec.Options.DefaultNamespace = s.target
		for _, f := range change {
			f(bd)
		}
		if bd.Spec.DeploymentID, err = content.DeploymentID(packed.Name, bd.Spec.Options); err != nil {
			return err
		}
		bd.Spec.StagedDeploymentID, bd.Spec.StagedOptions = bd.Spec.DeploymentID, bd.Spec.Options
		if create {
			_, err = client.Create(ctx, bd, metav1.CreateOptions{})
		} else {
			_, err = client.Update(ctx, bd, metav1.UpdateOptions{})
		}
		return err
	})
	require.NoError(s.t, err)
}

func (s *stage) update(name string, change func(*fleet.BundleDeployment)) {
	s.t.Helper()
	require.NoError(s.t, retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the agent writes the status meanwhile
		bd := s.get(name)
		change(bd)
		_, err := s.Fleet.BundleDeployments(s.hub).Update(context.Background(), bd, metav1.UpdateOptions{})
		return err
	}))
}

// still waits until the agent has sent no request for a while.
func (s *stage) still() {
	s.t.Helper()
	const enough = 500 * time.Millisecond
	seen, since := -1, time.Now()
	testenv.Eventually(s.t, func() (bool, string) {
		if now := len(s.hubWire.Requests("")) + len(s.member.Requests("")); now != seen {
			seen, since = now, time.Now()
		}
		return time.Since(since) > enough, "requests do not cease"
	})
}

// removeAll deletes all BundleDeployments with one request, so that the agent cannot see that only some are deleted.
func (s *stage) removeAll() {
	s.t.Helper()
	require.NoError(s.t, s.Fleet.BundleDeployments(s.hub).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}))
}

func (s *stage) remove(name string) {
	s.t.Helper()
	require.NoError(s.t, s.Fleet.BundleDeployments(s.hub).Delete(context.Background(), name, metav1.DeleteOptions{}))
}

func (s *stage) get(name string) *fleet.BundleDeployment {
	bd, err := s.Fleet.BundleDeployments(s.hub).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return &fleet.BundleDeployment{}
	}
	return bd
}

// state waits for a state with the current deployment ID.
func (s *stage) state(name string, want fleet.BundleState) *fleet.BundleDeployment {
	s.t.Helper()
	var bd *fleet.BundleDeployment
	testenv.Eventually(s.t, func() (bool, string) {
		bd = s.get(name)
		got := fleet.BundleState(bd.Status.Display.State)
		return got == want && (want == fleet.ErrApplied || bd.Status.AppliedDeploymentID == bd.Spec.DeploymentID), fmt.Sprintf("%s is %s, want %s: %+v", name, got, want, bd.Status)
	})
	return bd
}

// condition waits for a condition whose text begins with want, see testenv.Condition.
func (s *stage) condition(name, kind, want string) {
	s.t.Helper()
	testenv.Eventually(s.t, func() (bool, string) {
		got := testenv.Condition(s.get(name).Status.Conditions, kind)
		return strings.HasPrefix(got, want), fmt.Sprintf("condition %s of %s is %q, want %q", kind, name, got, want)
	})
}

func (s *stage) configMap(name string) (*corev1.ConfigMap, error) {
	return s.Kubernetes.CoreV1().ConfigMaps(s.target).Get(context.Background(), name, metav1.GetOptions{})
}

// gone waits until a ConfigMap in the target namespace does not exist.
func (s *stage) gone(name string) {
	s.t.Helper()
	testenv.Eventually(s.t, func() (bool, string) {
		_, err := s.configMap(name)
		return apierrors.IsNotFound(err), name + " is still there"
	})
}

// value waits for the value of key k of a ConfigMap in the target namespace.
func (s *stage) value(name, want string) {
	s.t.Helper()
	testenv.Eventually(s.t, func() (bool, string) {
		o, err := s.configMap(name)
		return err == nil && o.Data["k"] == want, fmt.Sprint(name, " ", o.Data, " ", err)
	})
}

// releases returns the releases of the agent.
func (s *stage) releases() []release.Found {
	s.t.Helper()
	client, err := release.New(s.RESTConfig())
	require.NoError(s.t, err)
	owner := release.Owner{Namespace: s.agent, Workspace: "fleet-default", ClusterName: s.cluster}
	found, err := client.List(context.Background(), owner.Selector())
	require.NoError(s.t, err)
	return found
}

func (s *stage) ownBundle() string { return registration.AgentBundleName(s.cluster) }

func configMap(name, value string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\ndata:\n  k: " + value + "\n---\n"
}

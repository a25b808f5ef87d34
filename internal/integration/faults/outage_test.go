package faults

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// recovery is the time after an outage within which everything must be correct. A watch of client-go waits up to half a minute between two
// attempts, and up to as much again at random.
const recovery = 4 * time.Minute

// outage stops the hub's API server right after this write of the hub.
type outage struct {
	name string
	verb string
	path string // part of it
}

var outages = []outage{
	{"before the token", http.MethodPost, "/namespaces"},
	{"after the token", http.MethodPost, "/clusterregistrationtokens"},
	{"while the token gets its rights", http.MethodPost, "/roles"},
	{"after the values Secret", http.MethodPost, "/secrets"},
	{"after the use of the import token was counted", http.MethodPatch, "/clusterregistrationtokens/import-token-managed/status"},
	{"after the request was bound to its Cluster", http.MethodPatch, "/clusterregistrations/"},
	{"while the request gets its rights", http.MethodPost, "/rolebindings"},
	{"after the credential", http.MethodPost, "/namespaces/cattle-fleet-clusters-system/secrets"},
}

func TestRegistrationsUnderOutages(t *testing.T) {
	sample.Long(t)
	_, member := testenv.Clusters(t)
	for _, o := range sample.Some(t, 1, outages) {
		t.Run(o.name, func(t *testing.T) {
			hub := testenv.OwnCluster(t)
			hub.Configure(t, hub.Reachable())
			o.run(t, hub, member)
		})
	}
}

// run starts a hub of its own: client-go resets its backoff only two minutes after the last failure.
func (o outage) run(t *testing.T, hub, member *testenv.Cluster) {
	wire := &testenv.Recorder{}
	hub.Hub(t, wire.Wrap, testenv.FastRecheck)
	story := twoWays{hub: hub, member: member, ns: hub.Namespace(t), edge: member.Namespace(t), managed: member.Namespace(t)}
	over := o.arm(t, wire, hub)
	story.begin(t)
	require.NoError(t, over(), "the outage")
	back := time.Now()
	story.requireEnd(t)
	t.Logf("both registered %s after the API server was back", time.Since(back).Round(100*time.Millisecond))
}

// arm stops the API server after the write and starts it again later; over waits for that.
func (o outage) arm(t *testing.T, wire *testenv.Recorder, hub *testenv.Cluster) (over func() error) {
	t.Helper()
	var once sync.Once
	down, up := make(chan error, 1), make(chan error, 1)
	wire.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		answer, err := send()
		if err == nil && req.Method == o.verb && strings.Contains(req.URL.Path, o.path) {
			once.Do(func() { down <- hub.StopAPIServer() })
		}
		return answer, err
	})
	ctx := t.Context()
	go func() { up <- restart(ctx, hub, down) }()
	return func() error {
		defer wire.Inject(nil)
		return <-up
	}
}

// gone is the duration of an outage: long enough for every client to fail more than once.
const gone = 5 * time.Second

func restart(ctx context.Context, hub *testenv.Cluster, down <-chan error) error {
	select {
	case err := <-down:
		if err != nil {
			return err
		}
	case <-time.After(testenv.Patience):
		return errors.New("the write after which it should begin did not come")
	}
	<-time.NewTimer(gone).C
	return hub.StartAPIServer(ctx)
}

// twoWays is a manager-initiated and an agent-initiated registration with real agents.
type twoWays struct {
	hub, member       *testenv.Cluster
	ns, edge, managed string // the namespaces of the Clusters and of the two agents
}

// begin creates the objects that a user creates; the API server may stop at any moment.
func (s twoWays) begin(t *testing.T) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "kubeconfig"}, Data: map[string][]byte{registration.KubeconfigValue: s.member.Kubeconfig()},
	}
	cluster := &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "managed"}, Spec: fleet.ClusterSpec{KubeConfigSecret: "kubeconfig", AgentNamespace: s.managed},
	}
	token := &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: "tok"}}
	persist(t, func() error {
		_, err := s.hub.Kubernetes.CoreV1().Secrets(s.ns).Create(t.Context(), secret, metav1.CreateOptions{})
		return err
	})
	persist(t, func() error {
		_, err := s.hub.Fleet.ClusterRegistrationTokens(s.ns).Create(t.Context(), token, metav1.CreateOptions{})
		return err
	})
	persist(t, func() error {
		_, err := s.hub.Fleet.Clusters(s.ns).Create(t.Context(), cluster, metav1.CreateOptions{})
		return err
	})
	testenv.BootstrapAgent(t, s.member, s.edge, s.hub.Values(t, s.ns, "tok"), map[string]string{"config": `{"clientID":"edge"}`})
	s.member.Agent(t, s.edge)
	s.member.Agent(t, s.managed)
}

// persist creates an object and retries during an outage.
func persist(t *testing.T, create func() error) {
	t.Helper()
	testenv.EventuallyWithin(t, recovery, func() (bool, string) {
		err := create()
		return err == nil || apierrors.IsAlreadyExists(err), fmt.Sprint(err)
	})
}

func (s twoWays) requireEnd(t *testing.T) {
	t.Helper()
	for name, namespace := range map[string]string{"managed": s.managed, registration.ClusterName("edge"): s.edge} {
		testenv.EventuallyWithin(t, recovery, func() (bool, string) {
			got := s.hub.ConditionOf(testenv.KindCluster, s.ns, name, fleet.ConditionRegistered)
			if strings.HasPrefix(got, "True") {
				return true, ""
			}
			return false, name + ": " + got + s.requests(t, name)
		})
		testenv.RequireCredential(t, s.member, namespace, name)
	}
	for _, token := range []string{"tok", registration.ImportTokenName("managed")} {
		s.hub.WaitCondition(t, testenv.KindToken, s.ns, token, fleet.ConditionReady, "True")
	}
}

// requests describes, for a failure, the import of a Cluster and every request of the namespace: why the agent is not registered.
func (s twoWays) requests(t *testing.T, name string) string {
	cluster, err := s.hub.Fleet.Clusters(s.ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return "\n" + err.Error()
	}
	about := fmt.Sprintf("\nclientID %q, imported: %+v", cluster.Spec.ClientID, fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionImported))
	requests, err := s.hub.Fleet.ClusterRegistrations(s.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return about + "\n" + err.Error()
	}
	for _, r := range requests.Items {
		about += fmt.Sprintf("\nClusterRegistration %s of clientID %q by token %q: %+v",
			r.Name, r.Spec.ClientID, r.Labels[fleet.RegistrationTokenLabel], fleetstatus.Condition(r.Status.Conditions, fleet.ConditionGranted))
	}
	return about
}

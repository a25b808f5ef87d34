package check

import (
	"cmp"
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/register"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// requestTimeout limits each request of a check.
const requestTimeout = 10 * time.Second

// memberLimits limit the size of a member's responses, because the user may not trust the owner of the member. They are sufficient, because no
// check lists the objects of all namespaces of a member.
var memberLimits = transport.ResponseLimits{Bytes: 32 << 20}

// knowledge contains the results that later checks use. The comment of each field names the check that sets it.
type knowledge struct {
	Inputs

	hub    *apiServer
	member *apiServer // from Inputs, or set by import-reaches

	hubConfig  *config.Hub // hub-config
	hubVersion string      // hub-config; of the chart fleet, if a chart has installed the hub

	cluster       *fleet.Cluster                  // cluster-exists; nil if there is only a request
	request       *fleet.ClusterRegistration      // cluster-exists; the last one about the Cluster
	kubeconfig    *corev1.Secret                  // import-secret
	importCluster *clientcmdapi.Cluster           // import-kubeconfig
	importUser    *clientcmdapi.AuthInfo          // import-kubeconfig
	importConfig  *rest.Config                    // import-kubeconfig
	token         *fleet.ClusterRegistrationToken // token-exists
	pod           *corev1.Pod                     // agent-pod; the newest of the agent
	bootstrap     *corev1.Secret                  // agent-secret
	stored        *corev1.Secret                  // agent-secret
	agentConfig   config.Agent                    // agent-config
	identity      *register.BootstrapIdentity     // agent-bootstrap
	credential    *credential.Stored              // agent-credential
	probed        map[string]Line                 // way-probe; the results of the Job
	access        *hubclient.Access               // way-address
	connection    *hubclient.Connection           // way-tls
	versionAnswer []byte                          // way-tls
	dialErr       error                           // way-tls
	handshakeDone atomic.Bool                     // way-tls; whether a TLS handshake with the hub was completed

	surveyed  []surveyed // survey
	surveyErr error      // survey

	probeTimeout time.Duration
}

// surveyed is what the checks of the whole fleet need to know about a Cluster.
type surveyed struct {
	view.Cluster
	connected genericcondition.GenericCondition
	// address and caHash are those of the agent's connection to the hub, if the agent reports them.
	address, caHash string
}

// survey reads all Clusters. Only the first call does so.
func (k *knowledge) survey(ctx context.Context) ([]surveyed, error) {
	if k.surveyed != nil || k.surveyErr != nil {
		return k.surveyed, k.surveyErr
	}
	k.surveyed = []surveyed{}
	k.surveyErr = admin.Each(ctx, k.hub.fleet.Clusters(metav1.NamespaceAll).List, metav1.ListOptions{}, func(c *fleet.Cluster) error {
		s := surveyed{Cluster: view.OfCluster(c), connected: fleetstatus.Condition(c.Status.Conditions, fleet.ConditionConnected)}
		if reported := c.Status.Agent.Hub; reported != nil {
			s.address, s.caHash = reported.APIServerURL, reported.APIServerCAHash
		}
		k.surveyed = append(k.surveyed, s)
		return nil
	})
	return k.surveyed, k.surveyErr
}

func newKnowledge(in Inputs) *knowledge {
	in.SystemNamespace = cmp.Or(in.SystemNamespace, registration.DefaultSystemNamespace)
	k := &knowledge{Inputs: in, probeTimeout: probeTimeout}
	if in.Hub != nil {
		k.hub = connectTo(in.Hub, in.Now, transport.ResponseLimits{})
	}
	if in.Member != nil {
		k.member = connectTo(in.Member, in.Now, memberLimits)
	}
	return k
}

// sides returns the inputs that are available. import-reaches adds the connection to the member.
func (k *knowledge) sides() (exist side) {
	if k.hub != nil {
		exist |= onHub
	}
	if k.member != nil {
		exist |= onMember
	}
	if k.Cluster != "" {
		exist |= onCluster
	} else {
		exist |= onFleet
	}
	if k.Token != "" || k.Cluster != "" || k.member != nil {
		exist |= onToken
	}
	return exist
}

// agentNamespace returns the namespace of the agent on the member.
func (k *knowledge) agentNamespace() string {
	if k.AgentNamespace == "" && k.cluster != nil {
		return cmp.Or(k.cluster.Status.Agent.Namespace, k.cluster.Spec.AgentNamespace, registration.DefaultSystemNamespace)
	}
	return cmp.Or(k.AgentNamespace, registration.DefaultSystemNamespace)
}

// registered reports whether condition Registered of the Cluster is True.
func (k *knowledge) registered() bool {
	return k.cluster != nil && fleetstatus.Condition(k.cluster.Status.Conditions, fleet.ConditionRegistered).Status == corev1.ConditionTrue
}

// apiServer contains the clients for an API server, with the credential of the user.
type apiServer struct {
	core    kubernetes.Interface
	fleet   fleetclient.FleetV1alpha1Interface
	dynamic dynamic.Interface
	clock   *dateReader
	err     error // of the configuration; the clients are nil then
}

func connectTo(c *rest.Config, now func() time.Time, limits transport.ResponseLimits) *apiServer {
	s := &apiServer{clock: &dateReader{now: now}}
	c = rest.CopyConfig(c)
	c.Timeout, c.QPS, c.WarningHandler = requestTimeout, -1, rest.NoWarnings{}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return transport.Limited{Next: next, Body: limits} })
	c.Wrap(transport.Sender(s.clock.send).Wrap)
	if s.core, s.err = kubernetes.NewForConfig(c); s.err != nil {
		return s
	}
	var kinds *versioned.Clientset
	if kinds, s.err = versioned.NewForConfig(c); s.err != nil {
		return s
	}
	s.fleet = kinds.FleetV1alpha1()
	s.dynamic, s.err = dynamic.NewForConfig(c)
	return s
}

// version reads /version, which every API server serves.
func (s *apiServer) version(ctx context.Context) (string, error) {
	if s.err != nil {
		return "", s.err
	}
	version, err := s.core.Discovery().ServerVersion()
	if err != nil {
		return "", err
	}
	return version.GitVersion, ctx.Err()
}

// dateReader compares the clock of a server with the clock of this program.
type dateReader struct {
	now func() time.Time

	mutex sync.Mutex
	known bool
	ahead time.Duration
}

// send sends a request and compares the Date header of the response with the clock of this program. It assumes that the server wrote
// the header in the middle of the request, and adds half a second because the header has no fraction of a second.
func (d *dateReader) send(next http.RoundTripper, request *http.Request) (*http.Response, error) {
	sent := d.now()
	response, err := next.RoundTrip(request)
	if err != nil {
		return response, err
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		d.mutex.Lock()
		defer d.mutex.Unlock()
		d.known, d.ahead = true, date.Add(time.Second/2).Sub(sent.Add(d.now().Sub(sent)/2))
	}
	return response, nil
}

// serverNow returns the time of the server's clock; before the first response, the time of this program's clock.
func (d *dateReader) serverNow() time.Time {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.now().Add(d.ahead)
}

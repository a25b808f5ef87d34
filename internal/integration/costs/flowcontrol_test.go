package costs

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const (
	agentsLevel, hubLevel = "fleet-agents", "fleet-controller"

	// inFlight is more than the seats of each level, of which the API server has 600 in all.
	inFlight = 300
)

func TestStormsStarveNobody(t *testing.T) {
	sample.Long(t)
	s := &flowStage{Stage: testenv.EmptyStage(t)}
	s.Running = s.Hub.Hub(t, s.Hub.InstallChart(t, map[string]any{"bootstrap": map[string]any{"enabled": false}}))
	values := s.Token(t, "tok")
	r := s.Register(t, values, "edge", "random")
	jane := rest.CopyConfig(s.Hub.RESTConfig())
	jane.Impersonate = rest.ImpersonationConfig{UserName: "jane"}
	agent, token, hub := s.bearer(r.Bearer()), s.bearer(values.Token), s.bearer(s.Hub.TokenOf(t, testenv.SystemNamespace, "fleet-controller"))
	other := s.bearer(s.Hub.TokenOf(t, s.Namespace, "default"))

	const group, core, leases = "/apis/fleet.cattle.io/v1alpha1", "/api/v1", "/apis/coordination.k8s.io/v1"
	workspace, own := "/namespaces/"+s.Namespace, "/namespaces/"+r.ClusterNamespace()
	for _, row := range []struct {
		name       string
		config     *rest.Config
		verb, path string
		want       string // empty: not a level of the chart
	}{
		{"an agent registers", token, http.MethodPost, group + workspace + "/clusterregistrations", agentsLevel},
		{"an agent looks for its credential", token, http.MethodGet, core + "/namespaces/" + values.SystemRegistrationNamespace + "/secrets/" + r.Secret.Name, agentsLevel},
		{"a heartbeat", agent, http.MethodPatch, group + workspace + "/clusters/" + r.Request.Status.ClusterName + "/status", agentsLevel},
		{"a heartbeat to a Lease", agent, http.MethodPatch, leases + own + "/leases/own", agentsLevel},
		{"an agent lists its BundleDeployments", agent, http.MethodGet, group + own + "/bundledeployments", agentsLevel},
		{"an agent reports a BundleDeployment", agent, http.MethodPatch, group + own + "/bundledeployments/app/status", agentsLevel},
		{"an agent reads a Content", agent, http.MethodGet, group + "/contents/s-0", agentsLevel},
		{"the hub lists Clusters", hub, http.MethodGet, group + "/clusters", hubLevel},
		{"the hub writes a status", hub, http.MethodPatch, group + workspace + "/clusters/none/status", hubLevel},
		{"the hub renews its Lease", hub, http.MethodPatch, leases + "/namespaces/" + testenv.SystemNamespace + "/leases/none", hubLevel},
		{"the hub discovers kinds", hub, http.MethodGet, "/apis", hubLevel},
		{"a person lists Clusters", jane, http.MethodGet, group + workspace + "/clusters", ""},
		{"another controller follows BundleDeployments of all namespaces", other, http.MethodGet, group + "/bundledeployments", ""},
		{"another controller renews its Lease", other, http.MethodPut, leases + workspace + "/leases/mine", ""},
		{"another controller reads a Secret", other, http.MethodGet, core + workspace + "/secrets/mine", ""},
	} {
		testenv.Eventually(t, func() (bool, string) { // the API server applies FlowSchemas a moment after it has stored them
			got := s.levelOf(t, row.config, row.verb, row.path)
			return got == row.want, fmt.Sprintf("%s: priority level %q", row.name, got)
		})
	}

	// Agents take all seats of their level: the hub works, and a person gets answers.
	calm := s.saturate(t, agentsLevel, agent, group+own+"/bundledeployments")
	cluster := s.CreateCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "during-a-storm"}})
	s.Hub.ClusterCondition(t, s.Namespace, cluster.Name, fleet.ConditionProcessed, "True")
	s.requireAnswer(t, jane)
	assert.Positive(t, s.queued(t, agentsLevel), "the storm has lasted until now")
	assert.Zero(t, s.queued(t, hubLevel))
	calm()

	// The hub takes all seats of its level: heartbeats arrive, and a person gets answers.
	s.saturate(t, hubLevel, hub, group+"/clusters")
	beat := fmt.Appendf(nil, `{"status":{"agent":{"lastSeen":%q}}}`, time.Now().UTC().Format(time.RFC3339))
	require.NoError(t, s.Hub.ClientFor(t, r.Bearer()).Fleet.RESTClient().Patch(types.MergePatchType).Namespace(s.Namespace).Resource("clusters").
		Name(r.Request.Status.ClusterName).SubResource("status").Body(beat).MaxRetries(0).Do(t.Context()).Error())
	s.requireAnswer(t, jane)
	assert.Positive(t, s.queued(t, hubLevel), "the storm has lasted until now")
	assert.Zero(t, s.queued(t, agentsLevel))
}

// flowStage is a Stage whose API server has the FlowSchemas of the chart.
type flowStage struct{ *testenv.Stage }

func (s *flowStage) bearer(token string) *rest.Config {
	config := rest.AnonymousClientConfig(s.Hub.RESTConfig())
	config.BearerToken, config.QPS = token, -1
	return config
}

// levelOf sends a request and returns the priority level in which the API server has answered it. A refusal has that header, too.
func (s *flowStage) levelOf(t *testing.T, config *rest.Config, verb, path string) string {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(t.Context(), verb, s.Hub.URL()+path, http.NoBody)
	require.NoError(t, err)
	answer, err := client.Do(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	uid := answer.Header.Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
	require.NotEmpty(t, uid)
	for _, name := range []string{agentsLevel, hubLevel} {
		if level := testenv.RequireThere(t, s.Hub.Kubernetes.FlowcontrolV1().PriorityLevelConfigurations().Get, name); string(level.UID) == uid {
			return name
		}
	}
	return ""
}

// saturate keeps more requests in flight than the level has seats, until calm is called. A list of a version that does not exist yet keeps
// its seat for seconds: the API server waits for that version.
func (s *flowStage) saturate(t *testing.T, level string, config *rest.Config, path string) (calm func()) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range inFlight {
		running.Go(func() {
			for ctx.Err() == nil {
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Hub.URL()+path+"?resourceVersion=9000000000000000", http.NoBody)
				if err != nil {
					return
				}
				if answer, err := client.Do(request); err == nil {
					_ = answer.Body.Close()
				}
			}
		})
	}
	stop := func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	testenv.Eventually(t, func() (bool, string) {
		waiting := s.queued(t, level)
		return waiting > 0, fmt.Sprintf("%d requests wait in priority level %s", waiting, level)
	})
	return func() {
		stop()
		testenv.Eventually(t, func() (bool, string) {
			waiting := s.queued(t, level)
			return waiting == 0, fmt.Sprintf("%d requests still wait in priority level %s", waiting, level)
		})
	}
}

// requireAnswer sends a request that every user may send, and does not repeat it.
func (s *flowStage) requireAnswer(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	review := &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/", Verb: "get"}},
	}
	require.NoError(t, client.AuthorizationV1().RESTClient().Post().Resource("selfsubjectaccessreviews").Body(review).MaxRetries(0).Do(t.Context()).Error())
}

// queued is the number of requests that wait for a seat of the level.
func (s *flowStage) queued(t *testing.T, level string) (sum int) {
	t.Helper()
	text, err := s.Hub.Kubernetes.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	require.NoError(t, err)
	rows := regexp.MustCompile(fmt.Sprintf(`(?m)^apiserver_flowcontrol_current_inqueue_requests\{[^}]*priority_level="%s"[^}]*\} (\S+)$`, level))
	for _, row := range rows.FindAllStringSubmatch(string(text), -1) {
		value, err := strconv.ParseFloat(row[1], 64)
		require.NoError(t, err)
		sum += int(value)
	}
	return sum
}

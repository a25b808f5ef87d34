package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

var errCause = errors.New("cause")

// oneNamespace is the only Namespace there is, or none.
type oneNamespace struct {
	corecontrollers.NamespaceCache
	*corev1.Namespace
}

func (o oneNamespace) Get(name string) (*corev1.Namespace, error) {
	if o.Namespace == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, name)
	}
	return o.Namespace, nil
}

// known answers for the cache of Clusters.
type known struct {
	fleetcontrollers.ClusterCache
	all []*fleet.Cluster
}

func (k known) GetByIndex(name, key string) (found []*fleet.Cluster, err error) {
	for _, c := range k.all {
		byName := name == index.ByManagementName && c.Labels[fleet.ManagementClusterLabel] == key
		bySecret := name == index.ByKubeconfig && index.Key(index.KubeconfigNamespace(c), c.Spec.KubeConfigSecret) == key
		if byName || bySecret {
			found = append(found, c)
		}
	}
	return found, nil
}

// deployments is the one BundleDeployment of the agent, or none.
type deployments struct {
	fleetcontrollers.Interface
	agent   *fleet.BundleDeployment
	err     error
	refuses error // to be patched
	patches []string
}

// client is theirs.
type client struct {
	fleetcontrollers.BundleDeploymentController
	*deployments
}

func (d *deployments) BundleDeployment() fleetcontrollers.BundleDeploymentController {
	return client{deployments: d}
}

func (d client) Get(string, string, metav1.GetOptions) (*fleet.BundleDeployment, error) {
	if d.agent == nil && d.err == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "bundledeployments"}, "fleet-agent-member")
	}
	return d.agent, d.err
}

func (d client) Patch(_, _ string, _ types.PatchType, data []byte, _ ...string) (*fleet.BundleDeployment, error) {
	if d.refuses != nil {
		return nil, d.refuses
	}
	d.patches = append(d.patches, string(data))
	d.agent = d.agent.DeepCopy()
	d.agent.Annotations = map[string]string{fleet.FarewellAnnotation: "asked"}
	return d.agent, nil
}

// parting is a farewell whose clock stands at the deletion, ten minutes after the start of the hub.
type parting struct {
	*farewell
	clock       *clocktesting.FakeClock
	deployments *deployments
	events      *record.FakeRecorder
}

func part(hub config.Hub, others ...*fleet.Cluster) *parting {
	clock, bundles, events := clocktesting.NewFakeClock(noon), &deployments{agent: &fleet.BundleDeployment{}}, record.NewFakeRecorder(10)
	deleted := metav1.NewTime(noon)
	cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ws", Name: "member", UID: "old", DeletionTimestamp: &deleted, Finalizers: []string{fleet.ClusterFinalizer},
	}}
	cluster.Status.Agent = fleet.AgentStatus{LastSeen: metav1.NewTime(noon), Generation: "managed/0"}
	result.Set(&cluster.Status.Conditions, fleet.ConditionConnected, result.Done(fleet.ReasonConnected, ""), noon)
	h := &handler{
		Context: &app.Context{
			Clock: clock, Config: config.NewStore(hub), FarewellGrace: 30 * time.Second, Metrics: metrics.New(nil), Fleet: bundles,
			SystemNamespace: "cattle-fleet-system", Events: events,
			Kubernetes: fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ws", Name: "kubeconfig", Annotations: map[string]string{fleet.KubeconfigAllowedAnnotation: "a-friend"},
			}}),
		},
		known: known{all: others}, started: noon.Add(-10 * time.Minute),
	}
	return &parting{&farewell{handler: h, cluster: cluster}, clock, bundles, events}
}

func TestWhoStaysBecauseAnotherClusterHasTheAgent(t *testing.T) {
	other := func(change func(*fleet.Cluster)) *fleet.Cluster {
		c := &fleet.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "member", UID: "new", Labels: map[string]string{fleet.ManagementClusterLabel: "c-1"}},
			Spec:       fleet.ClusterSpec{KubeConfigSecret: "kubeconfig", KubeConfigSecretNamespace: "fleet-default"},
		}
		if change != nil {
			change(c)
		}
		return c
	}
	deleting := metav1.NewTime(noon)
	byServer := func(c *fleet.Cluster) { c.Labels = map[string]string{fleet.ManagementClusterLabel: "c-1"} }
	bySecret := func(c *fleet.Cluster) {
		c.Spec.KubeConfigSecret, c.Spec.KubeConfigSecretNamespace = "kubeconfig", "fleet-default"
	}
	byOwnSecret := func(c *fleet.Cluster) { c.Spec.KubeConfigSecret = "kubeconfig" }
	stranger := func(change func(*fleet.Cluster)) *fleet.Cluster {
		return other(func(c *fleet.Cluster) {
			c.Spec.KubeConfigSecretNamespace = "ws"
			if change != nil {
				change(c)
			}
		})
	}
	local := func(c *fleet.Cluster) { c.Name, c.Spec.KubeConfigSecret = "local", "local-cluster" }
	for _, row := range []struct {
		name   string
		this   func(*fleet.Cluster)
		hub    config.Hub
		other  *fleet.Cluster
		nobody bool
	}{
		{name: "nobody else"},
		{name: "another cluster", other: other(nil)},
		{name: "the same cluster of a management server, says somebody", this: byServer, other: other(nil)},
		{name: "the same cluster of a management server, as the hub knows", this: byServer, nobody: true, other: other(func(c *fleet.Cluster) {
			c.Status.AgentDeployedGeneration = new(int64)
		})},
		{name: "the same cluster of a management server, whose agent is heard of", this: byServer, nobody: true, other: other(func(c *fleet.Cluster) {
			c.Status.Agent.LastSeen = deleting
		})},
		{name: "the kubeconfig of somebody else", this: byOwnSecret, other: stranger(nil)},
		{name: "the kubeconfig of somebody else, who allows it", this: byOwnSecret, other: stranger(func(c *fleet.Cluster) { c.Namespace = "a-friend" }), nobody: true},
		{name: "the same kubeconfig", this: bySecret, other: other(func(c *fleet.Cluster) { c.Labels = nil }), nobody: true},
		{name: "the same kubeconfig, an agent of its own", this: bySecret, other: other(func(c *fleet.Cluster) { c.Spec.AgentNamespace = "its-own" })},
		{name: "one that is deleted as well", this: bySecret, other: other(func(c *fleet.Cluster) { c.DeletionTimestamp = &deleting })},
		{name: "itself", this: bySecret, other: other(func(c *fleet.Cluster) { c.UID = "old" })},
		{name: "the hub's own, which has moved", this: local, hub: config.Hub{Bootstrap: config.Bootstrap{Namespace: "fleet-local"}}, nobody: true},
		{name: "the hub's own, which has not", this: local, hub: config.Hub{Bootstrap: config.Bootstrap{Namespace: "ws"}}},
		{name: "the hub's own, which it registers no more", this: local, hub: config.Hub{Bootstrap: config.Bootstrap{Namespace: "-"}}},
		{name: "the hub's own without an agent", this: local, hub: config.Hub{Bootstrap: config.Bootstrap{Namespace: "ws", LocalAgentDisabled: true}}, nobody: true},
		{name: "one of another controller", this: func(c *fleet.Cluster) { c.Labels = map[string]string{fleet.ClusterManagementLabel: "x"} }, nobody: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			var others []*fleet.Cluster
			if row.other != nil {
				others = append(others, row.other)
			}
			p := part(row.hub, others...)
			if row.this != nil {
				row.this(p.cluster)
			}
			p.clock.Step(successorTime)
			assert.True(t, p.awaitSuccessor(t.Context()).IsDone())
			assert.Equal(t, row.nobody, p.nobody)
		})
	}
}

func TestAManagementServerGetsAMomentToMoveACluster(t *testing.T) {
	p := part(config.Hub{})
	p.cluster.Labels = map[string]string{fleet.ManagementClusterLabel: "c-1"}
	out := p.awaitSuccessor(t.Context())
	assert.True(t, out.IsWait())
	assert.Equal(t, successorTime, out.After)
	p.clock.Step(successorTime)
	assert.True(t, p.awaitSuccessor(t.Context()).IsDone())

	never := part(config.Hub{})
	never.cluster.Labels = p.cluster.Labels
	never.cluster.Status.Agent.LastSeen = metav1.Time{}
	assert.True(t, never.awaitSuccessor(t.Context()).IsDone(), "there is no agent to think of")
}

func TestAClusterThatClaimsTheAgentIsGivenTimeToProveIt(t *testing.T) {
	label := map[string]string{fleet.ManagementClusterLabel: "c-1"}
	other := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "member", UID: "new", Labels: label}}
	p := part(config.Hub{}, other)
	p.FarewellGrace, p.cluster.Labels = 3*time.Minute, label
	p.clock.Step(time.Minute - time.Second)
	out := p.awaitSuccessor(t.Context())
	assert.True(t, out.IsWait(), "its import may take longer than its making")
	assert.Equal(t, time.Second, out.After)
	p.clock.Step(time.Second)
	assert.True(t, p.awaitSuccessor(t.Context()).IsDone())
	assert.False(t, p.nobody, "anybody could say that it is the same cluster")
}

func TestAnAgentIsAskedOnceAndWaitedFor(t *testing.T) {
	p := part(config.Hub{})
	for range 2 {
		out := p.askAgent(t.Context())
		assert.True(t, out.IsWait())
		assert.Equal(t, fleet.ReasonFarewell, out.Reason)
		assert.Equal(t, "waiting until 2026-01-02T12:00:30Z for the agent to remove what it deployed", out.Message)
		assert.Equal(t, 30*time.Second, out.After)
	}
	assert.Equal(t, []string{`{"metadata":{"annotations":{"muster.fleet.cattle.io/farewell":"2026-01-02T12:00:00Z"}}}`}, p.deployments.patches)

	result.Set(&p.deployments.agent.Status.Conditions, fleet.ConditionFarewell, result.Done("", ""), noon)
	assert.True(t, p.askAgent(t.Context()).IsDone())
	p.report()
	assert.Empty(t, p.events.Events)
}

// cachedDeployment is the BundleDeployment of the agent in the cache.
type cachedDeployment struct {
	fleetcontrollers.BundleDeploymentCache
	agent *fleet.BundleDeployment
}

func (c cachedDeployment) Get(_, name string) (*fleet.BundleDeployment, error) {
	if c.agent == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "bundledeployments"}, name)
	}
	return c.agent, nil
}

func TestTheAnswerOfAnAgentIsInTheCache(t *testing.T) {
	p := part(config.Hub{})
	p.handler.deployments = cachedDeployment{}
	require.True(t, p.askAgent(t.Context()).IsWait(), "a BundleDeployment that is not in the cache yet is asked for")
	p.deployments.err = errCause // from now on nobody may ask the API server
	answered := p.deployments.agent.DeepCopy()
	p.handler.deployments = cachedDeployment{agent: answered}
	assert.True(t, p.askAgent(t.Context()).IsWait())
	result.Set(&answered.Status.Conditions, fleet.ConditionFarewell, result.Done("", ""), noon)
	assert.True(t, p.askAgent(t.Context()).IsDone())
	assert.True(t, p.agentLeft)
	assert.Len(t, p.deployments.patches, 1)
}

func TestHowLongAnAgentIsWaitedFor(t *testing.T) {
	for _, row := range []struct {
		name       string
		kubeconfig string
		started    time.Duration // after the deletion
		until      time.Duration
	}{
		{"the whole grace", "", -time.Minute, 30 * time.Second},
		{"two thirds of it where the hub can clean up itself", "kubeconfig", -time.Minute, 20 * time.Second},
		{"from the start of a hub that was away", "", time.Hour, time.Hour + 30*time.Second},
	} {
		p := part(config.Hub{})
		p.cluster.Spec.KubeConfigSecret, p.started = row.kubeconfig, noon.Add(row.started)
		p.clock.Step(row.until - time.Nanosecond)
		assert.True(t, p.askAgent(t.Context()).IsWait(), row.name)
		p.clock.Step(time.Nanosecond)
		assert.True(t, p.askAgent(t.Context()).IsDone(), row.name)
		p.report()
		assert.Contains(t, <-p.events.Events, "Warning MemberLeft something may be left on the member: FarewellTimeout: ", row.name)
	}
}

func TestWhatKeepsAnAgentIsToldWhenItsTimeIsOver(t *testing.T) {
	p := part(config.Hub{})
	result.Set(&p.deployments.agent.Status.Conditions, fleet.ConditionFarewell, result.Stalled("R", "a finalizer hangs"), noon)
	assert.True(t, p.askAgent(t.Context()).IsWait())
	p.clock.Step(time.Minute)
	assert.True(t, p.askAgent(t.Context()).IsDone())
	p.report()
	assert.Contains(t, <-p.events.Events, "removed what it deployed: a finalizer hangs")
}

func TestWhoIsNotAsked(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*parting)
		left   string
	}{
		{"nobody was ever there", func(p *parting) { p.cluster.Status.Agent = fleet.AgentStatus{} }, ""},
		{"the agent stays", func(p *parting) { p.nobody = true }, ""},
		{"the agent is gone", func(p *parting) {
			result.Set(&p.cluster.Status.Conditions, fleet.ConditionConnected, result.Stalled(fleet.ReasonDisconnected, ""), noon)
		}, fleet.ReasonDisconnected},
		{"nobody knows whether it is there", func(p *parting) { p.cluster.Status.Conditions = nil }, fleet.ReasonDisconnected},
		{"an agent of another release", func(p *parting) { p.cluster.Status.Agent.Generation = "" }, fleet.ReasonAgentUnaware},
		{"an agent without a Bundle", func(p *parting) { p.deployments.agent = nil }, fleet.ReasonAgentUnaware},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := part(config.Hub{})
			row.change(p)
			assert.True(t, p.askAgent(t.Context()).IsDone())
			assert.Empty(t, p.deployments.patches)
			p.report()
			if row.left == "" {
				assert.Empty(t, p.events.Events)
				return
			}
			assert.Contains(t, <-p.events.Events, row.left)
		})
	}
}

func TestAnAgentThatAChartInstalledIsAskedBeforeItHasTakenItsBundleOver(t *testing.T) {
	p := part(config.Hub{})
	p.cluster.Status.Agent = fleet.AgentStatus{LastSeen: metav1.NewTime(noon), Version: "v1"}
	assert.True(t, p.askAgent(t.Context()).IsWait())
	assert.Len(t, p.deployments.patches, 1)
}

func TestAnAPIServerThatFailsIsAskedAgain(t *testing.T) {
	p := part(config.Hub{})
	p.deployments.err = errCause
	out := p.askAgent(t.Context())
	assert.False(t, out.IsDone())
	require.ErrorIs(t, out.Err, errCause)
	_, err := p.awaitFarewell(p.cluster, out)
	assert.ErrorIs(t, err, errCause)
}

func TestAQuestionThatIsRefusedKeepsTheClusterNoLongerThanItsTime(t *testing.T) {
	p := part(config.Hub{})
	p.deployments.refuses = errCause
	p.clock.Step(30*time.Second - time.Nanosecond)
	require.ErrorIs(t, p.askAgent(t.Context()).Err, errCause)
	p.clock.Step(time.Nanosecond)
	assert.True(t, p.askAgent(t.Context()).IsDone())
	assert.False(t, p.agentLeft)
	p.report()
	assert.Contains(t, <-p.events.Events, "FarewellTimeout: the agent could not be asked to leave: ")
}

// parter is a step that knows a way to the member.
type parter struct {
	counted
	until time.Time
}

func (s *parter) Part(_ context.Context, _ *fleet.Cluster, until time.Time) result.Result {
	s.until = until
	s.passes++
	return s.out
}

func TestStepsThatKnowAWayToTheMemberCleanIt(t *testing.T) {
	left := result.Stalled(fleet.ReasonUnreachable, "no route")
	for _, row := range []struct {
		name     string
		out      result.Result
		goesOn   bool
		reported string
	}{
		{"it is clean", result.Done("", ""), true, ""},
		{"it is being cleaned", result.Wait(fleet.ReasonFarewell, "").In(time.Second), false, ""},
		{"it cannot be cleaned", left, true, "Unreachable: no route"},
		{"there is no way", result.Skip(), true, "Disconnected"},
		{"the hub's own API server fails", result.Retry(fleet.ReasonError, errCause), false, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, step := part(config.Hub{}), &parter{counted: counted{out: row.out}}
			p.steps = []Step{&counted{}, step}
			p.left = mayBeLeft(fleet.ReasonDisconnected, "gone")
			assert.Equal(t, row.goesOn, p.cleanMember(t.Context()).IsDone())
			assert.Equal(t, noon.Add(30*time.Second), step.until)
			if !row.goesOn {
				return
			}
			p.report()
			if row.reported == "" {
				assert.Empty(t, p.events.Events)
				return
			}
			assert.Contains(t, <-p.events.Events, row.reported)
		})
	}
	p, step := part(config.Hub{}), &parter{}
	p.steps, p.nobody = []Step{step}, true
	assert.True(t, p.cleanMember(t.Context()).IsDone())
	assert.Zero(t, step.passes, "the agent is another Cluster's")
}

func TestTheAnswerOfAnAgentBringsItsClusterBack(t *testing.T) {
	asked := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "cluster-ns", Annotations: map[string]string{fleet.FarewellAnnotation: "x"}}}
	h := &handler{namespaces: oneNamespace{Namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		fleet.ClusterAnnotation: "member", fleet.ClusterNamespaceAnnotation: "ws",
	}}}}}
	assert.Equal(t, []types.NamespacedName{{Namespace: "ws", Name: "member"}}, h.clusterOfFarewell(asked))
	assert.Empty(t, h.clusterOfFarewell(&fleet.BundleDeployment{}), "one that was not asked")
	h.namespaces = oneNamespace{}
	assert.Empty(t, h.clusterOfFarewell(asked), "one in no cluster namespace")
}

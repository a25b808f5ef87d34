package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rancher/wrangler/v3/pkg/apply"
	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	fleetfake "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

var errCause = errors.New("cause")

const (
	agentBundle = "fleet-agent-member"
	grace       = 30 * time.Second
)

var memberNamespace = registration.ClusterNamespace("ws", "member")

// known is a cache of Clusters.
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

func (k known) List(string, labels.Selector) ([]*fleet.Cluster, error) { return k.all, nil }

// cachedBundle, cachedDeployment and cachedNamespace are caches with at most one object.
type cachedBundle struct {
	fleetcontrollers.BundleCache
	bundle *fleet.Bundle
	err    error
}

func (c cachedBundle) Get(_, name string) (*fleet.Bundle, error) {
	if c.bundle == nil && c.err == nil {
		return nil, apierrors.NewNotFound(fleet.Resource("bundles"), name)
	}
	return c.bundle, c.err
}

type cachedDeployment struct {
	fleetcontrollers.BundleDeploymentCache
	agent *fleet.BundleDeployment
}

func (c cachedDeployment) Get(_, name string) (*fleet.BundleDeployment, error) {
	if c.agent == nil {
		return nil, apierrors.NewNotFound(fleet.Resource("bundledeployments"), name)
	}
	return c.agent, nil
}

type cachedNamespace struct {
	corecontrollers.NamespaceCache
	*corev1.Namespace
}

func (c cachedNamespace) Get(name string) (*corev1.Namespace, error) {
	if c.Namespace == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("namespaces"), name)
	}
	return c.Namespace, nil
}

// uninstaller is an AgentInstaller with a fixed result.
type uninstaller struct {
	countingSubReconciler
	deadline time.Time
	state    finalizing.Farewell
	err      error        // of Uninstall
	answer   memberAnswer // of AgentBelongsTo
	askedFor int          // the number of Clusters in the last call of AgentBelongsTo

	begun, ended int // passes
}

type memberAnswer struct {
	belongs, cannotBeAsked bool
	err                    error
}

func (u *uninstaller) BeginPass(*fleet.Cluster) (end func()) {
	u.begun++
	return func() { u.ended++ }
}

func (u *uninstaller) AgentBelongsTo(_ context.Context, _ *fleet.Cluster, others []*fleet.Cluster) (belongs, canAsk bool, err error) {
	u.askedFor = len(others)
	if len(others) == 0 {
		return false, true, nil
	}
	return u.answer.belongs, !u.answer.cannotBeAsked, u.answer.err
}

func (u *uninstaller) Uninstall(_ context.Context, _ *fleet.Cluster, deadline time.Time) (finalizing.Farewell, error) {
	u.deadline = deadline
	u.passes++
	return u.state, u.err
}

// deletion is a handler and a deleted Cluster with a connected agent. The clock shows the time of the deletion.
type deletion struct {
	*handler
	cluster  *fleet.Cluster
	clock    *clocktesting.FakeClock
	fleet    *fleetfake.Clientset
	importer *uninstaller
	events   *record.FakeRecorder
}

func newDeletion(hub config.Hub, others ...*fleet.Cluster) *deletion {
	deleted := metav1.NewTime(noon)
	cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ws", Name: "member", UID: "old", DeletionTimestamp: &deleted, Finalizers: []string{fleet.ClusterFinalizer},
	}}
	cluster.Status.Agent = fleet.AgentStatus{LastSeen: metav1.NewTime(noon), Version: "v1", Generation: "managed/0"}
	result.Set(&cluster.Status.Conditions, fleet.ConditionConnected, result.Done(fleet.ReasonConnected, ""), noon)
	d := &deletion{
		cluster: cluster, clock: clocktesting.NewFakeClock(noon), events: record.NewFakeRecorder(10), importer: &uninstaller{},
		fleet: fleetfake.NewSimpleClientset(
			&fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: memberNamespace, Name: agentBundle}}, cluster.DeepCopy()),
	}
	d.handler = &handler{
		Context: &app.Context{
			Clock: d.clock, Config: config.NewStore(hub), FarewellGrace: grace, Metrics: metrics.New(nil), FleetClient: d.fleet.FleetV1alpha1(),
			SystemNamespace: "cattle-fleet-system", Events: d.events, Metadata: withKind(nil, noon.Add(-time.Hour)),
			Kubernetes: fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ws", Name: "kubeconfig", Annotations: map[string]string{fleet.KubeconfigAllowedAnnotation: "a-friend"},
			}}),
		},
		created:  expectations.New(d.clock),
		clusters: known{all: others}, requests: requests{}, bundles: cachedBundle{}, deployments: cachedDeployment{}, namespaces: cachedNamespace{}, queue: queue{},
		subReconcilers: SubReconcilers{Import: d.importer},
	}
	return d
}

// forbidding refuses to answer.
func forbidding(client *metadatafake.FakeMetadataClient) *metadatafake.FakeMetadataClient {
	client.PrependReactor("get", "customresourcedefinitions", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, app.DefinitionName("clusters"), nil)
	})
	return client
}

// withKind returns a client of an API server with the CustomResourceDefinition of Clusters. If deleted is not nil, it is being deleted since then.
func withKind(deleted *metav1.Time, created time.Time) *metadatafake.FakeMetadataClient {
	scheme := metadatafake.NewTestScheme()
	metav1.AddMetaToScheme(scheme)
	return metadatafake.NewSimpleMetadataClient(scheme, &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: app.DefinitionName("clusters"), DeletionTimestamp: deleted, CreationTimestamp: metav1.NewTime(created)},
	})
}

// queue is the queue of Clusters.
type queue struct {
	fleetcontrollers.ClusterController
}

func (queue) EnqueueAfter(string, string, time.Duration) {}

func (d *deletion) fail(verb, resource string, err error) {
	d.fleet.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// answer sets condition Farewell of the agent's BundleDeployment.
func (d *deletion) answer(t *testing.T, out result.Result) {
	t.Helper()
	resource := fleet.SchemeGroupVersion.WithResource("bundledeployments")
	deployment, err := d.fleet.Tracker().Get(resource, memberNamespace, agentBundle)
	require.NoError(t, err)
	answered := deployment.DeepCopyObject().(*fleet.BundleDeployment)
	result.Set(&answered.Status.Conditions, fleet.ConditionFarewell, out, noon)
	require.NoError(t, d.fleet.Tracker().Update(resource, answered, memberNamespace))
}

// patches returns the patches of BundleDeployments.
func (d *deletion) patches() (patches []string) {
	for _, action := range d.fleet.Actions() {
		if patch, ok := action.(clienttesting.PatchAction); ok && action.GetResource().Resource == "bundledeployments" {
			patches = append(patches, string(patch.GetPatch()))
		}
	}
	return patches
}

// finalized runs finalize and reports whether the finalizer was removed.
func (d *deletion) finalized(t *testing.T) bool {
	t.Helper()
	latest, err := d.finalize(t.Context(), d.cluster)
	require.NoError(t, err)
	return len(latest.Finalizers) == 0
}

func TestFinalize_member(t *testing.T) {
	agentFails := func(d *deletion) {
		result.Set(&d.cluster.Status.Conditions, fleet.ConditionConnected, result.Stalled(fleet.ReasonDisconnected, ""), noon)
	}
	agentAsked := func(d *deletion) {
		d.handler.deployments = cachedDeployment{agent: &fleet.BundleDeployment{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{fleet.FarewellAnnotation: "asked"}},
			Status:     fleet.BundleDeploymentStatus{},
		}}
	}
	for _, row := range []struct {
		name     string
		change   func(*deletion)
		hub      finalizing.Farewell // of Uninstall
		waits    bool
		reported string
	}{
		{name: "hub removed the agent", change: agentFails, hub: finalizing.Removed()},
		{name: "hub is removing the agent", change: agentFails, hub: finalizing.Waiting("", "", time.Second), waits: true},
		{name: "hub cannot remove the agent", change: agentFails, hub: finalizing.GivenUp(fleet.ReasonUnreachable, "no route"), reported: "Unreachable: no route"},
		{name: "hub has no access to the member", change: agentFails, hub: finalizing.NotNeeded(), reported: "Disconnected"},
		{name: "agent has not answered", change: agentAsked, waits: true, hub: finalizing.NotNeeded()},
		{name: "there never was an agent", change: func(d *deletion) { d.cluster.Status.Agent = fleet.AgentStatus{} }, hub: finalizing.NotNeeded()},
		{
			name: "there never was an agent, and the hub cannot remove it", reported: "Unreachable: no route",
			change: func(d *deletion) { d.cluster.Status.Agent = fleet.AgentStatus{} }, hub: finalizing.GivenUp(fleet.ReasonUnreachable, "no route"),
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			d.importer.state = row.hub
			row.change(d)
			assert.Equal(t, !row.waits, d.finalized(t))
			if d.importer.passes > 0 {
				assert.Equal(t, noon.Add(grace), d.importer.deadline)
			}
			if row.reported == "" {
				assert.Empty(t, d.events.Events)
				return
			}
			event := <-d.events.Events
			assert.Contains(t, event, "Warning MemberLeft something may be left on the member: "+row.reported)
			assert.Contains(t, event, "; the agent was in namespace "+cmp.Or(d.cluster.Status.Agent.Namespace, d.SystemNamespace)+", and ")
		})
	}
	t.Run("the kind of Clusters is deleted", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		client := withKind(&metav1.Time{Time: noon}, noon.Add(-time.Hour))
		d.Metadata = client
		assert.True(t, d.finalized(t))
		assert.Contains(t, <-d.events.Events, "Warning MemberLeft something may be left on the member: KindDeleted: ")
		assert.Empty(t, d.patches(), "the agent is not asked")
		assert.Zero(t, d.importer.passes)
		d.finalized(t)
		assert.Len(t, client.Actions(), 1, "it is asked once a second")
	})
	for name, row := range map[string]struct {
		client *metadatafake.FakeMetadataClient
		asked  bool // the agent
	}{
		"the kind of Clusters is gone":                                 {client: metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())},
		"the kind of Clusters was created again after the deletion":    {client: withKind(nil, noon.Add(time.Second))},
		"the kind of Clusters stays":                                   {client: withKind(nil, noon.Add(-time.Hour)), asked: true},
		"the hub has no right to know whether the kind of Clusters is": {client: forbidding(withKind(&metav1.Time{Time: noon}, noon)), asked: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			d.Metadata = row.client
			assert.Equal(t, !row.asked, d.finalized(t))
			assert.Equal(t, row.asked, len(d.patches()) > 0)
		})
	}
	t.Run("it is not known whether the kind of Clusters is deleted", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		client := withKind(nil, noon.Add(-time.Hour))
		client.PrependReactor("get", "customresourcedefinitions", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errCause })
		d.Metadata = client
		_, err := d.finalize(t.Context(), d.cluster)
		require.ErrorIs(t, err, errCause)
		assert.Empty(t, d.patches())
	})
	t.Run("the hub is stopped before it removes the finalizer", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		agentFails(d)
		d.fail("patch", "clusters", errors.New("stopped"))
		_, err := d.finalize(t.Context(), d.cluster)
		require.Error(t, err)
		assert.Contains(t, <-d.events.Events, "Warning MemberLeft something may be left on the member: Disconnected")
	})
	t.Run("the finalizer cannot be removed at first", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		agentFails(d)
		d.fail("patch", "clusters", errors.New("refused by a webhook"))
		for range 3 {
			_, err := d.finalize(t.Context(), d.cluster)
			require.Error(t, err)
		}
		assert.Len(t, d.events.Events, 1, "it is reported once")
		assert.InDelta(t, 1, testutil.ToFloat64(d.Metrics.MembersNotCleaned.WithLabelValues(fleet.ReasonDisconnected)), 0)
		d.cluster.UID = "the next"
		_, err := d.finalize(t.Context(), d.cluster)
		require.Error(t, err)
		assert.Len(t, d.events.Events, 2, "and once for the next Cluster of that name")
	})
	t.Run("agent removed itself, and the hub cannot verify it", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		require.False(t, d.finalized(t))
		d.answer(t, result.Done("", ""))
		d.importer.state = finalizing.GivenUp(fleet.ReasonUnreachable, "no route")
		assert.True(t, d.finalized(t))
		assert.Empty(t, d.events.Events)
	})
	t.Run("the agent stays with another Cluster", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		d.cluster.Labels = map[string]string{fleet.ClusterManagementLabel: "x"}
		assert.True(t, d.finalized(t))
		assert.Zero(t, d.importer.passes)
		assert.Empty(t, d.patches())
		assert.Empty(t, d.events.Events)
	})
	for name, change := range map[string]func(*deletion){
		"removing the agent": func(d *deletion) {
			agentFails(d)
			d.importer.err = errCause
		},
		"asking the member for its Cluster": func(d *deletion) {
			other := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{
				Namespace: "elsewhere", Name: "member", UID: "new", Labels: map[string]string{fleet.ManagementClusterLabel: "c-1"},
			}}
			other.Status.AgentDeployedGeneration = new(int64)
			d.clusters, d.cluster.Labels, d.cluster.Spec.KubeConfigSecret = known{all: []*fleet.Cluster{other}}, other.Labels, "kubeconfig"
			d.importer.answer.err = errCause
		},
		"reading the kubeconfig": func(d *deletion) {
			d.cluster.Spec.KubeConfigSecret = "kubeconfig"
			d.clusters = known{all: []*fleet.Cluster{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "member", UID: "new"},
				Spec:       fleet.ClusterSpec{KubeConfigSecret: "kubeconfig", KubeConfigSecretNamespace: "ws"},
			}}}
			d.Kubernetes.(*fake.Clientset).PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errCause })
		},
		"deleting the Bundle": func(d *deletion) {
			agentFails(d)
			d.bundles = cachedBundle{err: errCause}
		},
	} {
		t.Run("the hub's own API server fails: "+name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			change(d)
			for range 3 {
				latest, err := d.finalize(t.Context(), d.cluster)
				require.ErrorIs(t, err, errCause)
				condition := fleetstatus.Condition(latest.Status.Conditions, fleet.ConditionProcessed)
				assert.Equal(t, corev1.ConditionFalse, condition.Status)
				assert.Equal(t, fleet.ReasonError, condition.Reason)
				assert.Contains(t, condition.Message, "cause")
				assert.Empty(t, d.patches(), "the agent is not asked to remove what it deployed")
				d.cluster.Status = latest.Status
				d.clock.Step(time.Hour)
			}
			require.Len(t, d.events.Events, 1, "the error is reported once")
			assert.Contains(t, <-d.events.Events, "Warning Error")
		})
	}
}

func TestToReport(t *testing.T) {
	expired, cancel := context.WithTimeout(t.Context(), -1)
	defer cancel()
	ctx, cancel := toReport(expired)
	require.NoError(t, ctx.Err())
	cancel()
	require.Error(t, ctx.Err())
	stopped, stop := context.WithCancel(t.Context())
	stop()
	ctx, cancel = toReport(stopped)
	defer cancel()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
}

func TestNeedsFarewell(t *testing.T) {
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
	byServer := func(c *fleet.Cluster) {
		c.Labels, c.Spec.KubeConfigSecret = map[string]string{fleet.ManagementClusterLabel: "c-1"}, "kubeconfig"
	}
	withOwnSecret := func(change func(*fleet.Cluster)) *fleet.Cluster {
		return other(func(c *fleet.Cluster) {
			c.Spec.KubeConfigSecretNamespace = ""
			if change != nil {
				change(c)
			}
		})
	}
	installed := func(c *fleet.Cluster) { c.Status.AgentDeployedGeneration = new(int64) }
	checkedIn := func(c *fleet.Cluster) { c.Status.Agent.LastSeen = deleting }
	yes, no := memberAnswer{belongs: true}, memberAnswer{}
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
		name  string
		this  func(*fleet.Cluster)
		hub   config.Hub
		other *fleet.Cluster
		// answer is the answer of the member.
		answer memberAnswer
		keeps  bool
	}{
		{name: "no other Cluster"},
		{name: "other cluster", other: other(nil)},
		{name: "same cluster ID, no agent", this: byServer, other: withOwnSecret(nil), answer: yes},
		{name: "same cluster ID, agent installed by the hub, on the member", this: byServer, keeps: true, other: withOwnSecret(installed), answer: yes},
		{name: "same cluster ID, agent has checked in, on the member", this: byServer, keeps: true, other: withOwnSecret(checkedIn), answer: yes},
		{name: "same cluster ID, agent installed by the hub elsewhere", this: byServer, other: withOwnSecret(installed), answer: no},
		{name: "same cluster ID, agent has checked in elsewhere", this: byServer, other: withOwnSecret(checkedIn), answer: no},
		{name: "same cluster ID, has an agent, kubeconfig deleted", this: byServer, keeps: true, other: withOwnSecret(checkedIn), answer: memberAnswer{cannotBeAsked: true}},
		{name: "same cluster ID, has an agent, no kubeconfig", this: func(c *fleet.Cluster) {
			byServer(c)
			c.Spec.KubeConfigSecret = ""
		}, other: withOwnSecret(checkedIn), answer: yes},
		{name: "same kubeconfig, not allowed to use it", this: byOwnSecret, other: stranger(nil)},
		{name: "same kubeconfig, not allowed to use it, has an agent", this: byOwnSecret, other: stranger(checkedIn), answer: yes},
		{name: "same kubeconfig, not allowed to use it, agent installed by the hub", this: byOwnSecret, other: stranger(installed), answer: yes},
		{name: "same kubeconfig, allowed by its annotation", this: byOwnSecret, other: stranger(func(c *fleet.Cluster) { c.Namespace = "a-friend" }), keeps: true},
		{name: "same kubeconfig", this: bySecret, other: other(func(c *fleet.Cluster) { c.Labels = nil }), keeps: true},
		{name: "same kubeconfig, other agent namespace", this: bySecret, other: other(func(c *fleet.Cluster) { c.Spec.AgentNamespace = "its-own" })},
		{name: "same kubeconfig, deleted as well", this: bySecret, other: other(func(c *fleet.Cluster) { c.DeletionTimestamp = &deleting })},
		{name: "the Cluster itself", this: bySecret, other: other(func(c *fleet.Cluster) { c.UID = "old" })},
		{name: "local cluster, moved", this: local, hub: config.Hub{Bootstrap: config.Bootstrap{Namespace: "fleet-local"}}, keeps: true},
		{name: "local cluster, not moved", this: local, hub: config.Hub{Bootstrap: config.Bootstrap{Namespace: "ws"}}},
		{name: "local cluster, no longer registered", this: local, hub: config.Hub{Bootstrap: config.Bootstrap{Namespace: "-"}}},
		{name: "local cluster without an agent", this: local, hub: config.Hub{Bootstrap: config.Bootstrap{Namespace: "ws", LocalAgentDisabled: true}}, keeps: true},
		{name: "managed by another controller", this: func(c *fleet.Cluster) { c.Labels = map[string]string{fleet.ClusterManagementLabel: "x"} }, keeps: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			var others []*fleet.Cluster
			if row.other != nil {
				others = append(others, row.other)
			}
			d := newDeletion(row.hub, others...)
			d.importer.answer = row.answer
			if row.this != nil {
				row.this(d.cluster)
			}
			d.clock.Step(handoverWait)
			isNeeded, recheckIn, err := d.needsFarewell(t.Context(), d.cluster, noon, d.FarewellGrace)
			require.NoError(t, err)
			assert.Zero(t, recheckIn)
			assert.Equal(t, row.keeps, !isNeeded)
		})
	}
}

// A user of another workspace names the kubeconfig in as many Clusters as he likes: a read for each would take longer than a pass may.
func TestNeedsFarewell_readsTheSecretOnce(t *testing.T) {
	claim := func(namespace string, n int) *fleet.Cluster {
		return &fleet.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("claim-", n), UID: types.UID(fmt.Sprint(namespace, n))},
			Spec:       fleet.ClusterSpec{KubeConfigSecret: "kubeconfig", KubeConfigSecretNamespace: "ws"},
		}
	}
	var claims []*fleet.Cluster
	for n := range 500 {
		claims = append(claims, claim("mallory", n), claim("mallet", n))
	}
	for allowed, others := range map[bool][]*fleet.Cluster{false: claims, true: append(slices.Clone(claims), claim("a-friend", 1), claim("mallory", 501))} {
		d := newDeletion(config.Hub{}, others...)
		d.cluster.Spec.KubeConfigSecret = "kubeconfig"
		d.clock.Step(grace)
		isNeeded, recheckIn, err := d.needsFarewell(t.Context(), d.cluster, noon, d.FarewellGrace)
		require.NoError(t, err)
		assert.Zero(t, recheckIn)
		assert.Equal(t, allowed, !isNeeded)
		assert.Len(t, d.Kubernetes.(*fake.Clientset).Actions(), 1)
	}
}

func TestNeedsFarewell_waits(t *testing.T) {
	label := map[string]string{fleet.ManagementClusterLabel: "c-1"}
	waits := func(t *testing.T, d *deletion) time.Duration {
		t.Helper()
		isNeeded, recheckIn, err := d.needsFarewell(t.Context(), d.cluster, noon, d.FarewellGrace)
		require.NoError(t, err)
		assert.True(t, isNeeded)
		return recheckIn
	}
	t.Run("for a Cluster that the management server may create", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		d.cluster.Labels = label
		latest, err := d.finalize(t.Context(), d.cluster)
		require.NoError(t, err)
		assert.Equal(t, fleet.ReasonCheckingHandover, fleetstatus.Condition(latest.Status.Conditions, fleet.ConditionProcessed).Reason)
		assert.Equal(t, handoverWait, waits(t, d))
		d.clock.Step(handoverWait)
		assert.Zero(t, waits(t, d))

		d = newDeletion(config.Hub{})
		d.cluster.Labels, d.cluster.Status.Agent.LastSeen = label, metav1.Time{}
		assert.Zero(t, waits(t, d), "there is no agent")
		d.cluster.Status.AgentDeployedGeneration = new(int64)
		assert.Equal(t, handoverWait, waits(t, d), "the hub has installed an agent, which has not sent a heartbeat since")
	})
	t.Run("for the proof of a claim", func(t *testing.T) {
		other := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "member", UID: "new", Labels: label}}
		d := newDeletion(config.Hub{}, other)
		d.FarewellGrace, d.cluster.Labels = 3*time.Minute, label
		d.clock.Step(time.Minute - time.Second)
		assert.Equal(t, time.Second, waits(t, d))
		d.clock.Step(time.Second)
		assert.Zero(t, waits(t, d))
	})
}

// The call that asks the member occupies a slot until AgentBelongsTo is called without other Clusters.
func TestNeedsFarewell_claimEnds(t *testing.T) {
	other := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "elsewhere", Name: "member", UID: "new", Labels: map[string]string{fleet.ManagementClusterLabel: "c-1"},
	}}
	other.Status.AgentDeployedGeneration = new(int64)
	d := newDeletion(config.Hub{}, other)
	d.cluster.Labels, d.cluster.Spec.KubeConfigSecret = other.Labels, "kubeconfig"
	for _, claims := range []int{1, 0} {
		d.clusters = known{all: []*fleet.Cluster{other}[:claims]}
		d.importer.askedFor = -1
		_, _, err := d.needsFarewell(t.Context(), d.cluster, noon, d.FarewellGrace)
		require.NoError(t, err)
		assert.Equal(t, claims, d.importer.askedFor)
	}
}

func TestAskAgent(t *testing.T) {
	deadline := noon.Add(grace)
	asks := func(t *testing.T, d *deletion) finalizing.Farewell {
		t.Helper()
		out, err := d.askAgent(t.Context(), d.cluster, deadline)
		require.NoError(t, err)
		return out
	}
	t.Run("the agent is asked once and waited for", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		for range 2 {
			out := asks(t, d)
			assert.True(t, out.IsWaiting())
			assert.Equal(t, "waiting until 2026-01-02T12:00:30Z for the agent to remove what it deployed", out.Message)
			assert.Equal(t, grace, out.After, "the answer is an event")
		}
		assert.Equal(t, []string{`{"metadata":{"annotations":{"muster.fleet.cattle.io/farewell":"2026-01-02T12:00:00Z"}}}`}, d.patches())
		d.answer(t, result.Done("", ""))
		assert.True(t, asks(t, d).IsRemoved())
	})
	t.Run("the agent is told to keep the workloads", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		d.cluster.Annotations = map[string]string{fleet.KeepWorkloadsAnnotation: fleet.KeepWorkloadsValue}
		assert.True(t, asks(t, d).IsWaiting())
		assert.Equal(t, []string{
			`{"metadata":{"annotations":{"muster.fleet.cattle.io/farewell":"2026-01-02T12:00:00Z","muster.fleet.cattle.io/keep-workloads":"true"}}}`,
		}, d.patches())
	})
	t.Run("the answer is read from the cache", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		out := asks(t, d)
		require.True(t, out.IsWaiting(), "a BundleDeployment that the cache does not contain is read from the API server")
		assert.Equal(t, grace, out.After)
		d.fail("*", "bundledeployments", errCause) // no further request
		answered := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{fleet.FarewellAnnotation: "asked"}}}
		d.handler.deployments = cachedDeployment{agent: answered}
		assert.True(t, asks(t, d).IsWaiting())
		result.Set(&answered.Status.Conditions, fleet.ConditionFarewell, result.Done("", ""), noon)
		assert.True(t, asks(t, d).IsRemoved())
	})
	t.Run("the agent's error is reported at the deadline", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		asks(t, d)
		d.answer(t, result.Stalled("R", "a finalizer hangs"))
		assert.True(t, asks(t, d).IsWaiting())
		d.clock.Step(grace)
		out := asks(t, d)
		assert.Equal(t, fleet.ReasonFarewellTimeout, out.Reason)
		assert.Contains(t, out.Message, "removed what it deployed: a finalizer hangs")
	})
	t.Run("an API server that fails is retried until the deadline", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		d.fail("patch", "bundledeployments", errCause)
		d.clock.Step(grace - time.Nanosecond)
		_, err := d.askAgent(t.Context(), d.cluster, deadline)
		require.ErrorIs(t, err, errCause)
		d.clock.Step(time.Nanosecond)
		out := asks(t, d)
		assert.True(t, out.IsGivenUp())
		assert.Contains(t, out.Message, "the agent could not be asked")
	})
	for _, row := range []struct {
		name   string
		change func(*deletion)
		reason string
	}{
		{"no agent has checked in", func(d *deletion) { d.cluster.Status.Agent = fleet.AgentStatus{} }, ""},
		{"no heartbeat since the hub has installed the agent", func(d *deletion) {
			d.cluster.Status.Agent, d.cluster.Status.Conditions, d.cluster.Status.AgentDeployedGeneration = fleet.AgentStatus{}, nil, new(int64)
		}, fleet.ReasonDisconnected},
		{"agent disconnected", func(d *deletion) {
			result.Set(&d.cluster.Status.Conditions, fleet.ConditionConnected, result.Stalled(fleet.ReasonDisconnected, ""), noon)
		}, fleet.ReasonDisconnected},
		{"connection unknown", func(d *deletion) { d.cluster.Status.Conditions = nil }, fleet.ReasonDisconnected},
		{"agent quarantined", func(d *deletion) { d.cluster.Spec.Quarantined = true }, fleet.ReasonQuarantined},
		{"agent of Fleet", func(d *deletion) { d.cluster.Status.Agent.Version = "" }, fleet.ReasonAgentUnaware},
		{"agent without a Bundle", func(d *deletion) {
			d.fail("get", "bundledeployments", apierrors.NewNotFound(fleet.Resource("bundledeployments"), agentBundle))
		}, fleet.ReasonAgentUnaware},
	} {
		t.Run("not asked: "+row.name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			row.change(d)
			out := asks(t, d)
			assert.Equal(t, row.reason, out.Reason)
			assert.Equal(t, row.reason == "", out == finalizing.NotNeeded())
			assert.Empty(t, d.patches())
		})
	}
	t.Run("an agent that a chart installed is asked before it has adopted its Bundle", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		d.cluster.Status.Agent = fleet.AgentStatus{LastSeen: metav1.NewTime(noon), Version: "v1"}
		assert.True(t, asks(t, d).IsWaiting())
		assert.Len(t, d.patches(), 1)
	})
}

func TestFinalize_deadlines(t *testing.T) {
	for _, row := range []struct {
		name       string
		kubeconfig string
		deleted    time.Duration // by the clock of the API server
		configured time.Duration
		until      time.Duration
	}{
		{"the whole grace period", "", 0, 0, grace},
		{"two thirds of it if the hub has a kubeconfig", "kubeconfig", 0, 0, grace * 2 / 3},
		{"the time of the configuration", "", 0, 10 * grace, 10 * grace},
		{"two thirds of that", "kubeconfig", 0, 10 * grace, 10 * grace * 2 / 3},
		{"from the start of a hub that was down, or whose clock is ahead", "", -time.Hour, 0, grace},
		{"the clock of the hub is behind", "", time.Hour, 0, grace},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := newDeletion(config.Hub{AgentRemovalTimeout: metav1.Duration{Duration: row.configured}})
			d.cluster.Spec.KubeConfigSecret, d.cluster.DeletionTimestamp.Time = row.kubeconfig, noon.Add(row.deleted)
			require.False(t, d.finalized(t))
			d.clock.Step(row.until - time.Nanosecond)
			require.False(t, d.finalized(t))
			d.clock.Step(time.Nanosecond)
			require.True(t, d.finalized(t))
			assert.Contains(t, <-d.events.Events, "Warning MemberLeft something may be left on the member: FarewellTimeout: ")
		})
	}
	t.Run("for each Cluster of a name", func(t *testing.T) {
		d := newDeletion(config.Hub{})
		require.False(t, d.finalized(t))
		d.clock.Step(grace)
		d.cluster.UID = "the next"
		require.False(t, d.finalized(t))
		d.clock.Step(grace)
		d.deletions.Delete("ws/member")
		require.False(t, d.finalized(t))
	})
}

func TestDeleteBundle(t *testing.T) {
	bundle := func(change func(*fleet.Bundle)) *fleet.Bundle {
		b := &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ws", Name: agentBundle, UID: "b", Annotations: map[string]string{apply.LabelID: registration.SetIDManageAgent},
			Finalizers: []string{"other", fleet.BundleFinalizer},
		}}
		change(b)
		return b
	}
	long := strings.Repeat("a", 64)
	require.Equal(t, registration.AgentBundleName(long+"-1332"), registration.AgentBundleName(long+"-1716"))
	gone := apierrors.NewNotFound(fleet.Resource("bundles"), agentBundle)
	const deletion, release = "delete fleet-agent-member of b", `patch {"metadata":{"finalizers":["other"],"uid":"b"}}`
	for _, row := range []struct {
		name      string
		bundle    *fleet.Bundle
		unknown   error
		refuses   error
		elsewhere bool
		failed    bool
		sent      []string
		cluster   string // its name, "" for member
	}{
		{name: "exists", bundle: bundle(func(*fleet.Bundle) {}), sent: []string{deletion, release}},
		{name: "being deleted", bundle: bundle(func(b *fleet.Bundle) { b.DeletionTimestamp = &metav1.Time{Time: noon} }), sent: []string{release}},
		{name: "without finalizer", bundle: bundle(func(b *fleet.Bundle) { b.Finalizers = nil }), sent: []string{deletion}},
		{name: "Fleet's controllers remove the finalizer", bundle: bundle(func(*fleet.Bundle) {}), elsewhere: true, sent: []string{deletion}},
		{name: "just deleted", bundle: bundle(func(*fleet.Bundle) {}), refuses: gone, sent: []string{deletion}},
		{name: "does not exist"},
		{name: "a user's Bundle", bundle: &fleet.Bundle{}},
		{name: "of another Cluster, whose Bundle has the same shortened name", cluster: long + "-1716", bundle: bundle(func(b *fleet.Bundle) {
			b.Name, b.Spec.Targets = registration.AgentBundleName(long+"-1332"), []fleet.BundleTarget{{ClusterName: long + "-1332"}}
		})},
		{name: "the cache fails", unknown: errCause, failed: true},
		{name: "the API server fails", bundle: bundle(func(*fleet.Bundle) {}), refuses: errCause, failed: true, sent: []string{deletion}},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			if row.cluster != "" {
				d.cluster.Name = row.cluster
			}
			d.bundles, d.DisableBundles = cachedBundle{bundle: row.bundle, err: row.unknown}, row.elsewhere
			var sent []string
			d.fleet.PrependReactor("*", "bundles", func(action clienttesting.Action) (bool, runtime.Object, error) {
				switch a := action.(type) {
				case clienttesting.DeleteActionImpl:
					sent = append(sent, fmt.Sprintf("delete %s of %s", a.Name, *a.DeleteOptions.Preconditions.UID))
				case clienttesting.PatchActionImpl:
					sent = append(sent, "patch "+string(a.Patch))
				}
				return true, &fleet.Bundle{}, row.refuses
			})
			assert.Equal(t, row.failed, d.deleteBundle(t.Context(), d.cluster) != nil)
			assert.Equal(t, row.sent, sent)
		})
	}
}

func TestDeleteRequests(t *testing.T) {
	of := func(name string, owner types.UID) *fleet.ClusterRegistration {
		r := request(name, 0, "", "")
		r.UID = types.UID("uid-of-" + name)
		r.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", UID: owner}}
		return r
	}
	going := of("going", "mine")
	going.DeletionTimestamp = &metav1.Time{Time: noon}
	for _, row := range []struct {
		name   string
		err    error
		failed bool
	}{
		{"exist", nil, false},
		{"just deleted", apierrors.NewNotFound(fleet.Resource("clusterregistrations"), "own"), false},
		{"the API server fails", errCause, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			d.requests = requests{all: []*fleet.ClusterRegistration{of("another's", "other"), of("own", "mine"), going}}
			var deleted []string
			d.fleet.PrependReactor("delete", "clusterregistrations", func(action clienttesting.Action) (bool, runtime.Object, error) {
				a := action.(clienttesting.DeleteActionImpl)
				deleted = append(deleted, a.Name+" "+string(*a.DeleteOptions.Preconditions.UID))
				return true, nil, row.err
			})
			cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "mine"}, Spec: fleet.ClusterSpec{ClientID: "id"}}
			assert.Equal(t, row.failed, d.deleteRequests(t.Context(), cluster) != nil)
			assert.Equal(t, []string{"own uid-of-own"}, deleted)
			assert.True(t, d.RequestsDeletedWithCluster.Take(types.NamespacedName{Namespace: "ns", Name: "own"}))
			assert.False(t, d.RequestsDeletedWithCluster.Take(types.NamespacedName{Namespace: "ns", Name: "another's"}))
		})
	}
}

func TestClusterOfUninstallingAgent(t *testing.T) {
	asked := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "cluster-ns", Annotations: map[string]string{fleet.FarewellAnnotation: "x"}}}
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: registration.ClusterNamespace("ws", "member"), Annotations: map[string]string{
		fleet.ClusterAnnotation: "member", fleet.WorkspaceAnnotation: "ws",
	}}}
	h := &handler{namespaces: cachedNamespace{Namespace: own}}
	assert.Equal(t, []types.NamespacedName{{Namespace: "ws", Name: "member"}}, h.clusterOfUninstallingAgent(asked))
	assert.Empty(t, h.clusterOfUninstallingAgent(&fleet.BundleDeployment{}), "an agent that was not asked")
	h.namespaces = cachedNamespace{}
	assert.Empty(t, h.clusterOfUninstallingAgent(asked), "not in a cluster namespace")
}

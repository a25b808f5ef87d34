package manageagent

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/testenv/golden"
	"github.com/muster-fleet/muster/internal/testenv/heap"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

func assertGolden(t *testing.T, name string, bundle *fleet.Bundle) {
	t.Helper()
	shown := bundle.DeepCopy()
	shown.UID, shown.ResourceVersion = "", ""
	data, err := yaml.Marshal(shown)
	require.NoError(t, err)
	golden.Equal(t, "testdata/"+name, string(data))
}

func (s *stage) run(t *testing.T, c *fleet.Cluster) result.Result {
	t.Helper()
	return s.Reconcile(t.Context(), c)
}

// done reconciles, which must succeed, and lets the cache see it.
func (s *stage) done(t *testing.T, c *fleet.Cluster) {
	t.Helper()
	out := s.run(t, c)
	require.True(t, out.IsDone(), "%s: %s", out.Reason, out.Message)
	require.Equal(t, fleet.ReasonReconciled, out.Reason)
	s.catchUp()
}

func TestReconcileCreatesTheBundle(t *testing.T) {
	for name, c := range map[string]*fleet.Cluster{
		"imported.yaml": imported(),
		"edge.yaml":     selfRegistered(),
		"settings.yaml": func() *fleet.Cluster {
			c := imported()
			c.Spec.AgentNamespace, c.Status.Import.AgentNamespace = "elsewhere", "elsewhere"
			c.Spec.RedeployAgentGeneration = 3
			c.Spec.AgentEnvVars = []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "http://proxy"}}
			c.Spec.AgentTolerations = []corev1.Toleration{{Key: "z", Operator: "Exists"}, {Key: "a", Operator: "Exists"}}
			c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 1}}
			return c
		}(),
	} {
		t.Run(strings.TrimSuffix(name, ".yaml"), func(t *testing.T) {
			o := newStage(t)
			o.done(t, c)
			assert.Equal(t, []string{"create"}, o.wrote())
			assertGolden(t, name, o.bundle(t))
		})
	}
}

func TestReconcileWithDisableBundlesSetsNoFinalizer(t *testing.T) {
	o := newStage(t)
	o.DisableBundles = true
	o.done(t, imported())
	assert.Empty(t, o.bundle(t).Finalizers)
	o.bundle(t).Finalizers = []string{"of-fleet"}
	o.catchUp()
	o.forget()
	o.done(t, imported())
	assert.Empty(t, o.wrote())
}

func TestReconcileDecidesWhen(t *testing.T) {
	unheard := func(c *fleet.Cluster) { c.Status.Agent = fleet.AgentStatus{} }
	for _, row := range []struct {
		name    string
		cluster *fleet.Cluster
		change  func(*fleet.Cluster)
		granted bool
		reason  string
		made    string // the namespace of the agent
	}{
		{name: "connected", cluster: imported(), reason: fleet.ReasonReconciled, made: system},
		{name: "not registered", cluster: imported(), change: unheard, reason: fleet.ReasonWaitingForAgent},
		{name: "granted, before its first heartbeat", cluster: imported(), change: unheard, granted: true, reason: fleet.ReasonWaitingForAgent, made: system},
		{name: "self-registered", cluster: selfRegistered(), reason: fleet.ReasonReconciled, made: system},
		{name: "self-registered, before its first heartbeat", cluster: selfRegistered(), change: unheard, granted: true, reason: fleet.ReasonWaitingForAgent},
		{
			name: "self-registered, invalid namespace", cluster: selfRegistered(), reason: fleet.ReasonSettingsInvalid,
			change: func(c *fleet.Cluster) { c.Status.Agent.Namespace = "a\nb: c" },
		},
		{name: "self-registered, not granted", cluster: selfRegistered(), change: unheard, reason: fleet.ReasonWaitingForAgent},
		{
			name: "self-registered in another namespace", cluster: selfRegistered(), reason: fleet.ReasonReconciled, made: "own",
			change: func(c *fleet.Cluster) { c.Status.Agent.Namespace = "own" },
		},
		{
			name: "self-registered, the spec has another namespace: it stays", cluster: selfRegistered(), reason: fleet.ReasonReconciled, made: system,
			change: func(c *fleet.Cluster) { c.Spec.AgentNamespace = "elsewhere" },
		},
		{
			name: "to be moved", cluster: imported(), reason: fleet.ReasonWaitingForImport,
			change: func(c *fleet.Cluster) { c.Spec.AgentNamespace = "elsewhere" },
		},
		{
			name: "moved", cluster: imported(), reason: fleet.ReasonReconciled, made: "elsewhere",
			change: func(c *fleet.Cluster) {
				c.Spec.AgentNamespace, c.Status.Import.AgentNamespace = "elsewhere", "elsewhere"
			},
		},
		{
			name: "to be moved back", cluster: imported(), reason: fleet.ReasonWaitingForImport,
			change: func(c *fleet.Cluster) { c.Status.Import.AgentNamespace = "elsewhere" },
		},
		{
			name: "not installed", cluster: imported(), reason: fleet.ReasonWaitingForImport, granted: true,
			change: func(c *fleet.Cluster) { c.Status.Import, c.Status.AgentDeployedGeneration = nil, nil },
		},
		{
			name: "installed by Fleet's hub", cluster: imported(), reason: fleet.ReasonReconciled, made: system,
			change: func(c *fleet.Cluster) { c.Status.Import = nil },
		},
		{
			name: "installed by Fleet's hub, does not report its namespace", cluster: imported(), reason: fleet.ReasonReconciled, made: system,
			change: func(c *fleet.Cluster) { c.Status.Import, c.Status.Agent.Namespace = nil, "" },
		},
		{
			name: "installed by Fleet's hub in another namespace", cluster: imported(), reason: fleet.ReasonWaitingForImport,
			change: func(c *fleet.Cluster) { c.Status.Import, c.Status.Agent.Namespace = nil, "elsewhere" },
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := newStage(t)
			if row.change != nil {
				row.change(row.cluster)
			}
			if row.granted {
				o.grant()
			}
			out := o.run(t, row.cluster)
			assert.Equal(t, row.reason, out.Reason, out.Message)
			if row.made == "" {
				assert.Empty(t, o.wrote())
				return
			}
			assert.Equal(t, row.made, o.bundle(t).Spec.DefaultNamespace)
			assert.Contains(t, o.bundle(t).Spec.Resources[0].Content, "namespace: "+row.made+"\n")
		})
	}
}

func TestReconcileDuringAReinstallation(t *testing.T) {
	o, c := newStage(t), imported()
	o.done(t, c)
	c.Status.Conditions = append(c.Status.Conditions, genericcondition.GenericCondition{Type: fleet.ConditionReconciled, Status: "True", Reason: fleet.ReasonReconciled})
	c.Status.Agent = fleet.AgentStatus{}
	o.done(t, c)
	c.Status.Conditions, c.Spec.HostNetwork = nil, ptr.To(true)
	o.forget()
	assert.Equal(t, fleet.ReasonWaitingForAgent, o.run(t, c).Reason)
	assert.Equal(t, []string{"patch"}, o.wrote(), "the Bundle is updated before the first heartbeat")
}

func TestReconcileSelfRegistered(t *testing.T) {
	o := newStage(t)
	o.done(t, imported())
	assert.NotContains(t, o.bundle(t).Spec.Resources[0].Content, "fleet-agent-hub")

	o = newStage(t)
	o.Config.Set(config.Hub{AgentImage: "i"})
	o.done(t, selfRegistered())
	assert.NotContains(t, o.bundle(t).Spec.Resources[0].Content, "fleet-agent-hub", "the configuration has no URL")

	o, c := newStage(t), selfRegistered()
	c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 1}}
	assert.Equal(t, "spec.agentSchedulingCustomization has no effect, because a person installed the agent", o.run(t, c).Message)
	assert.NotContains(t, o.bundle(t).Spec.Resources[0].Content, "priorityClassName", "the hub cannot create the PriorityClass")
	o.catchUp()
	assert.Empty(t, newStage(t).run(t, selfRegistered()).Message, "without the setting")
	effective := imported()
	effective.Spec.AgentSchedulingCustomization = c.Spec.AgentSchedulingCustomization
	assert.Empty(t, newStage(t).run(t, effective).Message, "an import creates the objects")
}

// The thief of an agent's token reports another namespace with each heartbeat.
func TestReconcileManyNamespaces(t *testing.T) {
	o, c := newStage(t), selfRegistered()
	report := func(namespace string) result.Result {
		c.Status.Agent.Namespace = namespace
		out := o.run(t, c)
		require.True(t, out.IsDone(), "%s: %s", out.Reason, out.Message)
		o.catchUp()
		return out
	}
	report(system)
	o.forget()
	for i := range 100 {
		out := report(fmt.Sprint("ns", i))
		assert.Equal(t, "ns0", o.bundle(t).Spec.DefaultNamespace)
		assert.Equal(t, i > 0, out.After > 0)
		o.clock.Step(moveInterval / 100)
	}
	assert.Equal(t, []string{"patch"}, o.wrote(), "the first one at once, and then one a minute")

	found := o.bundle(t).DeepCopy()
	found.Spec.DefaultNamespace = "edited"
	o.put(found)
	assert.Zero(t, report("ns0").After)
	assert.Equal(t, "ns0", o.bundle(t).Spec.DefaultNamespace, "it is repaired")

	o.clock.Step(moveInterval)
	assert.Zero(t, report("last").After)
	assert.Equal(t, "last", o.bundle(t).Spec.DefaultNamespace)

	o.Forget("ns/c")
	o.moved.Range(func(key, _ any) bool { t.Error("it keeps", key); return true })
}

func TestReconcileInvalidSettings(t *testing.T) {
	o := newStage(t)
	o.Config.Set(config.Hub{})
	out := o.run(t, imported())
	assert.Equal(t, fleet.ReasonSettingsInvalid, out.Reason)
	assert.Contains(t, out.Message, "agentImage")

	o = newStage(t)
	o.done(t, selfRegistered())
	before := o.bundle(t).DeepCopy()
	broken := hubConfig
	broken.APIServerCA = []byte("garbage")
	o.Config.Set(broken)
	out = o.run(t, selfRegistered())
	assert.Equal(t, fleet.ReasonAPIServerCAInvalid, out.Reason)
	assert.Equal(t, before, o.bundle(t), "the Bundle stays")
	o.forget()
	assert.Equal(t, fleet.ReasonReconciled, o.run(t, imported()).Reason, "others do not depend on it")
}

// Rendering a megabyte of settings allocates a gigabyte, and a workspace has fifty workers.
func TestReconcileLargeSettings(t *testing.T) {
	for name, cluster := range map[string]func() *fleet.Cluster{"imported": imported, "self-registered": selfRegistered} {
		t.Run(name, func(t *testing.T) {
			o, c := newStage(t), cluster()
			c.Spec.AgentTolerations = make([]corev1.Toleration, 400_000)
			var out result.Result
			allocated := heap.Allocated(func() { out = o.run(t, c) })
			assert.Equal(t, fleet.ReasonSettingsInvalid, out.Reason)
			assert.Contains(t, out.Message, "spec.agentTolerations; at most 65536 are accepted")
			assert.Empty(t, o.wrote())
			assert.Less(t, allocated, 50<<20)
		})
	}
	t.Run("permitted, but too large to be kept in memory", func(t *testing.T) {
		o, c := newStage(t), imported()
		c.Spec.AgentTolerations = make([]corev1.Toleration, 5000)
		o.done(t, c)
		assert.Zero(t, o.manifests.cache.Len())
	})
}

func TestReconcileOfASettledClusterRendersAndWritesNothing(t *testing.T) {
	o, c := newStage(t), imported()
	o.done(t, c)
	o.done(t, c)
	settled := c.DeepCopy()
	o.forget()
	rendered := o.manifests.cache.Len()
	require.Equal(t, 1, rendered)
	for range 3 {
		o.done(t, c)
	}
	other := imported()
	other.Name = "other"
	o.done(t, other)
	assert.Equal(t, []string{"create"}, o.wrote(), "of the other Cluster")
	assert.Equal(t, rendered, o.manifests.cache.Len(), "one manifest for all with the same settings")
	assert.Equal(t, settled, c)
}

func TestReconcileRepairs(t *testing.T) {
	for name, damage := range map[string]func(*fleet.Bundle){
		"another manifest":       func(b *fleet.Bundle) { b.Spec.Resources[0].Content = "x" },
		"more resources":         func(b *fleet.Bundle) { b.Spec.Resources = append(b.Spec.Resources, fleet.BundleResource{Name: "x"}) },
		"no resources":           func(b *fleet.Bundle) { b.Spec.Resources = nil },
		"another target":         func(b *fleet.Bundle) { b.Spec.Targets[0].ClusterName = "x" },
		"more targets":           func(b *fleet.Bundle) { b.Spec.Targets = append(b.Spec.Targets, fleet.BundleTarget{}) },
		"a target for all":       func(b *fleet.Bundle) { b.Spec.Targets[0].ClusterSelector = nil },
		"another namespace":      func(b *fleet.Bundle) { b.Spec.DefaultNamespace = "x" },
		"no takeOwnership":       func(b *fleet.Bundle) { b.Spec.Helm.TakeOwnership = false },
		"no helm":                func(b *fleet.Bundle) { b.Spec.Helm = nil },
		"everything of the spec": func(b *fleet.Bundle) { b.Spec = fleet.BundleSpec{} },
	} {
		t.Run(name, func(t *testing.T) {
			o, c := newStage(t), imported()
			o.done(t, c)
			sound := o.bundle(t).DeepCopy()
			broken := sound.DeepCopy()
			damage(broken)
			o.put(broken)
			o.forget()
			o.done(t, c)
			assert.Equal(t, []string{"patch"}, o.wrote())
			repaired := o.bundle(t).DeepCopy()
			repaired.ResourceVersion = sound.ResourceVersion
			assert.Equal(t, sound, repaired)
			o.forget()
			o.done(t, c)
			assert.Empty(t, o.wrote())
		})
	}
}

func TestReconcileKeepsWhatOthersAdd(t *testing.T) {
	o, c := newStage(t), imported()
	o.done(t, c)
	b := o.bundle(t).DeepCopy()
	b.Spec.Paused, b.Labels, b.Annotations["x"] = true, map[string]string{"a": "b"}, "y"
	b.Spec.ForceSyncGeneration = 2
	o.put(b)
	o.forget()
	o.done(t, c)
	assert.Empty(t, o.wrote())
	c.Spec.HostNetwork = ptr.To(true)
	o.done(t, c)
	changed := o.bundle(t)
	assert.True(t, changed.Spec.Paused)
	assert.EqualValues(t, 2, changed.Spec.ForceSyncGeneration)
	assert.Equal(t, b.Labels, changed.Labels)
	assert.Equal(t, b.Annotations, changed.Annotations)
}

func TestReconcileAdoptsABundleOfFleet(t *testing.T) {
	o, c := newStage(t), imported()
	namespace := metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: "ns", UID: "n"}
	o.put(&fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "fleet-agent-c", Annotations: map[string]string{apply.LabelID: "fleet-manage-agent", apply.LabelGVK: "/v1, Kind=Namespace"},
			Labels: map[string]string{apply.LabelHash: "h"}, OwnerReferences: []metav1.OwnerReference{namespace}, Finalizers: []string{"f"},
		},
		Spec: fleet.BundleSpec{Resources: []fleet.BundleResource{{Name: "agent.yaml", Content: "old"}}},
	})
	o.done(t, c)
	b := o.bundle(t)
	assert.Equal(t, []metav1.OwnerReference{namespace}, b.OwnerReferences)
	assert.Contains(t, b.Spec.Resources[0].Content, "managed/0")
	assert.Equal(t, []string{"f"}, b.Finalizers)
}

func TestReconcile_bundleTooLarge(t *testing.T) {
	o, c := newStage(t), imported()
	o.done(t, c)
	large := o.bundle(t).DeepCopy()
	large.Spec = fleet.BundleSpec{Targets: []fleet.BundleTarget{{}}, TooLarge: true}
	o.put(large)
	out := o.run(t, c)
	assert.Equal(t, fleet.ReasonError, out.Reason)
	assert.Contains(t, out.Message, "Bundle ns/fleet-agent-c is too large; delete the Bundle")
}

func TestReconcileForeignBundle(t *testing.T) {
	o, c := newStage(t), imported()
	o.put(&fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "fleet-agent-c"}})
	for range 2 {
		out := o.run(t, c)
		assert.Equal(t, fleet.ReasonNameConflict, out.Reason)
		assert.Contains(t, out.Message, "Bundle ns/fleet-agent-c")
		assert.Contains(t, out.Message, "the agents uninstall its releases")
		assert.Equal(t, result.Recheck, out.After)
		o.cache.All = nil // the cache is late
	}
	assert.Equal(t, []string{"create"}, o.wrote())
	o.catchUp()
	o.Config.Set(config.Hub{ManageAgent: ptr.To(false)})
	o.run(t, c)
	assert.Len(t, o.server.bundles, 1, "it is not deleted")
}

func TestReconcileDeletingBundle(t *testing.T) {
	o, c := newStage(t), imported()
	o.done(t, c)
	going := o.bundle(t).DeepCopy()
	going.DeletionTimestamp = ptr.To(metav1.Now())
	o.put(going)
	o.forget()
	assert.Equal(t, fleet.ReasonBundleDeleting, o.run(t, c).Reason)
	o.Config.Set(config.Hub{ManageAgent: ptr.To(false)})
	assert.Equal(t, fleet.ReasonAgentNotManaged, o.run(t, c).Reason)
	assert.Empty(t, o.wrote())
}

func TestReconcileWithANewBundleWritesTheStatusWithTheDeployment(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*stage)
		want   []bool // of passes, until the cache has the Bundle
	}{
		"created, then not in the cache": {func(*stage) {}, []bool{true, true}},
		"somebody else has created it":   {func(s *stage) { s.put(newBundle(selfRegistered(), system, agentManifest{})); s.cache.All = nil }, []bool{false, true}},
		"no deployments by this hub":     {func(s *stage) { s.DisableBundles = true }, []bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			o, c := newStage(t), selfRegistered()
			row.change(o)
			for _, want := range row.want {
				out := o.run(t, c)
				require.True(t, out.IsDone(), out.Message)
				assert.Equal(t, want, out.StatusLater)
			}
			o.catchUp()
			assert.False(t, o.run(t, c).StatusLater)
		})
	}
}

func TestReconcileWithALateCacheWritesOnce(t *testing.T) {
	o, c := newStage(t), imported()
	require.True(t, o.run(t, c).IsDone())
	again := o.run(t, c)
	require.True(t, again.IsDone(), "the Bundle exists and is not in the cache")
	assert.Equal(t, expectations.Timeout, again.After, "somebody may delete it before the cache has shown it")
	assert.False(t, again.StatusLater, "what an import has installed is recorded at once")
	assert.Equal(t, []string{"create"}, o.wrote())
	o.created = expectations.New(clock.RealClock{})
	require.True(t, o.run(t, c).IsDone(), "another hub created it")
	assert.Equal(t, []string{"create", "create"}, o.wrote())
	o.catchUp()
	late := o.cache.All
	o.forget()
	c.Spec.HostNetwork = ptr.To(true)
	o.done(t, c)
	o.cache.All = late
	require.True(t, o.run(t, c).IsDone())
	assert.Equal(t, []string{"patch"}, o.wrote())
}

func TestReconcileUnmanagedDeletes(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*stage, *fleet.Cluster)
		reason string
	}{
		"the configuration": {func(o *stage, _ *fleet.Cluster) { o.Config.Set(config.Hub{ManageAgent: ptr.To(false)}) }, fleet.ReasonAgentNotManaged},
		"a label":           {func(_ *stage, c *fleet.Cluster) { c.Labels = map[string]string{fleet.NonManagedAgentLabel: ""} }, fleet.ReasonAgentNotManaged},
		"the local one": {func(o *stage, c *fleet.Cluster) {
			c.Name = "local"
			o.Config.Set(config.Hub{Bootstrap: config.Bootstrap{Namespace: "ns", LocalAgentDisabled: true}})
		}, fleet.ReasonLocalAgentDisabled},
	} {
		t.Run(name, func(t *testing.T) {
			o, c := newStage(t), imported()
			row.change(o, c)
			sound := newStage(t)
			probe := imported()
			probe.Name = c.Name
			sound.done(t, probe)
			o.put(sound.server.bundles["fleet-agent-"+c.Name].DeepCopy())
			o.server.fails["patch BundleDeployment"] = errors.New("etcd is away")
			require.ErrorContains(t, o.run(t, c).Err, "etcd is away")
			assert.NotEmpty(t, o.server.bundles, "the agent must know it before")
			delete(o.server.fails, "patch BundleDeployment")
			out := o.run(t, c)
			assert.Equal(t, []string{registration.ClusterNamespace("ns", c.Name) + "/fleet-agent-" + c.Name +
				` {"metadata":{"annotations":{"muster.fleet.cattle.io/unmanaged":"true"}}}`}, o.server.told)
			assert.Equal(t, row.reason, out.Reason)
			assert.True(t, out.IsDone())
			assert.NotEmpty(t, out.Message)
			assert.Empty(t, o.server.bundles)
			o.catchUp()
			o.forget()
			assert.Equal(t, row.reason, o.run(t, c).Reason)
			assert.Empty(t, o.wrote())
			o.cache.All = append(o.cache.All, sound.server.bundles["fleet-agent-"+c.Name])
			assert.Equal(t, row.reason, o.run(t, c).Reason, "the cache still shows it")
		})
	}
}

func TestReconcileManagedElsewhereDeletes(t *testing.T) {
	o, c := newStage(t), imported()
	o.done(t, c)
	c.Labels = map[string]string{fleet.ClusterManagementLabel: "other"}
	assert.True(t, o.run(t, c).IsSkip(), "the condition was never set")
	assert.Empty(t, o.server.bundles)
	c.Status.Conditions = append(c.Status.Conditions, genericcondition.GenericCondition{Type: fleet.ConditionReconciled, Status: "True"})
	assert.Equal(t, fleet.ReasonManagedElsewhere, o.run(t, c).Reason)
}

func TestReconcileErrors(t *testing.T) {
	outage := errors.New("out")
	made := func(t *testing.T) (*stage, *fleet.Cluster) {
		t.Helper()
		o, c := newStage(t), imported()
		o.done(t, c)
		return o, c
	}
	for _, row := range []struct {
		name string
		make func(t *testing.T) (*stage, *fleet.Cluster)
		says string
	}{
		{"the cache", func(t *testing.T) (*stage, *fleet.Cluster) {
			o, c := made(t)
			o.cache.Err = outage
			return o, c
		}, "out"},
		{"the requests", func(t *testing.T) (*stage, *fleet.Cluster) {
			o, c := newStage(t), imported()
			c.Status.Agent, o.requests.Err = fleet.AgentStatus{}, outage
			return o, c
		}, "out"},
		{"creating", func(t *testing.T) (*stage, *fleet.Cluster) {
			o := newStage(t)
			o.server.fails["create"] = outage
			return o, imported()
		}, "creating Bundle ns/fleet-agent-c: out"},
		{"reading one that is there", func(t *testing.T) (*stage, *fleet.Cluster) {
			o, c := made(t)
			o.created = expectations.New(clock.RealClock{}) // the hub was restarted, and its cache lags behind
			o.cache.All, o.server.fails["get"] = nil, outage
			return o, c
		}, "reading Bundle ns/fleet-agent-c: out"},
		{"patching", func(t *testing.T) (*stage, *fleet.Cluster) {
			o, c := made(t)
			o.server.fails["patch"], c.Spec.HostNetwork = outage, ptr.To(true)
			return o, c
		}, "updating the agent's Bundle: patching ns/fleet-agent-c: out"},
		{"deleting", func(t *testing.T) (*stage, *fleet.Cluster) {
			o, c := made(t)
			o.server.fails["delete"] = outage
			o.Config.Set(config.Hub{ManageAgent: ptr.To(false)})
			return o, c
		}, "deleting Bundle ns/fleet-agent-c: out"},
	} {
		t.Run(row.name, func(t *testing.T) {
			o, c := row.make(t)
			before := c.DeepCopy()
			out := o.run(t, c)
			assert.Equal(t, fleet.ReasonError, out.Reason)
			assert.Equal(t, row.says, out.Message)
			require.Error(t, out.Err, "the work queue retries")
			assert.Equal(t, before, c, "nothing is recorded that was not done")
			o.cache.Err, o.requests.Err, o.server.fails = nil, nil, map[string]error{}
			o.catchUp()
			assert.NotEqual(t, fleet.ReasonError, o.run(t, c).Reason)
		})
	}
}

func TestReconcileConflict(t *testing.T) {
	o, c := newStage(t), imported()
	o.done(t, c)
	o.server.fails["patch"] = apierrors.NewConflict(resource, "fleet-agent-c", errors.New("older"))
	c.Spec.HostNetwork = ptr.To(true)
	out := o.run(t, c)
	assert.True(t, out.IsSkip())
	require.Error(t, out.Err)
}

func TestReconcileRecordsSettings(t *testing.T) {
	for _, row := range []struct {
		name      string
		cluster   *fleet.Cluster
		change    func(*fleet.Cluster)
		delivered bool
	}{
		{name: "it follows its Bundle", cluster: imported(), delivered: true},
		{name: "disconnected", cluster: imported(), change: func(c *fleet.Cluster) { c.Status.Conditions[0].Status = corev1.ConditionFalse }},
		{name: "it follows its import", cluster: imported(), change: func(c *fleet.Cluster) { c.Status.Agent.Generation = "x/0" }},
		{name: "of Fleet", cluster: imported(), change: func(c *fleet.Cluster) { c.Status.Agent.Generation = "" }},
		{name: "self-registered, of Fleet", cluster: selfRegistered(), change: func(c *fleet.Cluster) { c.Status.Agent.Generation = "" }, delivered: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			o, c := newStage(t), row.cluster
			if row.change != nil {
				row.change(c)
			}
			c.Spec.PrivateRepoURL = "registry"
			c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 1}}
			o.done(t, c)
			assert.Equal(t, row.delivered, c.Status.AgentPrivateRepoURL == "registry")
			assert.Empty(t, c.Status.AgentSchedulingCustomizationHash, "only an import delivers it")
			installed := agentspec.InstalledSettings(c.Status)
			assert.Equal(t, row.delivered, agentspec.WantedSettings(c.Spec).WithSchedulingOf(installed) == installed)
		})
	}
}

func TestReconcileRecordsDelivery(t *testing.T) {
	o, c := newStage(t), imported()
	imported := agentspec.ManifestHash(agentspec.Options(o.Context, c, ""))
	c.Status.Import.ManifestHash = imported
	o.done(t, c)
	o.done(t, c)
	assert.Equal(t, imported, c.Status.Import.ManifestHash, "the Bundle has the manifest of the import")

	c.Spec.PrivateRepoURL = "unreachable"
	o.done(t, c)
	assert.Equal(t, "changed", c.Status.Import.ManifestHash)
	c.Spec.PrivateRepoURL = ""
	o.done(t, c)
	assert.Equal(t, "changed", c.Status.Import.ManifestHash, "the agent may be unable to start with the manifest between")

	c.Status.Import.ManifestHash = imported // another import
	o.done(t, c)
	assert.Equal(t, imported, c.Status.Import.ManifestHash)

	c.Spec.PrivateRepoURL = "unreachable"
	o.done(t, c.DeepCopy()) // its status is not written
	o.done(t, c)
	assert.Equal(t, "changed", c.Status.Import.ManifestHash)
}

// A user chooses the long name of a Cluster so that its Bundle has the name of another Cluster's: the digest in such a name has 20 bits.
func TestReconcile_nameOfAnotherClustersBundle(t *testing.T) {
	long := strings.Repeat("a", 64)
	victim, attacker := imported(), imported()
	victim.Name, attacker.Name = long+"-1332", long+"-1716"
	require.Equal(t, registration.AgentBundleName(victim.Name), registration.AgentBundleName(attacker.Name))
	o := newStage(t)
	o.done(t, victim)
	o.forget()
	for cached, catchUp := range map[string]func(){"cached": o.catchUp, "not cached": func() { o.cache.All = nil }} {
		t.Run(cached, func(t *testing.T) {
			catchUp()
			o.created = expectations.New(clock.RealClock{})
			out := o.run(t, attacker)
			assert.True(t, out.IsStalled())
			assert.Equal(t, fleet.ReasonNameConflict, out.Reason)
			assert.Contains(t, out.Message, "muster remove --keep-workloads", "a deletion uninstalls what is deployed")
			assert.NotContains(t, o.wrote(), "patch")
		})
	}
	t.Run("without an agent that the hub manages: not deleted", func(t *testing.T) {
		o.catchUp()
		unmanaged := attacker.DeepCopy()
		unmanaged.Labels = map[string]string{fleet.NonManagedAgentLabel: "true"}
		o.run(t, unmanaged)
		assert.NotContains(t, o.wrote(), "delete")
	})
	o.catchUp()
	o.done(t, victim)
	assert.Equal(t, victim.Name, o.server.bundles[registration.AgentBundleName(victim.Name)].Spec.Targets[0].ClusterName)
}

func TestClusterOf(t *testing.T) {
	agents := map[string]string{apply.LabelID: "fleet-manage-agent"}
	for _, row := range []struct {
		name   string
		bundle fleet.Bundle
		want   string
	}{
		{"by its target", fleet.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: "fleet-agent-target", Annotations: agents},
			Spec:       fleet.BundleSpec{Targets: []fleet.BundleTarget{{}, {ClusterName: "target"}}},
		}, "target"},
		{"a target for another agent", fleet.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: "fleet-agent-c", Annotations: agents},
			Spec:       fleet.BundleSpec{Targets: []fleet.BundleTarget{{ClusterName: "target"}}},
		}, ""},
		{"no target", fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Annotations: agents}}, ""},
		{"not of an agent", fleet.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: "fleet-agent-target"}, Spec: fleet.BundleSpec{Targets: []fleet.BundleTarget{{ClusterName: "target"}}},
		}, ""},
	} {
		row.bundle.Namespace = "ns"
		keys := clusterOf(&row.bundle)
		if row.want == "" {
			assert.Empty(t, keys, row.name)
			continue
		}
		require.Len(t, keys, 1, row.name)
		assert.Equal(t, "ns/"+row.want, keys[0].String(), row.name)
	}
}

func TestForAgents(t *testing.T) {
	base := forAgents(config.Hub{})
	for name, hub := range map[string]config.Hub{
		"image":    {AgentImage: "i"},
		"policy":   {AgentImagePullPolicy: "Always"},
		"registry": {SystemDefaultRegistry: "r"},
		"interval": {AgentCheckinInterval: metav1.Duration{Duration: 1}},
		"manage":   {ManageAgent: ptr.To(false)},
		"url":      {APIServerURL: "u"},
		"ca":       {APIServerCA: []byte("c")},
		"tls":      {AgentTLSMode: config.TLSModeStrict},
		"workers":  {AgentWorkers: config.AgentWorkers{Drift: "1"}},
		"secrets":  {ImagePullSecrets: []config.LocalObjectReference{{Name: "s"}}},
		"receive":  {ImagePullSecretWorkspaces: []string{"ws"}},
	} {
		assert.NotEqual(t, base, forAgents(hub), name)
	}
	assert.Equal(t, base, forAgents(config.Hub{
		IgnoreClusterRegistrationLabels: true, Bootstrap: config.Bootstrap{Namespace: "n"}, AgentTLSMode: config.TLSModeSystemStore,
		GarbageCollectionInterval: metav1.Duration{Duration: 1},
	}))
}

// A hub that started with an invalid configuration would replace what agents have by defaults.
func TestReconcileWithInvalidConfiguration(t *testing.T) {
	s := newStage(t)
	c := imported()
	s.done(t, c)
	s.server.writes = nil
	s.Config.SetFallback(config.Hub{}, "correct it")
	out := s.run(t, c)
	assert.Equal(t, fleet.ReasonConfigInvalid, out.Reason)
	assert.Equal(t, "correct it", out.Message)
	assert.Positive(t, out.After)
	assert.Empty(t, s.server.writes)
	s.Config.Set(hubConfig)
	s.done(t, c)
}

package cluster

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// countingSubReconciler is a SubReconciler that counts its passes.
type countingSubReconciler struct {
	passes int
	later  bool
}

func (c *countingSubReconciler) Forget(string) {}

func (c *countingSubReconciler) Reconcile(context.Context, *fleet.Cluster) result.Result {
	c.passes++
	out := result.Done("Good", "")
	if c.later {
		out = out.WithStatusLater().In(time.Second)
	}
	return out
}

// liveness is a Liveness with a fixed answer.
type liveness struct {
	countingSubReconciler
	clones bool
	names  []string // of the instances
}

func (l *liveness) RecordAndCopy(*fleet.Cluster) {}

func (l *liveness) HasClones(*fleet.Cluster) bool { return l.clones }

func (l *liveness) Instances(*fleet.Cluster) []string { return l.names }

func TestReconcile_steps(t *testing.T) {
	home := ownNamespace()
	for _, row := range []struct {
		name       string
		elsewhere  bool
		namespace  *corev1.Namespace
		want       [4]int // Import, AgentBundle, Bundles, Liveness
		registered bool
	}{
		{"all", false, home, [4]int{1, 1, 1, 1}, true},
		{"none without the namespace", false, &corev1.Namespace{}, [4]int{}, false},
		{"those that remove something from a Cluster of another controller", true, nil, [4]int{1, 1, 0, 0}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			importer, agent, bundles, live := &uninstaller{}, &countingSubReconciler{}, &countingSubReconciler{}, &liveness{}
			d.subReconcilers, d.namespaces = SubReconcilers{importer, agent, bundles, live}, cachedNamespace{Namespace: row.namespace}
			c := d.cluster
			c.Status.Namespace = memberNamespace
			if row.elsewhere {
				c.Labels = map[string]string{fleet.ClusterManagementLabel: "x"}
			}
			latest, err := d.reconcile(t.Context(), c)
			require.NoError(t, err)
			assert.Equal(t, row.want, [4]int{importer.passes, agent.passes, bundles.passes, live.passes})
			assert.Equal(t, row.registered, fleetstatus.Condition(latest.Status.Conditions, fleet.ConditionRegistered).Reason != "")
			patches := 0
			for _, action := range d.fleet.Actions() {
				if action.GetVerb() == "patch" {
					patches++
				}
			}
			assert.Equal(t, 1, patches, "the status is written once")
		})
	}
}

func TestReconcile_statusLater(t *testing.T) {
	for _, row := range []struct {
		name   string
		later  bool
		live   result.Result
		writes int
	}{
		{"written", false, result.Done("Good", ""), 1},
		{"written by the pass after the event", true, result.Done("Good", ""), 0},
		{"a problem is written at once", true, result.Stalled("Bad", ""), 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			live := &liveness{}
			agent := &countingSubReconciler{later: row.later}
			d.subReconcilers, d.namespaces = SubReconcilers{&fixedImport{out: row.live}, agent, live, live}, cachedNamespace{Namespace: ownNamespace()}
			d.cluster.Status.Namespace = memberNamespace
			latest, err := d.reconcile(t.Context(), d.cluster)
			require.NoError(t, err)
			assert.Len(t, d.fleet.Actions(), row.writes)
			assert.Equal(t, row.writes == 0, latest == d.cluster)
		})
	}
}

// ownNamespace is the cluster namespace of the Cluster of newDeletion.
func ownNamespace() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: memberNamespace, Annotations: map[string]string{fleet.ClusterAnnotation: "member", fleet.WorkspaceAnnotation: "ws"},
	}}
}

// fixedImport is an AgentInstaller with a fixed result.
type fixedImport struct {
	uninstaller
	out result.Result
}

func (f *fixedImport) Reconcile(context.Context, *fleet.Cluster) result.Result { return f.out }

func TestReconcile_firstImportIsReported(t *testing.T) {
	importing := result.Wait(fleet.ReasonImporting, "installing the agent on the member")
	for _, row := range []struct {
		name   string
		out    result.Result
		age    time.Duration
		before string // the reason of condition Imported
		want   bool
	}{
		{"not while it is under way", importing, time.Second, "", false},
		{"when it lasts", importing, firstReportAfter, "", true},
		{"when it has succeeded", result.Done(fleet.ReasonImported, ""), time.Second, "", true},
		{"when it has failed", result.Stalled(fleet.ReasonUnreachable, ""), time.Second, "", true},
		{"when it waits for a person", result.Wait(fleet.ReasonWaitingForKubeconfig, ""), time.Second, "", true},
		{"after another status", importing, time.Second, fleet.ReasonWaitingForKubeconfig, true},
		{"with the clock of the API server ahead", importing, -time.Hour, "", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			live := &liveness{}
			d.subReconcilers = SubReconcilers{&fixedImport{out: row.out}, live, live, live}
			d.namespaces = cachedNamespace{Namespace: ownNamespace()}
			d.cluster.Status = fleet.ClusterStatus{Namespace: memberNamespace}
			d.cluster.CreationTimestamp = metav1.NewTime(d.clock.Now().Add(-row.age))
			if row.before != "" {
				result.Set(&d.cluster.Status.Conditions, fleet.ConditionImported, result.Wait(row.before, ""), d.clock.Now())
			}
			latest, err := d.reconcile(t.Context(), d.cluster)
			require.NoError(t, err)
			assert.Equal(t, row.want, fleetstatus.Condition(latest.Status.Conditions, fleet.ConditionImported).Reason == row.out.Reason)
		})
	}
}

func TestReconcile_firstStatusOfARegistration(t *testing.T) {
	undecided, granted := request("r", 0, corev1.ConditionUnknown, fleet.ReasonCountingUse), request("r", 0, corev1.ConditionTrue, fleet.ReasonGranted)
	granted.Status.Conditions[0].LastTransitionTime = noon.Format(time.RFC3339)
	ofFleet := granted.DeepCopy()
	for _, r := range []*fleet.ClusterRegistration{undecided, granted} {
		r.Annotations = map[string]string{registration.RenewalAnnotation: "true"}
	}
	for _, row := range []struct {
		name    string
		request *fleet.ClusterRegistration
		change  func(*deletion)
		want    string // the reason of condition Registered; "" if no status is written
	}{
		{"no request of the agent: at once", nil, nil, fleet.ReasonWaitingForAgent},
		{"a request that is not decided: with its result", undecided, nil, ""},
		{"a granted request: with the heartbeat", granted, nil, ""},
		{"a request of an agent of Fleet, whose heartbeat needs a status: at once", ofFleet, nil, fleet.ReasonWaitingForAgent},
		{"a request of an agent of Fleet, on a hub where each Cluster has a status: with the heartbeat", ofFleet, func(d *deletion) { d.ClustersHaveStatus = true }, ""},
		{"the first heartbeat", granted, func(d *deletion) { d.cluster.Status.Agent.LastSeen = metav1.NewTime(d.clock.Now()) }, fleet.ReasonRegistered},
		{"a refused request: at once", request("r", 0, corev1.ConditionFalse, fleet.ReasonDenied), nil, fleet.ReasonDenied},
		{"no decision for ten seconds", undecided, func(d *deletion) {
			d.cluster.CreationTimestamp = metav1.NewTime(d.clock.Now().Add(-firstReportAfter))
		}, fleet.ReasonWaitingForAgent},
		{"granted later, and no heartbeat since: with the heartbeat", granted, func(d *deletion) {
			d.clock.Step(firstReportAfter - time.Second)
			d.cluster.CreationTimestamp = metav1.NewTime(d.clock.Now().Add(-2 * firstReportAfter))
		}, ""},
		{"granted ten seconds ago, and no heartbeat since", granted, func(d *deletion) {
			d.clock.Step(firstReportAfter)
			d.cluster.CreationTimestamp = metav1.NewTime(d.clock.Now().Add(-2 * firstReportAfter))
		}, fleet.ReasonWaitingForAgent},
		{"granted just now, again and again", granted, func(d *deletion) {
			d.cluster.CreationTimestamp = metav1.NewTime(d.clock.Now().Add(-firstReportLatest))
		}, fleet.ReasonWaitingForAgent},
		{"after another status: at once", granted, func(d *deletion) {
			result.Set(&d.cluster.Status.Conditions, fleet.ConditionProcessed, result.Wait(fleet.ReasonNamespaceDeleting, ""), d.clock.Now())
		}, fleet.ReasonWaitingForAgent},
		{"disableBundles, where the request waits for the status: at once", undecided, func(d *deletion) { d.DisableBundles = true }, fleet.ReasonWaitingForAgent},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			live := &liveness{}
			d.subReconcilers = SubReconcilers{&fixedImport{}, live, live, live}
			d.namespaces = cachedNamespace{Namespace: ownNamespace()}
			d.cluster.Status = fleet.ClusterStatus{Namespace: memberNamespace}
			d.cluster.CreationTimestamp = metav1.NewTime(d.clock.Now())
			d.cluster.Spec.ClientID, d.cluster.Spec.KubeConfigSecret = "id", ""
			d.requests = requests{}
			if row.request != nil {
				r := row.request.DeepCopy()
				r.Namespace = d.cluster.Namespace
				d.requests = requests{all: []*fleet.ClusterRegistration{r}}
			}
			if row.change != nil {
				row.change(d)
			}
			latest, err := d.reconcile(t.Context(), d.cluster)
			require.NoError(t, err)
			assert.Equal(t, row.want, fleetstatus.Condition(latest.Status.Conditions, fleet.ConditionRegistered).Reason)
		})
	}
}

func TestEnsureNamespace_once(t *testing.T) {
	clock := clocktesting.NewFakeClock(noon)
	server := fake.NewClientset()
	seen := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	h := &handler{
		Context:    &app.Context{Kubernetes: server, Clock: clock},
		namespaces: generic.NewNonNamespacedCache[*corev1.Namespace](seen, schema.GroupResource{}),
		created:    expectations.New(clock),
	}
	cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "alice"}}
	cluster.Annotations = map[string]string{fleet.NamespaceDigestAnnotation: h.NamespaceKeys.New("ws", "alice")}
	home := registration.ClusterNamespace("ws", "alice")
	pass := func(wrote ...string) {
		t.Helper()
		out := h.ensureNamespace(t.Context(), cluster)
		require.True(t, out.IsDone(), out.Message)
		assert.Equal(t, home, cluster.Status.Namespace)
		var verbs []string
		for _, a := range server.Actions() {
			verbs = append(verbs, a.GetVerb())
		}
		assert.Equal(t, wrote, verbs)
		server.ClearActions()
	}

	pass("create")
	assert.Equal(t, expectations.Timeout, h.ensureNamespace(t.Context(), cluster).After, "it may be deleted before the cache contains it")
	pass()
	clock.Step(expectations.Timeout)
	pass("create", "get") // the cache does not contain it yet, so the API server is asked

	made, err := server.Tracker().Get(corev1.SchemeGroupVersion.WithResource("namespaces"), "", home)
	require.NoError(t, err)
	require.NoError(t, seen.Add(made))
	pass()
	assert.Zero(t, h.ensureNamespace(t.Context(), cluster).After)

	require.NoError(t, seen.Delete(made))
	// others have been able to read the key of the Namespace, so the hub does not create it with this key again, and only reads it
	pass("get")
}

// A user who may create Namespaces creates that of a Cluster before the hub does, and would own the namespace of its credentials.
func TestReconcile_namespaceOfSomebodyElse(t *testing.T) {
	digestOf := func(key string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(key))) }
	namespace := func(key string, change ...func(*corev1.Namespace)) *corev1.Namespace {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: memberNamespace, Annotations: map[string]string{
			fleet.ClusterAnnotation: "member", fleet.WorkspaceAnnotation: "ws",
		}}}
		if key != "" {
			n.Annotations[fleet.NamespaceKeyAnnotation] = key
		}
		for _, f := range change {
			f(n)
		}
		return n
	}
	foreign := func(n *corev1.Namespace) { n.Annotations[fleet.WorkspaceAnnotation] = "other" }
	for name, row := range map[string]struct {
		digest         string // on the Cluster
		status         string // status.namespace
		cached         *corev1.Namespace
		live           *corev1.Namespace
		disableBundles bool
		refused        bool
	}{
		"new Cluster, made with the annotations and the label": {cached: namespace(""), refused: true},
		"new Cluster, made with the annotations":               {live: namespace(""), refused: true},
		"new Cluster, made with a key of the user":             {live: namespace("chosen"), refused: true},
		"made while no hub runs":                               {digest: digestOf("key"), live: namespace("chosen"), refused: true},
		"made in place of a deleted one":                       {digest: digestOf("key"), status: memberNamespace, cached: namespace(""), refused: true},
		"of another Cluster":                                   {digest: digestOf("key"), status: memberNamespace, cached: namespace("key", foreign), refused: true},
		"created by the hub":                                   {digest: digestOf("key"), status: memberNamespace, cached: namespace("key")},
		"created by a hub that stopped before the next write":  {digest: digestOf("key"), live: namespace("key")},
		"restored from a backup with its Cluster":              {digest: digestOf("key"), cached: namespace("key")},
		"Cluster restored without its namespace":               {digest: digestOf("key")},
		"created by Fleet's hub":                               {status: memberNamespace, cached: namespace("")},
		"created by Fleet's hub, not in the cache yet":         {status: memberNamespace, live: namespace("")},
		"new Cluster": {},
		"created by Fleet's own controller with disableBundles": {cached: namespace(""), disableBundles: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			d.DisableBundles = row.disableBundles
			d.subReconcilers = SubReconcilers{&uninstaller{}, &countingSubReconciler{}, &countingSubReconciler{}, &liveness{}}
			c := d.cluster
			c.DeletionTimestamp, c.Status.Namespace = nil, row.status
			if row.digest != "" {
				c.Annotations = map[string]string{fleet.NamespaceDigestAnnotation: row.digest}
			}
			require.NoError(t, d.fleet.Tracker().Update(fleet.SchemeGroupVersion.WithResource("clusters"), c, "ws"))
			server := fake.NewClientset()
			for _, existing := range []*corev1.Namespace{row.cached, row.live} {
				if existing != nil {
					require.NoError(t, server.Tracker().Add(existing))
				}
			}
			d.Kubernetes, d.namespaces = server, cachedNamespace{Namespace: row.cached}

			latest, err := d.reconcile(t.Context(), c)
			require.NoError(t, err)
			processed := fleetstatus.Condition(latest.Status.Conditions, fleet.ConditionProcessed)
			if row.refused {
				assert.Equal(t, fleet.ReasonNameConflict, processed.Reason)
				assert.Equal(t, corev1.ConditionFalse, processed.Status)
				assert.Empty(t, latest.Status.Namespace, "requests would get their credentials in it")
				return
			}
			assert.Equal(t, fleet.ReasonProcessed, processed.Reason, processed.Message)
			assert.Equal(t, memberNamespace, latest.Status.Namespace)
			made, err := server.CoreV1().Namespaces().Get(t.Context(), memberNamespace, metav1.GetOptions{})
			require.NoError(t, err)
			assert.True(t, d.isFor(made, latest))
		})
	}
}

func TestIsFor(t *testing.T) {
	c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Status: fleet.ClusterStatus{Namespace: "home"}}
	named := func(namespace, name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "home", Annotations: map[string]string{
			"fleet.cattle.io/cluster-namespace": namespace, "fleet.cattle.io/cluster": name,
		}}}
	}
	h := &handler{Context: &app.Context{}}
	assert.True(t, h.isFor(named("ns", "c"), c))
	assert.False(t, h.isFor(named("other", "c"), c))
	assert.False(t, h.isFor(named("ns", "other"), c))
	assert.False(t, h.isFor(&corev1.Namespace{}, c), "a Namespace that a user created")

	made := named("ns", "c")
	c = &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
	c.Annotations = map[string]string{fleet.NamespaceDigestAnnotation: h.NamespaceKeys.New("ns", "c")}
	made.Annotations[fleet.NamespaceKeyAnnotation] = h.NamespaceKeys.Find(c)
	c.Annotations = nil
	assert.True(t, h.isFor(made, c), "somebody removed the annotation of the Cluster while the hub created the Namespace")

	own := named("ns", "c")
	own.Name = registration.ClusterNamespace("ns", "c")
	assert.Equal(t, []types.NamespacedName{{Namespace: "ns", Name: "c"}}, clusterOfNamespace(own))
	assert.Empty(t, clusterOfNamespace(named("ns", "c")), "any Namespace may have the annotations")
	assert.Empty(t, clusterOfNamespace(&corev1.Namespace{}))
}

func TestClustersOfRequest(t *testing.T) {
	h := &handler{clusters: identities{byID: map[string]string{"a": "alice", "b": "bob"}, byImport: map[string]string{"ws/import-token-carol": "carol"}}}
	asked := func(id string, change ...func(*fleet.ClusterRegistration)) *fleet.ClusterRegistration {
		r := &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "r"}, Spec: fleet.ClusterRegistrationSpec{ClientID: id}}
		for _, f := range change {
			f(r)
		}
		return r
	}
	owned := func(r *fleet.ClusterRegistration) { r.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster"}} }
	granted := func(r *fleet.ClusterRegistration) { r.Status.Granted = true }
	imported := func(r *fleet.ClusterRegistration) {
		r.Labels = map[string]string{fleet.RegistrationTokenLabel: "import-token-carol"}
	}
	for title, row := range map[string]struct {
		before, after *fleet.ClusterRegistration
		want          []string
	}{
		"created":          {nil, asked("a"), []string{"alice"}},
		"deleted":          {asked("a"), nil, []string{"alice"}},
		"granted":          {asked("a"), asked("a", granted), []string{"alice"}},
		"owner set":        {asked("a"), asked("a", owned), nil},
		"clientID changed": {asked("a"), asked("b"), []string{"alice", "bob"}},
		"unknown clientID": {nil, asked("c"), nil},
		"another clientID than that of the imported Cluster": {nil, asked("c", imported), []string{"carol"}},
	} {
		var got []string
		for _, key := range h.clustersOfRequest(row.before, row.after) {
			got = append(got, key.Name)
		}
		assert.Equal(t, row.want, got, title)
	}
}

// enqueued is a work queue.
type enqueued struct {
	fleetcontrollers.ClusterController
	keys []string
}

func (e *enqueued) EnqueueAfter(namespace, name string, _ time.Duration) {
	e.keys = append(e.keys, namespace+"/"+name)
}

func TestKubeconfigEvents(t *testing.T) {
	secret := func(namespace, name string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	importedBy := func(namespace, name, secretNamespace, secret string) *fleet.Cluster {
		return &fleet.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       fleet.ClusterSpec{KubeConfigSecret: secret, KubeConfigSecretNamespace: secretNamespace},
		}
	}
	clusters := known{all: []*fleet.Cluster{
		importedBy("ws", "alice", "", "shared"), importedBy("ws", "bob", "", "shared"), importedBy("other", "carol", "ws", "shared"),
		importedBy("ws", "dave", "", "own"), importedBy("ws", "erin", "elsewhere", "shared"), importedBy("ws", "frank", "", ""),
	}}
	for name, row := range map[string]struct {
		events int
		secret string
		want   []string
	}{
		"ten thousand events of a Secret": {10_000, "shared", []string{"other/carol", "ws/alice", "ws/bob"}},
		"a Secret that no Cluster names":  {1, "none", nil},
		"events of ten thousand Secrets":  {10_001, "secret-%d", []string{"other/carol", "ws/alice", "ws/bob", "ws/dave"}},
	} {
		t.Run(name, func(t *testing.T) {
			queue := &enqueued{}
			h := &handler{queue: queue, clusters: clusters, changedSecrets: &enqueue.Changes[changedSecrets]{Queue: queue}}
			for n := range row.events {
				secretName := row.secret
				if strings.Contains(secretName, "%") {
					secretName = fmt.Sprintf(secretName, n)
				}
				h.noteSecret(secret("ws", secretName), nil)
			}
			assert.Equal(t, []string{"ws/*"}, queue.keys, "the handler looks nothing up, and enqueues one pass")
			queue.keys = nil
			_, err := h.onChange("ws/*", nil)
			require.NoError(t, err)
			slices.Sort(queue.keys)
			assert.Equal(t, row.want, queue.keys)
		})
	}
}

// What a pass has reserved for calls to members must be free after it, wherever it returns.
func TestOnChange_endsThePass(t *testing.T) {
	for _, row := range []struct {
		name       string
		change     func(d *deletion)
		panics     bool
		uninstalls int
	}{
		{name: "the member is asked", uninstalls: 1},
		{name: "the cache is stale", change: func(d *deletion) {
			written := d.cluster.DeepCopy()
			d.cluster.ResourceVersion, written.ResourceVersion = "1", "2"
			d.written.Wrote(written)
		}},
		{name: "it has no finalizer", change: func(d *deletion) { d.cluster.Finalizers = nil }},
		{name: "it panics", change: func(d *deletion) {
			d.clusters = nil
			d.cluster.Labels = map[string]string{fleet.ManagementClusterLabel: "c-1"}
		}, panics: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			d.Passes, d.changedSecrets = app.NewPasses(t.Context()), &enqueue.Changes[changedSecrets]{}
			d.importer.state = finalizing.Waiting(fleet.ReasonFarewell, "", time.Second)
			d.cluster.Status.Agent = fleet.AgentStatus{} // the agent is not asked
			if row.change != nil {
				row.change(d)
			}
			pass := func() { _, _ = d.onChange("ws/member", d.cluster) }
			if row.panics {
				assert.Panics(t, pass)
			} else {
				pass()
			}
			assert.Equal(t, row.uninstalls, d.importer.passes)
			assert.Equal(t, []int{1, 1}, []int{d.importer.begun, d.importer.ended})
		})
	}
}

// identities is a cache that finds Clusters by their clientID, and by the token of their import.
type identities struct {
	fleetcontrollers.ClusterCache
	byID, byImport map[string]string
}

func (i identities) GetByIndex(indexName, key string) (found []*fleet.Cluster, _ error) {
	if indexName == index.ClustersByClientID.Name { // Find of this index compares the keys, so all Clusters can be returned
		for clientID, name := range i.byID {
			cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: name}}
			cluster.Spec.ClientID = clientID
			found = append(found, cluster)
		}
	} else if name := i.byImport[key]; name != "" {
		found = append(found, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: name}})
	}
	return found, nil
}

func TestEnsureOwnedFields_emptySchedulingCustomization(t *testing.T) {
	for name, row := range map[string]struct {
		customization fleet.AgentSchedulingCustomization
		patches       int
	}{
		"empty: removed": {fleet.AgentSchedulingCustomization{}, 1},
		"set: kept":      {fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			d.cluster.Spec.AgentSchedulingCustomization = &row.customization
			d.namespaces = cachedNamespace{Namespace: &corev1.Namespace{}}
			_, err := d.ensureOwnedFields(t.Context(), d.cluster)
			require.NoError(t, err)
			actions := d.fleet.Actions()
			require.Len(t, actions, row.patches)
			if row.patches > 0 {
				assert.JSONEq(t, `{"metadata":{"resourceVersion":""},"spec":{"agentSchedulingCustomization":null}}`,
					string(actions[0].(clienttesting.PatchAction).GetPatch()))
			}
		})
	}
}

// A Cluster that is created again waits for the deletion of the Namespace of the earlier one, whose key it does not have.
func TestEnsureNamespace_ofAnEarlierCluster(t *testing.T) {
	for name, row := range map[string]struct {
		annotated bool
		deleting  bool
		reason    string
	}{
		"it is being deleted":                   {true, true, fleet.ReasonNamespaceDeleting},
		"it exists":                             {true, false, fleet.ReasonNameConflict},
		"one of somebody else is being deleted": {false, true, fleet.ReasonNameConflict},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDeletion(config.Hub{})
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: memberNamespace}}
			if row.annotated {
				namespace.Annotations = map[string]string{fleet.ClusterAnnotation: "member", fleet.WorkspaceAnnotation: "ws"}
			}
			if row.deleting {
				namespace.DeletionTimestamp = &metav1.Time{Time: noon}
			}
			d.namespaces = cachedNamespace{Namespace: namespace}
			d.cluster.Annotations = map[string]string{fleet.NamespaceDigestAnnotation: "of another key"}
			assert.Equal(t, row.reason, d.ensureNamespace(t.Context(), d.cluster).Reason)
			assert.Empty(t, d.cluster.Status.Namespace)
		})
	}
}

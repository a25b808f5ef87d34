package bundle

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/clustergroup"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/rollup"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1/fake"
	"github.com/muster-fleet/muster/pkg/registration"
)

var (
	noon   = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	home   = registration.ClusterNamespace("ws", "alice")
	atHome = home + "/app"
	appKey = key{Namespace: "ws", Name: "app"}

	errInternal = errors.New("etcd is unavailable")
	errExists   = apierrors.NewAlreadyExists(schema.GroupResource{}, "app")
	errConflict = apierrors.NewConflict(schema.GroupResource{}, "app", errInternal)
	errNotFound = apierrors.NewNotFound(schema.GroupResource{}, "app")
	errNoKind   = apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, "app", "404 page not found", 0, true)
)

// stage is a Deployer whose caches the test fills, and whose requests and queue entries it reads.
type stage struct {
	*Deployer
	clock    *clocktesting.FakeClock
	metrics  *prometheus.Registry
	indexers map[string]cache.Indexer
	events   *record.FakeRecorder
	rights   *rights
	// kubernetes has the Secrets of the API server.
	kubernetes *kubernetesfake.Clientset

	mu     sync.Mutex
	log    []string
	errors map[string]error                   // the answer to a request, by the beginning of its line in the log
	after  map[string]func()                  // what happens once after a request, by its line in the log
	live   map[string]*fleet.BundleDeployment // what the API server has, by namespace/name
	bundle *fleet.Bundle                      // what the API server has
	made   map[string]*fleet.Content          // what was created
	more   string                             // where each list of the API server says that the next page begins
	// kinds are the CustomResourceDefinitions by name; those that are not in it were created long ago. A nil one does not exist.
	kinds map[string]*metav1.PartialObjectMetadata
	// uncached are the Bundles, Clusters and ClusterGroups that the API server has beside those in the caches.
	uncached []metav1.Object
}

func newStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{
		clock: clocktesting.NewFakeClock(noon), metrics: prometheus.NewRegistry(), indexers: map[string]cache.Indexer{},
		events: record.NewFakeRecorder(10), live: map[string]*fleet.BundleDeployment{}, made: map[string]*fleet.Content{},
	}
	s.rights = &rights{}
	fake := &clienttesting.Fake{}
	fake.AddReactor("*", "*", s.answer)
	s.kubernetes = kubernetesfake.NewClientset()
	s.kubernetes.PrependReactor("*", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := ""
		switch a := action.(type) {
		case interface{ GetName() string }:
			name = a.GetName()
		case interface{ GetObject() runtime.Object }:
			name = a.GetObject().(metav1.Object).GetName()
		}
		err := s.note("%s Secret %s/%s", action.GetVerb(), action.GetNamespace(), name)
		return err != nil, nil, err
	})
	s.kubernetes.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.SelfSubjectReview{}, nil
	})
	metadataClient := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
	metadataClient.PrependReactor("*", "*", s.answerMetadata)
	c := &app.Context{
		Metadata: metadataClient,
		Config:   config.NewStore(config.Hub{}),
		Clock:    s.clock, Metrics: metrics.New(s.metrics), Passes: app.NewPasses(t.Context()), Events: s.events,
		FleetClient:       &fleetclient.FakeFleetV1alpha1{Fake: fake},
		Kubernetes:        s.kubernetes,
		ContentMetadata:   cache.NewSharedIndexInformer(nil, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{}),
		ConfigMapMetadata: cache.NewSharedIndexInformer(nil, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{}),
		SecretMetadata:    cache.NewSharedIndexInformer(nil, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{}),
	}
	s.Deployer = &Deployer{
		Context: c, clusters: queue{s, "Cluster"}, bundles: queue{s, "Bundle"},
		clusterCache: cacheOf[*fleet.Cluster](s), groupCache: cacheOf[*fleet.ClusterGroup](s),
		groupSelectors: &clustergroup.Selectors{},
		bundleCache:    cacheOf[*fleet.Bundle](s), deploymentCache: cacheOf[*fleet.BundleDeployment](s), roles: s.rights, plans: newPlans(c),
		written: expectations.New(s.clock), deleted: expectations.New(s.clock), writtenBundles: expectations.New(s.clock),
		retained: utilcache.NewExpiringWithClock(s.clock),
		seen:     map[key]bundleVersion{}, changedAt: map[key]time.Time{}, rollouts: map[key]map[key]rolloutStep{},
		overStorage: map[key]map[key]storageExcess{}, renderErrors: map[key][sha256.Size]byte{}, refusals: map[key][]string{},
	}
	s.contents, s.values = newContents(c, s.deploymentCache), newValueSecrets(c)
	s.copies, s.changes = &copies{c}, &enqueue.Changes[changedObjects]{Queue: s.bundles, MarkAll: (*changedObjects).markAll}
	t.Cleanup(s.contents.queue.ShutDown)
	s.addIndexes()
	return s
}

func cacheOf[T runtime.Object](s *stage) *generic.Cache[T] {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	s.indexers[fmt.Sprintf("%T", *new(T))] = indexer
	return generic.NewCache[T](indexer, schema.GroupResource{})
}

// answer logs a request and answers it as the API server would. Requests about BundleDeployments are logged without their kind.
func (s *stage) answer(action clienttesting.Action) (handled bool, answer runtime.Object, err error) {
	kind := map[string]string{"bundles": "Bundle ", "contents": "Content "}[action.GetResource().Resource]
	at := strings.TrimPrefix(action.GetNamespace()+"/", "/")
	switch a := action.(type) {
	case clienttesting.CreateActionImpl:
		object := a.GetObject().(metav1.Object)
		if c, ok := object.(*fleet.Content); ok {
			s.made[c.Name] = c
			return true, c, s.note("create Content %s %s", c.Name, c.Labels[fleet.ManagedLabel])
		}
		return true, a.GetObject(), s.note("create %s%s", at, object.GetName())
	case clienttesting.GetActionImpl:
		if made := s.made[a.GetName()]; made != nil && kind == "Content " {
			return true, made, s.note("get Content %s", a.GetName())
		}
		if kind != "" {
			return true, s.bundle, s.note("get %s%s%s", kind, at, a.GetName())
		}
		return true, s.live[at+a.GetName()], s.note("get %s%s", at, a.GetName())
	case clienttesting.DeleteActionImpl:
		return true, nil, s.note("delete %s%s%s %s", kind, at, a.GetName(), *a.DeleteOptions.Preconditions.UID)
	case clienttesting.ListActionImpl:
		list := &fleet.BundleDeploymentList{ListMeta: metav1.ListMeta{Continue: s.more}}
		for _, deployment := range s.live {
			list.Items = append(list.Items, *deployment)
		}
		return true, list, s.note("list %s%s", at, a.GetListRestrictions().Labels)
	case clienttesting.PatchActionImpl:
		if kind == "" {
			patched := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: a.GetNamespace(), Name: a.GetName(), UID: "patched", ResourceVersion: "9"}}
			return true, patched, s.note("patch %s%s %s", at, a.GetName(), a.GetPatch())
		}
		b, err := s.bundleCache.Get(a.GetNamespace(), a.GetName())
		if s.bundle != nil {
			b = s.bundle
		}
		return true, b, errors.Join(err, s.note("patch Bundle %s [%s] %s", a.GetName(), a.GetSubresource(), a.GetPatch()))
	}
	return true, nil, fmt.Errorf("unexpected request %v", action)
}

// answerMetadata answers requests for the metadata of Bundles, Clusters and ClusterGroups, which are in the caches or in uncached.
func (s *stage) answerMetadata(action clienttesting.Action) (handled bool, answer runtime.Object, err error) {
	kind := map[string]string{"bundles": "*v1alpha1.Bundle", "clusters": "*v1alpha1.Cluster", "clustergroups": "*v1alpha1.ClusterGroup"}[action.GetResource().Resource]
	if get, ok := action.(clienttesting.GetAction); ok && get.GetResource().Resource == "customresourcedefinitions" {
		definition, changed := s.kinds[get.GetName()]
		if !changed {
			definition = &metav1.PartialObjectMetadata{}
		}
		if err := s.note("kind %s", strings.TrimSuffix(get.GetName(), ".fleet.cattle.io")); err != nil || definition == nil {
			return true, nil, cmp.Or(err, error(errNotFound))
		}
		return true, definition, nil
	}
	live := map[string]metav1.PartialObjectMetadata{}
	for _, object := range s.indexers[kind].List() {
		o := object.(metav1.Object)
		live[o.GetName()] = *meta.AsPartialObjectMetadata(o)
	}
	for _, o := range s.uncached {
		if fmt.Sprintf("%T", o) == kind {
			live[o.GetName()] = *meta.AsPartialObjectMetadata(o)
		}
	}
	if get, ok := action.(clienttesting.GetAction); ok {
		found, exists := live[get.GetName()]
		if err := s.note("confirm %s", get.GetName()); err != nil || !exists {
			return true, nil, cmp.Or(err, error(errNotFound))
		}
		return true, &found, nil
	}
	if err := s.note("confirm groups"); err != nil {
		return true, nil, err
	}
	list := &metav1.List{}
	for _, o := range live {
		list.Items = append(list.Items, runtime.RawExtension{Object: &o})
	}
	return true, list, nil
}

func (s *stage) note(format string, args ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	s.log = append(s.log, line)
	if happens := s.after[line]; happens != nil {
		delete(s.after, line)
		happens()
	}
	for prefix, err := range s.errors {
		if strings.HasPrefix(line, prefix) {
			return err
		}
	}
	return nil
}

// taken returns the sorted log since the last call.
func (s *stage) taken() []string {
	log := s.log
	s.log = nil
	slices.Sort(log)
	return log
}

// takenByPass runs the pass over the workspace if it is enqueued, and returns what it enqueues.
func (s *stage) takenByPass(t testing.TB) []string {
	t.Helper()
	log := s.taken()
	at := slices.Index(log, "enqueue Bundle * in 0s")
	if at < 0 {
		return log
	}
	_, err := s.onBundle("ws/*", nil)
	require.NoError(t, err)
	return append(slices.Delete(log, at, at+1), slices.Compact(s.taken())...)
}

// kindSince returns a CustomResourceDefinition that was created at a time.
func kindSince(created time.Time) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
}

// queue logs the enqueued keys.
type queue struct {
	stage *stage
	kind  string
}

func (q queue) EnqueueAfter(_, name string, d time.Duration) {
	_ = q.stage.note("enqueue %s %s in %s", q.kind, name, d)
}

// rights stands for the Roles by which agents read Secrets and ConfigMaps.
type rights struct {
	secrets    [][]string
	configMaps [][]string
	secretsErr error
}

func (r *rights) AllowObjects(_ context.Context, _ *fleet.Cluster, secrets, configMaps []string) error {
	r.secrets = append(r.secrets, slices.Compact(slices.Sorted(slices.Values(secrets))))
	r.configMaps = append(r.configMaps, slices.Compact(slices.Sorted(slices.Values(configMaps))))
	return r.secretsErr
}

// has puts objects into the caches.
func (s *stage) has(t testing.TB, objects ...metav1.Object) {
	t.Helper()
	for _, o := range objects {
		if deployment, ok := o.(*fleet.BundleDeployment); ok {
			Reduce(&deployment.Spec)
		}
		require.NoError(t, s.indexers[fmt.Sprintf("%T", o)].Update(o))
	}
}

// lost removes an object from its cache.
func (s *stage) lost(t *testing.T, o metav1.Object) {
	t.Helper()
	require.NoError(t, s.indexers[fmt.Sprintf("%T", o)].Delete(o))
}

// reconcile runs Reconcile on a copy of the Cluster, and returns the copy with the new status.
func (s *stage) reconcile(t *testing.T, cluster *fleet.Cluster) (*fleet.Cluster, result.Result) {
	t.Helper()
	after := cluster.DeepCopy()
	return after, s.Reconcile(t.Context(), after)
}

// handle runs onBundle on a Bundle that has its finalizer.
func (s *stage) handle(t *testing.T, b *fleet.Bundle) {
	t.Helper()
	b = b.DeepCopy()
	b.Finalizers = []string{fleet.BundleFinalizer}
	_, err := s.onBundle("ws/app", b)
	require.NoError(t, err)
}

// matching returns the Clusters that a Bundle targets.
func (s *stage) matching(b *fleet.Bundle) []match {
	matches, _, err := s.matches(context.Background(), b, s.plans.of(context.Background(), b), s.groupsOf(b.Namespace))
	if err != nil {
		panic(err) // the context has not ended
	}
	return matches
}

// shown returns the summary of a Bundle as text.
func (s *stage) shown(b *fleet.Bundle) string {
	counts, err := s.summarize(context.Background(), b, s.plans.of(context.Background(), b), s.matching(b), s.storageLimits(keyOf(b), s.matching(b)))
	if err != nil {
		panic(err) // the context has not ended
	}
	return strings.TrimSpace(rollup.Fraction(counts.summary) + " " + rollup.Ready("Cluster", counts.summary).Message)
}

var files = []fleet.BundleResource{{Name: "a.yaml", Content: "kind: A"}}

func bundleWith(change func(*fleet.BundleSpec)) *fleet.Bundle {
	b := &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "app", UID: "uid", Generation: 1}, Spec: fleet.BundleSpec{Resources: files}}
	change(&b.Spec)
	return b
}

// targetingAlice returns a Bundle that targets the Cluster alice.
func targetingAlice() *fleet.Bundle {
	return bundleWith(func(s *fleet.BundleSpec) { s.Targets = []fleet.BundleTarget{{ClusterName: "alice"}} })
}

// everywhere returns a Bundle that targets all Clusters.
func everywhere() *fleet.Bundle {
	return bundleWith(func(s *fleet.BundleSpec) {
		s.Targets = []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}
	})
}

func clusterNamed(name string) *fleet.Cluster {
	return &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: name, ResourceVersion: "5"},
		Status:     fleet.ClusterStatus{Namespace: registration.ClusterNamespace("ws", name)},
	}
}

// deployed returns the BundleDeployment of a Bundle for a Cluster as it should be, without a report of the agent.
func deployed(t testing.TB, b *fleet.Bundle, cluster ...*fleet.Cluster) *fleet.BundleDeployment {
	t.Helper()
	v, err := planOf(b).variant(t.Context(), []int{0}, &fleet.Cluster{})
	require.NoError(t, err)
	d := desired(b, v, helmValues{current: v.values, staged: v.values}, false, append(cluster, clusterNamed("alice"))[0], nil)
	d.UID, d.ResourceVersion, d.Generation = "uid-of-app", "5", 1
	return d
}

func planOf(b *fleet.Bundle) *plan { return newPlans(&app.Context{}).of(context.Background(), b) }

func condition(conditionType string, status corev1.ConditionStatus, message string) genericcondition.GenericCondition {
	return genericcondition.GenericCondition{Type: conditionType, Status: status, Message: message}
}

// isReady reports that a BundleDeployment is deployed and ready.
func isReady(d *fleet.BundleDeployment) *fleet.BundleDeployment {
	d.Status = fleet.BundleDeploymentStatus{AppliedDeploymentID: d.Spec.DeploymentID, Ready: true, NonModified: true}
	return d
}

// manageAgent are the annotations of the Bundle of an agent.
var manageAgent = map[string]string{"objectset.rio.cattle.io/id": "fleet-manage-agent"}

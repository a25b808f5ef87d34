package bundle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/guard"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// stage is a Step whose caches the test fills and whose writes it sees.
type stage struct {
	*Step
	clock    *clocktesting.FakeClock
	log      *log
	contents contentsStage
	indexers map[string]cache.Indexer
	events   *record.FakeRecorder
	rights   *rightsLog
}

// log is what was sent, and what the API server answers.
type log struct {
	sent   []string
	errors map[string]error                   // by the beginning of a line
	live   map[string]*fleet.BundleDeployment // for Get
	bundle func(namespace, name string) *fleet.Bundle
}

func (l *log) note(format string, args ...any) error {
	line := fmt.Sprintf(format, args...)
	l.sent = append(l.sent, line)
	for prefix, err := range l.errors {
		if strings.HasPrefix(line, prefix) {
			return err
		}
	}
	return nil
}

// take returns what was sent since the last time, in order of the alphabet.
func (l *log) take() []string {
	sent := l.sent
	l.sent = nil
	slices.Sort(sent)
	return sent
}

type deploymentsClient struct {
	fleetcontrollers.BundleDeploymentController
	log *log
}

func (c deploymentsClient) Create(d *fleet.BundleDeployment) (*fleet.BundleDeployment, error) {
	return d, c.log.note("create %s/%s", d.Namespace, d.Name)
}

func (c deploymentsClient) Get(namespace, name string, _ metav1.GetOptions) (*fleet.BundleDeployment, error) {
	return c.log.live[namespace+"/"+name], c.log.note("get %s/%s", namespace, name)
}

func (c deploymentsClient) Delete(namespace, name string, o *metav1.DeleteOptions) error {
	return c.log.note("delete %s/%s %s", namespace, name, *o.Preconditions.UID)
}

func (c deploymentsClient) Patch(namespace, name string, _ types.PatchType, data []byte, _ ...string) (*fleet.BundleDeployment, error) {
	return &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "patched", ResourceVersion: "9"}},
		c.log.note("patch %s/%s %s", namespace, name, data)
}

type bundlesClient struct {
	fleetcontrollers.BundleController
	log *log
}

func (c bundlesClient) Patch(namespace, name string, _ types.PatchType, data []byte, sub ...string) (*fleet.Bundle, error) {
	return c.log.bundle(namespace, name), c.log.note("patch Bundle %s %v %s", name, sub, data)
}

func (c bundlesClient) EnqueueAfter(_, name string, d time.Duration) {
	_ = c.log.note("bring Bundle %s in %s", name, d)
}

type clustersClient struct {
	fleetcontrollers.ClusterController
	log *log
}

func (c clustersClient) EnqueueAfter(_, name string, d time.Duration) {
	_ = c.log.note("bring Cluster %s in %s", name, d)
}

// rightsLog plays the ClusterRoles by which agents read Contents.
type rightsLog struct {
	allowed   [][]string
	forbidden int
	written   int // how many BundleDeployments were written before the last of them
	log       *log
	err       error
	unseen    bool
}

func (r *rightsLog) Unseen(*fleet.Cluster) bool { return r.unseen }

func (r *rightsLog) Allow(_ context.Context, _ *fleet.Cluster, contents []string) error {
	r.allowed = append(r.allowed, slices.Compact(slices.Sorted(slices.Values(contents))))
	r.written = len(r.log.sent)
	return r.err
}

func (r *rightsLog) Forbid(context.Context, *fleet.Cluster) error {
	r.forbidden++
	return r.err
}

// allSeen is a handler that has seen everything.
type allSeen struct {
	cache.ResourceEventHandlerRegistration
}

func (allSeen) HasSynced() bool { return true }

func newStage(t testing.TB) *stage {
	t.Helper()
	contents := newContentsStage(t)
	s := &stage{clock: contents.clock, contents: contents, log: &log{}, indexers: map[string]cache.Indexer{}, events: record.NewFakeRecorder(10)}
	s.log.bundle = func(namespace, name string) *fleet.Bundle {
		b, err := s.bundleCache.Get(namespace, name)
		require.NoError(t, err)
		return b
	}
	s.rights = &rightsLog{log: s.log}
	contents.Context.Passes, contents.Context.Events = guard.NewPasses(t.Context()), s.events
	s.Step = &Step{
		Context: contents.Context, clusters: clustersClient{log: s.log}, bundles: bundlesClient{log: s.log}, deployments: deploymentsClient{log: s.log},
		known: cacheOf[*fleet.Cluster](s), bundleCache: cacheOf[*fleet.Bundle](s), groups: cacheOf[*fleet.ClusterGroup](s),
		deployed: cacheOf[*fleet.BundleDeployment](s), contents: contents.contents, roles: s.rights, tally: newTally(), counting: allSeen{},
		created: expectations.New(contents.clock), deleted: expectations.New(contents.clock), announced: map[key]announcement{},
	}
	s.addIndexes()
	return s
}

func cacheOf[T runtime.Object](s *stage) *generic.Cache[T] {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	s.indexers[fmt.Sprintf("%T", *new(T))] = indexer
	return generic.NewCache[T](indexer, schema.GroupResource{})
}

// has puts objects into the caches.
func (s *stage) has(t testing.TB, objects ...metav1.Object) {
	t.Helper()
	for _, o := range objects {
		require.NoError(t, s.indexers[fmt.Sprintf("%T", o)].Update(o))
		if d, ok := o.(*fleet.BundleDeployment); ok {
			s.tally.put(d, s.clock.Now())
		}
	}
}

func (s *stage) lost(t *testing.T, o metav1.Object) {
	t.Helper()
	require.NoError(t, s.indexers[fmt.Sprintf("%T", o)].Delete(o))
}

// pass looks at a Cluster once, and returns the copy with the new status.
func (s *stage) pass(t *testing.T, cluster *fleet.Cluster) (*fleet.Cluster, result.Result) {
	t.Helper()
	after := cluster.DeepCopy()
	return after, s.Reconcile(t.Context(), after)
}

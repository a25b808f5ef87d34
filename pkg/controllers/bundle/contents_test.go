package bundle

import (
	"errors"
	"testing"
	"time"

	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

var errBadDay = errors.New("etcd has a bad day")

// store plays the API server for Contents.
type store struct {
	fleetcontrollers.ContentClient
	created, deleted []string
	preconditions    metav1.Preconditions
	err              error
}

func (s *store) Create(c *fleet.Content) (*fleet.Content, error) {
	s.created = append(s.created, c.Name+" "+c.Labels[fleet.ManagedLabel])
	return c, s.err
}

func (s *store) Delete(name string, o *metav1.DeleteOptions) error {
	s.deleted, s.preconditions = append(s.deleted, name), *o.Preconditions
	return s.err
}

// living plays it for BundleDeployments.
type living struct {
	fleetcontrollers.BundleDeploymentController
	asked []string
	items []fleet.BundleDeployment
	err   error
}

func (l *living) List(namespace string, o metav1.ListOptions) (*fleet.BundleDeploymentList, error) {
	l.asked = append(l.asked, namespace+" "+o.LabelSelector)
	return &fleet.BundleDeploymentList{Items: l.items}, l.err
}

// cached is the cache of BundleDeployments.
type cached struct {
	fleetcontrollers.BundleDeploymentCache
	users []*fleet.BundleDeployment
}

func (c *cached) GetByIndex(string, string) ([]*fleet.BundleDeployment, error) { return c.users, nil }

type contentsStage struct {
	*contents
	clock  *clocktesting.FakeClock
	counts *prometheus.Registry
	store  *store
	living *living
	cached *cached
}

func newContentsStage(t testing.TB, known ...*metav1.PartialObjectMetadata) contentsStage {
	t.Helper()
	clock, counts := clocktesting.NewFakeClock(noon), prometheus.NewRegistry()
	s := contentsStage{clock: clock, counts: counts, store: &store{}, living: &living{}, cached: &cached{}}
	s.contents = &contents{
		Context: &app.Context{Clock: clock, Metrics: metrics.New(counts)}, informer: cache.NewSharedIndexInformer(nil, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{}), client: s.store,
		deployments: s.living, users: s.cached, grace: contentGrace, made: expectations.New(clock), touched: map[string]time.Time{},
	}
	for _, c := range known {
		require.NoError(t, s.informer.GetStore().Add(c))
	}
	return s
}

// collected is how many the metric has.
func (s contentsStage) collected(t *testing.T) (sum int) {
	t.Helper()
	families, err := s.counts.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "muster_orphans_collected_total" {
			sum += int(family.GetMetric()[0].GetCounter().GetValue())
		}
	}
	return sum
}

func contentMeta(name, managed string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", Labels: map[string]string{fleet.ManagedLabel: managed}}}
}

func TestAContentIsMadeWhenItIsMissing(t *testing.T) {
	name, _, err := content.Digest(files)
	require.NoError(t, err)
	deleting := contentMeta(name, "true")
	deleting.DeletionTimestamp = &metav1.Time{Time: noon}
	taken := apierrors.NewAlreadyExists(schema.GroupResource{}, name)
	for _, row := range []struct {
		title   string
		known   []*metav1.PartialObjectMetadata
		err     error
		created int
		fails   bool
	}{
		{"it is there", []*metav1.PartialObjectMetadata{contentMeta(name, "")}, nil, 0, false},
		{"it is missing", nil, nil, 1, false},
		{"it is going", []*metav1.PartialObjectMetadata{deleting}, nil, 1, false},
		{"somebody was faster", nil, taken, 1, false},
		{"it cannot be made", nil, errBadDay, 2, true},
	} {
		t.Run(row.title, func(t *testing.T) {
			s := newContentsStage(t, row.known...)
			s.store.err = row.err
			for range 2 { // the second time it has been made and is not in the cache yet
				err := s.ensure(name, files)
				assert.Equal(t, row.fails, err != nil, "%v", err)
			}
			assert.Len(t, s.store.created, row.created)
			if row.created > 0 {
				assert.Equal(t, name+" true", s.store.created[0])
			}
		})
	}
}

func TestAContentIsDeletedOnlyWhenItIsCertainThatNobodyNeedsIt(t *testing.T) {
	const digest = "s-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abc"
	going := contentMeta("c", "true")
	going.DeletionTimestamp = &metav1.Time{Time: noon}
	gone := apierrors.NewNotFound(schema.GroupResource{}, "c")
	for _, row := range []struct {
		title   string
		known   *metav1.PartialObjectMetadata
		set     func(contentsStage)
		again   time.Duration
		deleted bool
		asked   bool
		counts  int
		says    string
	}{
		{title: "nobody needs it", known: contentMeta("c", "true"), asked: true, deleted: true, counts: 1},
		{title: "an earlier fleet controller made it", known: contentMeta(digest, ""), asked: true, deleted: true, counts: 1},
		{title: "somebody else made it", known: contentMeta("c", "")},
		{title: "it is not there", known: contentMeta("other", "true")},
		{title: "it is going already", known: going},
		{title: "somebody needs it", known: contentMeta("c", "true"), set: func(s contentsStage) { s.cached.users = []*fleet.BundleDeployment{{}} }},
		{title: "it was asked for a moment ago", known: contentMeta("c", "true"), set: func(s contentsStage) {
			s.touch("c")
			s.clock.Step(time.Second)
		}, again: contentGrace - time.Second},
		{title: "it was asked for long ago", known: contentMeta("c", "true"), set: func(s contentsStage) {
			s.touch("c")
			s.clock.Step(contentGrace)
		}, asked: true, deleted: true, counts: 1},
		{title: "the API server knows of one that needs it", known: contentMeta("c", "true"), set: func(s contentsStage) {
			s.living.items = []fleet.BundleDeployment{{}}
		}, asked: true, again: contentGrace},
		{title: "the API server does not say", known: contentMeta("c", "true"), set: func(s contentsStage) {
			s.living.err = errBadDay
		}, asked: true, again: contentGrace, says: "looking for BundleDeployments that need Content c"},
		{title: "it cannot be deleted", known: contentMeta("c", "true"), set: func(s contentsStage) {
			s.store.err = errBadDay
		}, asked: true, deleted: true, again: contentGrace, says: "deleting Content c"},
		{title: "somebody was faster", known: contentMeta("c", "true"), set: func(s contentsStage) { s.store.err = gone }, asked: true, deleted: true, counts: 1},
	} {
		t.Run(row.title, func(t *testing.T) {
			s := newContentsStage(t, row.known)
			if row.set != nil {
				row.set(s)
			}
			name := row.known.Name
			if name == "other" {
				name = "c"
			}
			again, err := s.check(name)
			assert.Equal(t, row.again, again)
			if row.says == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, row.says)
			}
			assert.Equal(t, row.deleted, len(s.store.deleted) == 1)
			assert.Equal(t, row.asked, len(s.living.asked) == 1)
			if row.asked {
				assert.Equal(t, " fleet.cattle.io/content-name="+name, s.living.asked[0])
			}
			if row.deleted {
				assert.Equal(t, row.known.UID, *s.store.preconditions.UID)
			}
			assert.Equal(t, row.counts, s.collected(t))
		})
	}
}

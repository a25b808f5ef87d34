package bundle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
)

func contentMeta(name, managed string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", Labels: map[string]string{fleet.ManagedLabel: managed}}}
}

func deleting(c *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	c.DeletionTimestamp = &metav1.Time{Time: noon}
	return c
}

func TestContentsEnsure(t *testing.T) {
	name, _, err := content.Digest(files)
	require.NoError(t, err)
	for title, row := range map[string]struct {
		known   *metav1.PartialObjectMetadata
		err     error
		created int
		fails   bool
	}{
		"it exists":                       {contentMeta(name, ""), nil, 0, false},
		"it does not exist: created once": {nil, nil, 1, false},
		"it is being deleted":             {deleting(contentMeta(name, "true")), nil, 1, false},
		"somebody else creates it":        {nil, apierrors.NewAlreadyExists(schema.GroupResource{}, name), 1, false},
		"an error: repeated":              {nil, errInternal, 2, true},
	} {
		t.Run(title, func(t *testing.T) {
			s := newStage(t)
			s.errors = map[string]error{"create": row.err}
			if row.known != nil {
				require.NoError(t, s.ContentMetadata.GetStore().Add(row.known))
			}
			for range 2 { // the second time it has been created and is not in the cache yet
				err := s.contents.ensure(t.Context(), name, toAlice())
				assert.Equal(t, row.fails, err != nil, "%v", err)
				assert.Equal(t, row.fails, len(s.contents.needed) == 0, "a Content that does not exist is not remembered")
			}
			assert.Equal(t, slices.Repeat([]string{"create Content " + name + " true"}, row.created), append([]string{}, s.taken()...))
		})
	}
}

// The cache of a hub has Bundles without their resources.
func TestContentsEnsureWithoutResources(t *testing.T) {
	cached := toAlice()
	content.WithoutResources(&cached.Spec)
	p := planOf(cached)
	assert.Equal(t, planOf(toAlice()).content, p.content)
	create := "create Content " + p.content + " true"
	changed := bundleWith(func(s *fleet.BundleSpec) { s.Resources = nil })
	for title, row := range map[string]struct {
		known    *metav1.PartialObjectMetadata
		live     *fleet.Bundle
		err      error
		requests []string
		says     string
	}{
		"the Content exists: no read":     {known: contentMeta(p.content, "true"), requests: []string{}},
		"it does not exist: read once":    {live: toAlice(), requests: []string{create, "get Bundle ws/app"}},
		"the Bundle has other resources":  {live: changed, requests: slices.Repeat([]string{"get Bundle ws/app"}, 2), says: "Bundle ws/app were changed"},
		"the API server does not answer":  {err: errInternal, requests: slices.Repeat([]string{"get Bundle ws/app"}, 2), says: "reading the resources of Bundle ws/app"},
		"the Bundle does not exist there": {err: errNotFound, requests: slices.Repeat([]string{"get Bundle ws/app"}, 2), says: "reading the resources of Bundle ws/app"},
	} {
		t.Run(title, func(t *testing.T) {
			s := newStage(t)
			s.bundle, s.errors = row.live, map[string]error{"get": row.err}
			if row.known != nil {
				require.NoError(t, s.ContentMetadata.GetStore().Add(row.known))
			}
			for range 2 {
				err := s.contents.ensure(t.Context(), p.content, cached)
				if row.says == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, row.says)
				}
			}
			assert.Equal(t, row.requests, append([]string{}, s.taken()...))
		})
	}
}

func TestContentsCollect(t *testing.T) {
	const digest = "s-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abc"
	user := func() *fleet.BundleDeployment {
		d := deployed(t, toAlice())
		d.Labels[fleet.ContentNameLabel] = "c"
		return d
	}
	neededAgo := func(d time.Duration) func(*stage) {
		return func(s *stage) {
			_ = s.contents.ensure(t.Context(), "c", toAlice())
			s.clock.Step(d)
			s.taken()
		}
	}
	for title, row := range map[string]struct {
		known   *metav1.PartialObjectMetadata
		set     func(*testing.T, *stage)
		needed  func(*stage)
		errors  map[string]error
		again   time.Duration
		asked   bool // the API server, for BundleDeployments
		deleted bool
		counts  int
		err     string
	}{
		"not needed: deleted":                           {known: contentMeta("c", "true"), asked: true, deleted: true, counts: 1},
		"of another fleet controller: deleted":          {known: contentMeta(digest, ""), asked: true, deleted: true, counts: 1},
		"of somebody else: kept":                        {known: contentMeta("c", "")},
		"it does not exist":                             {},
		"it is being deleted":                           {known: deleting(contentMeta("c", "true"))},
		"a BundleDeployment in the cache needs it":      {known: contentMeta("c", "true"), set: func(t *testing.T, s *stage) { s.has(t, user()) }},
		"needed a second ago: checked again":            {known: contentMeta("c", "true"), needed: neededAgo(time.Second), again: contentGrace - time.Second},
		"needed long ago: deleted":                      {known: contentMeta("c", "true"), needed: neededAgo(contentGrace), asked: true, deleted: true, counts: 1},
		"a BundleDeployment on the API server needs it": {known: contentMeta("c", "true"), set: func(_ *testing.T, s *stage) { s.live["x"] = user() }, asked: true, again: contentGrace},
		"the API server does not answer: kept": {
			known: contentMeta("c", "true"), errors: map[string]error{"list": errInternal}, asked: true, again: contentGrace, err: "looking for BundleDeployments that need 1 Contents, such as c",
		},
		"the deletion fails: retried": {
			known: contentMeta("c", "true"), errors: map[string]error{"delete": errInternal}, asked: true, deleted: true, again: contentGrace, err: "deleting Content c",
		},
		"somebody else deletes it": {known: contentMeta("c", "true"), errors: map[string]error{"delete": errNotFound}, asked: true, deleted: true, counts: 1},
	} {
		t.Run(title, func(t *testing.T) {
			s, name := newStage(t), "c"
			if row.known != nil {
				name = row.known.Name
				require.NoError(t, s.ContentMetadata.GetStore().Add(row.known))
			}
			if row.set != nil {
				row.set(t, s)
			}
			if row.needed != nil {
				row.needed(s)
			}
			s.errors = row.errors
			again, err := s.contents.collect(t.Context(), name)
			assert.Equal(t, row.again, again[name])
			assert.Equal(t, row.again != 0, len(again) > 0)
			if row.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, row.err)
			}
			log := strings.Join(s.taken(), "\n")
			assert.Equal(t, row.asked, strings.Contains(log, "list fleet.cattle.io/content-name in ("+name+")"))
			assert.Equal(t, row.deleted, strings.Contains(log, "delete Content "+name+" uid"))
			families, err := s.metrics.Gather()
			require.NoError(t, err)
			collected := 0
			for _, family := range families {
				if family.GetName() == "muster_orphans_collected_total" {
					collected = int(family.GetMetric()[0].GetCounter().GetValue())
				}
			}
			assert.Equal(t, row.counts, collected)
		})
	}
}

// An agent that changes its report each second leaves that many Contents.
func TestContentsCollect_many(t *testing.T) {
	s, many := newStage(t), 10*collectAtOnce
	for i := range many {
		require.NoError(t, s.ContentMetadata.GetStore().Add(contentMeta(fmt.Sprint("c", i), "true")))
		s.contents.queue.Add(fmt.Sprint("c", i))
	}
	needing := deployed(t, toAlice())
	needing.Labels[fleet.ContentNameLabel] = "c7"
	s.live["x"] = needing
	for s.contents.queue.Len() > 0 {
		_, err := s.contents.collect(t.Context(), s.contents.next()...)
		require.NoError(t, err)
	}
	log := s.taken()
	assert.Len(t, log, 10+many-1, "one list for %d Contents", collectAtOnce)
	assert.NotContains(t, log, "delete Content c7 uid")
	assert.Contains(t, log, "delete Content c8 uid")
	s.contents.queue.ShutDown()
	assert.Empty(t, s.contents.next())
}

// A page of the BundleDeployments does not show which Contents the others need.
func TestContentsCollect_page(t *testing.T) {
	s := newStage(t)
	s.more = "continue"
	require.NoError(t, s.ContentMetadata.GetStore().Add(contentMeta("c", "true")))
	again, err := s.contents.collect(t.Context(), "c")
	require.NoError(t, err)
	assert.Equal(t, map[string]time.Duration{"c": contentGrace}, again)
	assert.NotContains(t, s.taken(), "delete Content c uid")
}

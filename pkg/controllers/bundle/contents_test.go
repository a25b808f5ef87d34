package bundle

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
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
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

func isAllowed() error { return nil }

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
				err := s.contents.ensure(t.Context(), name, targetingAlice(), isAllowed)
				assert.Equal(t, row.fails, err != nil, "%v", err)
				assert.Equal(t, row.fails, len(s.contents.needed) == 0, "a Content that does not exist is not remembered")
			}
			assert.Equal(t, slices.Repeat([]string{"create Content " + name + " true"}, row.created), append([]string{}, s.taken()...))
		})
	}
}

// The cache of a hub has Bundles without their resources.
func TestContentsEnsureWithoutResources(t *testing.T) {
	cached := targetingAlice()
	content.WithoutResources(&cached.Spec)
	p := planOf(cached)
	assert.Equal(t, planOf(targetingAlice()).content, p.content)
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
		"it does not exist: read once":    {live: targetingAlice(), requests: []string{create, "get Bundle ws/app"}},
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
				err := s.contents.ensure(t.Context(), p.content, cached, isAllowed)
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
		d := deployed(t, targetingAlice())
		d.Labels[fleet.ContentNameLabel] = "c"
		return d
	}
	neededAgo := func(d time.Duration) func(*stage) {
		return func(s *stage) {
			_ = s.contents.ensure(t.Context(), "c", targetingAlice(), isAllowed)
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
	needing := deployed(t, targetingAlice())
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

// versionOf20kB returns a version of a Bundle with resources that do not compress.
func versionOf20kB(number int) *fleet.Bundle {
	b, text := everywhere(), make([]byte, 15<<10)
	_, _ = rand.NewChaCha8([32]byte{byte(number)}).Read(text)
	b.Generation, b.Spec.Resources = int64(number), []fleet.BundleResource{{Name: "a.yaml", Content: base64.StdEncoding.EncodeToString(text)}}
	return b
}

// A paused Cluster keeps the version of a Bundle that it has, and with it a Content.
func TestEarlierContents(t *testing.T) {
	for name, keep := range map[string]func(*fleet.Cluster){
		"paused":      func(c *fleet.Cluster) { c.Spec.Paused = true },
		"quarantined": func(c *fleet.Cluster) { c.Spec.Quarantined = true },
	} {
		t.Run(name, func(t *testing.T) {
			s := limited(t, 0)
			deploy := func(number int) result.Result {
				t.Helper()
				b, cluster := versionOf20kB(number), clusterNamed(fmt.Sprint("c-", number))
				s.has(t, cluster, b)
				_, out := s.reconcile(t, cluster)
				made := s.made[planOf(b).content]
				if made == nil {
					return out
				}
				require.NoError(t, s.ContentMetadata.GetStore().Add(&metav1.PartialObjectMetadata{ObjectMeta: made.ObjectMeta}))
				keep(cluster)
				s.has(t, deployed(t, b, cluster), cluster)
				return out
			}
			number := 1
			for ; number < 30; number++ {
				s.clock.Step(recountInterval)
				if out := deploy(number); out.Reason == fleet.ReasonWorkspaceLimitReached {
					assert.Contains(t, out.Message, "the new resources of Bundle ws/app are not deployed: Clusters of this workspace still have earlier versions")
					break
				}
			}
			assert.Len(t, s.made, 14, "a quarter of 1 MiB, the current version, and the one before")
			require.Less(t, number, 30)
			assert.Equal(t, fleet.ReasonWorkspaceLimitReached, s.storageProblem(versionOf20kB(number)).reason)

			s.taken()
			s.reconcile(t, clusterNamed(fmt.Sprint("c-", number)))
			assert.NotContains(t, strings.Join(s.taken(), "\n"), "get Content", "their sizes are known")

			deleted := planOf(versionOf20kB(1)).content
			require.NoError(t, s.ContentMetadata.GetStore().Delete(s.contents.find(deleted)))
			s.contents.forget(deleted)
			s.has(t, versionOf20kB(1))
			s.contents.made = expectations.New(s.clock)
			_, out := s.reconcile(t, clusterNamed("c-1"))
			require.NoError(t, out.Err)
			assert.Contains(t, strings.Join(s.taken(), "\n"), "create Content "+deleted, "an agent may need it")

			for i := range 3 {
				s.lost(t, deployed(t, versionOf20kB(i+1), clusterNamed(fmt.Sprint("c-", i+1))))
			}
			s.clock.Step(recountInterval)
			assert.NotEqual(t, fleet.ReasonWorkspaceLimitReached, deploy(number).Reason)
		})
	}
}

// The Content of the version before does not count: every rollout has two.
func TestEarlierContents_ofARollout(t *testing.T) {
	s := limited(t, 0)
	large := func(number int) *fleet.Bundle {
		b := versionOf20kB(number)
		for range 30 {
			b.Spec.Resources = append(b.Spec.Resources, versionOf20kB(100+number+len(b.Spec.Resources)).Spec.Resources...)
		}
		return b
	}
	for number := range 2 {
		b, cluster := large(number+1), clusterNamed(fmt.Sprint("c-", number))
		s.has(t, b, cluster)
		_, out := s.reconcile(t, cluster)
		assert.NotEqual(t, fleet.ReasonWorkspaceLimitReached, out.Reason)
		require.NoError(t, s.ContentMetadata.GetStore().Add(contentMeta(planOf(b).content, fleet.ManagedValue)))
		s.has(t, deployed(t, b, cluster))
	}
	s.clock.Step(recountInterval)
	s.has(t, large(3), clusterNamed("c-2"))
	_, out := s.reconcile(t, clusterNamed("c-2"))
	assert.Equal(t, fleet.ReasonWorkspaceLimitReached, out.Reason, "one of two earlier versions counts")
}

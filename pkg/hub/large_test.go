//go:build !race

// It uses the caches of memory_test.go, which the build with the race detector leaves out.

package hub

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned/scheme"
)

// filled returns caches of the kinds of users' objects, into which add puts objects as an informer does. Nothing is started.
func filled(t *testing.T) (c *caches, caches unstarted, add func(kind, text string)) {
	t.Helper()
	c, err := newCaches(t.Context(), &rest.Config{Host: "https://127.0.0.1:1"}, Options{SystemNamespace: "cattle-fleet-system", Clock: clock.RealClock{}})
	require.NoError(t, err)
	caches = unstarted{informers: map[string]*informed{}}
	for _, kind := range fleetKinds {
		informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, nil, 0, cache.Indexers{})
		caches.informers[kind.Kind] = &informed{SharedIndexInformer: informer, store: informer.GetStore()}
	}
	require.NoError(t, c.transform(caches, fleetKinds))
	return c, caches, func(kind, text string) {
		object, err := scheme.Scheme.New(fleet.SchemeGroupVersion.WithKind(kind))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal([]byte(text), object))
		kept, err := caches.informers[kind].transform(object)
		require.NoError(t, err)
		require.NoError(t, caches.informers[kind].store.Add(kept))
	}
}

// noise returns a text that takes this size when it is packed.
func noise(size int) string {
	bytes := make([]byte, size)
	_, _ = rand.Read(bytes)
	return base64.StdEncoding.EncodeToString(bytes)
}

// sized is a Bundle whose size a test chooses.
func sized(workspace, name, uid string) *fleet.Bundle {
	return &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: name, UID: types.UID(uid)}}
}

func TestLargeObjects_count(t *testing.T) {
	const limit, gone, goneByList = 100, -1, -2
	type step struct {
		workspace, name, uid string
		size                 int64
		fits                 bool
	}
	for name, row := range map[string]struct {
		steps         []step
		kept, dropped int64 // of workspace w
	}{
		"small objects do not count":              {steps: []step{{"w", "a", "1", 0, true}}},
		"up to the limit":                         {[]step{{"w", "a", "1", 60, true}, {"w", "b", "2", 40, true}, {"w", "c", "3", 1, false}}, 100, 1},
		"a smaller one fits beside a dropped one": {[]step{{"w", "a", "1", 60, true}, {"w", "b", "2", 50, false}, {"w", "c", "3", 40, true}}, 100, 1},
		"growth":                              {[]step{{"w", "a", "1", 60, true}, {"w", "a", "1", 90, true}, {"w", "a", "1", 101, false}}, 0, 1},
		"the same again":                      {[]step{{"w", "a", "1", 60, true}, {"w", "a", "1", 60, true}, {"w", "b", "2", 40, true}}, 100, 0},
		"shrinking makes room":                {[]step{{"w", "a", "1", 100, true}, {"w", "a", "1", 50, true}, {"w", "b", "2", 50, true}}, 100, 0},
		"small again":                         {[]step{{"w", "a", "1", 100, true}, {"w", "a", "1", 0, true}}, 0, 0},
		"a dropped one that becomes small":    {[]step{{"w", "a", "1", 101, false}, {"w", "a", "1", 0, true}}, 0, 0},
		"deletion makes room":                 {[]step{{"w", "a", "1", 100, true}, {"w", "a", "1", gone, true}, {"w", "b", "2", 100, true}}, 100, 0},
		"deletion that a list shows":          {[]step{{"w", "a", "1", 100, true}, {"w", "a", "1", goneByList, true}, {"w", "b", "2", 100, true}}, 100, 0},
		"deletion of a dropped one":           {[]step{{"w", "a", "1", 101, false}, {"w", "a", "1", gone, true}}, 0, 0},
		"late deletion of an earlier object":  {[]step{{"w", "a", "1", 60, true}, {"w", "a", "2", 70, true}, {"w", "a", "1", gone, true}}, 70, 0},
		"deletion of one that does not count": {[]step{{"w", "a", "1", 60, true}, {"w", "b", "2", gone, true}, {"x", "a", "1", gone, true}}, 60, 0},
		"another workspace":                   {[]step{{"x", "a", "1", 100, true}, {"w", "a", "2", 100, true}, {"x", "b", "3", 1, false}}, 100, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLargeObjects()
			for i, s := range row.steps {
				object := sized(s.workspace, s.name, s.uid)
				switch s.size {
				case gone:
					l.forget(object)
				case goneByList:
					l.forget(cache.DeletedFinalStateUnknown{Key: "w/" + s.name, Obj: object})
				default:
					require.Equal(t, s.fits, l.count(object, s.size, limit), "step %d", i)
				}
			}
			w := l.workspaces["w"]
			if row.kept+row.dropped == 0 {
				assert.Nil(t, w, "nothing is kept about a workspace without large objects")
				return
			}
			assert.Equal(t, row.kept, w.total)
			assert.Len(t, w.dropped, int(row.dropped))
		})
	}

	t.Run("a lower limit drops nothing that does not grow", func(t *testing.T) {
		l, object := newLargeObjects(), sized("w", "a", "1")
		require.True(t, l.count(object, 60, limit))
		assert.True(t, l.count(object, 60, 10))
		assert.False(t, l.count(sized("w", "a", "2"), 60, 10), "created again")
		require.True(t, l.count(object, 60, limit))
		assert.False(t, l.count(object, 61, 10))
	})
}

func TestLargeObjects_reduce(t *testing.T) {
	c, caches, add := filled(t)
	c.large.limit.Store(1 << 20)
	text := func(size int) string { return `"` + strings.Repeat("x", size) + `"` }
	put := func(kind, name string, version int, spec string) any {
		add(kind, fmt.Sprintf(`{"metadata":{"namespace":"w","name":%q,"uid":"%s-%s","resourceVersion":"%d","labels":{"l":"v"}},"spec":%s}`, name, kind, name, version, spec))
		object, _, err := caches.informers[kind].store.GetByKey("w/" + name)
		require.NoError(t, err)
		return object
	}
	bundleOf := func(size int) string {
		return `{"targets":[{"clusterName":"c"}],"helm":{"values":{"a":"` + noise(size) + `"}}}`
	}
	assert.False(t, put(bundleKind, "first", 1, bundleOf(900<<10)).(*fleet.Bundle).Spec.TooLarge)

	b := put(bundleKind, "b", 1, bundleOf(200<<10)).(*fleet.Bundle)
	assert.Equal(t, []fleet.BundleTarget{{}}, b.Spec.Targets, "what is deployed stays")
	assert.True(t, b.Spec.TooLarge)
	assert.Nil(t, b.Spec.Helm)
	assert.Equal(t, int64(1<<20), b.Spec.Excess.Limit)
	assert.InDelta(t, 200<<10, b.Spec.Excess.Size, 2<<10)
	assert.Equal(t, map[string]string{"l": "v"}, b.Labels)
	again, err := caches.informers[bundleKind].transform(b.DeepCopy())
	require.NoError(t, err)
	assert.Equal(t, b, again, "a list may be transformed twice")
	c.large.limit.Store(2 << 20)
	again, err = caches.informers[bundleKind].transform(func() any { twice := b.DeepCopy(); twice.ResourceVersion = "2"; return twice }())
	require.NoError(t, err)
	assert.True(t, again.(*fleet.Bundle).Spec.TooLarge, "it is not whole")
	c.large.limit.Store(1 << 20)

	cluster := put(clusterKind, "c", 1, `{"clientID":"c","templateValues":{"a":"`+noise(200<<10)+`"},"agentEnvVars":[{"name":"A"}]}`).(*fleet.Cluster)
	assert.True(t, cluster.Spec.TemplateValuesTooLarge)
	assert.False(t, cluster.Spec.SettingsTooLarge || cluster.Spec.MetadataTooLarge, "the other parts are small")
	assert.Len(t, cluster.Spec.AgentEnvVars, 1)
	assert.Equal(t, "c", cluster.Spec.ClientID)
	cluster = put(clusterKind, "d", 1, `{"agentEnvVars":[{"name":`+text(200<<10)+`}]}`).(*fleet.Cluster)
	assert.True(t, cluster.Spec.SettingsTooLarge)

	group := put(clusterGroupKind, "g", 1, `{"selector":{"matchLabels":{"a":`+text(200<<10)+`}}}`).(*fleet.ClusterGroup)
	assert.True(t, group.Spec.MetadataTooLarge, "a Bundle for the group changes nothing")
	assert.Nil(t, group.Spec.Selector)
	token := put("ClusterRegistrationToken", "t", 1, `{"ttl":"1h","clientIDs":[`+text(200<<10)+`]}`).(*fleet.ClusterRegistrationToken)
	assert.NotEmpty(t, token.Undecodable, "it grants nothing")
	assert.Equal(t, time.Hour, token.Spec.TTL.Duration)
	request := put("ClusterRegistration", "r", 1, `{"clientID":"c","clusterLabels":{"a":`+text(20<<10)+`}}`).(*fleet.ClusterRegistration)
	assert.False(t, request.Spec.TooLarge, "it is smaller than what is free")

	c.large.forget(sized("w", "first", "Bundle-first"))
	assert.Len(t, c.large.findRestorable(time.Unix(1000, 0)), 4)
	assert.Empty(t, c.large.findRestorable(time.Unix(1001, 0)), "the event of the write is on its way")
	assert.False(t, put(bundleKind, "b", 3, bundleOf(200<<10)).(*fleet.Bundle).Spec.TooLarge)
	cluster = put(clusterKind, "c", 3, `{"templateValues":{"a":"`+noise(200<<10)+`"}}`).(*fleet.Cluster)
	assert.Equal(t, fleet.MemoryExcess{}, cluster.Spec.Excess)
	assert.NotNil(t, cluster.Spec.TemplateValues)
}

// What is restored at once fits together, and nothing is written while there is no room.
func TestLargeObjects_restore(t *testing.T) {
	const limit = 100
	l, now := newLargeObjects(), time.Unix(1000, 0)
	l.limit.Store(limit)
	client := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
	patched := func() (names []string) {
		client.ClearActions()
		l.restore(t.Context(), client, now)
		for _, action := range client.Actions() {
			patch := action.(clienttesting.PatchAction)
			assert.Equal(t, "bundles", patch.GetResource().Resource)
			assert.JSONEq(t, `{"metadata":{"uid":"`+patch.GetName()+`","annotations":{"muster.fleet.cattle.io/restored-at":"`+now.UTC().Format(time.RFC3339)+`"}}}`, string(patch.GetPatch()))
			names = append(names, patch.GetNamespace()+"/"+patch.GetName())
		}
		return names
	}
	require.True(t, l.count(sized("w", "first", "first"), 100, limit))
	for name, size := range map[string]int64{"a": 70, "b": 30, "c": 40, "d": 60} {
		require.False(t, l.count(sized("w", name, name), size, limit))
	}
	assert.Empty(t, patched())
	l.forget(sized("w", "first", "first"))
	assert.Equal(t, []string{"w/b", "w/c"}, patched(), "the smallest")
	assert.Empty(t, patched())
	now = now.Add(restoreRetry)
	assert.Equal(t, []string{"w/b", "w/c"}, patched(), "the events of the first writes did not come")
	require.True(t, l.count(sized("w", "b", "b"), 30, limit))
	require.True(t, l.count(sized("w", "c", "c"), 40, limit))
	now = now.Add(restoreRetry)
	assert.Empty(t, patched())
	l.limit.Store(2 * limit)
	assert.Equal(t, []string{"w/d", "w/a"}, patched(), "the limit was raised")
}

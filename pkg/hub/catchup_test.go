package hub

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"

	"github.com/muster-fleet/muster/pkg/controllers/app"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// listed is a kind on the API server, which may change from one list to the next.
type listed struct {
	metadata.ResourceInterface
	answers []map[string]string
	version string
	err     error
	asked   int
}

func (l *listed) List(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	if l.err != nil {
		return nil, l.err
	}
	answer := l.answers[min(l.asked, len(l.answers)-1)]
	l.asked++
	list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: l.version}}
	for name, version := range answer {
		list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: version}})
	}
	return list, nil
}

// cachedVersions is a cache that has received events up to version 20 before the list.
type cachedVersions func(key string) (version string, found bool)

func (c cachedVersions) of(key string) (string, bool) { return c(key) }
func (c cachedVersions) latest() string               { return "20" }

func TestCatchUp(t *testing.T) {
	for name, test := range map[string]struct {
		lists        []map[string]string
		cache        []map[string]string // from look to look
		pollsPerList int
		asked        int
	}{
		"there is nothing":                  {[]map[string]string{{}}, []map[string]string{{}}, 0, 1},
		"it is as new":                      {[]map[string]string{{"a": "9"}}, []map[string]string{{"ns/a": "9"}}, 2, 1},
		"it is newer, since the list":       {[]map[string]string{{"a": "9"}}, []map[string]string{{"ns/a": "21"}}, 2, 1},
		"it is behind for two pollsPerList": {[]map[string]string{{"a": "9"}}, []map[string]string{{}, {}, {"ns/a": "8"}, {"ns/a": "9"}}, 4, 1},
		"what is deleted is not waited for": {[]map[string]string{{"a": "9"}, {}}, []map[string]string{{}}, pollsPerList + 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			list, pollsPerList := &listed{answers: test.lists}, 0
			kind := awaitedVersions{list: list, cache: cachedVersions(func(key string) (string, bool) {
				cache := test.cache[min(pollsPerList, len(test.cache)-1)]
				pollsPerList++
				version, found := cache[key]
				return version, found
			})}
			c := &catchUp{Context: &app.Context{Clock: clock.RealClock{}}, kinds: []awaitedVersions{kind}}
			require.NoError(t, c.await(t.Context()))
			assert.Equal(t, test.pollsPerList, pollsPerList)
			assert.Equal(t, test.asked, list.asked)
		})
	}
}

func TestCatchUpErrors(t *testing.T) {
	c := &catchUp{Context: &app.Context{Clock: clock.RealClock{}}, kinds: []awaitedVersions{{list: &listed{err: errors.New("no answer")}, cache: cachedVersions(nil)}}}
	require.ErrorContains(t, c.await(t.Context()), "no answer")

	empty := cachedVersions(func(string) (string, bool) { return "", false })
	ctx, stop := context.WithCancel(t.Context())
	stop()
	c.kinds = []awaitedVersions{{list: &listed{answers: []map[string]string{{"a": "1"}}}, cache: empty}}
	require.ErrorIs(t, c.await(ctx), context.Canceled)

	// The watch of a standby continues after the restore of a backup of etcd, and waits for versions of the future.
	c.kinds = []awaitedVersions{{list: &listed{answers: []map[string]string{{}}, version: "20"}, cache: empty}}
	require.NoError(t, c.await(t.Context()))
	c.kinds = []awaitedVersions{{list: &listed{answers: []map[string]string{{}}, version: "19"}, cache: empty}}
	require.ErrorContains(t, c.await(t.Context()), "the cache is at version 20, and the API server at version 19")
}

// After `etcdutl snapshot restore --bump-revision`, or when the API server has passed the version of the cache, only the versions of the objects
// show that the cache is newer than etcd. The API server no longer has what is cached: a deletion, for example.
func TestCatchUpRestored(t *testing.T) {
	cached := cachedVersions(func(string) (string, bool) { return "19", true })
	list := &listed{answers: []map[string]string{{"a": "9"}}, version: "1000000010"}
	c := &catchUp{Context: &app.Context{Clock: clock.RealClock{}}, kinds: []awaitedVersions{{list: list, cache: cached}}}
	require.ErrorContains(t, c.await(t.Context()), "the cache has version 19 of ns/a, and the API server has version 9: was etcd restored?")
}

// The absence of an object of each of these kinds decides something, such as the deletion of a BundleDeployment.
func TestCatchUpKinds(t *testing.T) {
	client := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
	var listed []string
	client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		listed = append(listed, action.GetResource().Resource)
		return true, &metav1.List{}, nil
	})
	factory, err := newFactory(&rest.Config{}, "system")
	require.NoError(t, err)
	c := &app.Context{
		Metadata: client, Clock: clock.RealClock{}, Fleet: fleetcontrollers.New(factory), Core: corecontrollers.New(factory),
	}
	require.NoError(t, newCatchUp(c).await(t.Context()))
	assert.ElementsMatch(t, []string{
		"bundledeployments", "bundles", "clustergroups", "clusterregistrations", "clusterregistrationtokens", "clusters", "secrets", "serviceaccounts",
	}, listed)
}

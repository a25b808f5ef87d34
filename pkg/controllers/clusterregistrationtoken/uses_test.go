package clusterregistrationtoken

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/registration"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// stage is a handler whose cache of requests the test fills, and an API server that knows more requests than the cache.
type stage struct {
	*handler
	indexer cache.Indexer
	server  *metadatafake.FakeMetadataClient
}

func newStage(t *testing.T, onServer ...string) *stage {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, metav1.AddMetaToScheme(scheme))
	var objects []runtime.Object
	for _, uid := range onServer {
		objects = append(objects, &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: fleet.SchemeGroupVersion.String(), Kind: "ClusterRegistration"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "request-" + uid, UID: types.UID(uid)},
		})
	}
	s := &stage{
		indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}),
		server:  metadatafake.NewSimpleMetadataClient(scheme, objects...),
	}
	requests := generic.NewCache[*fleet.ClusterRegistration](s.indexer, schema.GroupResource{})
	requests.AddIndexer(index.ByUID, func(r *fleet.ClusterRegistration) ([]string, error) { return []string{string(r.UID)}, nil })
	s.handler = &handler{
		Context:  &app.Context{Clock: clocktesting.NewFakeClock(noon), Metadata: s.server, Config: config.NewStore(config.Hub{})},
		requests: requests,
		rendered: newValuesCache(),
	}
	return s
}

// knows puts a request into the cache. countedAs is what its own status says.
func (s *stage) knows(t *testing.T, uid, countedAs string, change ...func(*fleet.ClusterRegistration)) {
	t.Helper()
	r := &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "request-" + uid, UID: types.UID(uid)},
		Status:     fleet.ClusterRegistrationStatus{TokenUID: countedAs},
	}
	for _, f := range change {
		f(r)
	}
	require.NoError(t, s.indexer.Update(r))
}

func (s *stage) asks(uids ...string) {
	for n, uid := range uids {
		s.TokenUsage.Add(types.NamespacedName{Namespace: "ns", Name: "tok"}, registration.Use{
			UID: uid, Name: "request-" + uid, Cluster: "cluster-of-" + uid, Created: noon.Add(time.Duration(n) * time.Second),
		})
	}
}

func someToken(uses int64, pending ...string) *fleet.ClusterRegistrationToken {
	return &fleet.ClusterRegistrationToken{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "tok", UID: "tok-uid"},
		Status:     fleet.ClusterRegistrationTokenStatus{Uses: uses, PendingUses: pending},
	}
}

func uidsOf(uses []registration.Use) (uids []string) {
	for _, use := range uses {
		uids = append(uids, use.UID)
	}
	return uids
}

func TestCountUses(t *testing.T) {
	s := newStage(t)
	token := someToken(5)
	token.Spec.UsageLimit = ptr.To(int32(7))
	for _, uid := range []string{"a", "b", "c"} {
		s.knows(t, uid, "")
	}
	s.asks("a", "b", "c")
	counted, err := s.countUses(t.Context(), token)
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b"}, token.Status.PendingUses)
	assert.EqualValues(t, 7, token.Status.Uses)
	assert.Equal(t, "cluster-of-b", token.Status.LastCluster)
	assert.True(t, noon.Equal(token.Status.LastUsed.Time))
	assert.ElementsMatch(t, []string{"a", "b", "c"}, uidsOf(counted.answered), "the third finds out that there is no use left")
	assert.Zero(t, counted.next)
	assert.Len(t, s.TokenUsage.Of(keyOf(token)), 3, "until the status is written they go on asking")
	assert.Empty(t, s.server.Actions())
}

func TestCountUsesCountsOnce(t *testing.T) {
	for _, row := range []struct {
		name    string
		cached  func(*testing.T, *stage)
		pending []string
		want    []string // pending afterwards
	}{
		{"the token names it already", func(t *testing.T, s *stage) { s.knows(t, "a", "") }, []string{"a"}, []string{"a"}},
		{"its own status says so, and the token named it until now", func(t *testing.T, s *stage) { s.knows(t, "a", "tok-uid") }, []string{"a"}, []string{"a"}},
		{"its own status says so", func(t *testing.T, s *stage) { s.knows(t, "a", "tok-uid") }, nil, nil},
		{"it is gone", func(*testing.T, *stage) {}, nil, nil},
		{"it is about to go", func(t *testing.T, s *stage) {
			s.knows(t, "a", "", func(r *fleet.ClusterRegistration) { r.DeletionTimestamp = &metav1.Time{Time: noon} })
		}, nil, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, token := newStage(t), someToken(1, row.pending...)
			row.cached(t, s)
			s.asks("a")
			counted, err := s.countUses(t.Context(), token)
			require.NoError(t, err)
			assert.EqualValues(t, 1, token.Status.Uses)
			assert.Equal(t, row.want, token.Status.PendingUses, "nothing is written on account of that alone")
			assert.Nil(t, token.Status.LastUsed)
			assert.Equal(t, []string{"a"}, uidsOf(counted.answered))
		})
	}
}

func TestCountUsesDropsSettledRequests(t *testing.T) {
	s := newStage(t, "only-on-the-server")
	s.knows(t, "says-so", "tok-uid")
	s.knows(t, "says-another", "other-uid")
	s.knows(t, "waits", "")
	s.knows(t, "new", "")
	s.asks("new")
	token := someToken(5, "says-so", "says-another", "waits", "only-on-the-server", "gone")
	_, err := s.countUses(t.Context(), token)
	require.NoError(t, err)
	assert.Equal(t, []string{"says-another", "waits", "only-on-the-server", "new"}, token.Status.PendingUses,
		"the cache of a hub that has just started may lack a request that is there")
	assert.Len(t, s.server.Actions(), 1)
}

func TestCountUsesFails(t *testing.T) {
	s := newStage(t)
	s.server.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("a bad day") })
	s.knows(t, "new", "")
	s.asks("new")
	token := someToken(1, "gone")
	counted, err := s.countUses(t.Context(), token)
	require.EqualError(t, err, "counting the uses of ClusterRegistrationToken ns/tok: a bad day")
	assert.Equal(t, someToken(1, "gone"), token)
	assert.Empty(t, counted.answered, "it goes on asking")
}

func TestCountUsesBeyondTheMaximum(t *testing.T) {
	s, token := newStage(t), someToken(registration.MaxPendingUses-1)
	for n := range registration.MaxPendingUses - 1 {
		uid := fmt.Sprint("pending-", n)
		s.knows(t, uid, "")
		token.Status.PendingUses = append(token.Status.PendingUses, uid)
	}
	s.knows(t, "a", "")
	s.knows(t, "b", "")
	s.asks("a", "b")
	counted, err := s.countUses(t.Context(), token)
	require.NoError(t, err)
	assert.EqualValues(t, registration.MaxPendingUses, token.Status.Uses)
	assert.Equal(t, []string{"a"}, uidsOf(counted.answered))
	assert.Equal(t, roomDelay, counted.next)
}

func TestForget(t *testing.T) {
	gone := types.NamespacedName{Namespace: "ns", Name: "tok"}
	for name, tell := range map[string]func(*stage) error{
		"its own hub": func(s *stage) error { _, err := s.onChange("ns/tok", nil); return err },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.asks("a")
			_, err := s.rendered.encode(gone, registration.Values{Token: "secret"})
			require.NoError(t, err)
			require.NoError(t, tell(s))
			assert.Empty(t, s.TokenUsage.Of(gone))
			_, remembered := s.rendered.last(gone)
			assert.False(t, remembered)
		})
	}
}

func TestTTLRequired(t *testing.T) {
	required := config.Hub{Registration: config.Registration{RequireTokenTTL: true}}
	for _, row := range []struct {
		option bool
		hub    config.Hub
		want   bool
	}{{false, config.Hub{}, false}, {true, config.Hub{}, true}, {false, required, true}, {true, required, true}} {
		h := &handler{Context: &app.Context{TokenTTLRequired: row.option}}
		assert.Equal(t, row.want, h.ttlRequired(row.hub), "%+v", row)
	}
}

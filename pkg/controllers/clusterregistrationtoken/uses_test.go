package clusterregistrationtoken

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// scene is a handler with a cache of requests, and an API server with further requests.
type scene struct {
	*handler
	cached cache.Indexer
	server *metadatafake.FakeMetadataClient
}

func emptyIndexer() cache.Indexer {
	return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
}

func newScene(t *testing.T, onServer ...string) *scene {
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
	s := &scene{cached: emptyIndexer(), server: metadatafake.NewSimpleMetadataClient(scheme, objects...)}
	requests := generic.NewCache[*fleet.ClusterRegistration](s.cached, schema.GroupResource{})
	index.RequestsByUID.AddTo(requests)
	s.handler = &handler{
		Context:  &app.Context{Clock: clocktesting.NewFakeClock(noon), Metadata: s.server, Config: config.NewStore(config.Hub{})},
		requests: requests,
		rendered: newValuesCache(),
	}
	return s
}

// cache adds a request. countedAs is the token UID in its status.
func (s *scene) cache(t *testing.T, uid, countedAs string) {
	t.Helper()
	r := &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "request-" + uid, UID: types.UID(uid)}}
	r.Status.TokenUID = countedAs
	if uid == "deleting" {
		r.DeletionTimestamp = &metav1.Time{Time: noon}
	}
	require.NoError(t, s.cached.Update(r))
}

func (s *scene) ask(uids ...string) {
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

func TestCountUses(t *testing.T) {
	var full []string
	for n := range registration.MaxPendingUses - 1 {
		full = append(full, fmt.Sprint("pending-", n))
	}
	type requests map[string]string // the token UID in the status, by UID
	uncounted := func(uids ...string) requests {
		all := requests{}
		for _, uid := range uids {
			all[uid] = ""
		}
		return all
	}
	for _, row := range []struct {
		name     string
		cached   requests
		onServer string
		asking   []string
		uses     int64
		pending  []string
		limit    *int32

		wantUses    int64
		wantPending []string
		last        string
		answered    []string
		next        time.Duration
		calls       int
	}{
		{
			name: "three ask for two uses: the oldest two, and the third finds the token used up", cached: uncounted("a", "b", "c"),
			asking: []string{"a", "b", "c"}, uses: 5, limit: ptr.To(int32(7)),
			wantUses: 7, wantPending: []string{"a", "b"}, last: "cluster-of-b", answered: []string{"a", "b", "c"},
		},
		{
			name: "the token names it already", cached: uncounted("a"), asking: []string{"a"}, uses: 1, pending: []string{"a"},
			wantUses: 1, wantPending: []string{"a"}, answered: []string{"a"},
		},
		{
			name: "its status says that it is counted, and the token named it until now: no write for that alone", cached: requests{"a": "tok-uid"},
			asking: []string{"a"}, uses: 1, pending: []string{"a"}, wantUses: 1, wantPending: []string{"a"}, answered: []string{"a"},
		},
		{name: "its status says that it is counted", cached: requests{"a": "tok-uid"}, asking: []string{"a"}, uses: 1, wantUses: 1, answered: []string{"a"}},
		{name: "it is deleted", asking: []string{"a"}, uses: 1, wantUses: 1, answered: []string{"a"}},
		{name: "it is being deleted", cached: uncounted("deleting"), asking: []string{"deleting"}, uses: 1, wantUses: 1, answered: []string{"deleting"}},
		{
			name:   "requests that are counted or deleted are no longer named; one that only the cache lacks is",
			cached: requests{"says-so": "tok-uid", "says-another": "other-uid", "waits": "", "new": ""}, onServer: "uncached",
			asking: []string{"new"}, uses: 5, pending: []string{"says-so", "says-another", "waits", "uncached", "gone"},
			wantUses: 6, wantPending: []string{"says-another", "waits", "uncached", "new"}, last: "cluster-of-new", answered: []string{"new"}, calls: 1,
		},
		{
			name: "more than the status can name: the others later", cached: uncounted(append(full, "a", "b")...), asking: []string{"a", "b"},
			uses: registration.MaxPendingUses - 1, pending: full,
			wantUses: registration.MaxPendingUses, wantPending: append(full, "a"), last: "cluster-of-a", answered: []string{"a"}, next: roomDelay,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, token := newScene(t, row.onServer), someToken(row.uses, row.pending...)
			token.Spec.UsageLimit = row.limit
			for uid, countedAs := range row.cached {
				s.cache(t, uid, countedAs)
			}
			s.ask(row.asking...)
			counted, err := s.countUses(t.Context(), token)
			require.NoError(t, err)
			assert.Equal(t, row.wantUses, token.Status.Uses)
			assert.Equal(t, row.wantPending, token.Status.PendingUses)
			assert.Equal(t, row.last, token.Status.LastCluster)
			if row.last != "" {
				assert.True(t, noon.Equal(token.Status.LastUsed.Time))
			} else {
				assert.Nil(t, token.Status.LastUsed)
			}
			var answered []string
			for _, use := range counted.answered {
				answered = append(answered, use.UID)
			}
			assert.ElementsMatch(t, row.answered, answered)
			assert.Equal(t, row.next, counted.next)
			assert.Len(t, s.server.Actions(), row.calls)
			assert.Len(t, s.TokenUsage.Of(keyOf(token)), len(row.asking), "they ask until the status is written")
		})
	}
	t.Run("an error of the API server: they ask again", func(t *testing.T) {
		s := newScene(t)
		s.server.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("overloaded") })
		s.cache(t, "new", "")
		s.ask("new")
		token := someToken(1, "gone")
		counted, err := s.countUses(t.Context(), token)
		require.EqualError(t, err, "counting the uses of ClusterRegistrationToken ns/tok: overloaded")
		assert.Equal(t, someToken(1, "gone"), token)
		assert.Empty(t, counted.answered)
	})
}

func TestOnChangeForgetsDeletedTokens(t *testing.T) {
	s, gone := newScene(t), types.NamespacedName{Namespace: "ns", Name: "tok"}
	s.ask("a")
	_, err := s.rendered.encode(gone, registration.Values{Token: "secret"})
	require.NoError(t, err)
	_, err = s.onChange("ns/tok", nil)
	require.NoError(t, err)
	assert.Empty(t, s.TokenUsage.Of(gone))
	assert.Zero(t, s.rendered.files.Len())
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

// policyState is what the hub knows of its admission policies.
type policyState struct {
	app.Admission
	state admission.PolicyState
}

func (s policyState) State() admission.PolicyState { return s.state }

func TestSetPoliciesInForce(t *testing.T) {
	clock := clocktesting.NewFakeClock(noon)
	var conditions fleetstatus.Conditions
	for _, row := range []struct {
		state  app.Admission
		status corev1.ConditionStatus
		reason string
	}{
		{nil, "", ""},
		{policyState{}, "", ""}, // the condition appears only once policies are missing
		{policyState{state: admission.PolicyState{Reason: fleet.ReasonPolicyMissing, Message: "gone"}}, corev1.ConditionFalse, fleet.ReasonPolicyMissing},
		{policyState{state: admission.PolicyState{Reason: fleet.ReasonPoliciesNotServed, Message: "too old"}}, corev1.ConditionFalse, fleet.ReasonPoliciesNotServed},
		{policyState{}, corev1.ConditionTrue, fleet.ReasonPoliciesInForce},
	} {
		h := &handler{Context: &app.Context{Clock: clock, Admission: row.state}}
		h.setPoliciesInForce(&conditions)
		condition := fleetstatus.Condition(conditions, fleet.ConditionPoliciesInForce)
		assert.Equal(t, row.status, condition.Status)
		assert.Equal(t, row.reason, condition.Reason)
	}
}

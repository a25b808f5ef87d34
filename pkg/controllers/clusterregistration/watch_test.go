package clusterregistration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/policy"
	"github.com/muster-fleet/muster/pkg/registration"
)

func names(keys []types.NamespacedName) (all []string) {
	for _, key := range keys {
		all = append(all, key.Name)
	}
	return all
}

func TestOnConfigChange(t *testing.T) {
	s := newScene(t)
	granted, _ := s.earlier()
	s.haveCached(granted)
	only := map[string]time.Duration{requestKey.String(): 0}

	s.onConfigChange(config.Hub{}, config.Hub{AgentImage: "x"})
	assert.Empty(t, s.delays, "requests do not depend on it")
	deny := []config.PolicyRule{{Name: "no", Expression: "true", Action: registration.RulingDeny}}
	s.onConfigChange(config.Hub{}, config.Hub{Registration: config.Registration{Policy: deny}})
	assert.Equal(t, only, s.delays)
	assert.Equal(t, registration.RulingDeny, s.policy.Load().Rule(policy.RuleInput{Request: s.request}).Action)
}

func TestDependentsOfRequest(t *testing.T) {
	s := newScene(t)
	granted, _ := s.earlier()
	s.haveCached(granted)
	deleting := granted.DeepCopy()
	deleting.DeletionTimestamp = &metav1.Time{Time: noon}
	waiting := []string{"request-abc"}
	assert.Equal(t, waiting, names(s.dependentsOfRequest(granted, nil)), "a granted request is gone: the identity is free")
	assert.Equal(t, waiting, names(s.dependentsOfRequest(granted, deleting)))
	assert.Empty(t, s.dependentsOfRequest(granted, granted))
	assert.Empty(t, s.dependentsOfRequest(nil, granted))
	assert.Empty(t, s.dependentsOfRequest(s.request, nil), "a request that is not granted holds nothing")
}

func TestDependentsOfCluster(t *testing.T) {
	for _, row := range []struct {
		name string
		uses string
		own  func(*scene) []*fleet.ClusterRegistration
		left bool // the answer Secret
		want []string
	}{
		{"uses the new credential, and an older request is left", "request-abc", func(s *scene) []*fleet.ClusterRegistration {
			return []*fleet.ClusterRegistration{s.sibling("older", time.Hour, true)}
		}, false, []string{"request-abc"}},
		{"uses the old credential", "older", func(s *scene) []*fleet.ClusterRegistration {
			return []*fleet.ClusterRegistration{s.sibling("older", time.Hour, true)}
		}, false, nil},
		{"uses the only credential", "request-abc", nil, false, nil},
		{"uses the credential whose Secret is left", "request-abc", nil, true, []string{"request-abc"}},
		{"a newer request waits", "request-abc", func(s *scene) []*fleet.ClusterRegistration {
			return []*fleet.ClusterRegistration{s.sibling("newer", -time.Hour, false)}
		}, false, []string{"newer"}},
		{"does not report what it uses", "", nil, true, nil},
		{"does not renew", "request-abc", func(s *scene) []*fleet.ClusterRegistration { s.cannotRenew(); return nil }, true, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			s.request.Status.Granted = true
			s.cluster.Status.Agent.Registration = row.uses
			if row.own != nil {
				s.haveCached(row.own(s)...)
			}
			if row.left {
				s.secrets = secretsOf(s.credentialOf(s.request, "bearer"))
			}
			assert.Equal(t, row.want, names(s.dependentsOfCluster(s.cluster)))
		})
	}
}

// After too many changes to note them one by one, granted requests with something left to delete are enqueued too.
func TestEnqueueDependents_all(t *testing.T) {
	s := newScene(t)
	s.request.Status.Granted = true
	s.cluster.Status.Agent.Registration = "request-abc"
	s.secrets = secretsOf(s.credentialOf(s.request, "bearer"))
	var all changedDependencies
	all.markAll()
	s.enqueueDependents(s.cluster.Namespace, all)
	assert.Equal(t, []string{"request-abc"}, s.enqueued())
}

// A user has sent very many requests for one Cluster, and patches the Cluster without a pause.
func TestOnCluster_manyRequests(t *testing.T) {
	s := newScene(t)
	var waiting []*fleet.ClusterRegistration
	for i := range fewRequests {
		waiting = append(waiting, s.sibling(fmt.Sprint("waiting-", i), time.Hour, false))
	}
	s.haveCached(waiting...)
	changed := func(change func(*fleet.Cluster)) *fleet.Cluster {
		after := s.cluster.DeepCopy()
		after.ResourceVersion = "2"
		change(after)
		return after
	}
	for i := range 1000 {
		s.onCluster(s.cluster, changed(func(c *fleet.Cluster) {
			c.Labels, c.Spec.Paused = map[string]string{"a": fmt.Sprint(i)}, i%2 == 0
			c.Status.Summary.Ready = i
		}))
	}
	assert.Empty(t, s.enqueued(), "no decision depends on that")

	for name, change := range map[string]func(*fleet.Cluster){
		"quarantine":      func(c *fleet.Cluster) { c.Spec.Quarantined = true },
		"its agent":       func(c *fleet.Cluster) { c.Status.Agent.PossessionProof = "x" },
		"its namespace":   func(c *fleet.Cluster) { c.Status.Namespace = "x" },
		"another manager": func(c *fleet.Cluster) { c.Labels = map[string]string{fleet.ClusterManagementLabel: "x"} },
		"its clientID":    func(c *fleet.Cluster) { c.Spec.ClientID = "x" },
		"an annotation":   func(c *fleet.Cluster) { c.Annotations = map[string]string{fleet.NamespaceDigestAnnotation: "x"} },
		"it is deleted":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			clear(s.delays)
			if change == nil {
				s.onCluster(s.cluster, nil)
			} else {
				s.onCluster(s.cluster, changed(change))
			}
			assert.Equal(t, []string{"*"}, s.enqueued(), "one pass over the workspace")
			_, err := s.onChange("fleet-default/*", nil)
			require.NoError(t, err)
			assert.Len(t, s.enqueued(), 1+len(waiting)+1)
		})
	}

	t.Run("a rule may read all fields", func(t *testing.T) {
		s.Config = config.NewStore(config.Hub{Registration: config.Registration{Policy: []config.PolicyRule{{Name: "r"}}}})
		clear(s.delays)
		s.onCluster(s.cluster, changed(func(c *fleet.Cluster) { c.Labels = map[string]string{"a": "b"} }))
		assert.Equal(t, []string{"*"}, s.enqueued())
	})
	t.Run("few requests", func(t *testing.T) {
		s.haveCached(waiting[0])
		clear(s.delays)
		s.onCluster(s.cluster, changed(func(c *fleet.Cluster) { c.Labels = map[string]string{"a": "b"} }))
		assert.Equal(t, []string{"request-abc", "waiting-0"}, s.enqueued())
	})
}

func TestDependentsOfNamespace(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*scene, *corev1.Namespace) (before *corev1.Namespace)
		want   []string
	}{
		"it appears":            {func(*scene, *corev1.Namespace) *corev1.Namespace { return nil }, []string{"request-abc"}},
		"it appears again":      {func(s *scene, _ *corev1.Namespace) *corev1.Namespace { s.request.Status.Granted = true; return nil }, nil},
		"it changes":            {func(_ *scene, n *corev1.Namespace) *corev1.Namespace { return n }, nil},
		"of no Cluster":         {func(_ *scene, n *corev1.Namespace) *corev1.Namespace { n.Annotations = nil; return nil }, nil},
		"another that names it": {func(_ *scene, n *corev1.Namespace) *corev1.Namespace { n.Name = "mallory"; return nil }, nil},
		"of a Cluster not seen": {func(s *scene, _ *corev1.Namespace) *corev1.Namespace {
			s.clusters = fakecache.With[*fleet.Cluster]()
			return nil
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			namespace := s.haveNamespace("key")
			before := row.change(s, namespace)
			assert.Equal(t, row.want, slices.Compact(names(s.dependentsOfNamespace(before, namespace))), "by the name or the clientID of the Cluster")
		})
	}
}

func TestOnToken(t *testing.T) {
	all := []string{"one", "two"}
	now := metav1.NewTime(noon)
	limited := func(used int64) func(before, after *fleet.ClusterRegistrationToken) {
		return func(before, after *fleet.ClusterRegistrationToken) {
			before.Spec.UsageLimit, after.Spec.UsageLimit = ptr.To(int32(2)), ptr.To(int32(2))
			after.Status.Uses, after.Status.PendingUses = used, []string{"uid-1"}
		}
	}
	for name, row := range map[string]struct {
		change  func(before, after *fleet.ClusterRegistrationToken)
		counted []string // enqueued at once
		all     bool     // all others are enqueued with the next pass over the workspace
	}{
		"one was counted": {func(before, after *fleet.ClusterRegistrationToken) {
			before.Status.PendingUses, after.Status.PendingUses = []string{"uid-2"}, []string{"uid-2", "uid-1", "uid-3"}
			after.Status.Uses, after.Status.LastUsed, after.Status.LastCluster = 3, &now, "c"
		}, []string{"one"}, false},
		"one that is gone was counted": {func(_, after *fleet.ClusterRegistrationToken) { after.Status.PendingUses = []string{"gone"} }, nil, false},
		"one is named no longer":       {func(before, _ *fleet.ClusterRegistrationToken) { before.Status.PendingUses = []string{"uid-1"} }, nil, false},
		"one was counted of a limit":   {limited(1), []string{"one"}, false},
		"the last use was counted":     {limited(2), nil, true},
		"the limit was lifted":         {func(before, _ *fleet.ClusterRegistrationToken) { before.Spec.UsageLimit = ptr.To(int32(2)) }, nil, true},
		"its clientIDs changed":        {func(_, after *fleet.ClusterRegistrationToken) { after.Spec.ClientIDs = []string{"x"} }, nil, true},
		"it got its Secret":            {func(_, after *fleet.ClusterRegistrationToken) { after.Status.SecretName = "tok" }, nil, true},
		"a request was refused": {func(_, after *fleet.ClusterRegistrationToken) {
			after.ResourceVersion = "8"
			result.Set(&after.Status.Conditions, fleet.ConditionRequestsAccepted, inUse, noon)
		}, nil, false},
		"a request was refused, and its clientIDs changed": {func(_, after *fleet.ClusterRegistrationToken) {
			after.Spec.ClientIDs = []string{"x"}
			result.Set(&after.Status.Conditions, fleet.ConditionRequestsAccepted, inUse, noon)
		}, nil, true},
		"a label that a rule may use changed": {func(_, after *fleet.ClusterRegistrationToken) { after.Labels = map[string]string{"a": "b"} }, nil, true},
		"an annotation changed":               {func(_, after *fleet.ClusterRegistrationToken) { after.Annotations = map[string]string{"a": "b"} }, nil, true},
		"it is being deleted":                 {func(_, after *fleet.ClusterRegistrationToken) { after.DeletionTimestamp = &now }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			one, two, granted := s.request.DeepCopy(), s.request.DeepCopy(), s.request.DeepCopy()
			one.Name, one.UID, two.Name, two.UID = "one", "uid-1", "two", "uid-2"
			granted.Name, granted.UID, granted.Status.Granted = "granted", "uid-3", true
			requests := &countedRequests{Cache: requestsOf(one, two, granted)}
			s.handler.requests = requests
			before, after := s.token.DeepCopy(), s.token.DeepCopy()
			row.change(before, after)
			s.onToken(before, after)
			if !row.all {
				assert.Equal(t, row.counted, s.enqueued())
				s.onToken(nil, after)
			}
			assert.Contains(t, s.enqueued(), "*")
			delete(s.delays, "fleet-default/*")
			requests.lookups = 0
			for range 1000 { // a tenant may write a token, or create tokens, as fast as the API server accepts it
				s.onToken(before, nil)
				s.onToken(nil, after)
			}
			assert.Zero(t, requests.lookups, "an event handler must not delay the events of other workspaces")
			_, err := s.onChange("fleet-default/*", nil)
			require.NoError(t, err)
			assert.Equal(t, all, s.enqueued())
			assert.Equal(t, 2, requests.lookups, "requests that name the token, and requests that name none")
		})
	}
}

// countedRequests is a cache that counts the look-ups.
type countedRequests struct {
	*fakecache.Cache[*fleet.ClusterRegistration]
	lookups int
}

func (c *countedRequests) GetByIndex(name, key string) ([]*fleet.ClusterRegistration, error) {
	c.lookups++
	return c.Cache.GetByIndex(name, key)
}

// enqueued returns the names in the keys of the work queue of requests.
func (s *scene) enqueued() (names []string) {
	for key := range s.delays {
		names = append(names, strings.TrimPrefix(key, "fleet-default/"))
	}
	slices.Sort(names)
	return names
}

func TestDependentsOfQuarantine(t *testing.T) {
	s := newScene(t)
	account := s.account()
	account.Annotations = map[string]string{
		"objectset.rio.cattle.io/owner-gvk": requestKind.String(), "objectset.rio.cattle.io/owner-namespace": "fleet-default", "objectset.rio.cattle.io/owner-name": "request-abc",
	}
	s.accounts = fakecache.With(account)
	quarantined := s.cluster.DeepCopy()
	quarantined.Spec.Quarantined = true
	assert.Equal(t, []types.NamespacedName{requestKey}, s.dependentsOfQuarantine(s.cluster, quarantined))
	assert.Equal(t, []types.NamespacedName{requestKey}, s.dependentsOfQuarantine(quarantined, s.cluster))
	assert.Empty(t, s.dependentsOfQuarantine(quarantined, quarantined), "a heartbeat")
	assert.Empty(t, s.dependentsOfQuarantine(nil, quarantined))
	assert.Empty(t, s.dependentsOfQuarantine(quarantined, nil))
}

// A user of one workspace can write any annotations to Secrets, ServiceAccounts and Roles there.
func TestObjectsOfAnotherWorkspace(t *testing.T) {
	s := newScene(t)
	s.request.Status.Granted = true
	owned := func(namespace string) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Annotations: map[string]string{
			apply.LabelGVK: requestKind.String(), apply.LabelNamespace: s.request.Namespace, apply.LabelName: s.request.Name,
		}}}
	}
	gone := func(namespace string) *rbacv1.Role {
		role := owned(namespace)
		role.Annotations[apply.LabelName] = "gone"
		return role
	}
	lease := func(namespace string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: owned(namespace).ObjectMeta}
	}
	for _, own := range []string{"", s.request.Namespace, s.RegistrationNamespace(), clusterNamespace(s.cluster)} {
		assert.Equal(t, []string{s.request.Name}, names(s.requestOfManaged(owned(own))), own)
		assert.Equal(t, []string{s.request.Name}, names(s.requestOfDamagedLease(lease(own), nil)), own)
		assert.Equal(t, []string{"gone"}, names(s.deletedRequestOf(gone(own))), own)
	}
	assert.Empty(t, s.requestOfManaged(owned("mallory")))
	assert.Empty(t, s.requestOfDamagedLease(lease("mallory"), nil))
	assert.Empty(t, s.deletedRequestOf(gone("mallory")))

	secret := s.credentialOf(s.request, "bearer")
	s.createdAnswers.Expect(string(s.request.UID))
	secret.Namespace = "mallory"
	s.observeAnswer(nil, secret)
	assert.True(t, s.createdAnswers.IsExpected(string(s.request.UID)), "the event of the credential has not arrived")
	assert.Empty(t, s.dependentsOfAnswer(secret))
	s.secrets = secretsOf(secret)
	found, err := s.answersOf(requestKey.String())
	require.NoError(t, err)
	assert.Empty(t, found)

	secret.Namespace = s.RegistrationNamespace()
	s.observeAnswer(nil, secret)
	assert.False(t, s.createdAnswers.IsExpected(string(s.request.UID)))
	assert.NotEmpty(t, s.dependentsOfAnswer(secret))
	found, err = s.answersOf(requestKey.String())
	require.NoError(t, err)
	assert.Len(t, found, 1)
}

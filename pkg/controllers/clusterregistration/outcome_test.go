package clusterregistration

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubetesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	fakefleet "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	"github.com/muster-fleet/muster/pkg/registration"
)

// first returns the first words of a text.
func first(text string, words int) string { return strings.Join(strings.Fields(text)[:words], " ") }

// given is a request whose rights and credential an earlier pass created, without granting it.
func given(t *testing.T) *scene {
	t.Helper()
	s := newScene(t)
	secret := s.credentialOf(s.request, "bearer")
	s.server(s.request, secret)
	s.accounts, s.secrets = fakecache.With(s.account()), secretsOf(secret)
	return s
}

func (s *scene) revoked() bool { return strings.Contains(fmt.Sprint(s.writes()), "delete secrets") }

func TestConsequences(t *testing.T) {
	const revoked, told, both, neither = "true false", "false true", "true true", "false false"
	reasons := map[string]string{
		fleet.ReasonDenied: both, fleet.ReasonClientIDInUse: both, fleet.ReasonTokenUsedUp: both, fleet.ReasonClientIDNotAllowed: both,
		fleet.ReasonLongLivedRefused: both, fleet.ReasonTokenMismatch: both, fleet.ReasonClientIDEmpty: both, fleet.ReasonClientIDTooLong: both, fleet.ReasonTooLarge: both,
		fleet.ReasonClientIDAmbiguous: both, fleet.ReasonClusterNameTaken: both, fleet.ReasonQuarantined: told, fleet.ReasonSuperseded: told,
		fleet.ReasonTokenNotFound: revoked,
		"":                        neither, fleet.ReasonError: neither, fleet.ReasonNameConflict: neither,
		fleet.ReasonWaitingForApproval: neither, fleet.ReasonCountingUse: neither,
		// The same request may be granted later: when there is room again, or a token or a setting was corrected.
		fleet.ReasonTooManyWaiting: neither, fleet.ReasonPoliciesRequired: neither, fleet.ReasonTokenUnknown: neither, fleet.ReasonTokenInvalid: neither,
		fleet.ReasonCredentialRevoked: neither, // of a granted request
	}
	page, err := os.ReadFile("../../../docs/reasons.md")
	require.NoError(t, err)
	for _, row := range regexp.MustCompile(`(?m)^\| Granted \| False \| (\w+) \|`).FindAllStringSubmatch(string(page), -1) {
		assert.Contains(t, reasons, row[1], "decide about the consequences of this refusal")
	}
	for reason, want := range reasons {
		revoke, tell := consequences(result.Stalled(reason, ""))
		assert.Equal(t, want, fmt.Sprint(revoke, tell), reason)
		revoke, tell = consequences(result.Wait(reason, ""))
		assert.Equal(t, neither, fmt.Sprint(revoke, tell), "%s: a wait is no refusal", reason)
	}
}

func TestCarryOut_quarantineAfterAnError(t *testing.T) {
	s := newScene(t)
	s.cluster.Spec.Quarantined = true
	s.givenRights.Expect(string(s.request.UID))
	out := s.refuse(t, failed(errTest))
	assert.Equal(t, cacheDelay, out.After, "the rights are withdrawn when the cache shows them")
	require.ErrorIs(t, out.Err, errTest)
}

func TestRevoke(t *testing.T) {
	otherGranted := func(s *scene) {
		other, _ := s.earlier()
		s.haveCached(other)
	}
	for _, row := range []struct {
		name    string
		out     result.Result
		change  func(*scene)
		revoked bool
	}{
		{"denied by a person", denied, nil, true},
		{"the token is gone", result.Stalled(fleet.ReasonTokenNotFound, ""), nil, true},
		{"another agent was granted the identity", inUse, otherGranted, true},
		{"the agent that sends heartbeats may be its own", inUse, nil, false},
		{"the agent that sends heartbeats is its own", inUse, func(s *scene) {
			otherGranted(s)
			s.cluster.Status.Agent.Registration = s.request.Name
		}, false},
		{"the holder of the identity cannot be read", inUse, func(s *scene) { s.handler.requests = failing[*fleet.ClusterRegistration](errTest) }, false},
		{"quarantine leaves the ServiceAccount", result.Stalled(fleet.ReasonQuarantined, ""), nil, false},
		{"superseded", result.Stalled(fleet.ReasonSuperseded, ""), nil, false},
		{"a name is taken", result.Stalled(fleet.ReasonNameConflict, ""), nil, false},
		{"a wait", result.Wait(fleet.ReasonWaitingForApproval, ""), nil, false},
		{"an error", result.Retry(fleet.ReasonError, errTest), nil, false},
		{"a grant", result.Done(fleet.ReasonGranted, ""), nil, false},
		{"nothing was given", denied, func(s *scene) { s.accounts = fakecache.With[*corev1.ServiceAccount]() }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := given(t)
			if row.change != nil {
				row.change(s)
			}
			out := s.refuse(t, row.out)
			assert.Equal(t, row.revoked, s.revoked())
			if row.revoked {
				assert.Equal(t, result.Skip().In(result.MissedEvent), out, "with a ServiceAccount that stays, every 50 ms would be an endless loop")
			} else {
				assert.Equal(t, row.out, out)
				assert.Empty(t, s.fleet.Actions(), "an ordinary refusal costs no request")
			}
		})
	}
	t.Run("rights that the cache does not show are revoked when it does", func(t *testing.T) {
		s := given(t)
		all := s.accounts
		s.accounts = fakecache.With[*corev1.ServiceAccount]()
		s.fails("create", "serviceaccounts", errTest)
		require.ErrorIs(t, s.ensureRights(t.Context(), s.request, s.cluster, s.token).Err, errTest)
		assert.Equal(t, result.Skip().In(cacheDelay), s.refuse(t, denied))
		assert.False(t, s.revoked())
		s.accounts = all
		assert.Equal(t, result.Skip().In(result.MissedEvent), s.refuse(t, denied))
		assert.True(t, s.revoked())
		s.accounts = fakecache.With[*corev1.ServiceAccount]()
		assert.Equal(t, done, s.revoke(t.Context(), s.request, s.cluster, denied.Reason), "now it is refused")
	})
	t.Run("a grant that the cache does not show keeps its rights", func(t *testing.T) {
		s := given(t)
		latest := s.request.DeepCopy()
		latest.Status.Granted = true
		s.server(latest)
		assert.Equal(t, result.Skip().In(cacheDelay), s.refuse(t, denied))
		s.server()
		assert.Equal(t, result.Skip(), s.refuse(t, denied), "the request is gone")
		s.fails("get", "clusterregistrations", errTest)
		require.ErrorIs(t, s.refuse(t, denied).Err, errTest)
		s.accounts = failing[*corev1.ServiceAccount](errTest)
		require.ErrorIs(t, s.refuse(t, denied).Err, errTest)
		assert.False(t, s.revoked())
	})
	t.Run("it is part of a pass", func(t *testing.T) {
		s := given(t)
		s.request.Spec.ClientID = ""
		s.secrets = secretsOf(s.credentialOf(s.request, "bearer"))
		s.server(s.request, s.credentialOf(s.request, "bearer"))
		_, err := s.onChange("", s.request)
		require.NoError(t, err)
		assert.True(t, s.revoked())
		assert.Equal(t, result.MissedEvent, s.delays[requestKey.String()])
	})
}

// The hub was killed, or its write failed, after it had issued the credential and before it granted the request. The agent did not wait for that.
func TestDecide_agentIsFasterThanGrant(t *testing.T) {
	for _, row := range []struct {
		name    string
		change  func(*scene)
		granted bool
	}{
		{"the heartbeat names the request", func(s *scene) { s.cluster.Status.Agent.Registration = s.request.Name }, true},
		{"the agent does not report its request, and no other was granted", func(s *scene) { s.cannotRenew() }, true},
		{"the agent does not report its request, and another was granted", func(s *scene) {
			s.cannotRenew()
			other, _ := s.earlier()
			s.haveCached(other)
		}, false},
		{"the heartbeat names another request", func(s *scene) { s.cluster.Status.Agent.Registration = "request-before" }, false},
		{"the ServiceAccount is of a deleted request of this name", func(s *scene) {
			s.cluster.Status.Agent.Registration = s.request.Name
			s.request.UID = "another"
		}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := given(t)
			s.ready()
			s.cluster.Status.Agent.LastSeen = metav1.NewTime(noon)
			row.change(s)
			s.server(s.request, s.cluster, s.credentialOf(s.request, "bearer"))
			got, err := s.onChange("", s.request)
			require.NoError(t, err)
			assert.Equal(t, row.granted, got.Status.Granted, "%v", got.Status.Conditions)
			if row.granted {
				assert.NotContains(t, fmt.Sprint(s.writes()), "delete")
			}
		})
	}
}

func TestReconcileRefusal(t *testing.T) {
	before := func(s *scene, secret *corev1.Secret) {
		secret.ResourceVersion = "7"
		s.server(secret)
		s.secrets = secretsOf(secret)
	}
	wait := result.Wait(fleet.ReasonWaitingForApproval, "")
	for _, row := range []struct {
		name   string
		out    result.Result
		change func(*scene)
		writes string // to Secrets
		err    error
	}{
		{"refused: created", inUse, func(*scene) {}, "create secrets", nil},
		{"refused for another reason than before: updated", inUse, func(s *scene) { before(s, s.refusalSecret(s.request, denied)) }, "update secrets", nil},
		{"refused as before: nothing", inUse, func(s *scene) { before(s, s.refusalSecret(s.request, inUse)) }, "", nil},
		{"another request has a Secret of that name: nothing", inUse, func(s *scene) {
			_, others := s.earlier()
			others.Name = secretName(s.request)
			before(s, others)
		}, "", nil},
		{"the token is not known, and nobody could read it: nothing", inUse, func(s *scene) { s.tokens = fakecache.With[*fleet.ClusterRegistrationToken]() }, "", nil},
		{"the cache of tokens fails: retried", inUse, func(s *scene) { s.tokens = failing[*fleet.ClusterRegistrationToken](errTest) }, "", errTest},
		{"an agent that does not renew: nothing", inUse, func(s *scene) { s.cannotRenew() }, "", nil},
		{"a refusal that may pass: nothing", result.Stalled(fleet.ReasonNameConflict, ""), func(*scene) {}, "", nil},
		{"an error: nothing", result.Retry(fleet.ReasonError, errTest), func(*scene) {}, "", nil},
		{"a grant: nothing", result.Done(fleet.ReasonGranted, ""), func(*scene) {}, "", nil},
		{"created a moment ago: kept", inUse, func(s *scene) { s.server(s.refusalSecret(s.request, inUse)) }, "create secrets", nil},
		{"creating fails: retried", inUse, func(s *scene) { s.fails("create", "secrets", errTest) }, "create secrets", errTest},
		{"updating fails: retried", inUse, func(s *scene) {
			before(s, s.refusalSecret(s.request, denied))
			s.fails("update", "secrets", errTest)
		}, "update secrets", errTest},
		{"it waits again: deleted", wait, func(s *scene) { before(s, s.refusalSecret(s.request, inUse)) }, "delete secrets", nil},
		{"it waits, and an earlier pass wrote a credential: nothing", wait, func(s *scene) { before(s, s.credentialOf(s.request, "bearer")) }, "", nil},
		{"it waits, and the refusal is of another request: nothing", wait, func(s *scene) {
			refusal := s.refusalSecret(s.request, inUse)
			refusal.Annotations[fleet.ClusterRegistrationAnnotation] = "other"
			before(s, refusal)
		}, "", nil},
		{"the deletion fails: retried", wait, func(s *scene) {
			before(s, s.refusalSecret(s.request, inUse))
			s.fails("delete", "secrets", errTest)
		}, "delete secrets", errTest},
		{"the cache fails: retried", wait, func(s *scene) { s.secrets = failing[*corev1.Secret](errTest) }, "", errTest},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			row.change(s)
			out := row.out
			out.Err = nil
			require.ErrorIs(t, s.refuse(t, out).Err, row.err)
			var writes []string
			for _, write := range s.writes() {
				writes = append(writes, first(write, 2))
			}
			assert.Equal(t, row.writes, strings.Join(writes, ", "))
			if row.writes == "create secrets" && row.err == nil {
				assert.Equal(t, []string{"create secrets", "create roles", "create rolebindings"}, s.answers())
			}
		})
	}
	t.Run("nobody may read a Secret of another workspace that the cache does not show", func(t *testing.T) {
		s := newScene(t)
		_, others := s.earlier()
		others.Name = secretName(s.request)
		s.server(others)
		require.NoError(t, s.refuse(t, inUse).Err)
		assert.Equal(t, []string{"create secrets"}, s.answers(), "the API server refuses it")
	})
	t.Run("an account that stays is in use: nothing", func(t *testing.T) {
		for _, out := range []result.Result{inUse, result.Stalled(fleet.ReasonQuarantined, ""), result.Stalled(fleet.ReasonSuperseded, "")} {
			s := given(t)
			require.Equal(t, out, s.refuse(t, out))
			assert.Empty(t, s.writes(), out.Reason)
			assert.Empty(t, s.kube.Actions(), out.Reason)
		}
		s := newScene(t)
		s.accounts = failing[*corev1.ServiceAccount](errTest)
		require.ErrorIs(t, s.refuse(t, inUse).Err, errTest)
	})
	t.Run("a refusal is not a credential", func(t *testing.T) {
		s := newScene(t)
		secret := s.refusalSecret(s.request, inUse)
		assert.Equal(t, map[string][]byte{"refusalReason": []byte("ClientIDInUse"), "refusalMessage": []byte("an agent has registered")}, secret.Data)
		assert.Equal(t, map[string]string{"fleet.cattle.io/managed": "true"}, secret.Labels)
		assert.True(t, isRefusal(secret))
		assert.False(t, isRefusal(s.credentialOf(s.request, "bearer")))
		assert.False(t, isRefusal(nil))
		assert.True(t, isFor(secret, s.request), "it is found, replaced and deleted as a credential is")
	})
}

// refusedRequest is the request of the scene, refused, with another name and age.
func (s *scene) refusedRequest(name string, age time.Duration) *fleet.ClusterRegistration {
	r := s.request.DeepCopy()
	r.Name, r.UID, r.CreationTimestamp = name, types.UID(name+"-uid"), metav1.NewTime(noon.Add(-age))
	r.Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionGranted, Status: corev1.ConditionFalse, Reason: fleet.ReasonClientIDInUse}}
	return r
}

func TestCreatorOfRefused(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*fleet.ClusterRegistration)
		want   []string
	}{
		"refused":              {func(*fleet.ClusterRegistration) {}, []string{"fleet-default/" + tokenUser}},
		"by its token":         {func(r *fleet.ClusterRegistration) { r.Annotations = nil }, []string{"fleet-default/token token"}},
		"the creator is lost":  {func(r *fleet.ClusterRegistration) { r.Annotations, r.Labels = nil, nil }, []string{"fleet-default/"}},
		"granted":              {func(r *fleet.ClusterRegistration) { r.Status.Granted = true }, nil},
		"waiting":              {func(r *fleet.ClusterRegistration) { r.Status.Conditions[0].Status = corev1.ConditionUnknown }, nil},
		"new":                  {func(r *fleet.ClusterRegistration) { r.Status.Conditions = nil }, nil},
		"retried after errors": {func(r *fleet.ClusterRegistration) { r.Status.Conditions[0].Reason = fleet.ReasonError }, nil},
	} {
		s := newScene(t)
		r := s.refusedRequest("r", 0)
		row.change(r)
		got, err := s.creatorOfRefused(r)
		require.NoError(t, err)
		assert.Equal(t, row.want, got, name)
	}
}

func TestDeleteRefused(t *testing.T) {
	stalled := result.Stalled(fleet.ReasonClientIDInUse, "")
	for _, row := range []struct {
		name   string
		age    time.Duration
		out    result.Result
		change func(*fleet.ClusterRegistration)
		gone   bool
		again  time.Duration
	}{
		{"new: kept", time.Minute, stalled, nil, false, registration.RefusedLifetime - time.Minute},
		{"old: deleted", registration.RefusedLifetime, stalled, nil, true, 0},
		{"old, and not refused any more: kept", registration.RefusedLifetime, result.Wait("", ""), nil, false, 0},
		{"old, and denied by a person: kept", registration.RefusedLifetime, stalled, func(r *fleet.ClusterRegistration) {
			r.Status.Approval = &fleet.RegistrationApproval{Decision: fleet.DecisionDenied}
		}, false, 0},
		{"old, granted and revoked: kept", registration.RefusedLifetime, stalled, func(r *fleet.ClusterRegistration) { r.Status.Granted = true }, false, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			r := s.refusedRequest("r", row.age)
			if row.change != nil {
				row.change(r)
			}
			s.handler.requests = requestsOf()
			require.NoError(t, s.deleteRefused(t.Context(), r, row.out))
			assert.Equal(t, row.gone, len(s.writes()) == 1)
			assert.Equal(t, row.again, s.delays["fleet-default/r"])
		})
	}
	t.Run("old only by the clock of the hub, which is a day ahead: kept", func(t *testing.T) {
		s := newScene(t)
		r := s.refusedRequest("r", time.Minute)
		s.Clock.(*clocktesting.FakeClock).Step(registration.RefusedLifetime)
		failure := errTest
		s.kube.PrependReactor("create", "selfsubjectreviews", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, &authenticationv1.SelfSubjectReview{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(noon)}}, failure
		})
		require.ErrorIs(t, s.deleteRefused(t.Context(), r, stalled), errTest)
		failure = nil
		require.NoError(t, s.deleteRefused(t.Context(), r, stalled))
		assert.Empty(t, s.writes())
		assert.Equal(t, registration.RefusedLifetime-time.Minute, s.delays["fleet-default/r"])
	})
	t.Run("of too many, the oldest are deleted", func(t *testing.T) {
		s := newScene(t)
		var all []*fleet.ClusterRegistration
		for n := range registration.MostRefused + 2 {
			all = append(all, s.refusedRequest(fmt.Sprintf("r-%04d", n), time.Hour-time.Duration(n)*time.Second))
		}
		all[0].DeletionTimestamp = &metav1.Time{Time: noon}
		s.handler.requests = requestsOf(all...)
		latest := s.refusedRequest("latest", 0)
		require.NoError(t, s.deleteRefused(t.Context(), latest, stalled))
		assert.ElementsMatch(t, []string{"delete clusterregistrations r-0001", "delete clusterregistrations r-0002"}, s.writes())

		s.fails("delete", "clusterregistrations", errTest)
		require.ErrorIs(t, s.deleteRefused(t.Context(), latest, stalled), errTest)
		s.handler.requests = failing[*fleet.ClusterRegistration](errTest)
		require.ErrorIs(t, s.deleteRefused(t.Context(), latest, stalled), errTest)
	})
}

// The hub creates a ClusterRegistration again as long as the request of the Clusternet agent exists.
func TestDeleteRefused_clusternet(t *testing.T) {
	s := newScene(t)
	s.HubUser, s.ClusternetClient = "hub", s.fleet.ClustersV1beta1()
	var all []*fleet.ClusterRegistration
	for n := range registration.MostRefused + 1 {
		r := s.refusedRequest(fmt.Sprintf("r-%04d", n), time.Hour-time.Duration(n)*time.Second)
		r.Annotations = map[string]string{fleet.CreatorAnnotation: "hub", fleet.RequesterAnnotation: tokenUser}
		r.Spec.ClientID, r.Spec.ClientRandom = r.Name, "uid-of-the-request"
		all = append(all, r)
	}
	s.handler.requests = requestsOf(all...)
	s.handler.requests.AddIndexer(refusedByCreator, s.creatorOfRefused)
	require.NoError(t, s.deleteRefused(t.Context(), all[1], result.Stalled(fleet.ReasonTooManyWaiting, "")))
	assert.Equal(t, []string{"delete clusterregistrationrequests clusternet-r-0000", "delete clusterregistrations r-0000"}, s.writes())

	s.fleet.ClearActions()
	all[0].CreationTimestamp = metav1.NewTime(noon.Add(-registration.RefusedLifetime))
	require.NoError(t, s.deleteRefused(t.Context(), all[1], result.Stalled(fleet.ReasonTooManyWaiting, "")))
	assert.Equal(t, []string{"delete clusterregistrations r-0000"}, s.writes(), "it is decided again, once a day")
}

func TestRemoveObjectsUnlessUninstalling(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*scene, *corev1.ServiceAccount)
		needed bool
	}{
		{"the agent is uninstalling itself", func(*scene, *corev1.ServiceAccount) {}, true},
		{"the kind of requests was deleted and the Cluster is gone", func(s *scene, _ *corev1.ServiceAccount) {
			s.kindDeleted, s.cluster.Name = true, "other"
		}, false},
		{"the kind of requests was deleted and the agent has registered again", func(s *scene, _ *corev1.ServiceAccount) {
			s.kindDeleted, s.cluster.DeletionTimestamp, s.cluster.Status.Agent.Registration = true, nil, "request-later"
		}, false},
		{"the Cluster stays", func(s *scene, _ *corev1.ServiceAccount) { s.cluster.DeletionTimestamp = nil }, false},
		{"the agent has left", func(s *scene, _ *corev1.ServiceAccount) { s.cluster.Finalizers = []string{"other"} }, false},
		{"the hub itself deleted the request after the agent had left", func(s *scene, _ *corev1.ServiceAccount) { s.RequestsDeletedWithCluster.Add(requestKey) }, false},
		{"the Cluster is gone", func(s *scene, _ *corev1.ServiceAccount) { s.cluster.Name = "other" }, false},
		{"the ServiceAccount is of another request", func(_ *scene, a *corev1.ServiceAccount) {
			a.Annotations[fleet.ClusterRegistrationAnnotation] = "request-other"
		}, false},
		{"there is no ServiceAccount", func(_ *scene, a *corev1.ServiceAccount) { a.Annotations = nil }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := given(t)
			s.cluster.DeletionTimestamp, s.cluster.Finalizers = &metav1.Time{Time: noon}, []string{fleet.ClusterFinalizer}
			account := s.account()
			row.change(s, account)
			s.identities.Accounts, s.identities.Clusters = fakecache.With(account), fakefleet.NewSimpleClientset(s.cluster).FleetV1alpha1()
			_, err := s.onChange(requestKey.String(), nil)
			require.NoError(t, err)
			assert.Equal(t, !row.needed, s.revoked())
			if row.needed {
				assert.Equal(t, map[string]time.Duration{requestKey.String(): uninstallPoll}, s.delays)
			}
		})
	}
	for _, used := range []string{"", requestKey.Name} {
		t.Run("the kind of requests was deleted: the agent that uses "+used+" keeps its rights", func(t *testing.T) {
			s := given(t)
			s.kindDeleted, s.cluster.Status.Agent.Registration = true, used
			s.identities.Accounts = fakecache.With(s.account())
			s.identities.Clusters = fakefleet.NewSimpleClientset(s.cluster).FleetV1alpha1()
			_, err := s.onChange(requestKey.String(), nil)
			require.NoError(t, err)
			assert.False(t, s.revoked())
			assert.Empty(t, s.delays)
		})
	}
	for name, breaks := range map[string]func(*scene){
		"the ServiceAccounts": func(s *scene) { s.identities.Accounts = failing[*corev1.ServiceAccount](errTest) },
		"the Cluster":         func(s *scene) { s.fails("get", "clusters", errTest) },
	} {
		t.Run("nothing is deleted after an error of "+name, func(t *testing.T) {
			s := given(t)
			s.identities.Accounts, s.identities.Clusters = s.accounts, s.fleet.FleetV1alpha1()
			breaks(s)
			require.ErrorIs(t, s.removeObjectsUnlessUninstalling(t.Context(), requestKey.String()), errTest)
			assert.False(t, s.revoked())
		})
	}
}

package clusterregistration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// ready lets a request pass all waits: it belongs to its Cluster, which has a namespace, and its use is counted.
func (s *scene) ready() {
	s.request.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", Name: s.cluster.Name, UID: s.cluster.UID}}
	s.request.Status.TokenUID = string(s.token.UID)
	s.haveNamespace("key")
	s.cluster.Status.Namespace = clusterNamespace(s.cluster)
	s.DisableBundles = true
	s.configure(config.Registration{CredentialLifetime: metav1.Duration{Duration: time.Hour}})
	s.server(s.request, s.cluster)
}

func TestGrant(t *testing.T) {
	const counting = "Unknown CountingUse"
	withReason := []string{"create secrets"} // the answer Secret with the reason of the refusal
	deny := []config.PolicyRule{{Name: "no", Expression: "token.metadata.name == 'token' && cluster.metadata.name == 'member'", Action: registration.RulingDeny}}
	for _, row := range []struct {
		name     string
		change   func(*scene)
		want     string
		approved string
		creates  []string
	}{
		{"nothing speaks against it: granted", func(*scene) {}, "True Granted", " ", []string{"create serviceaccounts", "create secrets"}},
		{"the Cluster belongs to another controller: waits", func(s *scene) {
			s.cluster.Labels = map[string]string{fleet.ClusterManagementLabel: "other"}
		}, "Unknown ManagedElsewhere", " ", nil},
		{"a newer request is granted: superseded", func(s *scene) {
			newer, _ := s.earlier()
			newer.CreationTimestamp = metav1.NewTime(noon.Add(time.Second))
			s.haveCached(newer)
		}, "False Superseded", " ", withReason},
		{"the token is gone: refused", func(s *scene) { s.tokens = fakecache.With[*fleet.ClusterRegistrationToken]() }, "False TokenNotFound", " ", nil},
		{"the agent has sent a heartbeat: refused", func(s *scene) { s.cluster.Status.Agent.LastSeen = metav1.NewTime(noon) }, "False ClientIDInUse", " ", withReason},
		{"a credential waits for its agent: refused", func(s *scene) {
			request, secret := s.earlier()
			s.haveCached(request)
			s.secrets = secretsOf(secret)
		}, "False ClientIDInUse", " ", withReason},
		{"a grant that the cache does not show: decided again", func(s *scene) {
			request, _ := s.earlier()
			request.Status.Granted, request.ResourceVersion = false, "5"
			s.haveCached(request)
			written := request.DeepCopy()
			written.ResourceVersion = "6"
			s.writtenGrants.Wrote(written)
		}, "False ", " ", nil},
		{"the hub asks a person: waits", func(s *scene) { s.configure(config.Registration{Approval: fleet.ApprovalManual}) }, "Unknown WaitingForApproval", "Unknown WaitingForApproval", nil},
		{"the token asks a person: waits", func(s *scene) { s.token.Spec.Approval = fleet.ApprovalManual }, "Unknown WaitingForApproval", "Unknown WaitingForApproval", nil},
		{"admission policies are missing, and not required: granted", func(s *scene) {
			s.Admission = policiesIn(admission.PolicyState{Since: noon, Reason: fleet.ReasonPolicyMissing})
		}, "True Granted", " ", []string{"create serviceaccounts", "create secrets"}},
		{"the configuration requires admission policies, some are missing: refused", func(s *scene) {
			s.configure(config.Registration{RequirePolicies: true})
			s.Admission = policiesIn(admission.PolicyState{Since: noon, Reason: fleet.ReasonPolicyMissing})
		}, "False PoliciesRequired", " ", nil},
		{"the options require admission policies, none are served: refused", func(s *scene) {
			s.PoliciesRequired = true
			s.Admission = policiesIn(admission.PolicyState{Missing: "too old", Reason: fleet.ReasonPoliciesNotServed, Message: "too old"})
		}, "False PoliciesRequired", " ", nil},
		{"the configuration requires admission policies, and the hub watches none: refused", func(s *scene) {
			s.configure(config.Registration{RequirePolicies: true})
			s.Admission = nil
		}, "False PoliciesRequired", " ", nil},
		{"admission policies are required and in force: granted", func(s *scene) {
			s.configure(config.Registration{RequirePolicies: true})
		}, "True Granted", " ", []string{"create serviceaccounts", "create secrets"}},
		{"the policy denies: refused", func(s *scene) { s.configure(config.Registration{Policy: deny}) }, "False Denied", "False Denied", withReason},
		{"a person has approved: granted though the identity is held", func(s *scene) {
			s.cluster.Status.Agent.LastSeen = metav1.NewTime(noon)
			s.request.Status.Approval = &fleet.RegistrationApproval{Decision: fleet.DecisionApproved}
		}, "True Granted", "True Approved", []string{"create serviceaccounts", "create secrets"}},
		{"an approval is no longer needed: the condition goes", func(s *scene) {
			result.Set(&s.request.Status.Conditions, fleet.ConditionApproved, result.Wait(fleet.ReasonWaitingForApproval, ""), noon)
		}, "True Granted", " ", []string{"create serviceaccounts", "create secrets"}},
		{"the hub refuses credentials that do not expire", func(s *scene) {
			s.configure(config.Registration{LongLivedCredentials: fleet.LongLivedRefuse})
			s.cannotRenew()
		}, "False LongLivedRefused", " ", nil},
		{"the agent renewed its credential, and asks for one that does not expire: refused", func(s *scene) {
			request, _ := s.earlier()
			s.haveCached(request)
			s.cannotRenew()
		}, "False LongLivedRefused", " ", nil},
		{"the agent renewed its credential, asks for one that does not expire, and its namespace allows that: granted", func(s *scene) {
			request, _ := s.earlier()
			s.haveCached(request)
			s.configure(config.Registration{LongLivedNamespaces: []string{"fleet-default"}})
			s.cannotRenew()
		}, "True Granted", " ", []string{"delete clusterregistrations request-before", "create serviceaccounts", "create secrets"}},
		{"the Cluster is in quarantine: refused", func(s *scene) { s.cluster.Spec.Quarantined = true }, "False Quarantined", " ", withReason},
		{"the Cluster is in quarantine before the cache shows the rights that it was given: decided again", func(s *scene) {
			s.cluster.Spec.Quarantined = true
			s.givenRights.Expect(string(s.request.UID))
		}, "False ", " ", nil},
		{"the Cluster is in quarantine, and of another controller: nothing is written", func(s *scene) {
			s.cluster.Spec.Quarantined, s.cluster.Labels = true, map[string]string{fleet.ClusterManagementLabel: "other"}
			s.givenRights.Expect(string(s.request.UID))
		}, "Unknown ManagedElsewhere", " ", nil},
		{"another request has a Secret of that name: refused", func(s *scene) {
			request, secret := s.earlier()
			secret.Name, request.Status.Granted = secretName(s.request), false
			s.secrets = secretsOf(secret)
		}, "False NameConflict", " ", nil},
		{"its use is not counted: waits", func(s *scene) { s.request.Status.TokenUID = "" }, counting, " ", nil},
		{"its use of an earlier token is counted: waits", func(s *scene) { s.request.Status.TokenUID = "earlier" }, counting, " ", nil},
		{"the token names it: granted", func(s *scene) {
			s.request.Status.TokenUID, s.token.Status.PendingUses = "", []string{string(s.request.UID)}
		}, "True Granted", " ", []string{"create serviceaccounts", "create secrets"}},
		{"the token has a limit: waits before anything is created", func(s *scene) {
			s.request.Status.TokenUID, s.token.Spec.UsageLimit = "", ptr.To(int32(1))
			s.request.OwnerReferences, s.clusters = nil, fakecache.With[*fleet.Cluster]()
		}, counting, " ", nil},
		{"the token is used up: refused", func(s *scene) {
			s.request.Status.TokenUID, s.token.Spec.UsageLimit, s.token.Status.Uses = "", ptr.To(int32(1)), 1
		}, "False TokenUsedUp", " ", withReason},
		{"the token is used up by this request: granted", func(s *scene) {
			s.token.Spec.UsageLimit, s.token.Status.Uses = ptr.To(int32(1)), 1
		}, "True Granted", " ", []string{"create serviceaccounts", "create secrets"}},
		{"there is no Cluster: created", func(s *scene) { s.request.OwnerReferences, s.clusters = nil, fakecache.With[*fleet.Cluster]() }, "Unknown WaitingForCluster", " ", []string{"create clusters"}},
		{"there is no Cluster, and a person is asked: not created", func(s *scene) {
			s.request.OwnerReferences, s.clusters = nil, fakecache.With[*fleet.Cluster]()
			s.configure(config.Registration{Approval: fleet.ApprovalManual})
		}, "Unknown WaitingForApproval", "Unknown WaitingForApproval", nil},
		{"the hub created the namespace, and the Cluster has no status: granted", func(s *scene) { s.haveNamespace("key") }, "True Granted", " ", []string{
			"create serviceaccounts", "create secrets",
		}},
		{"the hub created the namespace for an agent of Fleet, whose heartbeat needs a status of the Cluster: waits", func(s *scene) {
			s.haveNamespace("key")
			s.cannotRenew()
		}, "Unknown WaitingForCluster", " ", nil},
		{"the hub created the namespace for an agent of Fleet, on a hub where each Cluster has a status: granted", func(s *scene) {
			s.haveNamespace("key")
			s.cannotRenew()
			s.ClustersHaveStatus = true
		}, "True Granted", " ", []string{"create serviceaccounts", "create secrets"}},
		{"a user created the namespace: waits", func(s *scene) { s.haveNamespace("guessed") }, "Unknown WaitingForCluster", " ", nil},
		{"the namespace is of another Cluster: waits", func(s *scene) {
			s.haveNamespace("key").Annotations[fleet.ClusterAnnotation] = "other"
		}, "Unknown WaitingForCluster", " ", nil},
		{"the namespace is being deleted: waits", func(s *scene) {
			s.haveNamespace("key").DeletionTimestamp = &metav1.Time{Time: noon}
		}, "Unknown WaitingForCluster", " ", nil},
		{"the status names a namespace that the cache does not have: waits", func(s *scene) { s.namespaces = namespaceOf{} }, "Unknown WaitingForCluster", " ", nil},
		{"the status names the namespace of another Cluster: waits", func(s *scene) {
			s.haveNamespace("key").Annotations[fleet.WorkspaceAnnotation] = "another workspace"
			s.cluster.Status.Namespace = clusterNamespace(s.cluster)
		}, "Unknown WaitingForCluster", " ", nil},
		{"Fleet's own controllers created the namespace, without a key: granted", func(s *scene) {
			s.haveNamespace("")
			s.DisableBundles, s.cluster.Status.Namespace = true, clusterNamespace(s.cluster)
		}, "True Granted", " ", []string{"create serviceaccounts", "create secrets"}},
		{"the Cluster has no namespace: waits", func(s *scene) {
			s.cluster.Status.Namespace, s.namespaces = "a name an agent wrote", namespaceOf{}
		}, "Unknown WaitingForCluster", " ", nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			s.ready()
			row.change(s)
			before := s.token.DeepCopy()
			d, out := s.grantRequest(t)
			assert.Equal(t, row.want, text(out), out.Message)
			assert.Equal(t, row.creates, s.writes())
			assert.Equal(t, row.want == "True Granted", d.status.Granted)
			assert.Equal(t, row.approved, conditionText(d.status.Conditions, fleet.ConditionApproved))
			assert.Equal(t, before, s.token, "only the controller of tokens writes to tokens")
			asked := s.TokenUsage.Count(types.NamespacedName{Namespace: "fleet-default", Name: "token"})
			assert.Equal(t, row.want == counting, asked == 1)
			if out.IsWait() && !out.EventOnWait && out.Reason != fleet.ReasonManagedElsewhere {
				assert.Positive(t, out.After, "a wait for another controller has a timer in addition to its event")
			}
			if row.want == "True Granted" {
				assert.Equal(t, "uid", d.status.TokenUID)
				assert.Equal(t, "member", d.status.ClusterName)
			}
		})
	}
	t.Run("an error of a cache or of the API server is retried", func(t *testing.T) {
		for name, breaks := range map[string]func(*scene){
			"requests": func(s *scene) { s.handler.requests = failing[*fleet.ClusterRegistration](errTest) },
			"tokens":   func(s *scene) { s.tokens = failing[*fleet.ClusterRegistrationToken](errTest) },
			"Secrets":  func(s *scene) { s.secrets = failing[*corev1.Secret](errTest) },
			"the credential of another request": func(s *scene) {
				request, _ := s.earlier()
				s.haveCached(request)
				s.fails("get", "secrets", errTest)
			},
			"binding to the Cluster": func(s *scene) {
				s.request.OwnerReferences = nil
				s.fails("patch", "clusterregistrations", errTest)
			},
			"creating the Cluster": func(s *scene) {
				s.request.OwnerReferences, s.clusters = nil, fakecache.With[*fleet.Cluster]()
				s.fails("create", "clusters", errTest)
			},
			"giving rights":           func(s *scene) { s.fails("create", "rolebindings", errTest) },
			"creating the credential": func(s *scene) { s.fails("create", "secrets", errTest) },
		} {
			s := newScene(t)
			s.ready()
			breaks(s)
			_, out := s.grantRequest(t)
			require.ErrorIs(t, out.Err, errTest, name)
		}
	})
	t.Run("an approval that the cache does not show stays", func(t *testing.T) {
		s := newScene(t)
		latest := s.request.DeepCopy()
		latest.ResourceVersion, latest.Status.Approval = "9", &fleet.RegistrationApproval{Decision: fleet.DecisionApproved}
		s.configure(config.Registration{})
		s.server(latest)
		d, _ := s.grantRequest(t)
		assert.Equal(t, "member", d.request.OwnerReferences[0].Name)
		assert.Equal(t, latest.Status.Approval, d.status.Approval, "the status is written as a difference to the latest version")
	})
	t.Run("nobody may read a Secret of another workspace that the cache does not show", func(t *testing.T) {
		s := newScene(t)
		s.ready()
		_, secret := s.earlier()
		secret.Name = secretName(s.request)
		s.server(s.request, s.cluster, secret) // but not in the cache
		_, out := s.grantRequest(t)
		assert.Equal(t, "False NameConflict", text(out))
		assert.Equal(t, []string{"create secrets"}, s.answers(), "not even for a moment")
	})
	t.Run("the right that an earlier refusal gave is withdrawn from a Secret of another workspace", func(t *testing.T) {
		s := newScene(t)
		s.ready()
		_, secret := s.earlier()
		secret.Name = secretName(s.request)
		s.server(s.request, s.cluster, secret)
		s.secrets = secretsOf(secret)
		require.NoError(t, s.sets.Add(t.Context(), ownedSet(s.request), s.request, s.readerRights(s.request, s.token)...))
		s.kube.ClearActions()
		_, out := s.grantRequest(t)
		assert.Equal(t, "False NameConflict", text(out))
		assert.Equal(t, []string{"delete rolebindings"}, s.answers())
	})
	t.Run("the right to read the credential comes after it", func(t *testing.T) {
		s := newScene(t)
		s.ready()
		_, out := s.grantRequest(t)
		require.Equal(t, "True Granted", text(out), out.Message)
		assert.Equal(t, []string{"create secrets", "create roles", "create rolebindings"}, s.answers())
	})
	t.Run("the right to read the credential that replaces a refusal comes after it", func(t *testing.T) {
		s := newScene(t)
		s.ready()
		refusal := s.refusalSecret(s.request, denied)
		s.server(s.request, s.cluster, refusal)
		s.secrets = secretsOf(refusal)
		_, out := s.grantRequest(t)
		require.Equal(t, "True Granted", text(out), out.Message)
		assert.Equal(t, []string{"delete secrets", "create secrets", "create roles", "create rolebindings"}, s.answers())
	})
	t.Run("long-lived credentials of requests without a token are limited", func(t *testing.T) {
		for _, row := range []struct {
			others int
			change func(*scene)
			want   string
		}{
			{registration.MostUnused, nil, "True Granted"},
			{registration.MostUnused + 1, nil, "False ClientIDInUse"},
			{registration.MostUnused + 1, func(s *scene) { s.request.Annotations[registration.RenewalAnnotation] = "true" }, "True Granted"},
			{registration.MostUnused + 1, func(s *scene) {
				s.request.Status.Approval = &fleet.RegistrationApproval{Decision: fleet.DecisionApproved}
			}, "True Granted"},
			{registration.MostUnused + 1, func(s *scene) { s.request.Labels = map[string]string{fleet.RegistrationTokenLabel: "token"} }, "True Granted"},
		} {
			s := newScene(t)
			s.ready()
			s.Admission = policiesIn(admission.PolicyState{Since: noon, NotRecorded: "too old"})
			s.token.Spec.ClientIDs = []string{"client"} // a token made for the Cluster
			s.cluster.Status.Agent.LastSeen = metav1.NewTime(noon)
			s.request.Labels, s.request.Annotations = nil, map[string]string{}
			var granted []*fleet.ClusterRegistration
			for n := range row.others {
				r, _ := s.earlier()
				r.Name, r.UID = fmt.Sprint("request-", n), types.UID(fmt.Sprint(n))
				granted = append(granted, r)
			}
			s.haveCached(granted...)
			if row.change != nil {
				row.change(s)
			}
			_, out := s.grantRequest(t)
			assert.Equal(t, row.want, text(out), out.Message)
		}
	})
}

// answers returns verb and resource of each write to the Secrets of agents, and to the rights to read them.
func (s *scene) answers() (all []string) {
	for _, action := range s.kube.Actions() {
		if action.GetNamespace() == s.RegistrationNamespace() && action.GetVerb() != "get" {
			all = append(all, action.GetVerb()+" "+action.GetResource().Resource)
		}
	}
	return all
}

// gaveRights reports whether the ServiceAccount was to be created.
func (s *scene) gaveRights() bool { return slices.Contains(s.writes(), "create serviceaccounts") }

func TestDecide(t *testing.T) {
	t.Run("granted: status, expectations and metric", func(t *testing.T) {
		s := newScene(t)
		s.ready()
		latest, err := s.onChange("", s.request)
		require.NoError(t, err)
		assert.True(t, latest.Status.Granted)
		assert.Equal(t, "True Granted", conditionText(latest.Status.Conditions, fleet.ConditionGranted))
		assert.Equal(t, "True OriginProved", conditionText(latest.Status.Conditions, fleet.ConditionOriginProved))
		assert.True(t, s.writtenGrants.IsExpected(string(s.request.UID)))
		assert.Equal(t, "Normal Granted the agent may fetch its credential for Cluster member", <-s.events.Events)
		_, err = s.onChange("", latest)
		require.NoError(t, err)
		assert.Empty(t, s.events.Events, "once")
	})
	t.Run("the grant of another request succeeds on the server, and the hub gets an error: decided again", func(t *testing.T) {
		s := newScene(t)
		s.ready()
		other, _ := s.earlier()
		other.Status, other.OwnerReferences = s.request.Status, s.request.OwnerReferences
		s.haveCached(other)
		s.server(s.request, other, s.cluster)
		accept := kubetesting.ObjectReaction(s.fleet.Tracker())
		s.fleet.PrependReactor("patch", "clusterregistrations", func(action kubetesting.Action) (bool, runtime.Object, error) {
			if action.(kubetesting.PatchAction).GetName() != other.Name {
				return false, nil, nil
			}
			_, _, err := accept(action)
			require.NoError(t, err)
			return true, nil, errTest
		})
		_, err := s.onChange("", other)
		require.ErrorIs(t, err, errTest)
		live, err := s.FleetClient.ClusterRegistrations(other.Namespace).Get(t.Context(), other.Name, metav1.GetOptions{})
		require.NoError(t, err)
		require.True(t, live.Status.Granted)

		latest, err := s.onChange("", s.request)
		require.NoError(t, err)
		assert.False(t, latest.Status.Granted, "two agents would have the identity")
		assert.Equal(t, cacheDelay, s.delays[requestKey.String()])

		live.ResourceVersion = "8"
		s.haveCached(live)
		latest, err = s.onChange("", s.request)
		require.NoError(t, err)
		assert.Equal(t, "False ClientIDInUse", conditionText(latest.Status.Conditions, fleet.ConditionGranted))
	})
	t.Run("refused: events on the request and on the Cluster, once", func(t *testing.T) {
		for creator, named := range map[string]string{tokenUser: tokenUser, "thief": "thief", "": "an unknown user"} {
			s := newScene(t)
			s.ready()
			s.cluster.Status.Agent.LastSeen = metav1.NewTime(noon)
			s.request.Annotations[fleet.CreatorAnnotation] = creator
			s.server(s.request)
			latest, err := s.onChange("", s.request)
			require.NoError(t, err)
			assert.Contains(t, <-s.events.Events, "Warning ")
			assert.Contains(t, <-s.events.Events, "ClusterRegistration request-abc, created by "+named+", asked for the identity of this Cluster and was refused")
			_, err = s.process(t.Context(), latest)
			require.NoError(t, err)
			assert.Empty(t, s.events.Events)
		}
	})
	t.Run("approved: an event, once", func(t *testing.T) {
		s := newScene(t)
		s.ready()
		s.token.Spec.Approval = fleet.ApprovalManual
		s.request.Status.Approval = &fleet.RegistrationApproval{Decision: fleet.DecisionApproved, Message: "ours"}
		s.server(s.request, s.cluster)
		_, err := s.onChange("", s.request)
		require.NoError(t, err)
		assert.Equal(t, "Normal Approved approved by a person: ours", <-s.events.Events)
		assert.Contains(t, <-s.events.Events, "Normal Granted ")
		assert.Empty(t, s.events.Events)
	})
	t.Run("another request of the identity is being decided: later", func(t *testing.T) {
		s := newScene(t)
		other, _ := s.earlier()
		unlock := s.locks.tryLock(other)
		require.NotNil(t, unlock)
		_, err := s.process(t.Context(), s.request)
		require.NoError(t, err)
		assert.Empty(t, s.writes())
		assert.InDelta(t, cacheDelay, s.delays[requestKey.String()], float64(cacheDelay))
		other.Spec.ClientID = "other"
		assert.NotNil(t, s.locks.tryLock(other), "another identity does not wait")
		unlock()
		assert.NotNil(t, s.locks.tryLock(s.request))
	})
	t.Run("an old version is left alone", func(t *testing.T) {
		s := newScene(t)
		written := s.request.DeepCopy()
		written.ResourceVersion = "8"
		s.written.Wrote(written)
		_, err := s.onChange("", s.request)
		require.NoError(t, err)
		assert.Empty(t, s.delays)
		assert.Empty(t, s.writes())
	})
}

func TestWriteStatus(t *testing.T) {
	for name, row := range map[string]struct {
		out   result.Result
		age   time.Duration
		early bool
	}{
		"a wait of a moment is not written":   {result.Wait("W", ""), time.Second, true},
		"a wait that lasts is written":        {result.Wait("W", ""), reportAfter, false},
		"a wait for a person is written":      {result.Wait("W", "").WithEvent(), 0, false},
		"a wait that limits count is written": {result.Wait("W", "").WrittenAtOnce(), 0, false},
		"a refusal is written":                {result.Stalled("S", ""), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.request.CreationTimestamp = metav1.NewTime(noon.Add(-row.age))
			_, _, written, err := s.writeStatus(t.Context(), s.request, s.request.Status, row.out.In(time.Minute))
			require.NoError(t, err)
			assert.Equal(t, !row.early, written)
			want := time.Minute
			if row.early {
				want = reportAfter
			}
			assert.Equal(t, want, s.delays[requestKey.String()])
		})
	}
}

func TestMaintain(t *testing.T) {
	keep := func(t *testing.T, change func(*scene)) (*scene, *fleet.ClusterRegistration, error) {
		t.Helper()
		s := newScene(t)
		s.ready()
		s.request.Status.Granted, s.request.Status.ClusterName = true, "member"
		s.accounts = fakecache.With(s.account())
		change(s)
		s.server(s.request, s.cluster)
		latest, err := s.onChange("", s.request)
		return s, latest, err
	}
	t.Run("the event of the hub's own grant: repaired later, once", func(t *testing.T) {
		s, _, err := keep(t, func(s *scene) { s.writtenGrants.Wrote(s.request) })
		require.NoError(t, err)
		assert.False(t, s.gaveRights())
		assert.Equal(t, s.RepairDelay(), s.delays[requestKey.String()])
		_, err = s.onChange("", s.request)
		require.NoError(t, err)
		assert.True(t, s.gaveRights())
	})
	t.Run("the event of the hub's own grant, in quarantine: at once", func(t *testing.T) {
		s, _, err := keep(t, func(s *scene) { s.writtenGrants.Wrote(s.request); s.cluster.Spec.Quarantined = true })
		require.NoError(t, err)
		assert.True(t, s.gaveRights())
		assert.Equal(t, s.RepairDelay(), s.delays[requestKey.String()], "the caches may lack some of the rights")
	})
	t.Run("the ServiceAccount is gone: revoked, not created again", func(t *testing.T) {
		s, latest, err := keep(t, func(s *scene) { s.accounts = fakecache.With[*corev1.ServiceAccount]() })
		require.NoError(t, err)
		assert.Equal(t, "False CredentialRevoked", conditionText(latest.Status.Conditions, fleet.ConditionGranted))
		assert.True(t, latest.Status.Granted)
		assert.False(t, s.gaveRights())
	})
	t.Run("the Cluster is gone: left to Kubernetes", func(t *testing.T) {
		s, latest, err := keep(t, func(s *scene) { s.clusters = fakecache.With[*fleet.Cluster]() })
		require.NoError(t, err)
		assert.Empty(t, latest.Status.Conditions)
		assert.False(t, s.gaveRights())
	})
	t.Run("the token is gone: stays granted, not judged again", func(t *testing.T) {
		_, latest, err := keep(t, func(s *scene) { s.tokens = fakecache.With[*fleet.ClusterRegistrationToken]() })
		require.NoError(t, err)
		assert.Equal(t, "True Granted", conditionText(latest.Status.Conditions, fleet.ConditionGranted))
		assert.Equal(t, " ", conditionText(latest.Status.Conditions, fleet.ConditionOriginProved))
	})
	t.Run("an error of a cache is retried", func(t *testing.T) {
		_, _, err := keep(t, func(s *scene) { s.tokens = failing[*fleet.ClusterRegistrationToken](errTest) })
		require.ErrorIs(t, err, errTest)
	})
	t.Run("labels that the hub does not accept are named", func(t *testing.T) {
		_, latest, err := keep(t, func(s *scene) { s.request.Spec.ClusterLabels = map[string]string{"management.cattle.io/x": "y"} })
		require.NoError(t, err)
		assert.Contains(t, fleetstatus.Condition(latest.Status.Conditions, fleet.ConditionGranted).Message, "management.cattle.io/x")
	})
}

func TestWriteStatus_definitionWithoutConditions(t *testing.T) {
	s := newScene(t)
	patches := 0
	s.fleet.PrependReactor("patch", "clusterregistrations", func(kubetesting.Action) (bool, runtime.Object, error) {
		patches++
		return true, s.request, nil // the API server dropped the condition
	})
	refuse := func(message string) *result.Transition {
		t.Helper()
		out := result.Stalled(fleet.ReasonTokenMismatch, message).In(time.Minute)
		status := *s.request.Status.DeepCopy()
		setOriginProved(&status.Conditions, registration.Origin{}, noon) // is dropped as well
		_, transition, _, err := s.writeStatus(t.Context(), s.request, status, out)
		require.NoError(t, err)
		assert.Equal(t, time.Minute, s.delays["fleet-default/request-abc"], "it is enqueued again all the same")
		clear(s.delays)
		return transition
	}
	for range 3 {
		refuse("why")
	}
	assert.Equal(t, 1, patches)
	assert.Len(t, s.events.Events, 1, "the refusal is an event once")
	refuse("another reason")
	assert.Equal(t, 2, patches)
	assert.Len(t, s.events.Events, 2)
}

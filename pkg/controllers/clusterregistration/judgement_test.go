package clusterregistration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/policy"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestAPassJudgesByWhatIsSoNow(t *testing.T) {
	const passes, waits = "True ", "Unknown WaitingForApproval"
	configure := func(r config.Registration) func(*pass) {
		return func(p *pass) {
			p.Config = config.NewStore(config.Hub{Registration: r})
			p.policy.Store(policy.Of(r.Policy))
		}
	}
	deny := []config.PolicyRule{{Name: "no", Expression: "token.metadata.name == 'token' && cluster.metadata.name == 'member'", Action: config.PolicyDeny}}
	for _, row := range []struct {
		name     string
		change   func(*pass)
		want     string
		approved string
	}{
		{"nothing speaks against it", func(*pass) {}, passes, " "},
		{"there is no Cluster yet", func(p *pass) { p.cluster, p.newCluster = nil, "cluster-x" }, passes, " "},
		{"its agent was heard of", func(p *pass) { p.cluster.Status.Agent.LastSeen = metav1.NewTime(noon) }, "False ClientIDInUse", " "},
		{"an answer lies there", func(p *pass) {
			request, answer := p.earlier()
			p.cache, p.secrets = requestsOf{all: []*fleet.ClusterRegistration{p.request, request}}, secretsOf{all: []*corev1.Secret{answer}}
		}, "False ClientIDInUse", " "},
		{"an answer lies there that the cache has not seen", func(p *pass) {
			request, answer := p.earlier()
			p.cache, p.Kubernetes = requestsOf{all: []*fleet.ClusterRegistration{p.request, request}}, fake.NewClientset(answer)
		}, "False ClientIDInUse", " "},
		{"an answer nobody used is gone", func(p *pass) {
			request, _ := p.earlier()
			p.cache = requestsOf{all: []*fleet.ClusterRegistration{p.request, request}}
		}, passes, " "},
		{"the request with the answer is going", func(p *pass) {
			request, answer := p.earlier()
			request.DeletionTimestamp = &metav1.Time{Time: noon}
			p.cache, p.secrets = requestsOf{all: []*fleet.ClusterRegistration{p.request, request}}, secretsOf{all: []*corev1.Secret{answer}}
		}, passes, " "},
		{"another request was refused", func(p *pass) {
			request, _ := p.earlier()
			request.Status.Granted = false
			p.cache = requestsOf{all: []*fleet.ClusterRegistration{p.request, request}}
		}, passes, " "},
		{"the hub asks a person", configure(config.Registration{Approval: fleet.ApprovalManual}), waits, waits},
		{"the token asks a person", func(p *pass) {
			token := someToken()
			token.Spec.Approval = fleet.ApprovalManual
			p.tokens = tokensOf{all: []*fleet.ClusterRegistrationToken{token}}
		}, waits, waits},
		{"the policy denies", configure(config.Registration{Policy: deny}), "False Denied", "False Denied"},
		{"a person has approved", func(p *pass) {
			p.cluster.Status.Agent.LastSeen = metav1.NewTime(noon)
			p.request.Status.Approval = &fleet.RegistrationApproval{Decision: fleet.DecisionApproved}
		}, passes, "True Approved"},
		{"only short lives", func(p *pass) {
			configure(config.Registration{LongLivedCredentials: config.LongLivedRefuse})(p)
			delete(p.request.Annotations, registration.RenewalAnnotation)
		}, "False LongLivedRefused", " "},
		{"quarantine", func(p *pass) { p.cluster.Spec.Quarantined = true }, "False Quarantined", " "},
		{"an approval is needed no more", func(p *pass) {
			result.Set(&p.after.Conditions, fleet.ConditionApproved, result.Wait(fleet.ReasonWaitingForApproval, ""), noon)
		}, passes, " "},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := judged()
			row.change(p)
			require.True(t, p.proveOrigin(t.Context()).IsDone())
			assert.Equal(t, row.want, text(p.judge(t.Context())))
			assert.Equal(t, row.approved, conditionText(p, fleet.ConditionApproved))
			assert.Equal(t, "True OriginProved", conditionText(p, fleet.ConditionOriginProved))
		})
	}
}

// An agent of another release that is stopped before it has stored its credential comes back with another request.
func TestAnAnswerThatAnAgentMayHaveLostKeepsItOutForMinutes(t *testing.T) {
	for _, row := range []struct {
		name   string
		age    time.Duration
		change func(p *pass, earlier *fleet.ClusterRegistration)
		want   string
		again  time.Duration
	}{
		{"of a moment ago", time.Minute, nil, "False ClientIDInUse", lostAfter - time.Minute},
		{"of five minutes ago", lostAfter, nil, "True ", 0},
		{"its agent was heard of", lostAfter, func(p *pass, _ *fleet.ClusterRegistration) { p.cluster.Status.Agent.LastSeen = metav1.NewTime(noon) }, "False ClientIDInUse", 0},
		{"with another token", lostAfter, func(_ *pass, earlier *fleet.ClusterRegistration) {
			earlier.Annotations[fleet.CreatorAnnotation] = tokenUser + "-other"
		}, "False ClientIDInUse", 0},
		{"nobody knows with which token", lostAfter, func(p *pass, _ *fleet.ClusterRegistration) { p.Admission = &recorded{missing: "x"} }, "False ClientIDInUse", 0},
		{"from before anybody recorded it", lostAfter, func(_ *pass, earlier *fleet.ClusterRegistration) {
			earlier.CreationTimestamp = metav1.NewTime(noon.Add(-1))
		}, "False ClientIDInUse", 0},
		{"of an agent that loses nothing", lostAfter, func(_ *pass, earlier *fleet.ClusterRegistration) {
			earlier.Annotations[registration.RenewalAnnotation] = "true"
		}, "False ClientIDInUse", 0},
		{"this is another agent", lostAfter, func(p *pass, _ *fleet.ClusterRegistration) {
			p.request.Annotations[registration.RenewalAnnotation] = "true"
		}, "False ClientIDInUse", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := judged()
			delete(p.request.Annotations, registration.RenewalAnnotation)
			earlier, answer := p.earlier()
			answer.CreationTimestamp = metav1.NewTime(noon.Add(-row.age))
			if row.change != nil {
				row.change(p, earlier)
			}
			p.cache, p.secrets = requestsOf{all: []*fleet.ClusterRegistration{p.request, earlier}}, secretsOf{all: []*corev1.Secret{answer}}
			require.True(t, p.proveOrigin(t.Context()).IsDone())
			out := p.judge(t.Context())
			assert.Equal(t, row.want, text(out))
			assert.Equal(t, row.again, out.After)
		})
	}
}

func TestNobodyIsJudgedByHalfAPicture(t *testing.T) {
	p := judged()
	require.True(t, p.proveOrigin(t.Context()).IsDone())
	p.cache = requestsOf{err: errBadDay}
	require.ErrorIs(t, p.judge(t.Context()).Err, errBadDay)

	request, answer := p.earlier()
	p.cache, p.secrets = requestsOf{all: []*fleet.ClusterRegistration{p.request, request}}, secretsOf{all: []*corev1.Secret{answer}, err: errBadDay}
	require.ErrorIs(t, p.judge(t.Context()).Err, errBadDay)
	p.secrets, p.Kubernetes = secretsOf{}, failing("get", errBadDay)
	require.ErrorIs(t, p.judge(t.Context()).Err, errBadDay)

	request.Status.Granted, request.ResourceVersion = false, "5"
	p.cache = requestsOf{all: []*fleet.ClusterRegistration{p.request, request}}
	written := request.DeepCopy()
	written.ResourceVersion = "6"
	p.fresh.Wrote(written)
	assert.True(t, p.judge(t.Context()).IsDone(), "whatever was written to it, it was no grant")
	p.grants.Wrote(written)
	out := p.judge(t.Context())
	assert.True(t, out.IsSkip(), "the other one was granted a moment ago")
	assert.Equal(t, aMoment, out.After)
}

func TestAWaitForAPersonIsSaidAtOnce(t *testing.T) {
	p := judged()
	p.Config = config.NewStore(config.Hub{Registration: config.Registration{Approval: fleet.ApprovalManual}})
	require.True(t, p.proveOrigin(t.Context()).IsDone())
	assert.False(t, p.tooEarlyToTell(p.request, p.judge(t.Context())))
}

func TestAnApprovalLeavesATrace(t *testing.T) {
	p := judged()
	events := record.NewFakeRecorder(2)
	p.Events = events
	p.noteApproval(&registration.Approval{Reason: fleet.ReasonWaitingForApproval})
	p.recordApproval(p.request)
	p.noteApproval(&registration.Approval{Reason: fleet.ReasonApproved, Message: "approved by a person: ours"})
	p.recordApproval(p.request)
	p.noteApproval(&registration.Approval{Reason: fleet.ReasonApproved, Message: "approved by a person: ours"})
	p.recordApproval(p.request)
	assert.Equal(t, "Normal Approved approved by a person: ours", <-events.Events)
	assert.Empty(t, events.Events, "once")
}

func TestAClusterHearsOfWhoWantedItsIdentity(t *testing.T) {
	for _, row := range []struct {
		name       string
		transition *result.Transition
		change     func(*pass)
		want       string
	}{
		{
			"refused", &result.Transition{Reason: fleet.ReasonClientIDInUse}, func(*pass) {},
			"Warning ClientIDInUse ClusterRegistration request-abc, created by " + tokenUser + ", asked for the identity of this Cluster and was refused",
		},
		{
			"created by a thief", &result.Transition{Reason: fleet.ReasonTokenMismatch}, func(p *pass) { p.origin.Creator = "thief" },
			"Warning TokenMismatch ClusterRegistration request-abc, created by thief, asked for the identity of this Cluster and was refused",
		},
		{
			"nobody knows by whom", &result.Transition{Reason: fleet.ReasonClientIDInUse}, func(p *pass) { p.origin.Creator = "" },
			"Warning ClientIDInUse ClusterRegistration request-abc, created by an unknown user, asked for the identity of this Cluster and was refused",
		},
		{"said before", nil, func(*pass) {}, ""},
		{"refused for something else", &result.Transition{Reason: fleet.ReasonDenied}, func(*pass) {}, ""},
		{"there is no Cluster", &result.Transition{Reason: fleet.ReasonTokenMismatch}, func(p *pass) { p.cluster = nil }, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, events := judged(), record.NewFakeRecorder(2)
			p.Events, p.origin.Creator = events, tokenUser
			row.change(p)
			p.alarm(row.transition)
			close(events.Events)
			assert.Equal(t, row.want, <-events.Events)
		})
	}
}

func TestRequestsOfOneIdentityTakeTurns(t *testing.T) {
	var all turns
	one, two, other := somePass().request, somePass().request, somePass().request
	other.Spec.ClientID = "other"
	done := all.take(one)
	require.NotNil(t, done)
	assert.Nil(t, all.take(two))
	require.NotNil(t, all.take(other), "the others do not wait")
	done()
	assert.NotNil(t, all.take(two))
	assert.Less(t, nextTurn(), 200*time.Millisecond)
}

func TestAChangeOfTheRulesBringsBackWhatIsNotGranted(t *testing.T) {
	p, admission := judged(), &recorded{}
	p.Admission = admission
	granted, _ := p.earlier()
	later := queue{delays: map[string]time.Duration{}}
	p.requests, p.cache = later, requestsOf{all: []*fleet.ClusterRegistration{p.request, granted}}
	p.watchRules()
	only := map[string]time.Duration{"fleet-default/request-abc": 0}

	p.Config.Set(config.Hub{AgentImage: "x"})
	assert.Empty(t, later.delays, "that concerns nobody")
	p.Config.Set(config.Hub{Registration: config.Registration{Policy: []config.PolicyRule{{Name: "no", Expression: "true", Action: config.PolicyDeny}}}})
	assert.Equal(t, only, later.delays)
	assert.Equal(t, registration.RulingDeny, p.policy.Load().Rule(policy.Case{Request: p.request}).Action, "the new policy is in force before")
	clear(later.delays)
	admission.changed()
	assert.Equal(t, only, later.delays)
}

package registration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/fuzz"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// newcomer is a request that is granted: an unknown identity, a token without limits, a proved origin.
func newcomer() *Case {
	return &Case{
		Request: &fleet.ClusterRegistration{
			ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "request-1", Annotations: map[string]string{RenewalAnnotation: "true"}},
			Spec:       fleet.ClusterRegistrationSpec{ClientID: "edge-1"},
		},
		Token:  &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: "tok", UID: "tok-uid"}},
		Origin: Origin{Creator: "someone", Reason: fleet.ReasonOriginProved},
	}
}

// rivalCase is a request for the identity of a Cluster whose agent has registered.
func rivalCase() *Case {
	c := newcomer()
	c.Cluster = &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "prod", UID: "prod-uid"}, Spec: fleet.ClusterSpec{ClientID: "edge-1"}}
	c.HasAgentOrAnswer = true
	return c
}

func (c *Case) importToken(cluster string) {
	c.Token.Name = ImportTokenName("prod")
	c.Token.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", UID: "prod-uid", Name: cluster}}
}

// assumed is the case of a request that names no token and has no recorded creator.
func assumed(c *Case) { c.Origin = Origin{Reason: fleet.ReasonOriginUnknown} }

func (c *Case) decide(decision fleet.Decision, message string) {
	c.Request.Status.Approval = &fleet.RegistrationApproval{Decision: decision, Message: message}
}

func TestJudgeHeldIdentity(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*Case)
		reason string
	}{
		{"the shared token", func(*Case) {}, fleet.ReasonClientIDInUse},
		{"nobody has registered yet", func(c *Case) { c.HasAgentOrAnswer = false }, ""},
		{"there is no Cluster yet", func(c *Case) { c.Cluster = nil }, ""},
		{"the hub is installing its agent", func(c *Case) {
			c.HasAgentOrAnswer, c.Cluster.Spec.KubeConfigSecret = false, "kubeconfig"
		}, fleet.ReasonClientIDInUse},
		{"the hub is installing its agent, which asks", func(c *Case) {
			c.HasAgentOrAnswer, c.Cluster.Spec.KubeConfigSecret = false, "kubeconfig"
			c.importToken("prod")
		}, ""},
		{"the hub is installing its agent, and a person has installed another", func(c *Case) {
			c.HasAgentOrAnswer, c.Cluster.Spec.KubeConfigSecret = false, "kubeconfig"
			c.Token.Spec.ClientIDs = []string{"edge-1"}
		}, ""},
		{"its import token", func(c *Case) { c.importToken("prod") }, ""},
		{"its import token, nobody knows who sent it", func(c *Case) {
			c.importToken("prod")
			c.Origin = Origin{Reason: fleet.ReasonPolicyMissing}
		}, ""},
		{"its import token, stolen by name only", func(c *Case) {
			c.importToken("prod")
			c.Origin = Origin{Creator: "thief", Reason: fleet.ReasonTokenMismatch}
		}, fleet.ReasonTokenMismatch},
		{"the import token of an earlier Cluster of that name", func(c *Case) {
			c.importToken("prod")
			c.Token.OwnerReferences[0].UID = "before"
		}, fleet.ReasonClientIDNotAllowed},
		{"the import token of another Cluster", func(c *Case) {
			c.Token.Name = ImportTokenName("other")
			c.Token.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", UID: "other-uid", Name: "other"}}
		}, fleet.ReasonClientIDNotAllowed},
		{"its import token, assumed: the thief cannot read the answer", func(c *Case) {
			c.importToken("prod")
			assumed(c)
		}, ""},
		{"a token that is only assumed", assumed, fleet.ReasonClientIDInUse},
		{"a person's token that has only the name of its import token", func(c *Case) { c.Token.Name = ImportTokenName("prod") }, fleet.ReasonClientIDInUse},
		{"a token made for it", func(c *Case) { c.Token.Spec.ClientIDs = []string{"edge-1"} }, ""},
		{"a token for it and another", func(c *Case) { c.Token.Spec.ClientIDs = []string{"edge-1", "edge-2"} }, fleet.ReasonClientIDInUse},
		{"a token for it and a pattern", func(c *Case) {
			c.Token.Spec.ClientIDs, c.Token.Spec.ClientIDPattern = []string{"edge-1"}, "x*"
		}, fleet.ReasonClientIDInUse},
		{"a token for a pattern", func(c *Case) { c.Token.Spec.ClientIDPattern = "edge-*" }, fleet.ReasonClientIDInUse},
		{"a token made for another", func(c *Case) { c.Token.Spec.ClientIDs = []string{"edge-2"} }, fleet.ReasonClientIDNotAllowed},
		{"the agent proves possession", func(c *Case) { c.Cluster.Status.Agent.PossessionProof = "request-1" }, ""},
		{"the agent proved it with a credential that was revoked since", func(c *Case) {
			c.Cluster.Status.Agent.PossessionProof, c.ProverRevoked = "request-1", true
		}, fleet.ReasonClientIDInUse},
		{"the agent proves possession for the request of its clientRandom", func(c *Case) {
			c.Request.Spec.ClientRandom = "random"
			c.Request.Name = RequestName("random")
			c.Cluster.Status.Agent.PossessionProof = c.Request.Name
		}, ""},
		{"the agent proves possession, and another creates a request with the name", func(c *Case) {
			c.Request.Spec.ClientRandom = "another"
			c.Request.Name = RequestName("random")
			c.Cluster.Status.Agent.PossessionProof = c.Request.Name
		}, fleet.ReasonClientIDInUse},
		{"the agent proves possession for another request", func(c *Case) { c.Cluster.Status.Agent.PossessionProof = "request-2" }, fleet.ReasonClientIDInUse},
		{"no agent proves possession for a request without a name", func(c *Case) { c.Request.Name = "" }, fleet.ReasonClientIDInUse},
		{"a person approves", func(c *Case) { c.decide(fleet.DecisionApproved, "") }, ""},
		{"a person denies though the agent proves possession", func(c *Case) {
			c.decide(fleet.DecisionDenied, "")
			c.Cluster.Status.Agent.PossessionProof = "request-1"
		}, fleet.ReasonDenied},
		{"a Clusternet agent may register again with its token", func(c *Case) { c.ClusternetReentry = true }, ""},
		{"a Clusternet agent may register again with its token, in quarantine", func(c *Case) { c.ClusternetReentry, c.Cluster.Spec.Quarantined = true, true }, fleet.ReasonQuarantined},
		{"the policy approves", func(c *Case) { c.Ruling.Action = RulingApprove }, fleet.ReasonClientIDInUse},
		{"the policy denies what a person approves", func(c *Case) {
			c.decide(fleet.DecisionApproved, "")
			c.Ruling = Ruling{Action: RulingDeny}
		}, fleet.ReasonDenied},
		{"it is quarantined, whoever asks", func(c *Case) {
			c.Cluster.Spec.Quarantined = true
			c.importToken("prod")
			c.decide(fleet.DecisionApproved, "")
		}, fleet.ReasonQuarantined},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := rivalCase()
			row.change(c)
			requireRefused(t, Judge(*c), row.reason)
		})
	}
}

func TestJudgeLongLived(t *testing.T) {
	const none, allow, refuse = fleet.LongLived(""), fleet.LongLivedAllow, fleet.LongLivedRefuse
	for _, row := range []struct {
		name       string
		token, hub fleet.LongLived
		renewedBy  string
		says       string // the refusal of an agent that does not renew; "" if there is none
	}{
		{"nobody decides, and nobody renewed", none, none, "", ""},
		{"nobody decides, and the agent renews", none, none, "request-1", "ClusterRegistration request-1"},
		{"the hub allows it", none, allow, "request-1", ""},
		{"the hub refuses it", none, refuse, "", "registration.longLivedCredentials"},
		{"the token allows what the hub refuses", allow, refuse, "", ""},
		{"the token allows it, and the agent renews", allow, none, "request-1", ""},
		{"the token refuses it", refuse, none, "", "spec.longLivedCredentials"},
		{"the token refuses what the hub allows", refuse, allow, "", "spec.longLivedCredentials"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := rivalCase()
			c.importToken("prod")
			c.Token.Spec.LongLivedCredentials, c.LongLived, c.RenewingRequest = row.token, row.hub, row.renewedBy
			c.Request.Annotations = map[string]string{RenewalAnnotation: "true"}
			requireRefused(t, Judge(*c), "")

			c.Request.Annotations = nil
			j := Judge(*c)
			if row.says == "" {
				requireRefused(t, j, "")
				return
			}
			requireRefused(t, j, fleet.ReasonLongLivedRefused)
			assert.Contains(t, j.Refuse.Message, row.says)
		})
	}
}

func requireRefused(t *testing.T, j Judgement, reason string) {
	t.Helper()
	assert.Nil(t, j.Wait)
	if reason == "" {
		assert.Nil(t, j.Refuse)
		return
	}
	require.NotNil(t, j.Refuse)
	assert.Equal(t, reason, j.Refuse.Reason)
}

func TestJudgeNewIdentity(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*Case)
		reason string
		says   string
	}{
		{"nothing", func(*Case) {}, "", ""},
		{"nobody knows who sent it", func(c *Case) { c.Origin = Origin{Reason: fleet.ReasonOriginUnknown} }, "", ""},
		{"somebody else sent it", func(c *Case) { c.Origin = Origin{Reason: fleet.ReasonTokenMismatch, Message: "by a thief"} }, fleet.ReasonTokenMismatch, "by a thief"},
		{"somebody else sent it, and a person approves", func(c *Case) {
			c.Origin.Reason = fleet.ReasonTokenMismatch
			c.decide(fleet.DecisionApproved, "")
		}, "", ""},
		{"it cannot renew", func(c *Case) { c.LongLived, c.Request.Annotations = fleet.LongLivedRefuse, nil }, fleet.ReasonLongLivedRefused, "registration.longLivedCredentials"},
		{"it cannot renew, and need not", func(c *Case) { c.Request.Annotations = nil }, "", ""},
		{"it can renew, and must", func(c *Case) { c.LongLived = fleet.LongLivedRefuse }, "", ""},
		{"an approval does not make it renew", func(c *Case) {
			c.LongLived, c.Request.Annotations = fleet.LongLivedRefuse, nil
			c.decide(fleet.DecisionApproved, "")
		}, fleet.ReasonLongLivedRefused, ""},
		{"the token is not for it", func(c *Case) { c.Token.Spec.ClientIDs = []string{"other"} }, fleet.ReasonClientIDNotAllowed, "ClusterRegistrationToken tok"},
		{"an approval does not widen the token", func(c *Case) {
			c.Token.Spec.ClientIDs = []string{"other"}
			c.decide(fleet.DecisionApproved, "")
		}, fleet.ReasonClientIDNotAllowed, ""},
		{"the token is for importing another Cluster", func(c *Case) { c.importToken("prod") }, fleet.ReasonClientIDNotAllowed, "import"},
		{"a person denies", func(c *Case) { c.decide(fleet.DecisionDenied, "not ours") }, fleet.ReasonDenied, "denied by a person: not ours"},
		{"the policy denies", func(c *Case) { c.Ruling = Ruling{RulingDeny, "rule x"} }, fleet.ReasonDenied, "rule x"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newcomer()
			row.change(c)
			j := Judge(*c)
			requireRefused(t, j, row.reason)
			if j.Refuse != nil {
				assert.Contains(t, j.Refuse.Message, row.says)
			}
		})
	}
}

func TestJudgeApproval(t *testing.T) {
	const none, waits, yes, no = "", fleet.ReasonWaitingForApproval, fleet.ReasonApproved, fleet.ReasonDenied
	manual := func(c *Case) { c.Token.Spec.Approval = fleet.ApprovalManual }
	hub := func(c *Case) { c.Approval = fleet.ApprovalManual }
	limited := func(c *Case) { c.Token.Spec.UsageLimit = new(int32(1)) }
	rule := func(action RulingAction) func(*Case) { return func(c *Case) { c.Ruling = Ruling{action, "rule x"} } }
	person := func(d fleet.Decision) func(*Case) { return func(c *Case) { c.decide(d, "because") } }
	for _, row := range []struct {
		name    string
		changes []func(*Case)
		want    string
		says    string
	}{
		{"nobody", nil, none, ""},
		{"the token says so", []func(*Case){manual}, waits, `"muster -n clusters approve request-1"`},
		{"the hub says so", []func(*Case){hub}, waits, `or the same with deny`},
		{"the token says otherwise than the hub", []func(*Case){hub, func(c *Case) { c.Token.Spec.Approval = fleet.ApprovalAuto }}, none, ""},
		{"the hub says so, and an assumed token says otherwise", []func(*Case){hub, assumed, func(c *Case) { c.Token.Spec.Approval = fleet.ApprovalAuto }}, waits, ""},
		{"an assumed token says so", []func(*Case){manual, assumed}, waits, ""},
		{"an assumed token, nobody else", []func(*Case){assumed}, none, ""},
		{"an assumed token limits its uses", []func(*Case){assumed, limited}, waits, "it may be for tok, which limits its uses"},
		{"an assumed token limits its uses, and a rule approves", []func(*Case){assumed, limited, rule(RulingApprove)}, waits, "limits its uses"},
		{"an assumed token limits its uses, and a person approves", []func(*Case){assumed, limited, person(fleet.DecisionApproved)}, yes, ""},
		{"a named token limits its uses", []func(*Case){limited}, none, ""},
		{"a rule says so", []func(*Case){rule(RulingAsk)}, waits, "rule x"},
		{"a rule approves what the token wants asked", []func(*Case){manual, rule(RulingApprove)}, yes, "rule x"},
		{"a rule approves what need not be", []func(*Case){rule(RulingApprove)}, yes, "rule x"},
		{"a rule denies", []func(*Case){rule(RulingDeny)}, no, "rule x"},
		{"a rule denies what a person approved", []func(*Case){rule(RulingDeny), person(fleet.DecisionApproved)}, no, "rule x"},
		{"a person approves", []func(*Case){manual, person(fleet.DecisionApproved)}, yes, "approved by a person: because"},
		{"a person approves what a rule wants asked", []func(*Case){rule(RulingAsk), person(fleet.DecisionApproved)}, yes, "because"},
		{"a person denies what a rule approves", []func(*Case){rule(RulingApprove), person(fleet.DecisionDenied)}, no, "because"},
		{"the hub's default is not for what it imports itself", []func(*Case){hub, func(c *Case) { *c = *rivalCase(); hub(c); c.importToken("prod") }}, none, ""},
		{"a rule that asks also applies to what the hub imports itself", []func(*Case){func(c *Case) { *c = *rivalCase(); c.importToken("prod") }, rule(RulingAsk)}, waits, "rule x"},
		{"the hub's default is not for the agent's own next request", []func(*Case){func(c *Case) {
			*c = *rivalCase()
			hub(c)
			c.Cluster.Status.Agent.PossessionProof = "request-1"
		}}, none, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newcomer()
			for _, change := range row.changes {
				change(c)
			}
			j := Judge(*c)
			if row.want == none {
				assert.Equal(t, Judgement{}, j)
				return
			}
			require.NotNil(t, j.Approval)
			assert.Equal(t, row.want, j.Approval.Reason)
			assert.Contains(t, j.Approval.Message, row.says)
			assert.Equal(t, row.want == waits, j.Wait != nil)
			assert.Equal(t, row.want == no, j.Refuse != nil)
		})
	}
}

func TestJudgeRefusesBeforeItWaits(t *testing.T) {
	c := rivalCase()
	c.Token.Spec.Approval = fleet.ApprovalManual
	j := Judge(*c)
	requireRefused(t, j, fleet.ReasonClientIDInUse)
	assert.Equal(t, fleet.ReasonWaitingForApproval, j.Approval.Reason, "a person may still lift it")
}

func TestJudgeMessagesOmitTheIdentity(t *testing.T) {
	c := rivalCase()
	c.Request.Spec.ClientID, c.Request.Spec.ClientRandom = "secret-identity", "secret-random"
	c.Token.Spec.ClientIDs = []string{"other"}
	for _, held := range []bool{true, false} {
		c.HasAgentOrAnswer = held
		assert.NotContains(t, Judge(*c).Refuse.Message, "secret")
	}
}

// No case grants a held identity without one of the proofs, and no case is both refused and waiting.
func FuzzJudge(f *testing.F) {
	fuzz.AddSeeds(f)
	f.Fuzz(func(t *testing.T, seed []byte) {
		names := [...]string{"", "request-1", RequestName("random")}
		fill := fuzz.From(seed, "random", "edge-1", "prod", "Approve", "Deny", "Ask", "Approved", "Denied", "Manual", "Allow", "Refuse", fleet.ReasonTokenMismatch)
		for range 20 {
			c := Case{
				Request: &fleet.ClusterRegistration{}, Token: &fleet.ClusterRegistrationToken{}, Cluster: &fleet.Cluster{},
				HasAgentOrAnswer: true,
			}
			agent, approval := &c.Cluster.Status.Agent, &c.Request.Status.Approval
			for _, field := range []any{
				&c.Request.Spec, approval, &c.Token.Name, &c.Token.Spec, &c.Cluster.Spec.Quarantined,
				&c.Cluster.Spec.KubeConfigSecret, &c.ProverRevoked, &c.Origin, &c.Ruling, &c.Approval, &c.LongLived, &c.RenewingRequest,
			} {
				fill.Fill(field)
			}
			for _, name := range []*string{&c.Request.Name, &agent.PossessionProof, &agent.Registration} { // of few, so that many are equal
				var n uint8
				fill.Fill(&n)
				*name = names[int(n)%len(names)]
			}
			var isForAny bool
			if fill.Fill(&isForAny); isForAny { // random limits refuse nearly every request
				c.Token.Spec.ClientIDs, c.Token.Spec.ClientIDPattern = nil, ""
			}
			requireSoundJudgement(t, c)
		}
	})
}

func requireSoundJudgement(t *testing.T, c Case) {
	t.Helper()
	j := Judge(c)
	assert.False(t, j.Refuse != nil && j.Wait != nil)
	assert.Equal(t, j, Judge(c), "the same case, the same judgement")
	if j.Refuse != nil {
		return
	}
	assert.False(t, c.Cluster.Spec.Quarantined)
	assert.NotEqual(t, RulingDeny, c.Ruling.Action)
	approved := c.Request.Status.Approval != nil && c.Request.Status.Approval.Decision == fleet.DecisionApproved
	assert.True(t, c.hasTokenOfCluster() || provesPossession(c) || approved)
}

// provesPossession repeats the conditions of isProvedByAgent, for the names of FuzzJudge.
func provesPossession(c Case) bool {
	name, agent := c.Request.Name, c.Cluster.Status.Agent
	return name != "" && agent.PossessionProof == name && agent.Registration != name && !c.ProverRevoked &&
		(name != RequestName("random") || c.Request.Spec.ClientRandom == "random")
}

func TestDeletableRefusedByAge(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		name    string
		age     time.Duration
		decided bool
		deleted bool
	}{
		{"of a moment ago", 0, false, false},
		{"the last moment", RefusedLifetime - 1, false, false},
		{"the moment", RefusedLifetime, false, true},
		{"long ago", 100 * RefusedLifetime, false, true},
		{"long ago, and a person has decided", 100 * RefusedLifetime, true, false},
		{"the API server's clock is ahead", -time.Hour, false, false},
	} {
		request := requestAt("r", "", now.Add(-row.age), false)
		if row.decided {
			request.Status.Approval = &fleet.RegistrationApproval{}
		}
		got := DeletableRefused([]*fleet.ClusterRegistration{request}, now)
		assert.Equal(t, row.deleted, len(got) == 1, row.name)
	}
}

func TestDeletableRefusedByNumber(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	var all []*fleet.ClusterRegistration
	for n := range MostRefused + 3 {
		all = append(all, requestAt(fmt.Sprintf("r-%04d", n), "", now.Add(time.Duration(n)*time.Second-time.Hour), false))
	}
	denied := requestAt("denied", "", now.Add(-2*time.Hour), false)
	denied.Status.Approval = &fleet.RegistrationApproval{}
	all = append(all, denied)
	assert.Empty(t, DeletableRefused(all[3:], now))
	for range 3 {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		assert.ElementsMatch(t, []string{"r-0000", "r-0001", "r-0002"}, namesOf(DeletableRefused(all, now)))
	}
	same := make([]*fleet.ClusterRegistration, MostRefused+1)
	for n := range same {
		same[n] = requestAt(fmt.Sprintf("r-%04d", n), "", now, false)
	}
	assert.Equal(t, []string{"r-0000"}, namesOf(DeletableRefused(same, now)), "of one second, always the same one")
}

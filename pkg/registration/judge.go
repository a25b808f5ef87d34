package registration

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// Case is the input of Judge.
type Case struct {
	Request *fleet.ClusterRegistration
	// Token is the token with which the request was created.
	Token *fleet.ClusterRegistrationToken
	// Cluster is the Cluster with the clientID of the request; nil if the hub would create it.
	Cluster *fleet.Cluster
	// HasAgentOrAnswer is true if an agent, perhaps the one that sent this request, has sent a heartbeat for the Cluster with the credential
	// of another request, or may still read the answer Secret of another granted request. hasAgentOrAnswer of package clusterregistration
	// has the exceptions.
	HasAgentOrAnswer bool
	// ProverRevoked is true if the credential that wrote the proof of possession was revoked.
	ProverRevoked bool
	// Origin is the creator of the request, compared with Token.
	Origin Origin
	// Ruling is the result of the hub's policy.
	Ruling Ruling
	// Approval is the hub's default, which applies if the token does not set one.
	Approval fleet.Approval
	// LongLived decides about agents that do not renew their credential, if the token does not set it. Empty allows them, unless
	// RenewingRequest is set.
	LongLived fleet.LongLived
	// RenewingRequest names a granted request of the Cluster whose agent renews its credential; "" if there is none.
	RenewingRequest string
	// ClusternetReentry is true if the request may come from the Clusternet agent of the Cluster, which is disconnected and may register again
	// with its earlier token.
	ClusternetReentry bool
}

// RulingAction is the action of a rule of the hub's policy, as its configuration spells it. Without one, the token and the hub's default decide.
type RulingAction string

const (
	// RulingApprove approves a request that would wait for a person.
	RulingApprove RulingAction = "Approve"
	// RulingDeny denies a request, even if a person approved it.
	RulingDeny RulingAction = "Deny"
	// RulingAsk lets a request wait for a person.
	RulingAsk RulingAction = "Ask"
)

// Ruling is an action and its explanation for people.
type Ruling struct {
	Action  RulingAction
	Message string
}

// Judgement is the decision about a request.
type Judgement struct {
	// Refuse is the reason for a refusal; nil if the request is not refused.
	Refuse *Explanation
	// Wait is the reason why the request waits; nil if it does not, or is refused.
	Wait *Explanation
	// Approval is the content of condition Approved, with the reason Approved, Denied or WaitingForApproval; nil if nobody has
	// decided and none is required.
	Approval *Explanation
}

// Judge decides whether a request may be granted. The decision depends only on c. Until the request is granted, the caller repeats it
// when a part of c changes.
func Judge(c Case) Judgement {
	j := Judgement{Approval: c.approval()}
	for _, refuse := range []func() *Explanation{
		c.refuseQuarantined, c.refuseDenied, c.refuseMismatch, c.refuseLongLived, c.refuseNotAllowed, c.refuseHeld, c.refuseDowngrade,
	} {
		if j.Refuse = refuse(); j.Refuse != nil {
			return j
		}
	}
	if j.Approval != nil && j.Approval.Reason == fleet.ReasonWaitingForApproval {
		j.Wait = j.Approval
	}
	return j
}

func (c Case) refuseQuarantined() *Explanation {
	if c.Cluster == nil || !c.Cluster.Spec.Quarantined {
		return nil
	}
	return &Explanation{fleet.ReasonQuarantined, fmt.Sprintf(
		"Cluster %[2]s is quarantined; end the quarantine with \"muster -n %[1]s release %[2]s\", "+
			"after \"muster -n %[1]s revoke --yes %[2]s\" if the credential of its agent may be stolen", c.Cluster.Namespace, c.Cluster.Name)}
}

func (c Case) refuseDenied() *Explanation {
	if a := c.approval(); a != nil && a.Reason == fleet.ReasonDenied {
		return a
	}
	return nil
}

// refuseMismatch refuses a request whose creator is not the ServiceAccount of the token, unless a person approved it.
func (c Case) refuseMismatch() *Explanation {
	if c.Origin.Reason != fleet.ReasonTokenMismatch || c.isApprovedByPerson() {
		return nil
	}
	return &Explanation{c.Origin.Reason, c.Origin.Message}
}

func (c Case) refuseLongLived() *Explanation {
	switch {
	case Renews(c.Request):
		return nil
	case c.Token.Spec.LongLivedCredentials == fleet.LongLivedRefuse:
		return &Explanation{fleet.ReasonLongLivedRefused, fmt.Sprintf(
			"the agent does not renew its credential and ClusterRegistrationToken %s refuses long-lived credentials (spec.longLivedCredentials); "+
				"use an agent that renews its credential", c.Token.Name)}
	case c.Token.Spec.LongLivedCredentials == "" && c.LongLived == fleet.LongLivedRefuse:
		return &Explanation{
			fleet.ReasonLongLivedRefused,
			"the agent does not renew its credential and this hub refuses long-lived credentials (registration.longLivedCredentials); use an agent that renews its credential",
		}
	}
	return nil
}

// refuseNotAllowed refuses a clientID that the token does not allow. An import token is stored on the member of its Cluster; if it is
// stolen there, it registers no other Cluster.
func (c Case) refuseNotAllowed() *Explanation {
	switch {
	case owningCluster(c.Token) != "" && !c.isImport():
		return &Explanation{fleet.ReasonClientIDNotAllowed, fmt.Sprintf(
			"ClusterRegistrationToken %s is for the import of another Cluster; register with a token of your own", c.Token.Name)}
	case !allowsClientID(c.Token.Spec, c.Request.Spec.ClientID):
		return &Explanation{fleet.ReasonClientIDNotAllowed, fmt.Sprintf(
			"ClusterRegistrationToken %s is not for this clientID: see its spec.clientIDs and spec.clientIDPattern", c.Token.Name)}
	}
	return nil
}

// refuseDowngrade refuses a request for a long-lived credential if the agent of the Cluster renews a short-lived one: a thief of the short-lived
// credential could otherwise exchange it for one that does not expire. Neither the agent nor the holder of a token can delete the earlier request.
func (c Case) refuseDowngrade() *Explanation {
	if c.Cluster == nil || c.RenewingRequest == "" || Renews(c.Request) || cmp.Or(c.Token.Spec.LongLivedCredentials, c.LongLived) == fleet.LongLivedAllow {
		return nil
	}
	return &Explanation{fleet.ReasonLongLivedRefused, fmt.Sprintf(
		"the agent does not renew its credential, but the agent of Cluster %s does (ClusterRegistration %s); use an agent that renews its credential, "+
			"delete that ClusterRegistration if its agent was replaced for good, or allow long-lived credentials (spec.longLivedCredentials of the "+
			"token, registration.longLivedNamespaces of the hub)", c.Cluster.Name, c.RenewingRequest)}
}

// refuseHeld refuses a request for the identity of another agent. A request is permitted if it uses the token made for the Cluster, if the
// current agent proves that the request is its own, if that agent may register again without a proof, or if a person approved it. The token
// suffices even if the API server did not record the creator of the request: only the holder of the token can read the credential. A Cluster
// with a kubeconfig Secret is held even before its agent reports: an import clears the report of the agent, and no other agent may register
// meanwhile.
func (c Case) refuseHeld() *Explanation {
	holder := c.holder()
	if holder == "" || c.hasTokenOfCluster() || c.isProvedByAgent() || c.ClusternetReentry || c.isApprovedByPerson() {
		return nil
	}
	return &Explanation{fleet.ReasonClientIDInUse, fmt.Sprintf(
		"%s with this clientID; if this is its agent, approve the request with \"muster -n %s approve %s\", "+
			"or let it register with a token made for the Cluster by \"muster -n %s token create NAME --cluster %s\"",
		holder, c.Request.Namespace, c.Request.Name, c.Cluster.Namespace, c.Cluster.Name)}
}

// holder describes the current holder of the identity; "" if the Cluster is not held.
func (c Case) holder() string {
	switch {
	case c.Cluster == nil:
		return ""
	case c.HasAgentOrAnswer:
		return fmt.Sprintf("Cluster %s has an agent, or a credential that no agent has used yet", c.Cluster.Name)
	case c.Cluster.Spec.KubeConfigSecret != "":
		return fmt.Sprintf("the hub itself installs the agent of Cluster %s", c.Cluster.Name)
	}
	return ""
}

func (c Case) hasTokenOfCluster() bool {
	return c.isImport() || IsOnlyFor(c.Token.Spec, c.Request.Spec.ClientID)
}

// isImport reports whether the token is the import token of the Cluster.
func (c Case) isImport() bool { return c.Cluster != nil && IsImportTokenOf(c.Token, c.Cluster) }

// isProvedByAgent reports whether the current agent proved that the request is its own: it wrote the name of the request to its
// Lease or status with its current credential, and only that credential may write there. The proof does not count after that credential was revoked,
// because it may be a thief's. Nor does it count for the request with which the agent has registered: after that request is deleted,
// another user could create one with the same name. Nor does it count for a request that another user created with the name in the proof,
// before the agent sent its own.
func (c Case) isProvedByAgent() bool {
	if c.Cluster == nil || c.Request.Name == "" || c.ProverRevoked || isDerivedFromOtherRandom(c.Request.Name, c.Request.Spec.ClientRandom) {
		return false
	}
	agent := c.Cluster.Status.Agent
	return agent.PossessionProof == c.Request.Name && agent.Registration != c.Request.Name
}

func (c Case) isApprovedByPerson() bool {
	a := c.Request.Status.Approval
	return a != nil && a.Decision == fleet.DecisionApproved && c.Ruling.Action != RulingDeny
}

// approval returns the decision about a request, nil if nobody has decided and none is required. A denying rule overrides a person, a person overrides
// every other rule, and an approving rule makes the decision of a person unnecessary.
func (c Case) approval() *Explanation {
	person := c.Request.Status.Approval
	switch {
	case c.Ruling.Action == RulingDeny:
		return &Explanation{fleet.ReasonDenied, c.Ruling.Message}
	case person != nil && person.Decision == fleet.DecisionDenied:
		return &Explanation{fleet.ReasonDenied, said("denied", person.Message)}
	case person != nil && person.Decision == fleet.DecisionApproved:
		return &Explanation{fleet.ReasonApproved, said("approved", person.Message)}
	case c.isUncountable():
		return c.ask(fmt.Sprintf("the request names no ClusterRegistrationToken; it may be for %s, which limits its uses", c.Token.Name))
	case c.Ruling.Action == RulingApprove:
		return &Explanation{fleet.ReasonApproved, c.Ruling.Message}
	case c.Ruling.Action == RulingAsk:
		return c.ask(c.Ruling.Message)
	case c.isManual():
		return c.ask("the token or the hub's configuration asks for it")
	}
	return nil
}

func said(decision, message string) string {
	if message == "" {
		return decision + " by a person"
	}
	return decision + " by a person: " + message
}

func (c Case) ask(why string) *Explanation {
	return &Explanation{fleet.ReasonWaitingForApproval, fmt.Sprintf(
		"waiting for an approval (%s): run \"muster -n %s approve %s\" or the same with deny", why, c.Request.Namespace, c.Request.Name)}
}

// isUncountable reports whether the request may be a use of a token that limits its uses, and cannot be counted: it may also have come
// with another token.
func (c Case) isUncountable() bool {
	return c.Token.Spec.UsageLimit != nil && c.Origin.AssumesToken(c.Request)
}

// isManual reports whether a person must decide. The hub's default does not apply to an agent that the hub installs, nor to a request
// that the current agent proved to be its own. An assumed token cannot make an approval unnecessary.
func (c Case) isManual() bool {
	switch {
	case c.Token.Spec.Approval == fleet.ApprovalManual:
		return true
	case c.Token.Spec.Approval != "" && !c.Origin.AssumesToken(c.Request):
		return false
	}
	return c.Approval == fleet.ApprovalManual && !c.isImport() && !c.isProvedByAgent()
}

const (
	// RefusedLifetime is the time for which a refused request is kept, so that a person can inspect or approve it. An agent that
	// still wants to register sends a new one.
	RefusedLifetime = 24 * time.Hour
	// MostRefused is the maximum number of refused requests kept for each creator, because the thief of a token can create any number.
	MostRefused = 500
)

// RefusalOf returns the condition that says why a request is refused, and whether it is. A request whose decision failed with an error is
// not refused: the decision is repeated.
func RefusalOf(request *fleet.ClusterRegistration) (genericcondition.GenericCondition, bool) {
	granted := fleetstatus.Condition(request.Status.Conditions, fleet.ConditionGranted)
	if request.Status.Granted || granted.Status != corev1.ConditionFalse || granted.Reason == fleet.ReasonError {
		return genericcondition.GenericCondition{}, false
	}
	return granted, true
}

// DeletableRefused returns the refused requests of one creator that the hub deletes: those older than RefusedLifetime, and the oldest
// ones above MostRefused. It leaves out those about which a person has decided: otherwise the same decision would be needed again.
func DeletableRefused(refused []*fleet.ClusterRegistration, now time.Time) (deletable []*fleet.ClusterRegistration) {
	refused = slices.DeleteFunc(slices.Clone(refused), func(r *fleet.ClusterRegistration) bool { return r.Status.Approval != nil })
	slices.SortFunc(refused, newestFirst)
	for i, r := range refused {
		if i >= MostRefused || now.Sub(r.CreationTimestamp.Time) >= RefusedLifetime {
			deletable = append(deletable, r)
		}
	}
	return deletable
}

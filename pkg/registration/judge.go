package registration

import (
	"fmt"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Case is what is known of a request when it is judged.
type Case struct {
	Request *fleet.ClusterRegistration
	// Token is the one the request was made with.
	Token *fleet.ClusterRegistrationToken
	// Cluster is the one that has the request's identity; nil when it would be made.
	Cluster *fleet.Cluster
	// Held says that an agent has registered for the Cluster.
	Held bool
	// Origin is who created the request, compared with Token.
	Origin Origin
	// Ruling is what the hub's policy says.
	Ruling Ruling
	// Approval is who decides where the token does not say.
	Approval fleet.Approval
	// RefuseLongLived refuses agents that cannot renew their credential.
	RefuseLongLived bool
}

// RulingAction is what the hub's policy does with a request, in the words of its configuration.
type RulingAction string

// The actions; the empty one leaves the request to its token and to the hub's default.
const (
	RulingApprove RulingAction = "Approve"
	RulingDeny    RulingAction = "Deny"
	RulingAsk     RulingAction = "Ask"
)

// Ruling is an action and, for people, why.
type Ruling struct {
	Action  RulingAction
	Message string
}

// Judgement is what becomes of a request.
type Judgement struct {
	// Refuse is why it is not granted; nil when nothing speaks against it.
	Refuse *Refusal
	// Wait is what it waits for, when it is not refused.
	Wait *Refusal
	// Approval is what condition Approved says; nil where nobody is asked.
	Approval *Approval
}

// Approval has one of the reasons Approved, Denied and WaitingForApproval.
type Approval struct {
	Reason, Message string
}

// Judge decides whether a request may be granted. It depends on nothing but the case, and is asked anew whenever a part of
// that changes, until the request is granted.
func Judge(c Case) Judgement {
	j := Judgement{Approval: c.approval()}
	for _, objection := range []func() *Refusal{c.quarantined, c.denied, c.foreign, c.longLived, c.notAllowed, c.inUse} {
		if j.Refuse = objection(); j.Refuse != nil {
			return j
		}
	}
	if j.Approval != nil && j.Approval.Reason == fleet.ReasonWaitingForApproval {
		j.Wait = &Refusal{j.Approval.Reason, j.Approval.Message}
	}
	return j
}

func (c Case) quarantined() *Refusal {
	if c.Cluster == nil || !c.Cluster.Spec.Quarantined {
		return nil
	}
	return &Refusal{fleet.ReasonQuarantined, fmt.Sprintf(
		"Cluster %s is quarantined; release it with \"muster release %s\"", c.Cluster.Name, c.Cluster.Name)}
}

func (c Case) denied() *Refusal {
	if a := c.approval(); a != nil && a.Reason == fleet.ReasonDenied {
		return &Refusal{a.Reason, a.Message}
	}
	return nil
}

// foreign refuses a request that somebody else than the token's holder created, unless a person looked at it.
func (c Case) foreign() *Refusal {
	if c.Origin.Reason != fleet.ReasonTokenMismatch || c.isApprovedByPerson() {
		return nil
	}
	return &Refusal{c.Origin.Reason, c.Origin.Message}
}

func (c Case) longLived() *Refusal {
	if !c.RefuseLongLived || c.Request.Annotations[RenewalAnnotation] == "true" {
		return nil
	}
	return &Refusal{
		fleet.ReasonLongLivedRefused,
		"the agent does not renew its credential and this hub gives out no other kind (registration.longLivedCredentials); use an agent that does",
	}
}

// inUse keeps the identity with the agent that has it. Another one gets it only with the token made for the Cluster, with the
// word of the agent that has it, or with that of a person. The token counts even where nobody has recorded who created the
// request: only its holder can read the answer. A Cluster that the hub imports has an agent even while it is silent, for the
// hub forgets what it said when it installs it again: nobody else is to come first.
func (c Case) inUse() *Refusal {
	taken := c.taken()
	if taken == "" || c.hasTokenOfCluster() || c.isVouchedFor() || c.isApprovedByPerson() {
		return nil
	}
	return &Refusal{fleet.ReasonClientIDInUse, fmt.Sprintf(
		"%s with this clientID; if this is its agent, approve the request with \"muster approve %s\", "+
			"or let it register with a token made for the Cluster by \"muster token create --cluster %s\"",
		taken, c.Request.Name, c.Cluster.Name)}
}

// taken says who has the identity; "" where nobody has.
func (c Case) taken() string {
	switch {
	case c.Cluster == nil:
		return ""
	case c.Held:
		return fmt.Sprintf("an agent has registered as Cluster %s", c.Cluster.Name)
	case c.Cluster.Spec.KubeConfigSecret != "":
		return fmt.Sprintf("the hub itself installs the agent of Cluster %s", c.Cluster.Name)
	}
	return ""
}

func (c Case) hasTokenOfCluster() bool {
	return c.isImport() || isOnlyFor(c.Token.Spec, c.Request.Spec.ClientID)
}

// isImport says whether the token is the one by which the hub imports the Cluster.
func (c Case) isImport() bool {
	return c.Cluster != nil && c.Cluster.UID != "" && owningCluster(c.Token) == string(c.Cluster.UID) &&
		c.Token.Name == ImportTokenName(c.Cluster.Name)
}

// isVouchedFor is true when the agent has said so with the credential it holds: nobody else may write that. What the agent has
// registered with already it does not vouch for again: once that request is gone, anybody may make another of its name.
func (c Case) isVouchedFor() bool {
	if c.Cluster == nil || c.Request.Name == "" {
		return false
	}
	agent := c.Cluster.Status.Agent
	return agent.Vouches == c.Request.Name && agent.Registration != c.Request.Name
}

func (c Case) isApprovedByPerson() bool {
	a := c.Request.Status.Approval
	return a != nil && a.Decision == fleet.DecisionApproved && c.Ruling.Action != RulingDeny
}

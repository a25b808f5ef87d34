package registration

import (
	"fmt"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// approval returns the decision about a request, nil if none is required. A denying rule overrides a person, a person overrides
// every other rule, and an approving rule makes the decision of a person unnecessary.
func (c Case) approval() *ApprovalState {
	person := c.Request.Status.Approval
	switch {
	case c.Ruling.Action == RulingDeny:
		return &ApprovalState{fleet.ReasonDenied, c.Ruling.Message}
	case person != nil && person.Decision == fleet.DecisionDenied:
		return &ApprovalState{fleet.ReasonDenied, said("denied", person.Message)}
	case person != nil && person.Decision == fleet.DecisionApproved:
		return &ApprovalState{fleet.ReasonApproved, said("approved", person.Message)}
	case c.isUncountable():
		return c.ask(fmt.Sprintf("the request names no ClusterRegistrationToken; it may be for %s, which limits its uses", c.Token.Name))
	case c.Ruling.Action == RulingApprove:
		return &ApprovalState{fleet.ReasonApproved, c.Ruling.Message}
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

func (c Case) ask(why string) *ApprovalState {
	return &ApprovalState{fleet.ReasonWaitingForApproval, fmt.Sprintf(
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

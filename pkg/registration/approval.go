package registration

import (
	"fmt"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// approval is what has been decided about a request by those who are asked, nil where nobody is. A policy that denies beats
// a person, a person beats what else a policy says, and a policy that approves spares the person.
func (c Case) approval() *Approval {
	person := c.Request.Status.Approval
	switch {
	case c.Ruling.Action == RulingDeny:
		return &Approval{fleet.ReasonDenied, c.Ruling.Message}
	case person != nil && person.Decision == fleet.DecisionDenied:
		return &Approval{fleet.ReasonDenied, said("denied", person.Message)}
	case person != nil && person.Decision == fleet.DecisionApproved:
		return &Approval{fleet.ReasonApproved, said("approved", person.Message)}
	case c.Ruling.Action == RulingApprove:
		return &Approval{fleet.ReasonApproved, c.Ruling.Message}
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

func (c Case) ask(why string) *Approval {
	return &Approval{fleet.ReasonWaitingForApproval, fmt.Sprintf(
		"waiting for an approval (%s): run \"muster approve %s\" or \"muster deny %s\"", why, c.Request.Name, c.Request.Name)}
}

// isManual says whether a person is asked. The hub's default is for those nobody has decided about: not for the agent that a
// person had the hub install, nor for one that vouches for its own next request.
func (c Case) isManual() bool {
	if c.Token.Spec.Approval != "" {
		return c.Token.Spec.Approval == fleet.ApprovalManual
	}
	return c.Approval == fleet.ApprovalManual && !c.isImport() && !c.isVouchedFor()
}

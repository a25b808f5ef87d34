// Package policy evaluates the rules of the hub's configuration (registration.policy): CEL expressions over the request, its token
// and its Cluster.
package policy

import (
	"errors"
	"fmt"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Policy is a list of compiled rules. It is safe for concurrent use; a nil Policy has no rules.
type Policy struct {
	rules  []rule
	broken error
}

type rule struct {
	config.PolicyRule
	program cel.Program
}

// Compile compiles the rules. Its error names each invalid rule and the reason.
func Compile(rules []config.PolicyRule) (*Policy, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	env, err := environment()
	if err != nil {
		return nil, err
	}
	p := &Policy{}
	var problems []error
	for i, r := range rules {
		program, err := compile(env, r.Expression)
		if err != nil {
			problems = append(problems, fmt.Errorf("registration.policy[%d] (%s): %w", i, r.Name, err))
			continue
		}
		p.rules = append(p.rules, rule{PolicyRule: r, program: program})
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return p, nil
}

// RuleInput holds the variables of the rules. A nil Token or Cluster is null in the expression.
type RuleInput struct {
	Request *fleet.ClusterRegistration
	Token   *fleet.ClusterRegistrationToken
	// TokenAssumed means that the request may have come with another token, so a rule must not be decided by Token.
	TokenAssumed bool
	Cluster      *fleet.Cluster
}

// Rule returns the ruling of the first rule whose expression is true, and the zero Ruling if there is none. If a rule cannot be
// evaluated, for example because of a missing field or of the cost limit, a person must decide: skipping the rule could admit a
// request that the rule is meant to deny.
func (p *Policy) Rule(in RuleInput) registration.Ruling {
	switch {
	case p == nil:
		return registration.Ruling{}
	case p.broken != nil:
		return ask("the hub's policy is invalid: %v", p.broken)
	}
	variables, err := variablesOf(in)
	if err != nil {
		return ask("the hub's policy cannot read the request: %v", err)
	}
	var known any = variables
	if in.TokenAssumed {
		if known, err = cel.PartialVars(variables, cel.AttributePattern(variableToken)); err != nil {
			return ask("the hub's policy cannot read the request: %v", err)
		}
	}
	for _, r := range p.rules {
		matches, err := r.matches(known)
		switch {
		case errors.Is(err, errTokenAssumed):
			return ask("rule %q of the hub's policy depends on the token, and the request names none", r.Name)
		case err != nil:
			return ask("rule %q of the hub's policy cannot be evaluated: %v", r.Name, err)
		case matches:
			return r.ruling()
		}
	}
	return registration.Ruling{}
}

// errTokenAssumed means that a rule depends on a token that is only assumed.
var errTokenAssumed = errors.New("the token is not known")

func (r rule) matches(variables any) (bool, error) {
	value, _, err := r.program.Eval(variables)
	if err != nil {
		return false, err
	}
	if types.IsUnknown(value) {
		return false, errTokenAssumed
	}
	matches, ok := value.(types.Bool)
	if !ok {
		return false, fmt.Errorf("the expression returns a %s instead of a bool", value.Type().TypeName())
	}
	return bool(matches), nil
}

func (r rule) ruling() registration.Ruling {
	verb := map[registration.RulingAction]string{
		registration.RulingApprove: "approved", registration.RulingDeny: "denied", registration.RulingAsk: "asked",
	}[r.Action]
	message := fmt.Sprintf("%s by rule %q of the hub's policy", verb, r.Name)
	if r.Message != "" {
		message += ": " + r.Message
	}
	return registration.Ruling{Action: r.Action, Message: message}
}

func ask(format string, values ...any) registration.Ruling {
	return registration.Ruling{Action: registration.RulingAsk, Message: registration.Brief(fmt.Sprintf(format, values...))}
}

// Of returns the policy of the rules. If they are invalid, a person must decide about every request. The hub checks its configuration
// first, so this happens only at a start with invalid rules.
func Of(rules []config.PolicyRule) *Policy {
	p, err := Compile(rules)
	if err != nil {
		return &Policy{broken: err}
	}
	return p
}

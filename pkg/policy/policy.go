// Package policy decides about requests by the rules of the hub's configuration (registration.policy): CEL expressions over
// the request, the token it was made with, and the Cluster it is for.
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

// Policy is a list of compiled rules. It may be used by several at a time; a nil Policy has no rules.
type Policy struct {
	rules  []rule
	broken error
}

type rule struct {
	config.PolicyRule
	program cel.Program
}

// Compile compiles the rules. Its error names each rule that is none, and what is wrong with it.
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

// Case is what the rules look at. Token and Cluster may be nil: the expression finds null then.
type Case struct {
	Request *fleet.ClusterRegistration
	Token   *fleet.ClusterRegistrationToken
	Cluster *fleet.Cluster
}

// Rule is what the first rule says whose expression is true; the zero Ruling when there is none. A rule that cannot be
// evaluated, for a field that is not there, say, or because it costs too much, leaves the request to a person: to skip it
// could let in what it is there to keep out.
func (p *Policy) Rule(c Case) registration.Ruling {
	switch {
	case p == nil:
		return registration.Ruling{}
	case p.broken != nil:
		return ask("the hub's policy is none: %v", p.broken)
	}
	variables, err := variablesOf(c)
	if err != nil {
		return ask("the hub's policy cannot look at the request: %v", err)
	}
	for _, r := range p.rules {
		matches, err := r.matches(variables)
		switch {
		case err != nil:
			return ask("rule %q of the hub's policy cannot be evaluated: %v", r.Name, err)
		case matches:
			return r.ruling()
		}
	}
	return registration.Ruling{}
}

func (r rule) matches(variables map[string]any) (bool, error) {
	value, _, err := r.program.Eval(variables)
	if err != nil {
		return false, err
	}
	matches, ok := value.(types.Bool)
	if !ok {
		return false, fmt.Errorf("the expression gives a %s instead of a bool", value.Type().TypeName())
	}
	return bool(matches), nil
}

func (r rule) ruling() registration.Ruling {
	verb := map[config.PolicyAction]string{
		config.PolicyApprove: "approved", config.PolicyDeny: "denied", config.PolicyAsk: "asked",
	}[r.Action]
	message := fmt.Sprintf("%s by rule %q of the hub's policy", verb, r.Name)
	if r.Message != "" {
		message += ": " + r.Message
	}
	return registration.Ruling{Action: registration.RulingAction(r.Action), Message: message}
}

func ask(format string, values ...any) registration.Ruling {
	return registration.Ruling{Action: registration.RulingAsk, Message: registration.Brief(fmt.Sprintf(format, values...))}
}

// Of is the policy of these rules. Where they are none, which a hub that checks its configuration never puts into force, a
// person is asked about everything.
func Of(rules []config.PolicyRule) *Policy {
	p, err := Compile(rules)
	if err != nil {
		return &Policy{broken: err}
	}
	return p
}

// Package policy evaluates the rules of the hub's configuration (registration.policy): CEL expressions over the request, its token
// and its Cluster.
package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/runtime"

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

const (
	// maxExpression bounds a rule, in characters.
	maxExpression = 8192
	// maxDepth is the maximum nesting depth of an expression.
	maxDepth = 100
	// maxCost is the cost limit of one evaluation in CEL's units, about one for each step. It amounts to a few milliseconds.
	maxCost = 1_000_000
)

// The variables of an expression.
const (
	variableRequest = "request"
	variableToken   = "token"
	variableCluster = "cluster"
)

// environment has CEL's standard library and optional fields (request.spec.?clusterLabels); it omits extensions, because
// CEL does not count their cost.
func environment() (*cel.Env, error) {
	return cel.NewEnv(
		cel.OptionalTypes(),
		cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true),
		cel.ParserExpressionSizeLimit(maxExpression),
		cel.ParserRecursionLimit(maxDepth),
		cel.Variable(variableRequest, cel.DynType),
		cel.Variable(variableToken, cel.DynType),
		cel.Variable(variableCluster, cel.DynType),
	)
}

// compile compiles an expression that must return a bool. It turns a panic of the compiler into an error, because users write the
// expressions.
func compile(env *cel.Env, expression string) (program cel.Program, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the expression cannot be compiled: %v", r)
		}
	}()
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		return nil, oneLine(issues.Err())
	}
	if kind := ast.OutputType(); !kind.IsExactType(cel.BoolType) && !kind.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("the expression returns a %s instead of a bool", kind)
	}
	return env.Program(ast, cel.EvalOptions(cel.OptOptimize, cel.OptTrackCost, cel.OptPartialEval), cel.CostLimit(maxCost))
}

// oneLine joins the lines of an error, for events and conditions. CEL prints the position of an error on separate lines.
func oneLine(err error) error {
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}

// variablesOf converts the objects to the form that kubectl shows.
func variablesOf(c RuleInput) (map[string]any, error) {
	request, err := object(c.Request, c.Request == nil)
	if err != nil {
		return nil, err
	}
	token, err := object(c.Token, c.Token == nil)
	if err != nil {
		return nil, err
	}
	cluster, err := object(c.Cluster, c.Cluster == nil)
	if err != nil {
		return nil, err
	}
	complete(request, "spec", "clusterLabels")
	if spec, ok := request["spec"].(map[string]any); ok {
		delete(spec, "clientRandom") // the name of the answer Secret can be computed from it, and an error's message might repeat it
	}
	complete(token, "spec", "labels")
	complete(cluster, "spec")
	return map[string]any{
		variableRequest: orNull(request), variableToken: orNull(token), variableCluster: orNull(cluster),
	}, nil
}

func object(o any, absent bool) (map[string]any, error) {
	if absent {
		return nil, nil
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(o)
}

// complete adds empty maps for absent ones, so that "key" in request.metadata.labels needs no has() before it.
func complete(o map[string]any, path ...string) {
	if o == nil {
		return
	}
	for _, p := range [][]string{{"metadata", "labels"}, {"metadata", "annotations"}, {"spec"}, {"status"}, path} {
		ensure(o, p)
	}
}

func ensure(o map[string]any, path []string) {
	for _, key := range path {
		inner, ok := o[key].(map[string]any)
		if !ok {
			inner = map[string]any{}
			o[key] = inner
		}
		o = inner
	}
}

// orNull returns an untyped nil for a nil map, because CEL treats a nil map as empty and not as null.
func orNull(o map[string]any) any {
	if o == nil {
		return nil
	}
	return o
}

package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
)

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

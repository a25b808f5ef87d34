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
	// maxDepth bounds how deeply an expression is nested.
	maxDepth = 100
	// maxCost bounds one evaluation, in CEL's units, about one for each step: a few milliseconds.
	maxCost = 1_000_000
)

// The variables of an expression.
const (
	variableRequest = "request"
	variableToken   = "token"
	variableCluster = "cluster"
)

// environment has CEL's standard library and optional fields (request.spec.?clusterLabels); extensions are left out, for the
// cost of what they do is not counted.
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

// compile never lets a panic through: the expression is written by a person, the compiler by another.
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
		return nil, fmt.Errorf("the expression gives a %s instead of a bool", kind)
	}
	return env.Program(ast, cel.EvalOptions(cel.OptOptimize, cel.OptTrackCost), cel.CostLimit(maxCost))
}

// oneLine is for events and conditions: CEL draws a picture of where the error is.
func oneLine(err error) error {
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}

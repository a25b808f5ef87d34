package policy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

func someCase() RuleInput {
	return RuleInput{
		Request: &fleet.ClusterRegistration{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-default", Name: "request-1", Labels: map[string]string{fleet.RegistrationTokenLabel: "tok"}},
			Spec: fleet.ClusterRegistrationSpec{
				ClientID: "edge-1", ClientRandom: "very-secret", ClusterLabels: map[string]string{"env": "prod"},
			},
		},
		Token: &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: "tok"}},
	}
}

func rules(expressions ...string) (all []config.PolicyRule) {
	for _, e := range expressions {
		all = append(all, config.PolicyRule{Name: "only", Expression: e, Action: registration.RulingDeny})
	}
	return all
}

func TestRuleVariables(t *testing.T) {
	for _, row := range []struct {
		expression string
		matches    bool
	}{
		{`true`, true},
		{`false`, false},
		{`request.spec.clientID.startsWith("edge-")`, true},
		{`request.spec.clientID.matches("^core-[0-9]+$")`, false},
		{`request.metadata.namespace == "fleet-default"`, true},
		{`request.spec.clusterLabels["env"] == "prod"`, true},
		{`"team" in request.spec.clusterLabels`, false},
		{`"x" in request.metadata.annotations`, false},
		{`request.spec.clusterLabels.exists(k, k == "env")`, true},
		{`request.spec.?clusterLabels[?"team"].orValue("none") == "none"`, true},
		{`has(request.spec.clientRandom)`, false},
		{`token.metadata.name == "tok"`, true},
		{`token != null && "env" in token.spec.labels`, false},
		{`cluster == null`, true},
		{`cluster != null && cluster.metadata.name == "prod"`, false},
	} {
		t.Run(row.expression, func(t *testing.T) {
			p, err := Compile(rules(row.expression))
			require.NoError(t, err)
			ruling := p.Rule(someCase())
			if !row.matches {
				assert.Equal(t, registration.Ruling{}, ruling)
				return
			}
			assert.Equal(t, registration.Ruling{Action: registration.RulingDeny, Message: `denied by rule "only" of the hub's policy`}, ruling)
		})
	}
}

// The error of a rule may contain a value as long as a request may be, and is part of a status.
func TestRuleErrorsAreShort(t *testing.T) {
	p, err := Compile(rules(`int(request.spec.clusterLabels["env"]) > 0`))
	require.NoError(t, err)
	c := someCase()
	c.Request.Spec.ClusterLabels["env"] = strings.Repeat("x", 1<<20)
	ruling := p.Rule(c)
	assert.Equal(t, registration.RulingAsk, ruling.Action)
	assert.Less(t, len(ruling.Message), 300)
}

func TestRuleWithoutACluster(t *testing.T) {
	p, err := Compile(rules(`cluster != null && cluster.metadata.labels["env"] == "prod" && token == null`))
	require.NoError(t, err)
	c := someCase()
	c.Token, c.Cluster = nil, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"env": "prod"}}}
	assert.Equal(t, registration.RulingDeny, p.Rule(c).Action)
}

// A request that names no token may have come with another token than the hub assumes.
func TestRuleWithAnAssumedToken(t *testing.T) {
	for expression, want := range map[string]registration.RulingAction{
		`request.spec.clientID == "edge-1"`:                                     registration.RulingApprove,
		`request.spec.clientID == "other"`:                                      "",
		`token.metadata.name == "tok"`:                                          registration.RulingAsk,
		`token.metadata.name != "tok"`:                                          registration.RulingAsk,
		`token != null`:                                                         registration.RulingAsk,
		`has(token.spec.labels)`:                                                registration.RulingAsk,
		`request.spec.clientID == "other" && token.metadata.name == "tok"`:      "",
		`request.spec.clientID == "edge-1" || token.metadata.name == "another"`: registration.RulingApprove,
		`["tok"].exists(n, token.metadata.name == n)`:                           registration.RulingAsk,
	} {
		t.Run(expression, func(t *testing.T) {
			p, err := Compile([]config.PolicyRule{{Name: "edges", Expression: expression, Action: registration.RulingApprove}})
			require.NoError(t, err)
			in := someCase()
			in.TokenAssumed = true
			ruling := p.Rule(in)
			assert.Equal(t, want, ruling.Action)
			if want == registration.RulingAsk {
				assert.Contains(t, ruling.Message, `rule "edges" of the hub's policy depends on the token`)
			}
		})
	}
}

func TestRuleOrder(t *testing.T) {
	p, err := Compile([]config.PolicyRule{
		{Name: "never", Expression: "false", Action: registration.RulingDeny},
		{Name: "known", Expression: `request.spec.clientID == "edge-1"`, Action: registration.RulingApprove, Message: "we know it"},
		{Name: "rest", Expression: "true", Action: registration.RulingAsk},
	})
	require.NoError(t, err)
	assert.Equal(t, registration.Ruling{
		Action: registration.RulingApprove, Message: `approved by rule "known" of the hub's policy: we know it`,
	}, p.Rule(someCase()))
	c := someCase()
	c.Request.Spec.ClientID = "other"
	assert.Equal(t, registration.RulingAsk, p.Rule(c).Action)
}

func TestRuleThatFailsAsksAPerson(t *testing.T) {
	for name, row := range map[string]struct{ expression, says string }{
		"a field that is not there": {`request.spec.clusterLabels["team"] == "a"`, "no such key"},
		"a field of nothing":        {`cluster.metadata.name == "prod"`, "no such"},
		"no bool":                   {`request.spec.clientID`, "returns a string instead of a bool"},
		"a wrong type":              {`request.spec.clientID > 3`, "no such overload"},
		"a division by zero":        {`1 / size(request.metadata.annotations) == 1`, "division by zero"},
		"a bad pattern":             {`"a".matches(request.spec.clientID + "[")`, "missing closing ]"},
		"costs too much":            {`[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, [1,2,3,4,5,6,7,8,9,10].all(g, size(request.spec.clientID) > 0)))))))`, "cost limit exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Compile(append(rules(row.expression), config.PolicyRule{Name: "later", Expression: "true", Action: registration.RulingApprove}))
			require.NoError(t, err)
			ruling := p.Rule(someCase())
			assert.Equal(t, registration.RulingAsk, ruling.Action)
			assert.Contains(t, ruling.Message, `rule "only" of the hub's policy cannot be evaluated`)
			assert.Contains(t, ruling.Message, row.says)
			assert.NotContains(t, ruling.Message, "very-secret")
		})
	}
}

func TestCompileErrors(t *testing.T) {
	for name, row := range map[string]struct{ expression, says string }{
		"no CEL":              {`request.spec.(`, "Syntax error"},
		"an unknown variable": {`registration.spec.clientID == "x"`, "undeclared reference to 'registration'"},
		"no bool":             {`"text"`, "returns a string instead of a bool"},
		"wrong types":         {`1 + "a" == 2`, "no matching overload"},
		"too long":            {`"` + strings.Repeat("x", maxExpression) + `" == ""`, "size"},
		"too deep":            {strings.Repeat("(", 2000) + "true" + strings.Repeat(")", 2000), "recursion"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile([]config.PolicyRule{
				{Name: "good", Expression: "true", Action: registration.RulingAsk}, {Name: "bad", Expression: row.expression, Action: registration.RulingDeny},
			})
			require.ErrorContains(t, err, "registration.policy[1] (bad): ")
			require.ErrorContains(t, err, row.says)
			assert.NotContains(t, err.Error(), "\n")
			ruling := Of(rules(row.expression)).Rule(someCase())
			assert.Equal(t, registration.RulingAsk, ruling.Action, "if an invalid policy is used nevertheless, a person must decide")
		})
	}
}

func TestCompileNamesEachInvalidRule(t *testing.T) {
	_, err := Compile(rules("((", "true", "))"))
	require.ErrorContains(t, err, "registration.policy[0]")
	require.ErrorContains(t, err, "registration.policy[2]")
	assert.NotContains(t, err.Error(), "registration.policy[1]")
}

func TestRuleOfNoRules(t *testing.T) {
	p, err := Compile(nil)
	require.NoError(t, err)
	assert.Nil(t, p)
	assert.Equal(t, registration.Ruling{}, p.Rule(someCase()))
	assert.Equal(t, registration.Ruling{}, Of(nil).Rule(RuleInput{}))
}

func TestRuleChangesNoInput(t *testing.T) {
	c := someCase()
	before := c.Request.DeepCopy()
	p, err := Compile(rules("true"))
	require.NoError(t, err)
	p.Rule(c)
	assert.Equal(t, before, c.Request)
}

// For any text of a rule, the hub does not crash, and approves no request because of an error.
func FuzzCompile(f *testing.F) {
	for _, seed := range []string{
		"true", "request.spec.clientID == 'a'", "cluster.x", "[1].map(x, x)", "'a'.matches('(((')", "request", "1/0 == 1",
		"timestamp(request.metadata.name) > timestamp('2026-01-01T00:00:00Z')", "request.?a.b.orValue(true)", "{'a': 1}['b'] == 2",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, expression string) {
		ruling := Of(rules(expression)).Rule(someCase())
		assert.NotEqual(t, registration.RulingApprove, ruling.Action)
		assert.NotContains(t, ruling.Message, "very-secret")
	})
}

package bundle

import (
	"strings"
	"testing"

	"github.com/Masterminds/sprig/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestFunctionNames(t *testing.T) {
	all := sprig.TxtFuncMap()
	for _, name := range functionNames {
		assert.Contains(t, all, name)
	}
}

func TestVariant_templates(t *testing.T) {
	east := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "east", Labels: map[string]string{"env": "dev", "n": "1", "x": "${ .ClusterName }"}}}
	east.Spec.TemplateValues = &fleet.GenericMap{Data: map[string]any{"big": int64(9007199254740993), "list": []any{"a"}}}
	long := strings.Repeat("x", maxArgument)
	for name, row := range map[string]struct {
		values    map[string]any
		templates map[string]string
		want      string
		err       string
	}{
		"deep, and part of a text":   {values: map[string]any{"a": []any{map[string]any{"b": "x-${ .ClusterName }"}}}, want: `{"a":[{"b":"x-east"}]}`},
		"a key":                      {values: map[string]any{"${ .ClusterName }": int64(1)}, want: `{"east":1}`},
		"a large number":             {values: map[string]any{"a": "${ .ClusterValues.big }"}, want: `{"a":9007199254740993}`},
		"a number in a label":        {values: map[string]any{"a": "${ .ClusterLabels.n }"}, want: `{"a":1}`},
		"quoted":                     {values: map[string]any{"a": "${ .ClusterLabels.n | quote }"}, want: `{"a":"1"}`},
		"a condition":                {values: map[string]any{"a": `${ if eq .ClusterLabels.env "dev" }small${ else }large${ end }`}, want: `{"a":"small"}`},
		"a default":                  {values: map[string]any{"a": `${ get .ClusterValues "none" | default "d" }`}, want: `{"a":"d"}`},
		"a label is no template":     {values: map[string]any{"a": "global.fleet.clusterLabels.x", "b": "${ .ClusterName }"}, want: `{"a":"${ .ClusterName }","b":"east"}`},
		"templateValues are YAML":    {values: map[string]any{"a": "old", "b": "kept"}, templates: map[string]string{"a": "x: ${ .ClusterName }\nz: [1]"}, want: `{"a":{"x":"east","z":[1]},"b":"kept"}`},
		"templateValues alone":       {templates: map[string]string{"a": "${ .ClusterNamespace }"}, want: `{"a":"ws"}`},
		"a label that is missing":    {values: map[string]any{"a": "${ .ClusterLabels.none }"}, err: `map has no entry for key "none"`},
		"no template":                {values: map[string]any{"a": "${ nothing }"}, err: `function "nothing" not defined`},
		"the environment":            {values: map[string]any{"a": `${ env "HOME" }`}, err: `function "env" not defined`},
		"another result each time":   {values: map[string]any{"a": `${ randAlpha 5 }`}, err: `function "randAlpha" not defined`},
		"a loop":                     {values: map[string]any{"a": "${ range .ClusterValues.list }x${ end }"}, err: "loops and calls of templates are not supported"},
		"a loop in a condition":      {values: map[string]any{"a": "${ if true }${ range .ClusterValues.list }x${ end }${ end }"}, err: "loops and calls of templates are not supported"},
		"a template that is defined": {values: map[string]any{"a": `${ define "x" }y${ end }`}, err: "define and block are not supported"},
		"a long text":                {values: map[string]any{"a": `${ replace "x" "` + long + `" (print "` + long + `" "x") }`}, err: "a text of more than 4096 bytes is passed to a function"},
		"a long result":              {values: map[string]any{"a": strings.Repeat(`${ replace "x" "`+long+`" "`+strings.Repeat("x", 300)+`" }`, 2)}, err: "the result has more than"},
		"many calls":                 {values: map[string]any{"a": strings.Repeat("${ upper .ClusterName }", maxCalls+1)}, err: "more than 1000 calls of functions"},
		"no YAML":                    {templates: map[string]string{"a": "${ .ClusterName }: ]"}, err: "the result of template a is not valid YAML"},
	} {
		t.Run(name, func(t *testing.T) {
			helm := &fleet.HelmOptions{TemplateValues: row.templates}
			if row.values != nil {
				helm.Values = &fleet.GenericMap{Data: row.values}
			}
			p := newPlan(bundleWith(func(s *fleet.BundleSpec) { s.Helm, s.Targets = helm, []fleet.BundleTarget{{}} }))
			require.Nil(t, p.problem)
			v, err := p.variant([]int{0}, east)
			if row.err != "" {
				var template *templateError
				require.ErrorAs(t, err, &template)
				require.ErrorContains(t, err, row.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, row.want, string(v.values))
			assert.Equal(t, row.templates, v.options.Helm.TemplateValues, "Fleet's hub leaves them in the options")

			west := east.DeepCopy()
			west.Name = "west"
			_, err = p.variant([]int{0}, west)
			require.NoError(t, err)
			again, err := p.variant([]int{0}, east)
			require.NoError(t, err)
			assert.Equal(t, v, again)
		})
	}
}

func TestReconcileTemplateError(t *testing.T) {
	s := newStage(t)
	before, broken := toAlice(), withValues("${ .ClusterLabels.env }")
	broken.Generation = 2
	alice := clusterNamed("alice")
	s.has(t, alice, broken, isReady(deployed(t, before)))
	cluster, out := s.reconcile(t, alice)
	assert.Empty(t, s.taken(), "what is deployed stays")
	assert.Equal(t, fleet.ReasonBundleInvalid, out.Reason)
	assert.Contains(t, out.Message, "Bundle app: the Helm values cannot be rendered")
	assert.Equal(t, "1/1", cluster.Status.Display.ReadyBundles)
	assert.Contains(t, s.shown(broken), `0/1 ErrApplied(1) [Cluster ws/alice: the Helm values cannot be rendered: template: values:1:20: executing "values" at <.ClusterLabels.env>`)

	labelled := alice.DeepCopy()
	labelled.Labels = map[string]string{"env": "dev"}
	s.has(t, labelled)
	_, out = s.reconcile(t, labelled)
	require.NoError(t, out.Err)
	assert.JSONEq(t, `{"v":"dev"}`, string(s.liveSecret(t).Data["values"]))
}

package templates

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/Masterminds/sprig/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"

	"github.com/muster-fleet/muster/internal/testenv/sample"
)

func TestFunctionNames(t *testing.T) {
	all := sprig.TxtFuncMap()
	for _, name := range functionNames {
		assert.Contains(t, all, name)
	}
}

func TestRender(t *testing.T) {
	long := strings.Repeat("x", maxArguments)
	east := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "east", Labels: map[string]string{"env": "dev", "n": "1", "x": "${ .ClusterName }"}}}
	east.Spec.TemplateValues = &fleet.GenericMap{Data: map[string]any{
		"big": int64(9007199254740993), "list": []any{"a"},
		"medium": map[string]any{"text": long, "b": int64(1)}, "large": map[string]any{"text": strings.Repeat("x", maxMap)},
	}}
	for name, row := range map[string]struct {
		values    map[string]any
		templates map[string]string
		want      string
		err       string
	}{
		"deep, and part of a text": {values: map[string]any{"a": []any{map[string]any{"b": "x-${ .ClusterName }"}}}, want: `{"a":[{"b":"x-east"}]}`},
		"a key":                    {values: map[string]any{"${ .ClusterName }": int64(1)}, want: `{"east":1}`},
		"a large number":           {values: map[string]any{"a": "${ .ClusterValues.big }"}, want: `{"a":9007199254740993}`},
		"a number in a label":      {values: map[string]any{"a": "${ .ClusterLabels.n }"}, want: `{"a":1}`},
		"quoted":                   {values: map[string]any{"a": "${ .ClusterLabels.n | quote }"}, want: `{"a":"1"}`},
		"a condition":              {values: map[string]any{"a": `${ if eq .ClusterLabels.env "dev" }small${ else }large${ end }`}, want: `{"a":"small"}`},
		"a default":                {values: map[string]any{"a": `${ get .ClusterValues "none" | default "d" }`}, want: `{"a":"d"}`},
		"templateValues are YAML":  {values: map[string]any{"a": "old", "b": "kept"}, templates: map[string]string{"a": "x: ${ .ClusterName }\nz: [1]"}, want: `{"a":{"x":"east","z":[1]},"b":"kept"}`},
		"values become a comment":  {values: map[string]any{`${ "#x" }`: int64(1)}, templates: map[string]string{"a": "${ .ClusterName }"}, want: `{"a":"east"}`},
		"templateValues alone":     {templates: map[string]string{"a": "${ .ClusterNamespace }"}, want: `{"a":"ws"}`},
		"a label that may be missing": {values: map[string]any{
			"a": `${ if hasKey .ClusterLabels "none" }${ .ClusterLabels.none }${ else }m${ end }`, "b": `${ get .ClusterLabels "env" | upper }`,
			"c": `${ dig "none" "d" .ClusterAnnotations }`,
		}, want: `{"a":"m","b":"DEV","c":"d"}`},
		"a label that is missing":    {values: map[string]any{"a": "${ .ClusterLabels.none }"}, err: `map has no entry for key "none"`},
		"no template":                {values: map[string]any{"a": "${ nothing }"}, err: `function "nothing" not defined`},
		"the environment":            {values: map[string]any{"a": `${ env "HOME" }`}, err: `function "env" not defined`},
		"another result each time":   {values: map[string]any{"a": `${ randAlpha 5 }`}, err: `function "randAlpha" not defined`},
		"a loop":                     {values: map[string]any{"a": "${ range .ClusterValues.list }x${ end }"}, err: "loops and calls of templates are not supported"},
		"a loop in a condition":      {values: map[string]any{"a": "${ if true }${ range .ClusterValues.list }x${ end }${ end }"}, err: "loops and calls of templates are not supported"},
		"a template that is defined": {values: map[string]any{"a": `${ define "x" }y${ end }`}, err: "define and block are not supported"},
		"a long text":                {values: map[string]any{"a": `${ replace "x" "` + long + `" (print "` + long + `" "x") }`}, err: "texts and lists of more than 4096 bytes are passed to a function"},
		"a long result":              {values: map[string]any{"a": strings.Repeat(`${ replace "x" "`+long[:2000]+`" "`+long[:2000]+`" }`, 1)}, err: "the results of the templates have more than 1048576 bytes"},
		"many commands":              {values: map[string]any{"a": strings.Repeat("${ .ClusterName }", maxCommands+1)}, err: "more than 1000 commands"},
		"commands in parentheses":    {values: map[string]any{"a": strings.Repeat("${ upper (.ClusterName) }", maxCommands/2+1)}, err: "more than 1000 commands"},
		"a text that doubles":        {values: map[string]any{"a": `${ $a := "xxxx" }` + strings.Repeat("${ $a = println $a $a }", 35)}, err: "texts and lists of more than 4096 bytes"},
		"texts that are escaped":     {values: map[string]any{"a": `${ $a := "<<<<" }` + strings.Repeat("${ $a = html $a $a }${ $a = js $a $a }${ $a = urlquery $a $a }", 20)}, err: "texts and lists of more than 4096 bytes"},
		"variables with results":     {values: map[string]any{"a": strings.Repeat(`${ $a := replace "x" "`+long[:700]+`" "`+long[:3000]+`" }`, 3)}, err: "the results of the functions and the steps of regular expressions exceed 4194304 in all"},
		"a list of empty texts":      {values: map[string]any{"a": `${ join "` + long[:2000] + `" (split "x" "` + long[:300] + `") }${ join "" (splitList "x" "` + long[:300] + `") }`}, err: "texts and lists of more than 4096 bytes"},
		"a wide number":              {values: map[string]any{"a": `${ printf "%1000000d" 1 }`}, err: "a width of printf has more than 3 digits"},
		"a width that is passed":     {values: map[string]any{"a": `${ printf "%-*d" 1000000 1 }`}, err: "a width of printf has more than 3 digits"},
		"a width":                    {values: map[string]any{"a": `${ printf "n-%03d" 1 }`}, want: `{"a":"n-001"}`},
		"a map that is repeated":     {values: map[string]any{"a": `${ printf "%[1]v%[1]v" .ClusterValues }`}, err: "a map is passed to printf"},
		"a map that is large":        {values: map[string]any{"a": `${ toJson .ClusterValues.large }`}, err: "a map of more than 65536 bytes"},
		"a map in a large one":       {values: map[string]any{"a": `${ dig "b" "none" .ClusterValues.medium }`}, want: `{"a":1}`},
		"a function of Go":           {values: map[string]any{"a": "${ call .ClusterName }"}, err: `function "call" is not supported`},
		"a regular expression":       {values: map[string]any{"a": `${ regexReplaceAll "[^a-z]+" .ClusterLabels.x "-" }`}, want: `{"a":"-luster-ame-"}`},
		"repetitions":                {values: map[string]any{"a": `${ regexMatch "(?:.?){1000}Z" "x" }`}, err: "a number of repetitions in a regular expression is not supported"},
		"slow regular expressions":   {values: map[string]any{"a": strings.Repeat(`${ regexMatch "`+strings.Repeat(".?", 1000)+`Z" "`+long[:2000]+`" }`, 2)}, err: "the results of the functions and the steps of regular expressions exceed 4194304 in all"},
		"YAML with aliases":          {templates: map[string]string{"a": "x: &x [1]\ny: [*x, *x]"}, err: "line 2 has a YAML alias"},
		"no YAML":                    {templates: map[string]string{"a": "${ .ClusterName }: ]"}, err: "the result of template a is not valid YAML"},
	} {
		t.Run(name, func(t *testing.T) {
			helm := &fleet.HelmOptions{TemplateValues: row.templates}
			if row.values != nil {
				helm.Values = &fleet.GenericMap{Data: row.values}
			}
			rendered, err := Render(t.Context(), helm, east)
			if row.err != "" {
				var failed *RenderError
				require.ErrorAs(t, err, &failed)
				require.ErrorContains(t, err, row.err)
				return
			}
			require.NoError(t, err)
			text, err := json.Marshal(rendered)
			require.NoError(t, err)
			assert.Equal(t, row.want, string(text))
		})
	}
}

// As YAML, each line is indented by its depth: 600 kB of values could become gigabytes. A template may be as short as a reference to the values of a
// Cluster, so that thousands of them fit in a Bundle, and all results are in memory at the same time.
func TestRender_memory(t *testing.T) {
	sample.Long(t)
	const depth, elements = 5000, 3000
	elementsOf := make([]any, elements)
	for i := range elementsOf {
		elementsOf[i] = int64(1)
	}
	var deep any = elementsOf
	for range depth {
		deep = map[string]any{"a": deep}
	}
	nested := strings.Repeat("${ if true }", 100_000) + strings.Repeat("${ end }", 100_000)
	cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "alice"}}
	cluster.Spec.TemplateValues = &fleet.GenericMap{Data: map[string]any{
		"list": "[1" + strings.Repeat(",1", 1<<19-10) + "]", "part": "[1" + strings.Repeat(",1", 1<<14-1) + "]", "text": strings.Repeat("x", 1<<14), "empty": "",
	}}
	times := func(n int, template string) map[string]string {
		templates := map[string]string{}
		for i := range n {
			templates[fmt.Sprintf("a%04d", i)] = template
		}
		return templates
	}
	for name, row := range map[string]struct {
		values    map[string]any
		templates map[string]string
		err       string
	}{
		"deep values":       {values: map[string]any{"a": deep, "b": "${ .ClusterName }"}, err: "as YAML they have more than 4096 KiB"},
		"nested conditions": {values: map[string]any{"a": nested}, err: "more than 5000 actions"},
		"a long list":       {templates: times(1, "${ .ClusterValues.list }"), err: "the results of the templates have more than 100000 keys and elements"},
		"a list that is repeated": {
			templates: times(100, "${ .ClusterValues.part }"), err: "the results of the templates have more than 100000 keys and elements",
		},
		"a text that is repeated": {
			values: map[string]any{"a": "${ .ClusterValues.text }"}, templates: times(200, "${ .ClusterValues.text }"),
			err: "the results of the templates have more than 1048576 bytes",
		},
		"results that are dropped": {
			templates: times(200, `${ $x := get .ClusterValues "part" }`), err: "the results of the functions and the steps of regular expressions exceed 4194304 in all",
		},
		"expressions that match no text": {
			templates: times(200, `${ $x := regexMatch "`+strings.Repeat(".?", 1000)+`" "" }`), err: "the results of the functions and the steps of regular expressions exceed 4194304 in all",
		},
		"many templates": {templates: times(1001, "a"), err: "helm.templateValues has 1001 entries; it may have 1000"},
		"many commands":  {templates: times(11, strings.Repeat("${ .ClusterValues.empty }", 1000)), err: "the templates have more than 10000 commands in all"},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Render(t.Context(), &fleet.HelmOptions{Values: &fleet.GenericMap{Data: row.values}, TemplateValues: row.templates}, cluster)
			runtime.ReadMemStats(&after)
			t.Logf("%d MiB, stack %d MiB", (after.TotalAlloc-before.TotalAlloc)>>20, (int64(after.StackSys)-int64(before.StackSys))>>20)
			assert.ErrorContains(t, err, row.err)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
			assert.Less(t, int64(after.StackSys)-int64(before.StackSys), int64(16<<20))
		})
	}
}

func TestRender_contextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Render(ctx, &fleet.HelmOptions{TemplateValues: map[string]string{"a": "${ .ClusterName }"}}, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "alice"}})
	require.ErrorIs(t, err, context.Canceled)
}

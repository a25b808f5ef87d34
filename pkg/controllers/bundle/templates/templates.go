// Package templates renders the templates in the Helm values of a Bundle for one Cluster. Every user of a workspace may write one, so it limits the time
// and the memory that the templates of a Bundle take.
package templates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/Masterminds/sprig/v3"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Limits of one template. Every user of a workspace may write one, and the hub renders it. Without loops, each command of a template is
// executed at most once, so these limits and those of a renderBudget bound the time and the memory that the templates of a Bundle take.
const (
	maxCommands   = 1000     // of a template: fields, functions and constants
	maxDelimiters = 5000     // of a template: actions, each of which may begin or end a condition
	maxArguments  = 4 << 10  // bytes of the texts and lists that are passed to one function, some of which multiply two lengths
	maxMap        = 64 << 10 // bytes of a map that is passed to a function, except to lookups
	maxDocument   = 4 << 20  // bytes of the values as YAML, in which each line has the indentation of its depth
	elementSize   = 16       // bytes that an element of a list or a map counts in addition to its value
	maxWidth      = 3        // digits of a width in a format of printf
)

// Limits of all templates of a Bundle for one Cluster. All results are in memory at the same time, and a Secret with Helm values has at most 1 MiB.
const (
	maxTemplates     = 1000    // entries of helm.templateValues
	maxTotalCommands = 10_000  // of the templates
	maxResults       = 4 << 20 // bytes of the results of all functions, because variables keep them
	maxRendered      = 1 << 20 // bytes of the results of the templates
	maxRenderedNodes = 100_000 // of YAML in these results: while it is parsed, a node takes some 250 bytes
	expressionCost   = 64      // steps for each character of a regular expression, to compile it
)

// MaxClusterValues limits the memory that spec.templateValues of a Cluster takes in the caches of the hub. Larger ones are dropped there.
const MaxClusterValues = 1 << 20

// functionNames are the functions of sprig that templates may use. The result of each depends on its arguments alone, because another
// result would deploy the Bundle again, and none of them reads from the hub's environment.
var functionNames = []string{
	"abbrev", "add", "add1", "adler32sum", "all", "any", "atoi", "b32dec", "b32enc", "b64dec", "b64enc", "base", "camelcase", "cat", "ceil",
	"clean", "coalesce", "contains", "default", "dig", "dir", "div", "empty", "ext", "fail", "first", "float64", "floor", "fromJson", "get",
	"has", "hasKey", "hasPrefix", "hasSuffix", "initials", "int", "int64", "isAbs", "join", "kebabcase", "kindIs", "kindOf", "last", "lower",
	"max", "min", "mod", "mul", "nospace", "pluck", "quote", "regexFind", "regexMatch", "regexReplaceAll", "regexReplaceAllLiteral",
	"replace", "round", "semver", "semverCompare", "sha1sum", "sha256sum", "sha512sum", "snakecase", "sortAlpha", "split", "splitList",
	"squote", "sub", "substr", "swapcase", "ternary", "title", "toDecimal", "toJson", "toRawJson", "toString", "trim", "trimAll",
	"trimPrefix", "trimSuffix", "trunc", "typeIs", "typeOf", "untitle", "upper",
}

// builtinNames are the functions of text/template that templates may use as they are: their results are not larger than their arguments.
// The others are replaced in newTemplateRenderer, or cannot be used.
var builtinNames = []string{"and", "or", "not", "len", "index", "slice", "eq", "ne", "lt", "le", "gt", "ge"}

// lookups are the functions that only look for keys in maps, which can be of any size.
var lookups = []string{"dig", "get", "hasKey", "pluck"}

// RenderError reports that the Helm values of a Bundle cannot be rendered for a Cluster. A retry does not help.
type RenderError struct{ cause error }

// Error returns the problem. The error of a template names the place.
func (e *RenderError) Error() string {
	return fmt.Sprintf("the Helm values cannot be rendered: %v", e.cause)
}

// AreIn reports whether the Helm values of a Bundle contain the delimiter of templates.
func AreIn(helm *fleet.HelmOptions) bool {
	if helm == nil || helm.DisablePreProcess {
		return false
	}
	return len(helm.TemplateValues) > 0 || containsTemplate(helm.Values.Map())
}

// containsTemplate reports whether a value, or a key, contains the delimiter of templates.
func containsTemplate(value any) bool {
	switch v := value.(type) {
	case string:
		return strings.Contains(v, "${")
	case map[string]any:
		for key, inner := range v {
			if containsTemplate(key) || containsTemplate(inner) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, containsTemplate)
	}
	return false
}

// Render renders helm.values as one YAML document, so a result may be of any type, and then each of helm.templateValues, which is
// a YAML document as well and replaces the value of its name. The error is a RenderError, or that of ctx.
func Render(ctx context.Context, helm *fleet.HelmOptions, cluster *fleet.Cluster) (*fleet.GenericMap, error) {
	rendered, err := renderValues(ctx, helm, cluster)
	if err != nil && ctx.Err() == nil {
		return nil, &RenderError{err}
	}
	return rendered, err
}

func renderValues(ctx context.Context, helm *fleet.HelmOptions, cluster *fleet.Cluster) (*fleet.GenericMap, error) {
	if cluster.Spec.TemplateValuesTooLarge {
		return nil, errors.New(registration.TooLarge(cluster.Spec.Excess, fmt.Sprintf(
			"spec.templateValues of the Cluster takes more than %d KiB of memory; make it smaller", MaxClusterValues>>10)))
	}
	if n := len(helm.TemplateValues); n > maxTemplates {
		return nil, fmt.Errorf("helm.templateValues has %d entries; it may have %d; let an entry have several values", n, maxTemplates)
	}
	r := newTemplateRenderer(data(cluster))
	var rendered map[string]any
	if helm.Values != nil {
		values := helm.Values.Map()
		if room := maxDocument; !fitsAsYAML(values, 0, &room) {
			return nil, fmt.Errorf("as YAML they have more than %d KiB, with the indentation of their lines; nest them less, or make them smaller", maxDocument>>10)
		}
		document, err := yaml.Marshal(values)
		if err != nil {
			return nil, err
		}
		if err := r.render("values", string(document), &rendered); err != nil {
			return nil, err
		}
	}
	if rendered == nil { // without values, and with a document that is a comment after it was rendered
		rendered = map[string]any{}
	}
	for _, name := range slices.Sorted(maps.Keys(helm.TemplateValues)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var value any
		if err := r.render(name, helm.TemplateValues[name], &value); err != nil {
			return nil, err
		}
		rendered[name] = value
	}
	return &fleet.GenericMap{Data: rendered}, nil
}

// fitsAsYAML reports whether a value has no more bytes as YAML than there is room. An element deep in the value has a line with an indentation of
// thousands of spaces.
func fitsAsYAML(value any, depth int, room *int) bool {
	const perLevel, perLine = 2, 4
	line := func(length int) bool {
		*room -= perLevel*depth + perLine + length
		return *room >= 0
	}
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if !line(len(key)) || !fitsAsYAML(inner, depth+1, room) {
				return false
			}
		}
	case []any:
		for _, inner := range v {
			if !fitsAsYAML(inner, depth+1, room) {
				return false
			}
		}
		return line(0)
	case string:
		return line(len(v) + strings.Count(v, "\n")*perLevel*depth)
	default:
		return line(0)
	}
	return *room >= 0
}

// Inputs returns the fields of a Cluster that templates may use. Its JSON identifies them; to encode it, values of the Cluster that are packed need not
// be decoded.
func Inputs(cluster *fleet.Cluster) map[string]any {
	return map[string]any{
		"ClusterName": cluster.Name, "ClusterNamespace": cluster.Namespace,
		"ClusterLabels": cluster.Labels, "ClusterAnnotations": cluster.Annotations, "ClusterValues": cluster.Spec.TemplateValues,
	}
}

// data returns the inputs as templates read them. Functions that look for keys, such as hasKey, need maps of any values.
func data(cluster *fleet.Cluster) map[string]any {
	ofAny := func(texts map[string]string) map[string]any {
		converted := map[string]any{}
		for key, text := range texts {
			converted[key] = text
		}
		return converted
	}
	inputs := Inputs(cluster)
	inputs["ClusterLabels"], inputs["ClusterAnnotations"] = ofAny(cluster.Labels), ofAny(cluster.Annotations)
	inputs["ClusterValues"] = map[string]any{}
	if cluster.Spec.TemplateValues != nil {
		inputs["ClusterValues"] = cluster.Spec.TemplateValues.Map()
	}
	return inputs
}

// templateRenderer renders the templates of a Bundle for one Cluster, within one budget.
type templateRenderer struct {
	data      map[string]any
	functions template.FuncMap
	budget    *renderBudget
}

func newTemplateRenderer(data map[string]any) *templateRenderer {
	b := &renderBudget{}
	functions := template.FuncMap{
		"print":    b.function("print", fmt.Sprint),
		"println":  b.function("println", fmt.Sprintln),
		"printf":   b.function("printf", fmt.Sprintf),
		"html":     b.function("html", template.HTMLEscaper),
		"js":       b.function("js", template.JSEscaper),
		"urlquery": b.function("urlquery", template.URLQueryEscaper),
	}
	all := sprig.TxtFuncMap()
	for _, name := range functionNames {
		functions[name] = b.function(name, all[name])
	}
	return &templateRenderer{data, functions, b}
}

// render executes a template and decodes the result as YAML.
func (r *templateRenderer) render(name, text string, into any) error {
	if strings.Count(text, "${") > maxDelimiters { // the parser and checkNode need stack for each nested condition
		return fmt.Errorf("template %s has more than %d actions; divide it", name, maxDelimiters)
	}
	parsed, err := template.New(name).Delims("${", "}").Option("missingkey=error").Funcs(r.functions).Parse(text)
	if err != nil {
		return err
	}
	if len(parsed.Templates()) > 1 {
		return errors.New("define and block are not supported")
	}
	commands := 0
	if err := checkNode(parsed.Root, r.functions, &commands); err != nil {
		return err
	}
	if r.budget.commands += commands; r.budget.commands > maxTotalCommands {
		return fmt.Errorf("the templates have more than %d commands in all; use several Bundles", maxTotalCommands)
	}
	out := &limitedBuffer{budget: r.budget}
	if err := parsed.Execute(out, r.data); err != nil {
		return err
	}
	if r.budget.nodes += registration.MostNodes(out.Bytes()); r.budget.nodes > maxRenderedNodes {
		return fmt.Errorf("the results of the templates have more than %d keys and elements; make them smaller, or use several Bundles", maxRenderedNodes)
	}
	if err := registration.RefuseAliases(out.Bytes()); err != nil {
		return fmt.Errorf("the result of template %s is not valid YAML: %w", name, err)
	}
	document, err := yaml.YAMLToJSON(out.Bytes())
	if err == nil {
		err = json.Unmarshal(document, into)
	}
	if err != nil {
		return fmt.Errorf("the result of template %s is not valid YAML: %w", name, err)
	}
	return nil
}

// checkNode returns an error for what can be executed more than once, which is loops and calls of templates; for more than maxCommands commands;
// and for functions that are neither wrapped with a limit nor in builtinNames.
func checkNode(node parse.Node, functions template.FuncMap, commands *int) error {
	var inner []parse.Node
	switch n := node.(type) {
	case *parse.ListNode:
		if n != nil {
			inner = n.Nodes
		}
	case *parse.ActionNode:
		inner = []parse.Node{n.Pipe}
	case *parse.IfNode:
		inner = []parse.Node{n.Pipe, n.List, n.ElseList}
	case *parse.WithNode:
		inner = []parse.Node{n.Pipe, n.List, n.ElseList}
	case *parse.PipeNode:
		if n == nil {
			return nil
		}
		for _, command := range n.Cmds {
			inner = append(inner, command)
		}
	case *parse.CommandNode:
		if *commands++; *commands > maxCommands {
			return fmt.Errorf("more than %d commands", maxCommands)
		}
		inner = n.Args
	case *parse.ChainNode:
		inner = []parse.Node{n.Node}
	case *parse.IdentifierNode:
		if _, limited := functions[n.Ident]; !limited && !slices.Contains(builtinNames, n.Ident) {
			return fmt.Errorf("function %q is not supported", n.Ident)
		}
	case *parse.TextNode, *parse.CommentNode, *parse.FieldNode, *parse.VariableNode, *parse.DotNode, *parse.NilNode, *parse.StringNode,
		*parse.NumberNode, *parse.BoolNode:
	default:
		return fmt.Errorf("%s: loops and calls of templates are not supported", node)
	}
	for _, node := range inner {
		if err := checkNode(node, functions, commands); err != nil {
			return err
		}
	}
	return nil
}

// renderBudget counts what the templates of a Bundle have taken for one Cluster.
type renderBudget struct {
	results  int // bytes of the results of functions, and steps of regular expressions
	commands int
	rendered int // bytes of the results of templates
	nodes    int // of YAML in them, at most
}

var (
	wideFormat = regexp.MustCompile(fmt.Sprintf(`%%[^a-zA-Z%%]*(\*|[0-9]{%d})`, maxWidth+1))
	repetition = regexp.MustCompile(`\{[0-9]`)
)

// function wraps a template function. The wrapper panics if the arguments are too large, or if the results of all functions are. text/template
// returns the panic as an error.
func (b *renderBudget) function(name string, function any) any {
	f := reflect.ValueOf(function)
	return reflect.MakeFunc(f.Type(), func(arguments []reflect.Value) []reflect.Value {
		given := arguments
		if f.Type().IsVariadic() {
			given = slices.Clone(arguments[:len(arguments)-1])
			for i, rest := 0, arguments[len(arguments)-1]; i < rest.Len(); i++ {
				given = append(given, rest.Index(i))
			}
		}
		sizes := 0
		for _, argument := range given {
			switch {
			case !isMap(argument):
				sizes += sizeOf(argument)
			case slices.Contains(lookups, name):
			case name == "printf": // a format can print the same map many times
				panic(errors.New("a map is passed to printf"))
			case sizeOf(argument) > maxMap:
				panic(fmt.Errorf("a map of more than %d bytes is passed to a function", maxMap))
			}
		}
		if sizes > maxArguments {
			panic(fmt.Errorf("texts and lists of more than %d bytes are passed to a function", maxArguments))
		}
		switch {
		case name == "printf" && wideFormat.MatchString(arguments[0].String()):
			panic(fmt.Errorf("a width of printf has more than %d digits", maxWidth))
		case strings.HasPrefix(name, "regex") && repetition.MatchString(arguments[0].String()):
			panic(errors.New("a number of repetitions in a regular expression is not supported"))
		case strings.HasPrefix(name, "regex"), name == "semverCompare":
			b.add(arguments[0].Len() * (expressionCost + arguments[1].Len())) // steps: those of the expression for each character of the text
		}

		call := f.Call
		if f.Type().IsVariadic() {
			call = f.CallSlice
		}
		results := call(arguments)
		for _, result := range results {
			b.add(sizeOf(result))
		}
		return results
	}).Interface()
}

func (b *renderBudget) add(size int) {
	if b.results += size; b.results > maxResults {
		panic(fmt.Errorf("the results of the functions and the steps of regular expressions exceed %d in all; make them smaller, or use several Bundles", maxResults))
	}
}

func isMap(value reflect.Value) bool {
	if value.Kind() == reflect.Interface {
		value = value.Elem()
	}
	return value.Kind() == reflect.Map
}

// sizeOf estimates the number of bytes that a value takes.
func sizeOf(value reflect.Value) (size int) {
	switch value.Kind() {
	case reflect.Interface:
		return sizeOf(value.Elem())
	case reflect.String:
		return value.Len()
	case reflect.Slice, reflect.Array:
		for i := range value.Len() {
			size += elementSize + sizeOf(value.Index(i))
		}
	case reflect.Map:
		for entries := value.MapRange(); entries.Next(); {
			size += elementSize + sizeOf(entries.Key()) + sizeOf(entries.Value())
		}
	default: // numbers and booleans, which lists and maps count
	}
	return size
}

// limitedBuffer has the result of a template. It refuses more than maxRendered bytes of all results.
type limitedBuffer struct {
	bytes.Buffer
	budget *renderBudget
}

// Write appends to the buffer.
func (b *limitedBuffer) Write(data []byte) (int, error) {
	if b.budget.rendered += len(data); b.budget.rendered > maxRendered {
		return 0, fmt.Errorf("the results of the templates have more than %d bytes; make them smaller, or use several Bundles", maxRendered)
	}
	return b.Buffer.Write(data)
}

package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/Masterminds/sprig/v3"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Limits of one template. Every user of a workspace may write one, and the hub renders it.
const (
	maxRendered = 1 << 20 // bytes of the result
	maxArgument = 4 << 10 // bytes of a text that is passed to a function, some of which multiply the lengths of two
	maxCalls    = 1000    // of functions
)

// functionNames are the functions of sprig that templates may use. The result of each depends on its arguments alone, because another
// result would deploy the Bundle again, and none of them builds lists or maps, reads from the hub's environment or needs long.
var functionNames = []string{
	"abbrev", "add", "add1", "adler32sum", "all", "any", "atoi", "b32dec", "b32enc", "b64dec", "b64enc", "base", "camelcase", "cat", "ceil",
	"clean", "coalesce", "contains", "default", "dig", "dir", "div", "empty", "ext", "fail", "first", "float64", "floor", "fromJson", "get",
	"has", "hasKey", "hasPrefix", "hasSuffix", "initials", "int", "int64", "isAbs", "join", "kebabcase", "kindIs", "kindOf", "last", "lower",
	"max", "min", "mod", "mul", "nospace", "pluck", "quote", "regexFind", "regexMatch", "regexReplaceAll", "regexReplaceAllLiteral",
	"replace", "round", "semver", "semverCompare", "sha1sum", "sha256sum", "sha512sum", "snakecase", "sortAlpha", "split", "splitList",
	"squote", "sub", "substr", "swapcase", "ternary", "title", "toDecimal", "toJson", "toRawJson", "toString", "trim", "trimAll",
	"trimPrefix", "trimSuffix", "trunc", "typeIs", "typeOf", "untitle", "upper",
}

// templateError reports that the Helm values of a Bundle cannot be rendered for a Cluster. A retry does not help.
type templateError struct{ error }

// Error says what is wrong. The text of a template names the place.
func (e *templateError) Error() string {
	return fmt.Sprintf("the Helm values cannot be rendered: %v", e.error)
}

// hasTemplate reports whether the Helm values of a Bundle contain the delimiter of templates.
func hasTemplate(helm *fleet.HelmOptions) bool {
	if helm == nil || helm.DisablePreProcess {
		return false
	}
	return len(helm.TemplateValues) > 0 || helm.Values != nil && containsTemplate(helm.Values.Data)
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

// templateData are the fields of a Cluster that templates may use.
func templateData(cluster *fleet.Cluster) map[string]any {
	values := map[string]any{}
	if cluster.Spec.TemplateValues != nil {
		values = cluster.Spec.TemplateValues.Data
	}
	return map[string]any{
		"ClusterName": cluster.Name, "ClusterNamespace": cluster.Namespace,
		"ClusterLabels": cluster.Labels, "ClusterAnnotations": cluster.Annotations, "ClusterValues": values,
	}
}

// renderValues renders helm.values as one YAML document, so a result may be of any type, and then each of helm.templateValues, which is
// a YAML document as well and replaces the value of its name.
func renderValues(helm *fleet.HelmOptions, cluster *fleet.Cluster) (*fleet.GenericMap, error) {
	rendered, data := map[string]any{}, templateData(cluster)
	if helm.Values != nil {
		document, err := yaml.Marshal(helm.Values.Data)
		if err != nil {
			return nil, err
		}
		if err := render("values", string(document), data, &rendered); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(helm.TemplateValues)) {
		var value any
		if err := render(name, helm.TemplateValues[name], data, &value); err != nil {
			return nil, err
		}
		rendered[name] = value
	}
	return &fleet.GenericMap{Data: rendered}, nil
}

// render executes a template and decodes the result as YAML.
func render(name, text string, data map[string]any, into any) error {
	calls := 0
	functions := template.FuncMap{}
	all := sprig.TxtFuncMap()
	for _, function := range functionNames {
		functions[function] = limited(all[function], &calls)
	}
	functions["print"], functions["printf"] = limited(fmt.Sprint, &calls), limited(fmt.Sprintf, &calls)
	parsed, err := template.New(name).Delims("${", "}").Option("missingkey=error").Funcs(functions).Parse(text)
	if err != nil {
		return err
	}
	if len(parsed.Templates()) > 1 {
		return errors.New("define and block are not supported")
	}
	if err := checkNodes(parsed.Root); err != nil {
		return err
	}
	out := &limitedBuffer{}
	if err := parsed.Execute(out, data); err != nil {
		return err
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

// checkNodes refuses what may run long: loops, and templates that call others or themselves.
func checkNodes(node parse.Node) error {
	switch n := node.(type) {
	case *parse.RangeNode, *parse.TemplateNode:
		return fmt.Errorf("%s: loops and calls of templates are not supported", node)
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		for _, inner := range n.Nodes {
			if err := checkNodes(inner); err != nil {
				return err
			}
		}
	case *parse.IfNode:
		return errors.Join(checkNodes(n.List), checkNodes(n.ElseList))
	case *parse.WithNode:
		return errors.Join(checkNodes(n.List), checkNodes(n.ElseList))
	}
	return nil
}

// limited makes a function count its calls and refuse long texts. The template turns a panic into its error.
func limited(function any, calls *int) any {
	f := reflect.ValueOf(function)
	return reflect.MakeFunc(f.Type(), func(arguments []reflect.Value) []reflect.Value {
		if *calls++; *calls > maxCalls {
			panic(fmt.Errorf("more than %d calls of functions", maxCalls))
		}
		for _, argument := range arguments {
			if length(argument) > maxArgument {
				panic(fmt.Errorf("a text of more than %d bytes is passed to a function", maxArgument))
			}
		}
		if f.Type().IsVariadic() {
			return f.CallSlice(arguments)
		}
		return f.Call(arguments)
	}).Interface()
}

// length is the number of bytes of a text, or of the texts in a list.
func length(value reflect.Value) (bytes int) {
	switch value.Kind() {
	case reflect.Interface:
		return length(value.Elem())
	case reflect.String:
		return value.Len()
	case reflect.Slice, reflect.Array:
		for i := range value.Len() {
			bytes += length(value.Index(i))
		}
	default: // numbers and booleans are short
	}
	return bytes
}

// limitedBuffer refuses more than maxRendered bytes.
type limitedBuffer struct{ bytes.Buffer }

// Write appends to the buffer.
func (b *limitedBuffer) Write(data []byte) (int, error) {
	if b.Len()+len(data) > maxRendered {
		return 0, fmt.Errorf("the result has more than %d bytes", maxRendered)
	}
	return b.Buffer.Write(data)
}

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Output formats besides those of kubectl's printers. Without a format, the output is human-readable text.
const (
	formatWide       = "wide"
	formatValues     = "values"
	formatClusternet = "clusternet"
)

const flagNoHeaders = "no-headers"

// outputFlag returns the flag --output, which accepts the given formats and those of kubectl's printers.
func outputFlag(formats ...string) cli.Flag {
	known := slices.Concat(formats, []string{"name", "json", "yaml", "jsonpath=TEMPLATE", "go-template=TEMPLATE"})
	return &cli.StringFlag{
		Name: flagOutput, Aliases: []string{"o"},
		Usage: "`FORMAT` of the output: " + strings.Join(known, ", ") + "; default: human-readable text",
		Action: func(_ *cli.Context, value string) error {
			if value == "" || slices.Contains(formats, value) {
				return nil
			}
			_, err := objectPrinter(value)
			if genericclioptions.IsNoCompatiblePrinterError(err) {
				err = fmt.Errorf("--output is %q: it must be one of %s", value, strings.Join(known, ", "))
			}
			return err
		},
	}
}

func objectPrinter(format string) (printers.ResourcePrinter, error) {
	if format == "" { // the library would return the printer of names
		return nil, genericclioptions.NoCompatiblePrinterError{}
	}
	return genericclioptions.NewPrintFlags("").WithDefaultOutput(format).ToPrinter()
}

// object converts a summary to an object with apiVersion, kind, name and namespace, which the printers of kubectl require.
func object(kind, namespace, name string, summary any) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(summary)
	if err != nil {
		return nil, err
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, &o.Object); err != nil {
		return nil, err
	}
	o.SetAPIVersion(fleet.SchemeGroupVersion.String())
	o.SetKind(kind)
	o.SetName(name)
	o.SetNamespace(namespace)
	return o, nil
}

// printObject prints a summary if the format is one of kubectl's printers, and returns whether it is.
func printObject(c *cli.Context, w io.Writer, kind, namespace, name string, summary any) (done bool, err error) {
	printer, err := objectPrinter(c.String(flagOutput))
	if err != nil {
		return false, nil //nolint:nilerr // outputFlag has refused unknown formats, so this is a format that the command itself prints
	}
	o, err := object(kind, namespace, name, summary)
	if err != nil {
		return true, err
	}
	return true, printer.PrintObj(o, w)
}

// columns defines the table for the summaries of a kind. Wide output also has the columns in wideHeader.
type columns[T any] struct {
	kind               string
	name               func(T) (namespace, name string)
	header, wideHeader []string
	row, wideRow       func(item T, now time.Time) []string
}

// printing prints summaries in one format, in one call or several.
type printing[T any] struct {
	columns[T]
	out     io.Writer
	printer printers.ResourcePrinter
	// table is nil for the formats of kubectl's printers, which print objects instead of a table.
	table interface {
		io.Writer
		Flush() error
	}
	now func() time.Time
}

// in returns a printing in the given format.
func (t columns[T]) in(format string, noHeaders bool, s Streams) printing[T] {
	if printer, err := objectPrinter(format); err == nil {
		return printing[T]{t, s.Out, printer, nil, s.Now}
	}
	options := printers.PrintOptions{Wide: format == formatWide, NoHeaders: noHeaders}
	return printing[T]{t, s.Out, printers.NewTablePrinter(options), printers.GetNewTabWriter(s.Out), s.Now}
}

// list prints one list.
func (l printing[T]) list(items []T) error {
	if l.table != nil {
		return l.each(items...)
	}
	all := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}, Items: []unstructured.Unstructured{}}
	for _, item := range items {
		namespace, name := l.name(item)
		o, err := object(l.kind, namespace, name, item)
		if err != nil {
			return err
		}
		all.Items = append(all.Items, *o)
	}
	return l.printer.PrintObj(all, l.out)
}

// each prints objects one after the other, and the header of a table only before the first.
func (l printing[T]) each(items ...T) error {
	if l.table == nil {
		for _, item := range items {
			namespace, name := l.name(item)
			o, err := object(l.kind, namespace, name, item)
			if err != nil {
				return err
			}
			if err := l.printer.PrintObj(o, l.out); err != nil {
				return err
			}
		}
		return nil
	}
	var rows [][]string
	for _, item := range items {
		rows = append(rows, append(l.row(item, l.now()), l.wideRow(item, l.now())...))
	}
	if err := l.printer.PrintObj(view.Table(l.header, l.wideHeader, rows), l.table); err != nil {
		return err
	}
	return l.table.Flush()
}

func listFlags(more ...cli.Flag) []cli.Flag {
	return slices.Concat(hubFlags(), []cli.Flag{
		&cli.BoolFlag{Name: flagAll, Aliases: []string{"A"}, Usage: "list across all namespaces"},
		outputFlag(formatWide),
		&cli.BoolFlag{Name: flagNoHeaders, Usage: "print the table without its headings"},
	}, more)
}

// list is the action of a command that lists objects. fetch returns their summaries.
func list[T any](s Streams, kind, none string, fetch func(c *cli.Context, hub *namespacedHub, namespace string) ([]T, error), table columns[T]) cli.ActionFunc {
	return withoutArguments(func(c *cli.Context) error {
		hub, err := connect(c)
		if err != nil {
			return err
		}
		namespace, where := scope(c, hub)
		items, err := fetch(c, hub, namespace)
		if err != nil {
			return fmt.Errorf("list %s: %w", kind, hub.Explain(err, namespace))
		}
		out := table.in(c.String(flagOutput), c.Bool(flagNoHeaders), s)
		if len(items) == 0 && out.table != nil {
			fmt.Fprintln(s.Err, none+" "+where+".")
			return nil
		}
		return out.list(items)
	})
}

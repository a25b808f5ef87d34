package check

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

var marks = map[Verdict]string{Pass: "√", Warn: "‼", Fail: "×", Unknown: "?"}

const (
	colourOff = "\x1b[0m"
	bold      = "\x1b[1m"
)

var colours = map[Verdict]string{Pass: "\x1b[32m", Warn: "\x1b[33m", Fail: "\x1b[31m", Unknown: "\x1b[36m"}

// Formats are the formats of Report.
var Formats = []string{"", FormatWide, formatJSON}

// FormatWide is text with all checks.
const (
	FormatWide = "wide"
	formatJSON = "json"
)

// Report writes the Diagnosis in one of the Formats, in colour if w is a terminal. The error contains the exit code; it is nil for ExitGood.
func (d Diagnosis) Report(w io.Writer, format string) error {
	switch format {
	case formatJSON:
		if err := d.PrintJSON(w); err != nil {
			return err
		}
	case FormatWide:
		d.Print(w, printers.AllowsColorOutput(w))
	default:
		d.PrintShort(w, printers.AllowsColorOutput(w))
	}
	if code := d.ExitCode(); code != ExitGood {
		return cli.Exit("", code)
	}
	return nil
}

// Print writes the Diagnosis as text: the summary, then each category with a line for each check.
func (d Diagnosis) Print(w io.Writer, colour bool) {
	fmt.Fprintln(w, painter(colour)(bold, printable(d.Summary)))
	category := ""
	for _, line := range d.Checks {
		if line.Category != category {
			category = line.Category
			fmt.Fprintf(w, "\n%s\n%s\n", category, strings.Repeat("-", len(category)))
		}
		line.print(w, colour)
	}
	d.printLeftOut(w)
}

// PrintShort writes what a person has to know: the summary with the remedy, the other checks that did not pass and were not skipped, and,
// unless the Diagnosis passed, the number of checks with each result.
func (d Diagnosis) PrintShort(w io.Writer, colour bool) {
	fmt.Fprintln(w, painter(colour)(bold, printable(d.Summary)))
	count, first := countResults(d.Checks), -1
	if d.Result != Pass {
		first = firstWith(d.Checks, d.Result)
		d.Checks[first].printRemedy(w)
	}
	for i, line := range d.Checks {
		if i != first && line.Result != Pass && line.SkippedBecause == "" {
			fmt.Fprintln(w)
			line.print(w, colour)
		}
	}
	d.printLeftOut(w)
	if d.Result == Pass {
		return
	}
	var parts []string
	for _, part := range []struct {
		result Verdict
		text   string
	}{{Pass, "passed"}, {Fail, "failed"}, {Warn, "with a warning"}, {Unknown, "unknown"}, {"", "skipped because of these"}} {
		if count[part.result] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[part.result], part.text))
		}
	}
	fmt.Fprintf(w, "\n%d checks: %s (-o %s lists all).\n", len(d.Checks), strings.Join(parts, ", "), FormatWide)
}

func painter(colour bool) func(code, text string) string {
	return func(code, text string) string {
		if !colour || code == "" {
			return text
		}
		return code + text + colourOff
	}
}

// print writes the result of a check, and if it did not pass, the detail and the remedy.
func (l Line) print(w io.Writer, colour bool) {
	text := l.Check
	if l.Result == Pass && l.Detail != "" {
		text += " (" + printable(l.Detail) + ")"
	}
	if l.SkippedBecause != "" {
		text += ": skipped because of " + l.SkippedBecause
	}
	fmt.Fprintf(w, "%s %s\n", painter(colour)(colours[l.Result], marks[l.Result]), text)
	if l.Result != Pass && l.SkippedBecause == "" {
		fmt.Fprintf(w, "    %s\n", printable(l.Detail))
		l.printRemedy(w)
	}
}

func (l Line) printRemedy(w io.Writer) {
	fmt.Fprintf(w, "    %s\n    see %s\n", l.Hint, l.Documentation)
}

func (d Diagnosis) printLeftOut(w io.Writer) {
	if len(d.LeftOut) > 0 {
		fmt.Fprintf(w, "\nLeft out, because you lack the rights that they need: %s.\n", strings.Join(d.LeftOut, ", "))
	}
}

// PrintJSON writes the Diagnosis as JSON.
func (d Diagnosis) PrintJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(d)
}

// maxPrinted is the maximum length of a text in bytes. Longer texts are cut.
const maxPrinted = 2000

// printable makes a text that a member may have written safe to print: it cuts the text, joins its lines, and replaces characters that a
// terminal would interpret.
func printable(text string) string {
	return strings.Join(strings.Fields(view.Visible(fleetstatus.Cut(text, maxPrinted))), " ")
}

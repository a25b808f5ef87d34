package check

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/muster-fleet/muster/internal/view"
)

// Page is the file that documents the checks, with a section for each.
const Page = "docs/checks.md"

var marks = map[Verdict]string{Pass: "√", Warn: "‼", Fail: "×", Unknown: "?"}

const (
	colourOff = "\x1b[0m"
	bold      = "\x1b[1m"
)

var colours = map[Verdict]string{Pass: "\x1b[32m", Warn: "\x1b[33m", Fail: "\x1b[31m", Unknown: "\x1b[36m"}

// Report writes the Diagnosis as JSON if the format is "json", and otherwise as text, in colour if w is a terminal. The error contains the exit
// code; it is nil for ExitGood.
func (d Diagnosis) Report(w io.Writer, format string) error {
	if format == "json" {
		if err := d.PrintJSON(w); err != nil {
			return err
		}
	} else {
		d.Print(w, printers.AllowsColorOutput(w))
	}
	if code := d.ExitCode(); code != ExitGood {
		return cli.Exit("", code)
	}
	return nil
}

// Print writes the Diagnosis as text: the summary, then each category with a line for each check.
func (d Diagnosis) Print(w io.Writer, colour bool) {
	paint := func(code, text string) string {
		if !colour || code == "" {
			return text
		}
		return code + text + colourOff
	}
	fmt.Fprintln(w, paint(bold, printable(d.Summary)))
	category := ""
	for _, line := range d.Checks {
		if line.Category != category {
			category = line.Category
			fmt.Fprintf(w, "\n%s\n%s\n", category, strings.Repeat("-", len(category)))
		}
		text := line.Check
		if line.Result == Pass && line.Detail != "" {
			text += " (" + printable(line.Detail) + ")"
		}
		if line.SkippedBecause != "" {
			text += ": skipped because of " + line.SkippedBecause
		}
		fmt.Fprintf(w, "%s %s\n", paint(colours[line.Result], marks[line.Result]), text)
		if line.Result == Pass || line.SkippedBecause != "" {
			continue
		}
		for _, more := range []string{printable(line.Detail), line.Hint, "see " + line.Documentation} {
			fmt.Fprintf(w, "    %s\n", more)
		}
	}
	d.printLeftOut(w)
}

func (d Diagnosis) printLeftOut(w io.Writer) {
	if len(d.LeftOut) > 0 {
		fmt.Fprintf(w, "\nLeft out, because you may not read what they need: %s.\n", strings.Join(d.LeftOut, ", "))
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
	if len(text) > maxPrinted {
		text = text[:maxPrinted] + "..."
	}
	return strings.Join(strings.Fields(view.Visible(text)), " ")
}

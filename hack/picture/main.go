// Command picture draws the output of make demo, which it reads from standard input, as an SVG on standard output.
package main

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Sizes in pixels, for a monospaced font of 13 pixels.
const (
	character = 8
	line      = 18
	margin    = 20
)

// Rows that are longer than columns are continued below, so that the text is large enough to read where the picture is shown.
const (
	columns      = 104
	continuation = "               "
)

// The colours of a dark terminal.
const (
	background = "#0d1117"
	normal     = "#e6edf3"
	dim        = "#8b949e"
	green      = "#3fb950"
)

// step is a line of a step that has passed: a sign, its duration and its title.
var step = regexp.MustCompile(`^(  )(ok)( .*)$`)

func main() {
	if err := draw(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

// draw writes one row for each line of in. The same lines give the same bytes.
func draw(in io.Reader, out io.Writer) error {
	var rows []string
	scanner := bufio.NewScanner(in)
	for scanner.Scan() {
		row := strings.TrimRight(scanner.Text(), " ")
		if row == "" && (len(rows) == 0 || rows[len(rows)-1] == "") {
			continue
		}
		rows = append(rows, wrapped(row)...)
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("reading the output of the demo: %w", err)
	}
	for len(rows) > 0 && rows[len(rows)-1] == "" {
		rows = rows[:len(rows)-1]
	}
	if len(rows) == 0 {
		return fmt.Errorf("the output of the demo is empty")
	}

	width, height := columns*character+2*margin, line*len(rows)+2*margin
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="The output of make demo">`+"\n", width, height, width, height)
	fmt.Fprintf(&svg, `<rect width="100%%" height="100%%" rx="8" fill="%s"/>`+"\n", background)
	fmt.Fprintf(&svg, `<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="13" fill="%s">`+"\n", normal)
	for i, row := range rows {
		if row != "" {
			fmt.Fprintf(&svg, `<text x="%d" y="%d" xml:space="preserve">%s</text>`+"\n", margin, margin+line*(i+1)-5, styled(row))
		}
	}
	svg.WriteString("</g>\n</svg>\n")
	_, err := io.WriteString(out, svg.String())
	return err
}

// wrapped breaks a row at spaces.
func wrapped(row string) (rows []string) {
	for utf8.RuneCountInString(row) > columns {
		cut := strings.LastIndexByte(row[:columns], ' ')
		if cut <= len(continuation) {
			break // one long word
		}
		rows = append(rows, row[:cut])
		row = continuation + strings.TrimLeft(row[cut:], " ")
	}
	return append(rows, row)
}

// styled colours the sign of a step, and the commands and notes below it.
func styled(row string) string {
	if parts := step.FindStringSubmatch(row); parts != nil {
		return fmt.Sprintf(`%s<tspan fill="%s">%s</tspan>%s`, parts[1], green, parts[2], html.EscapeString(parts[3]))
	}
	if strings.HasPrefix(row, "       ") {
		return fmt.Sprintf(`<tspan fill="%s">%s</tspan>`, dim, html.EscapeString(row))
	}
	return html.EscapeString(row)
}

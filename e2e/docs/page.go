// Package docs runs the commands of the documentation, so that none of them is wrong.
//
// The test runs each page of Pages from top to bottom, like a reader with one terminal. In the Markdown of a page,
//
//   - a block with the fence sh has commands to run;
//   - a comment that begins with the line "<!-- test:" has commands that the test runs at that place and the page does not show: those that
//     each reader does differently, and those that prepare the next section;
//   - a comment "<!-- prints: REGEXP -->" below a block must match the output of the block;
//   - a block with the fence console has commands that no test can run, below a comment "<!-- not run: REASON -->";
//   - a block with the fence text, yaml, json or mermaid has no commands. Any other fence is an error, because the test would not run its
//     commands.
package docs

import (
	"fmt"
	"regexp"
	"strings"
)

// Pages are run in this order: each page continues where the previous one ends.
var Pages = []string{"docs/install.md", "docs/operations.md"}

// Block has commands of a page that are run together.
type Block struct {
	Page    string
	Line    int    // first line of the commands
	Heading string // heading of its section
	Script  string
	Hidden  bool             // the page does not show it
	Prints  []*regexp.Regexp // its output must match all of them
}

// String returns the place of the block.
func (b Block) String() string {
	hidden := ""
	if b.Hidden {
		hidden = " (not shown)"
	}
	return fmt.Sprintf("%s:%d %s%s", b.Page, b.Line, b.Heading, hidden)
}

const (
	fence   = "```"
	shell   = "sh"
	console = "console"
)

var (
	// otherFence matches a fence of another kind, or an indented one, as in a list.
	otherFence = regexp.MustCompile("^(\\s+`{3}|\\s*~{3})")

	heading = regexp.MustCompile(`^#+ (.+)$`)
	hidden  = regexp.MustCompile(`^<!-- test:$`)
	prints  = regexp.MustCompile(`^<!-- prints: (.+) -->$`)
	notRun  = regexp.MustCompile(`^<!-- not run: .{10,} -->$`)
)

// Parse returns the blocks of a page. An error begins with the line that breaks the rules; for a block without an end, with the last line of the
// page.
func Parse(page, text string) ([]Block, error) {
	p := &parser{page: page, lines: strings.Split(text, "\n")}
	for p.next < len(p.lines) {
		if err := p.line(); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", page, p.next, err)
		}
	}
	return p.blocks, nil
}

type parser struct {
	page    string
	lines   []string
	next    int
	heading string
	before  string // the last line that was not empty
	blocks  []Block
}

func (p *parser) line() error {
	line := p.lines[p.next]
	p.next++
	language, fenced := strings.CutPrefix(line, fence)
	switch {
	case fenced:
		return p.fenced(language)
	case otherFence.MatchString(line):
		return fmt.Errorf("only a block that begins with %s at the beginning of a line is run", fence)
	case hidden.MatchString(line):
		return p.block("-->", true)
	case prints.MatchString(line):
		return p.prints(prints.FindStringSubmatch(line)[1])
	case heading.MatchString(line):
		p.heading = heading.FindStringSubmatch(line)[1]
	}
	if strings.TrimSpace(line) != "" {
		p.before = line
	}
	return nil
}

func (p *parser) fenced(language string) error {
	switch language {
	case shell:
		return p.block(fence, false)
	case console:
		if !notRun.MatchString(p.before) {
			return fmt.Errorf("a %s block needs a comment <!-- not run: REASON --> above it", console)
		}
	case "text", "yaml", "json", "mermaid":
	default:
		return fmt.Errorf("a block with the fence %q: use %s for commands that are run, %s for other commands, and text, yaml, json or mermaid without commands", language, shell, console)
	}
	_, err := p.until(fence)
	return err
}

func (p *parser) block(end string, hidden bool) error {
	begin := p.next
	script, err := p.until(end)
	if err != nil {
		return err
	}
	p.blocks = append(p.blocks, Block{Page: p.page, Line: begin + 1, Heading: p.heading, Script: script, Hidden: hidden})
	return nil
}

// until returns the lines before the given end, and continues after it.
func (p *parser) until(end string) (string, error) {
	begin := p.next
	for ; p.next < len(p.lines); p.next++ {
		if p.lines[p.next] == end {
			p.next++
			p.before = end
			return strings.Join(p.lines[begin:p.next-1], "\n") + "\n", nil
		}
	}
	return "", fmt.Errorf("the block that begins in line %d has no end %q", begin, end)
}

func (p *parser) prints(pattern string) error {
	if len(p.blocks) == 0 {
		return fmt.Errorf("there is no block above that could print %q", pattern)
	}
	expression, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	last := &p.blocks[len(p.blocks)-1]
	last.Prints = append(last.Prints, expression)
	return nil
}

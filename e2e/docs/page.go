// Package docs runs the commands of the documentation, so that none of them is wrong.
//
// A page of Pages is run from top to bottom as a reader with one terminal would do it. In its Markdown
//
//   - a block fenced as sh is run as it stands;
//   - a comment that begins with the line "<!-- test:" holds commands that the test runs at that place and the page does
//     not show: what every reader does in another way, and what makes room for the next section;
//   - a comment "<!-- prints: REGEXP -->" below a block says what must be in its output;
//   - commands that no test can run are fenced as console, below a comment "<!-- not run: REASON -->";
//   - what is no command is fenced as text, yaml, json or mermaid. Any other fence is refused: commands in it would be run by readers only.
package docs

import (
	"fmt"
	"regexp"
	"strings"
)

// Pages are the pages that are run, in this order: each goes on where the one before it ends.
var Pages = []string{"docs/install.md", "docs/operations.md"}

// Block is some commands of a page that are run together.
type Block struct {
	Page    string
	Line    int    // in which it begins, for people who look for it
	Heading string // of the section it is in
	Script  string
	Hidden  bool             // a reader does not see it
	Prints  []*regexp.Regexp // what its output must have
}

// String says where the block is.
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
	// A fence of another kind, or one that is indented, as in a list.
	otherFence = regexp.MustCompile("^(\\s+`{3}|\\s*~{3})")

	heading = regexp.MustCompile(`^#+ (.+)$`)
	hidden  = regexp.MustCompile(`^<!-- test:$`)
	prints  = regexp.MustCompile(`^<!-- prints: (.+) -->$`)
	notRun  = regexp.MustCompile(`^<!-- not run: .{10,} -->$`)
)

// Parse finds the blocks of a page. An error says in which line the page breaks the rules.
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
		return fmt.Errorf("a block begins with %s at the beginning of its line, or it is not run", fence)
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
		return fmt.Errorf("a block of %q: commands that are run are %s, others %s, and what is no command is text, yaml, json or mermaid", language, shell, console)
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

// until reads to the line that is the end.
func (p *parser) until(end string) (string, error) {
	begin := p.next
	for ; p.next < len(p.lines); p.next++ {
		if p.lines[p.next] == end {
			p.next++
			p.before = end
			return strings.Join(p.lines[begin:p.next-1], "\n") + "\n", nil
		}
	}
	return "", fmt.Errorf("what begins in line %d has no end %q", begin, end)
}

func (p *parser) prints(pattern string) error {
	if len(p.blocks) == 0 {
		return fmt.Errorf("nothing was run that could print %q", pattern)
	}
	expression, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	last := &p.blocks[len(p.blocks)-1]
	last.Prints = append(last.Prints, expression)
	return nil
}

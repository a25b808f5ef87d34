package docs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// page returns a Markdown page. ~~~ stands for the fence, because a raw string of Go cannot contain backquotes.
func page(lines ...string) string {
	return strings.ReplaceAll(strings.Join(lines, "\n"), "~~~", fence)
}

func TestParsePage(t *testing.T) {
	blocks, err := Parse("docs/p.md", page(
		"# First", "",
		"~~~sh", "one", "two", "~~~",
		"<!-- prints: ^a.c$ -->",
		"## Second",
		"<!-- test:", "hidden", "-->",
		"~~~yaml", "not: run", "~~~",
		"<!-- not run: needs another machine -->", "",
		"~~~console", "never", "~~~",
		"~~~sh", "three", "~~~",
	))
	require.NoError(t, err)
	require.Len(t, blocks, 3)
	assert.Equal(t, "docs/p.md:4 First", blocks[0].String())
	assert.Equal(t, "one\ntwo\n", blocks[0].Script)
	require.Len(t, blocks[0].Prints, 1)
	assert.Equal(t, "^a.c$", blocks[0].Prints[0].String())
	assert.Equal(t, "docs/p.md:10 Second (not shown)", blocks[1].String())
	assert.Equal(t, "hidden\n", blocks[1].Script)
	assert.Equal(t, "three\n", blocks[2].Script)
	assert.Empty(t, blocks[2].Prints)
}

func TestParsePageErrors(t *testing.T) {
	for name, row := range map[string]struct{ text, want string }{
		"a block without an end":           {page("~~~sh", "one"), "docs/p.md:2: the block that begins in line 1"},
		"a hidden block without an end":    {page("", "<!-- test:", "one"), "docs/p.md:3: the block that begins in line 2"},
		"console without a reason":         {page("text", "~~~console", "one", "~~~"), "docs/p.md:2: a console block"},
		"console with an empty reason":     {page("<!-- not run:  -->", "~~~console", "one", "~~~"), "docs/p.md:2: a console block"},
		"commands with another fence":      {page("~~~bash", "one", "~~~"), `docs/p.md:1: a block with the fence "bash"`},
		"a fence without a language":       {page("~~~", "one", "~~~"), `docs/p.md:1: a block with the fence ""`},
		"an indented block":                {page("1. list", "   ~~~sh", "   one", "   ~~~"), "docs/p.md:2: only a block that begins with"},
		"tildes":                           {"~~~sh\none\n~~~", "docs/p.md:1: only a block that begins with"},
		"a longer fence":                   {page("~~~`sh", "one", "~~~`"), "docs/p.md:1: a block with the fence \"`sh\""},
		"prints without anything that ran": {page("<!-- prints: a -->"), "docs/p.md:1: there is no block above"},
		"prints with a broken expression":  {page("~~~sh", "one", "~~~", "<!-- prints: ( -->"), "docs/p.md:4: error parsing regexp"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("docs/p.md", row.text)
			require.ErrorContains(t, err, row.want)
		})
	}
}

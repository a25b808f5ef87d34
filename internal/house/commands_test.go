package house

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	urfave "github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/cli"
)

var inline = regexp.MustCompile("`([^`\n]+)`")

// CI runs the commands in code blocks, but not the commands in sentences. This test checks that their target, script, command of muster and
// flags exist.
func TestCommandsInTheDocumentationExist(t *testing.T) {
	app := cli.App(cli.Streams{})
	named := 0
	for _, page := range append(pages(t), readmesOfCharts(t)...) {
		for _, found := range inline.FindAllStringSubmatch(read(t, page), -1) {
			words := strings.Fields(found[1])
			if len(words) == 0 {
				continue
			}
			known, err := commandExists(app, words)
			assert.NoError(t, err, "%s: %s", page, found[1])
			if known {
				named++
			}
		}
	}
	assert.Greater(t, named, 20)
}

func TestUnknownCommandIsFound(t *testing.T) {
	app := cli.App(cli.Streams{})
	for command, exists := range map[string]bool{
		"make bench-small ARGS=--x": true, "make nothing": false,
		"scripts/package --tag TAG": true, "scripts/nothing": false, ".ci/run": true, ".ci/nothing": false,
		"muster token create NAME --cluster CLUSTER": true, "bin/muster --context hub token create NAME": true,
		"muster tokens": false, "muster token make": false, "muster token create --nothing": false, "muster clusters -o wide": true, "muster join - --kubeconfig FILE": true,
		"muster token create NAME -o values | muster join -": true, "muster token create NAME -o values | muster joins -": false,
	} {
		known, err := commandExists(app, strings.Fields(command))
		assert.True(t, known, command)
		assert.Equal(t, exists, err == nil, "%s: %v", command, err)
	}
}

// commandExists returns whether the program is one of this repository, and an error if the arguments are invalid.
func commandExists(app *urfave.App, words []string) (known bool, err error) {
	if at := slices.Index(words, "|"); at > 0 && at < len(words)-1 {
		first, err := commandExists(app, words[:at])
		rest, errRest := commandExists(app, words[at+1:])
		return first || rest, errors.Join(err, errRest)
	}
	program, arguments := words[0], words[1:]
	switch {
	case program == "make" && len(arguments) > 0:
		return true, isScript("scripts/" + arguments[0])
	case strings.HasPrefix(program, "scripts/"), strings.HasPrefix(program, ".ci/"):
		return true, isScript(program)
	case program == "muster", program == "bin/muster":
		return true, musterRuns(app, arguments)
	}
	return false, nil
}

// isScript returns an error unless the path is a script. Each target of the Makefile runs the script with its name.
func isScript(path string) error {
	info, err := os.Stat(filepath.Join("../..", path))
	if err == nil && info.Mode()&0o111 == 0 {
		err = fmt.Errorf("%s is not executable", path)
	}
	return err
}

// musterRuns checks the words against the commands of muster. A flag is also valid after any sub-command.
func musterRuns(app *urfave.App, arguments []string) error {
	commands, flags := app.Commands, append(slices.Clone(app.Flags), urfave.HelpFlag)
	for i := 0; i < len(arguments); i++ {
		word := arguments[i]
		if strings.HasPrefix(word, "-") && word != "-" {
			takesValue, err := flagOf(flags, word)
			if err != nil {
				return err
			}
			if takesValue {
				i++
			}
			continue
		}
		if len(commands) == 0 {
			continue // an argument
		}
		at := slices.IndexFunc(commands, func(c *urfave.Command) bool { return c.HasName(word) })
		if at < 0 {
			return fmt.Errorf("there is no command %s", word)
		}
		flags, commands = append(flags, commands[at].Flags...), commands[at].Subcommands
	}
	return nil
}

func flagOf(flags []urfave.Flag, word string) (takesValue bool, err error) {
	name, _, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
	at := slices.IndexFunc(flags, func(f urfave.Flag) bool { return slices.Contains(f.Names(), name) })
	if at < 0 {
		return false, fmt.Errorf("there is no flag %s", word)
	}
	_, isBool := flags[at].(*urfave.BoolFlag)
	return !isBool && !hasValue, nil
}

// Tests run only code blocks that are marked as sh.
func TestDocumentationBlocks(t *testing.T) {
	kinds := []string{"sh", "console", "text", "yaml", "json", "go", "mermaid"}
	for _, page := range append(pages(t), readmesOfCharts(t)...) {
		open := false
		for _, found := range blockEdge.FindAllStringSubmatch(read(t, page), -1) {
			if open = !open; open {
				assert.Contains(t, kinds, found[2], "%s: %s", page, found[0])
			}
			assert.Equal(t, "```", found[1], "%s: %s: a block begins and ends at the beginning of its line", page, found[0])
		}
		assert.False(t, open, "%s: a block has no end", page)
	}
}

var blockEdge = regexp.MustCompile("(?m)^( *(?:`{3}|~{3}))(.*)$")

func readmesOfCharts(t *testing.T) []string {
	t.Helper()
	readmes, err := filepath.Glob("../../charts/*/README.md")
	require.NoError(t, err)
	require.NotEmpty(t, readmes)
	return readmes
}

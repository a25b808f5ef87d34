package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/testenv/golden"
)

const referenceHead = `# Commands of muster

<!-- Made from internal/cli: go test ./internal/cli -run TestReference -update -->

` + "`muster`" + ` is the command-line tool for operators of a hub. This page contains the help of each command. Results are written to the
standard output, progress and notes to the standard error. [checks.md](checks.md) explains each check of ` + "`muster check`" + `.

| exit code | meaning |
|---|---|
| 0 | the command succeeded |
| 1 | the command failed, with the error in the last line of the standard error; or a check failed |
| 2 | only ` + "`muster check`" + `: the command line or a kubeconfig is invalid |
| 3 | only ` + "`muster check`" + `: no check failed, but some are unknown |
`

// The page contains the help of every command.
func TestReference(t *testing.T) {
	var page strings.Builder
	page.WriteString(referenceHead)
	var add func(prefix []string, commands []*cli.Command)
	add = func(prefix []string, commands []*cli.Command) {
		for _, command := range commands {
			if command.Hidden {
				continue
			}
			words := slices.Concat(prefix, []string{command.Name})
			help, _, err := muster(t, append(words, "--help")...)
			require.NoError(t, err)
			fmt.Fprintf(&page, "\n## muster %s\n\n```text\n%s\n```\n", strings.Join(words, " "), strings.TrimSpace(help))
			add(words, command.Subcommands)
		}
	}
	add(nil, App(Streams{}).Commands)

	const file = "../../docs/commands.md"
	golden.Equal(t, file, page.String())
}

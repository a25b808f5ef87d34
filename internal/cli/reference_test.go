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

` + "`muster`" + ` is the program for people who operate a hub. This page has what each command prints with --help. Results are written to the
standard output, progress and remarks to the standard error. [checks.md](checks.md) explains each check of ` + "`muster check`" + `.

| exit code | meaning |
|---|---|
| 0 | the command did what it says |
| 1 | it failed, or a check failed; the last line of the standard error says why |
| 2 | of ` + "`muster check`" + `: the command line or a kubeconfig is wrong |
| 3 | of ` + "`muster check`" + `: no check failed, but some are unknown |
`

// The page has the help of every command, as the program prints it.
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

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"
	"sigs.k8s.io/yaml"
)

// Formats of output; the empty one is for people.
const (
	formatWide   = "wide"
	formatJSON   = "json"
	formatYAML   = "yaml"
	formatValues = "values"
)

const flagOutput = "output"

// outputFlag offers formats beside the one for people.
func outputFlag(formats ...string) cli.Flag {
	return &cli.StringFlag{
		Name: flagOutput, Aliases: []string{"o"},
		Usage: "`FORMAT` of the output: " + strings.Join(formats, ", ") + "; default: human-readable text",
		Action: func(_ *cli.Context, value string) error {
			if value == "" || slices.Contains(formats, value) {
				return nil
			}
			return fmt.Errorf("--output is %q: it must be one of %s", value, strings.Join(formats, ", "))
		},
	}
}

// encode writes for programs. It reports whether the format was one of those.
func encode(w io.Writer, format string, value any) (done bool, err error) {
	var data []byte
	switch format {
	case formatJSON:
		data, err = json.MarshalIndent(value, "", "  ")
		data = append(data, '\n')
	case formatYAML:
		data, err = yaml.Marshal(value)
	default:
		return false, nil
	}
	if err != nil {
		return true, err
	}
	_, err = w.Write(data)
	return true, err
}

// noArguments refuses what would be ignored.
func noArguments(c *cli.Context) error {
	if c.Args().Present() {
		return fmt.Errorf("%s takes no argument %q; see --help", c.Command.HelpName, c.Args().First())
	}
	return nil
}

// oneArgument is the name a command is about.
func oneArgument(c *cli.Context, what string) (string, error) {
	if c.Args().Len() != 1 {
		return "", fmt.Errorf("%s needs exactly one argument, %s, and got %d; see --help", c.Command.HelpName, what, c.Args().Len())
	}
	return c.Args().First(), nil
}

// PlainLog prints what the programs log as errors the way a command line tool says them.
type PlainLog struct{}

// Format is one message.
func (PlainLog) Format(entry *logrus.Entry) ([]byte, error) {
	return []byte("muster: " + strings.TrimRight(entry.Message, "\n") + "\n"), nil
}

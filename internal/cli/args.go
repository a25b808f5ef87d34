package cli

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// FlagsFirst moves the flags of a command before its other arguments: the library stops parsing flags at the first argument that is not a
// flag, and people write `muster import east --wait`.
func FlagsFirst(app *cli.App, args []string) []string {
	if len(args) == 0 {
		return args
	}
	sorted, rest := []string{args[0]}, args[1:]
	flags, commands := app.Flags, app.Commands
	for {
		for len(rest) > 0 && isFlag(rest[0]) {
			n := min(wordCount(flags, rest[0]), len(rest))
			sorted, rest = append(sorted, rest[:n]...), rest[n:]
		}
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return len(rest) > 0 && c.HasName(rest[0]) })
		if i < 0 {
			break
		}
		sorted, rest = append(sorted, rest[0]), rest[1:]
		if commands[i].SkipFlagParsing {
			return append(sorted, rest...)
		}
		flags, commands = commands[i].Flags, commands[i].Subcommands
	}

	var others []string
	for len(rest) > 0 {
		switch {
		case rest[0] == "--": // everything after it is an argument
			return slices.Concat(sorted, []string{"--"}, others, rest[1:])
		case isFlag(rest[0]):
			n := min(wordCount(flags, rest[0]), len(rest))
			sorted, rest = append(sorted, rest[:n]...), rest[n:]
		default:
			others, rest = append(others, rest[0]), rest[1:]
		}
	}
	return append(sorted, others...)
}

func isFlag(arg string) bool { return len(arg) > 1 && arg[0] == '-' && arg != "--" }

// wordCount returns the number of words of a flag: 2 if its value is the next word, 1 otherwise.
func wordCount(flags []cli.Flag, arg string) int {
	name := strings.TrimLeft(arg, "-")
	if strings.Contains(name, "=") {
		return 1
	}
	for _, f := range flags {
		if _, isBool := f.(*cli.BoolFlag); !isBool && slices.Contains(f.Names(), name) {
			return 2
		}
	}
	return 1
}

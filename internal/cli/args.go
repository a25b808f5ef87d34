package cli

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// FlagsFirst puts the flags of a command before its other arguments. People write `muster import east --wait`, and the
// library stops looking for flags at the first argument that is none.
func FlagsFirst(app *cli.App, args []string) []string {
	if len(args) == 0 {
		return args
	}
	sorted, rest := []string{args[0]}, args[1:]
	flags, commands := app.Flags, app.Commands
	for {
		var leading []string
		leading, rest = leadingFlags(flags, rest)
		sorted = append(sorted, leading...)
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return len(rest) > 0 && c.HasName(rest[0]) })
		if i < 0 {
			return append(sorted, partition(flags, rest)...)
		}
		sorted, rest = append(sorted, rest[0]), rest[1:]
		flags, commands = commands[i].Flags, commands[i].Subcommands
	}
}

// leadingFlags splits off the flags at the beginning, with their values.
func leadingFlags(flags []cli.Flag, args []string) (leading, rest []string) {
	for len(args) > 0 && isFlag(args[0]) {
		n := min(length(flags, args[0]), len(args))
		leading, args = append(leading, args[:n]...), args[n:]
	}
	return leading, args
}

// partition is flags first, then the rest. All after "--" is no flag.
func partition(flags []cli.Flag, args []string) []string {
	var first, last []string
	for len(args) > 0 {
		if args[0] == "--" {
			last = append(last, args[1:]...)
			return append(append(first, "--"), last...)
		}
		n := 1
		if isFlag(args[0]) {
			n = min(length(flags, args[0]), len(args))
			first = append(first, args[:n]...)
		} else {
			last = append(last, args[0])
		}
		args = args[n:]
	}
	return append(first, last...)
}

func isFlag(arg string) bool { return len(arg) > 1 && arg[0] == '-' && arg != "--" }

// length is 2 for a flag whose value is the next argument.
func length(flags []cli.Flag, arg string) int {
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

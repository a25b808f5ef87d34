package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// completeCommand is the hidden command that the completion scripts call.
const completeCommand = "__complete"

// completionScripts are the scripts by shell. A script calls completeCommand with the words before the cursor. That command prints one
// proposal per line, with a description after a tab.
var completionScripts = map[string]string{
	"bash": `# In ~/.bashrc: source <(muster completion bash)
_muster() {
    local IFS=$'\n'
    COMPREPLY=($("${COMP_WORDS[0]}" ` + completeCommand + ` "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//:/}
complete -o default -F _muster muster
`,
	"zsh": `#compdef muster
# In ~/.zshrc, after compinit: source <(muster completion zsh)
_muster() {
    local -a proposals
    proposals=("${(@f)$("${words[1]}" ` + completeCommand + ` "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    proposals=("${(@)proposals//:/\\:}")
    proposals=("${(@)proposals/$'\t'/:}")
    if [[ -n "${proposals[1]}" ]]; then
        _describe -V proposals proposals
    else
        _files
    fi
}
compdef _muster muster
`,
	"fish": `# muster completion fish > ~/.config/fish/completions/muster.fish
complete -c muster -a '(set -l words (commandline -opc) (commandline -ct); muster ` + completeCommand + ` $words[2..-1] 2>/dev/null)'
`,
	"powershell": `# In $PROFILE: muster completion powershell | Out-String | Invoke-Expression
Register-ArgumentCompleter -Native -CommandName muster -ScriptBlock {
    param($word, $line, $cursor)
    $words = @($line.CommandElements | Select-Object -Skip 1 | Where-Object { $_.Extent.EndOffset -lt $cursor } | ForEach-Object { $_.Extent.Text })
    & muster ` + completeCommand + ` @words "$word" 2>$null | ForEach-Object {
        $name, $description = $_ -split [char]9, 2
        if (-not $description) { $description = $name }
        [System.Management.Automation.CompletionResult]::new($name, $name, 'ParameterValue', $description)
    }
}
`,
	"kubectl": `#!/bin/sh
# For the plugin kubectl-muster: muster completion kubectl > kubectl_complete-muster, executable and in $PATH.
exec kubectl-muster ` + completeCommand + ` "$@"
`,
}

func completionCommand(s Streams) *cli.Command {
	shells := slices.Sorted(maps.Keys(completionScripts))
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a script for a shell, which completes commands, flags and the names of clusters, tokens and namespaces",
		ArgsUsage: strings.Join(shells, "|"),
		Description: `The first lines of each script show how to install it, such as: source <(muster completion bash). The script for kubectl is the program
kubectl_complete-muster, which kubectl calls for the plugin. Names are read from the hub that the command line selects, for two seconds at most.`,
		Action: func(c *cli.Context) error {
			shell, err := oneArgument(c, "the name of the shell")
			if err != nil {
				return err
			}
			script, found := completionScripts[shell]
			if !found {
				return fmt.Errorf("there is no script for %q: the shells are %s", shell, strings.Join(shells, ", "))
			}
			_, err = fmt.Fprint(s.Out, script)
			return err
		},
	}
}

// proposeCommand returns the command completeCommand. Its arguments are the words of a command line. It completes the last word, which can be
// empty.
func proposeCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name: completeCommand, Usage: "print the words that can complete a command line", Hidden: true, SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			ctx, cancel := context.WithTimeout(c.Context, 2*time.Second)
			defer cancel()
			for _, proposal := range propose(ctx, c.App, c.Args().Slice()) {
				fmt.Fprintln(s.Out, proposal)
			}
			return nil
		},
	}
}

// lookup reads the names of objects from the hub.
type lookup func(ctx context.Context, hub *namespacedHub) ([]string, error)

// argumentNames maps a command to the lookup of the names that it accepts as arguments. flagNames maps a flag to the lookup of the names that it
// accepts as its value.
var (
	argumentNames = map[string]lookup{
		"check": clusterNames, "clusters": clusterNames, "describe": clusterNames, "remove": clusterNames, "rotate": clusterNames,
		"quarantine": clusterNames, "release": clusterNames, "revoke": clusterNames, "report": clusterNames,
		"approve": requestNames, "deny": requestNames, "token revoke": tokenNames,
	}
	flagNames = map[string]lookup{flagNamespace: workspaceNames, flagCluster: clusterNames, flagToken: tokenNames}
)

// propose returns the words that can complete the last word of a command line, each with an optional description after a tab. If the hub
// cannot be reached, it proposes no names and returns no error, because the shell would not show it.
func propose(ctx context.Context, app *cli.App, words []string) (proposals []string) {
	if len(words) == 0 {
		return nil
	}
	last := words[len(words)-1]
	if last == "=" { // bash splits --name=value into three words
		last = ""
	}
	words = slices.DeleteFunc(words[:len(words)-1:len(words)-1], func(word string) bool { return word == "=" })
	match := func(name, description string) {
		if strings.HasPrefix(name, last) {
			proposals = append(proposals, strings.TrimSuffix(name+"\t"+description, "\t"))
		}
	}
	to, command, flags, commands := newConnection(), "", app.Flags, app.Commands
	names := func(find lookup) []string {
		if find == nil {
			return proposals
		}
		hub, err := connectWith(to)
		if err != nil {
			return nil
		}
		found, _ := find(ctx, hub)
		slices.Sort(found)
		for _, name := range slices.Compact(found) {
			match(name, "")
		}
		return proposals
	}

	for len(words) > 0 {
		if !isFlag(words[0]) {
			if i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(words[0]) }); i >= 0 {
				command = strings.TrimSpace(command + " " + commands[i].Name)
				flags, commands = slices.Concat(app.Flags, commands[i].Flags), commands[i].Subcommands
			}
			words = words[1:]
			continue
		}
		given, value, hasValue := strings.Cut(strings.TrimLeft(words[0], "-"), "=")
		name := given
		if i := slices.IndexFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), given) }); i >= 0 {
			name = flags[i].Names()[0]
		}
		takesNext := !hasValue && wordCount(flags, words[0]) == 2
		words = words[1:]
		switch {
		case takesNext && len(words) == 0:
			for _, value := range fixedValues(to, name) {
				match(value, "")
			}
			return names(flagNames[name])
		case takesNext:
			value, words = words[0], words[1:]
		}
		if to.flags.Lookup(name) != nil && value != "" {
			_ = to.flags.Set(name, value)
		}
	}

	switch {
	case strings.HasPrefix(last, "-"):
		for _, f := range flags {
			if visible, ok := f.(cli.VisibleFlag); ok && visible.IsVisible() {
				usage := f.(cli.DocGenerationFlag).GetUsage() //nolint:forcetypeassert // all flags of the library have it
				match("--"+f.Names()[0], strings.ReplaceAll(usage, "`", ""))
			}
		}
		slices.Sort(proposals)
		return slices.CompactFunc(proposals, func(a, b string) bool { return strings.Split(a, "\t")[0] == strings.Split(b, "\t")[0] })
	case len(commands) > 0:
		for _, c := range commands {
			if !c.Hidden {
				match(c.Name, c.Usage)
			}
		}
		return proposals
	case command == "completion":
		for _, shell := range slices.Sorted(maps.Keys(completionScripts)) {
			match(shell, "")
		}
		return proposals
	}
	return names(argumentNames[command])
}

// fixedValues returns the values of a flag that can be proposed without a request to the hub.
func fixedValues(to kubeConnection, flag string) []string {
	switch flag {
	case flagOutput:
		return []string{"json", "name", "wide", "yaml"}
	case flagState:
		return view.ClusterStates
	case flagSort:
		return slices.Sorted(maps.Keys(sortings))
	case flagApproval:
		return []string{string(fleet.ApprovalAuto), string(fleet.ApprovalManual)}
	case flagContext:
		config, err := to.ToRawKubeConfigLoader().RawConfig()
		if err != nil {
			return nil
		}
		return slices.Sorted(maps.Keys(config.Contexts))
	}
	return nil
}

func clusterNames(ctx context.Context, hub *namespacedHub) ([]string, error) {
	return admin.Collect(ctx, hub.Fleet.Clusters(hub.namespace).List, func(c *fleet.Cluster) (string, bool) { return c.Name, true })
}

func tokenNames(ctx context.Context, hub *namespacedHub) ([]string, error) {
	tokens := hub.Fleet.ClusterRegistrationTokens(hub.namespace)
	return admin.Collect(ctx, tokens.List, func(t *fleet.ClusterRegistrationToken) (string, bool) { return t.Name, true })
}

// requestNames returns the names of the requests that were not granted.
func requestNames(ctx context.Context, hub *namespacedHub) ([]string, error) {
	return admin.Collect(ctx, hub.Fleet.ClusterRegistrations(hub.namespace).List, func(r *fleet.ClusterRegistration) (string, bool) {
		return r.Name, view.OfRequest(r).State != view.StateGranted
	})
}

// workspaceNames returns the namespaces that contain Clusters or tokens.
func workspaceNames(ctx context.Context, hub *namespacedHub) ([]string, error) {
	clusters, err := admin.Collect(ctx, hub.Fleet.Clusters("").List, func(c *fleet.Cluster) (string, bool) { return c.Namespace, true })
	tokens, errTokens := admin.Collect(ctx, hub.Fleet.ClusterRegistrationTokens("").List, func(t *fleet.ClusterRegistrationToken) (string, bool) {
		return t.Namespace, true
	})
	return append(clusters, tokens...), errors.Join(err, errTokens)
}

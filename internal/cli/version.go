package cli

import (
	"cmp"
	"errors"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/version"
)

const flagClient = "client"

func versionCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "show the versions of this program, of the hub and of the agents",
		Description: `The command counts the agents of all namespaces, or of the namespace in --namespace, by version. After its own upgrade, the hub
upgrades the agents that it manages, within minutes.`,
		Flags: append(hubFlags(),
			&cli.BoolFlag{Name: flagClient, Usage: "show only the version of this program, without a connection to a hub"},
			&cli.StringFlag{Name: flagSystemNamespace, Usage: "`NAMESPACE` of the hub; default: cattle-fleet-system"},
			outputFlag(),
		),
		Action: withoutArguments(func(c *cli.Context) error {
			all := struct {
				Client string `json:"client"`
				*admin.Versions
			}{Client: version.Version}
			var failed error
			if !c.Bool(flagClient) {
				to, err := given(c.Lineage())
				if err != nil {
					return err
				}
				hub, err := connectWith(to)
				if err == nil {
					all.Versions = new(admin.Versions)
					systemNamespace := cmp.Or(c.String(flagSystemNamespace), registration.DefaultSystemNamespace)
					*all.Versions, err = hub.Versions(c.Context, systemNamespace, *to.Namespace)
				}
				failed = err
			}
			if done, err := printObject(c, s.Out, "Versions", "", "", all); done {
				return errors.Join(failed, err)
			}
			rows := [][]string{{"muster", all.Client, "", ""}}
			if all.Versions != nil {
				rows = append(rows, []string{"hub", all.Hub, "", ""}, []string{"kubernetes", all.Kubernetes, "", ""})
				for _, a := range all.Agents {
					remark := map[bool]string{true: "not the version of the hub"}[a.Differs]
					rows = append(rows, []string{"agent", cmp.Or(a.Version, "unknown"), strconv.Itoa(a.Clusters), remark})
				}
			}
			return errors.Join(failed, view.PrintTable(s.Out, []string{"COMPONENT", "VERSION", "CLUSTERS", "REMARK"}, rows))
		}),
	}
}

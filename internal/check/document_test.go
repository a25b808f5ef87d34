package check

import (
	"fmt"
	"strings"
)

const introduction = `# Checks

<!-- Made from internal/check: go test ./internal/check -run TestPage -update -->

` + "`muster check`" + ` finds out why a cluster is not connected. Run it first: the checks are in the order in which a registration depends on
them, so the first check that fails is the cause, and the first line of the output names it, with the remedy below. The checks
that passed or were skipped are only printed with ` + "`--output wide`" + `. The checks send requests only to the hub and
the member, change nothing, and print no value of a Secret. ` + "[hub-writes](#hub-writes)" + ` sends dry runs, which the API server does not store. Only
--probe writes: it creates a Job on the member, and always deletes it.

| command | what is checked |
|---|---|
| ` + "`muster check`" + ` | the hub, and the address that it gives to agents |
| ` + "`muster check CLUSTER`" + ` | also a Cluster, or a request for one that does not exist yet; a member that the hub imports is reached with the kubeconfig of the import |
| ` + "`muster check CLUSTER --member-kubeconfig FILE`" + ` | also the agent on the member, and its connection to the hub |
| ` + "`muster check --member --member-kubeconfig FILE`" + ` | the agent on the member and its connection to the hub, without a kubeconfig of the hub |
| ` + "`muster check --member --probe --member-kubeconfig FILE`" + ` | the agent on the member, and the connection to the hub from a pod on the member |
| ` + "`muster check --token NAME`" + ` | also a registration token |
| ` + "`fleetagent check`" + ` in the pod of the agent | as with --member, with the network, the DNS and the proxy of the pod |

` + "`muster check`" + ` connects from the machine on which it runs. A member may have another DNS, another proxy and another firewall. With ` + "`--probe`" + `,
a Job in the namespace of the agent checks the connection to the hub, with the agent's image, proxy, CA and node selection. Its pod has the
label ` + "`app=fleet-agent-probe`" + `: a NetworkPolicy for the agent has to select it too. ` + "`fleetagent check`" + ` in the pod of the agent needs no Job:

` + "```text" + `
kubectl --namespace cattle-fleet-system exec deployment/fleet-agent -- fleetagent check
` + "```" + `

| mark | result | meaning |
|---|---|---|
| √ | pass | nothing is wrong |
| ‼ | warn | it works, but causes or may cause a problem |
| × | fail | the cluster cannot connect because of this, or will soon be unable to |
| ? | unknown | the check has no result: a right is missing, a server did not answer in time, or the check was skipped because of an earlier check, which the line names |

| exit code | meaning |
|---|---|
| 0 | no check failed or is unknown; warnings are allowed |
| 1 | a check failed |
| 2 | the command line or a kubeconfig is invalid |
| 3 | no check failed, but some are unknown |

The exit code is the same with ` + "`--output json`" + `, which prints ` + "`summary`, `result` and `checks`" + `; each check has ` + "`id`, `category`, `check`, `result`" + `,
and, where they apply, ` + "`detail`, `hint`, `documentation` and `skippedBecause`" + `. The names of checks are stable.

With CLUSTER, a user without the right to read the objects of the hub itself gets the other checks; ` + "`leftOut`" + ` and the last line name those that
were left out. ` + "[hub-writes](#hub-writes)" + ` is left out for every user who may not patch the Lease of the hub or the status of Clusters,
and ` + "[hub-rights](#hub-rights)" + ` for every user who may not read the Deployment of the hub or create SubjectAccessReviews.

A hub that is embedded in another program without leader election holds no Lease, so ` + "[hub-runs](#hub-runs)" + ` fails although it runs. The rights of an
embedded hub are not checked.
`

// page returns docs/checks.md.
func page() string {
	var text strings.Builder
	text.WriteString(introduction)
	category := ""
	for _, c := range Table() {
		if c.Category != category {
			category = c.Category
			fmt.Fprintf(&text, "\n## %s\n", category)
		}
		fmt.Fprintf(&text, "\n### %s\n\nPasses if %s.\n\nIf it fails: %s.\n", c.ID, c.Says, c.Hint)
		if len(c.Needs) > 0 {
			links := make([]string, 0, len(c.Needs))
			for _, id := range c.Needs {
				links = append(links, fmt.Sprintf("[%s](#%s)", id, id))
			}
			fmt.Fprintf(&text, "\nIt is skipped unless %s passed.\n", strings.Join(links, " and "))
		}
	}
	return text.String()
}

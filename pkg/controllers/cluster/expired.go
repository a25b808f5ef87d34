package cluster

import (
	"fmt"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/outcome"
)

// expired says what lets an agent back in that was away for longer than its credential lived.
func expired(cluster *fleet.Cluster) outcome.Outcome {
	end := cluster.Status.Agent.CredentialExpires.UTC().Format(time.RFC3339)
	if cluster.Spec.KubeConfigSecret != "" {
		return outcome.Stalled(fleet.ReasonCredentialExpired, fmt.Sprintf(
			"the agent's credential ended at %s while it was away; the hub installs the agent again to have it register anew, see condition Imported", end))
	}
	return outcome.Stalled(fleet.ReasonCredentialExpired, fmt.Sprintf(
		"the agent's credential ended at %s while it was away; make a token for this Cluster alone with `muster -n %s token create NAME --cluster %s -o values`, "+
			"and upgrade the chart fleet-agent on the member with its values", end, cluster.Namespace, cluster.Name))
}

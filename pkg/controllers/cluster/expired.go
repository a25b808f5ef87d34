package cluster

import (
	"fmt"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// wayBack is what a person does for an agent that the hub cannot reach. Its chart is no way: its Deployment belongs to the hub since
// it has registered, and Helm refuses to overwrite what is another's.
func wayBack(cluster *fleet.Cluster) string {
	return fmt.Sprintf("make a token for this Cluster alone with `muster -n %s token create NAME --cluster %s -o values`, "+
		"and put its values into Secret %s (key %s) in the agent's namespace on the member; an agent of Fleet's own needs its chart upgraded with them",
		cluster.Namespace, cluster.Name, registration.BootstrapSecret, registration.BootstrapValues)
}

// expired says what lets an agent back in that was away for longer than its credential lived.
func expired(cluster *fleet.Cluster) result.Result {
	end := cluster.Status.Agent.CredentialExpires.UTC().Format(time.RFC3339)
	if cluster.Spec.KubeConfigSecret != "" {
		return result.Stalled(fleet.ReasonCredentialExpired, fmt.Sprintf(
			"the agent's credential ended at %s while it was away; the hub installs the agent again to have it register anew, see condition Imported", end))
	}
	return result.Stalled(fleet.ReasonCredentialExpired, fmt.Sprintf("the agent's credential ended at %s while it was away; %s", end, wayBack(cluster)))
}

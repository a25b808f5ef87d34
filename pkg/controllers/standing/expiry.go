package standing

import (
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
)

// expiryMargin is how long after the end of a credential an agent counts as locked out: the hub's clock and that of its API
// server, by which credentials end, differ a little.
const expiryMargin = time.Minute

// Expired says whether the agent of the Cluster was away until the credential it last told of had come to its end, so that it
// cannot come back by itself. One that still checks in has renewed it, whatever it told. One in quarantine is kept away.
func Expired(cluster *fleet.Cluster, now time.Time) bool {
	moment, limited := lockedOutAt(cluster)
	return limited && !now.Before(moment)
}

// ExpiryIn is when Expired will be true if nothing is heard of the agent; 0 for never, or already.
func ExpiryIn(cluster *fleet.Cluster, now time.Time) time.Duration {
	moment, limited := lockedOutAt(cluster)
	if !limited {
		return 0
	}
	return max(moment.Sub(now), 0)
}

func lockedOutAt(cluster *fleet.Cluster) (moment time.Time, limited bool) {
	agent := cluster.Status.Agent
	if cluster.Spec.Quarantined || agent.CredentialExpires == nil || agent.LastSeen.IsZero() || !agentspec.Disconnected(cluster) {
		return time.Time{}, false
	}
	return agent.CredentialExpires.Add(expiryMargin), true
}

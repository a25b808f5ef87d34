// Package credentialstatus reports the status of the credential of a Cluster's agent: whether a request was granted, and whether the agent
// has to register again, so that the hub imports a Cluster with a kubeconfig again.
package credentialstatus

import (
	"cmp"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// expiryMargin is the time after the expiry of a credential at which it counts as expired: credentials expire by the clock
// of the API server, which may differ from that of the hub.
const expiryMargin = time.Minute

// Requests finds requests by an index.
type Requests interface {
	GetByIndex(indexName, key string) ([]*fleet.ClusterRegistration, error)
}

// Status summarizes the requests of a Cluster's agent.
type Status struct {
	// Granted reports that a request is granted and its credential not revoked.
	Granted bool
	// Revoked is the newest request with a revoked credential; nil if there is none, or another request is granted.
	Revoked *fleet.ClusterRegistration
	// NotGranted is the newest request that was not granted; nil if there is none, or another request is granted.
	NotGranted *fleet.ClusterRegistration
}

// Of summarizes the requests with the clientID of the Cluster.
func Of(requests Requests, cluster *fleet.Cluster) (s Status, err error) {
	if cluster.Spec.ClientID == "" {
		return s, nil
	}
	all, err := index.RequestsByClientID.Find(requests, index.Key(cluster.Namespace, cluster.Spec.ClientID))
	if err != nil {
		return s, err
	}
	for _, request := range all {
		switch {
		case fleetstatus.Condition(request.Status.Conditions, fleet.ConditionGranted).Reason == fleet.ReasonCredentialRevoked:
			s.Revoked = Newer(s.Revoked, request)
		case request.Status.Granted:
			return Status{Granted: true}, nil
		default:
			s.NotGranted = Newer(s.NotGranted, request)
		}
	}
	return s, nil
}

// Newer returns the newer one of two requests, of which a may be nil. It breaks ties by UID: an index returns its objects in no order.
func Newer(a, b *fleet.ClusterRegistration) *fleet.ClusterRegistration {
	if a == nil || cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID)) < 0 {
		return b
	}
	return a
}

// LostRegistration reports whether the agent of the Cluster has stopped sending heartbeats and no longer has a granted request: it cannot
// come back with its credential.
func (s Status) LostRegistration(cluster *fleet.Cluster) bool {
	return !s.Granted && !cluster.Status.Agent.LastSeen.IsZero() && agentspec.Disconnected(cluster)
}

// Expired reports whether the agent of the Cluster was disconnected until the credential that it reported last had expired: it cannot come back
// by itself. An agent that sends heartbeats has renewed its credential, whatever it reported. An agent in quarantine is meant to be disconnected.
func Expired(cluster *fleet.Cluster, now time.Time) bool {
	moment, limited := expiredAt(cluster)
	return limited && !now.Before(moment)
}

// ExpiryIn is the time until Expired becomes true if the agent sends no heartbeat; 0 for never, or already.
func ExpiryIn(cluster *fleet.Cluster, now time.Time) time.Duration {
	moment, limited := expiredAt(cluster)
	if !limited {
		return 0
	}
	return max(moment.Sub(now), 0)
}

func expiredAt(cluster *fleet.Cluster) (moment time.Time, limited bool) {
	agent := cluster.Status.Agent
	if cluster.Spec.Quarantined || agent.CredentialExpires == nil || agent.LastSeen.IsZero() || !agentspec.Disconnected(cluster) {
		return time.Time{}, false
	}
	return agent.CredentialExpires.Add(expiryMargin), true
}

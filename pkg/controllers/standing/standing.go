// Package standing says what became of the requests of a Cluster's agent, for those who act on it.
package standing

import (
	"cmp"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

// Requests finds requests by an index.
type Requests interface {
	GetByIndex(indexName, key string) ([]*fleet.ClusterRegistration, error)
}

// Standing is what the requests of one agent came to.
type Standing struct {
	// Granted says that one of them was granted, and that what it was granted works.
	Granted bool
	// Revoked is the newest request whose credential is void; nil where there is none, or where another one was granted.
	Revoked *fleet.ClusterRegistration
}

// Of looks at the requests that have the identity of the Cluster.
func Of(requests Requests, cluster *fleet.Cluster) (s Standing, err error) {
	if cluster.Spec.ClientID == "" {
		return s, nil
	}
	all, err := requests.GetByIndex(index.ByClientID, index.Key(cluster.Namespace, cluster.Spec.ClientID))
	if err != nil {
		return s, err
	}
	for _, request := range all {
		switch {
		case result.Get(request.Status.Conditions, fleet.ConditionGranted).Reason == fleet.ReasonCredentialRevoked:
			s.Revoked = newer(s.Revoked, request)
		case request.Status.Granted:
			return Standing{Granted: true}, nil
		}
	}
	return s, nil
}

// Lost says whether the agent of the Cluster was there, is silent, and has no request any more, so that it cannot come back
// by itself.
func (s Standing) Lost(cluster *fleet.Cluster) bool {
	return !s.Granted && !cluster.Status.Agent.LastSeen.IsZero() && agentspec.Disconnected(cluster)
}

// newer has an order of its own, for an index has none.
func newer(a, b *fleet.ClusterRegistration) *fleet.ClusterRegistration {
	if a == nil || cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID)) < 0 {
		return b
	}
	return a
}

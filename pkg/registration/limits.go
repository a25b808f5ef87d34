package registration

import (
	"fmt"
	"path"
	"slices"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// AllowsClientID says whether a token may be used to register an identity. A pattern that is none allows nothing.
func AllowsClientID(token fleet.ClusterRegistrationTokenSpec, clientID string) bool {
	if len(token.ClientIDs) == 0 && token.ClientIDPattern == "" {
		return true
	}
	if slices.Contains(token.ClientIDs, clientID) {
		return true
	}
	matches, err := path.Match(token.ClientIDPattern, clientID)
	return err == nil && matches && token.ClientIDPattern != ""
}

// Expires is when a token ends; false for one that does not.
func Expires(token *fleet.ClusterRegistrationToken) (end time.Time, limited bool) {
	if token.Spec.TTL == nil || token.Spec.TTL.Duration <= 0 {
		return time.Time{}, false
	}
	return token.CreationTimestamp.Add(token.Spec.TTL.Duration), true
}

// Expired says whether the time of a token is over, though it may still be there: the hub that deletes it was away, say.
func Expired(token *fleet.ClusterRegistrationToken, now time.Time) bool {
	end, limited := Expires(token)
	return limited && !now.Before(end)
}

// isOnlyFor says whether a token was made for one identity and no other.
func isOnlyFor(token fleet.ClusterRegistrationTokenSpec, clientID string) bool {
	return token.ClientIDPattern == "" && slices.Equal(token.ClientIDs, []string{clientID})
}

// owningCluster is the UID of the Cluster the hub made the token for, to import it; "" for the token of a person.
func owningCluster(token *fleet.ClusterRegistrationToken) string {
	for _, owner := range token.OwnerReferences {
		if owner.Kind == "Cluster" {
			return string(owner.UID)
		}
	}
	return ""
}

// notAllowed refuses what the token is not for. The token by which a Cluster is imported lies on its member: whoever steals
// it there can register nothing else with it.
func (c Case) notAllowed() *Refusal {
	switch {
	case owningCluster(c.Token) != "" && !c.isImport():
		return &Refusal{fleet.ReasonClientIDNotAllowed, fmt.Sprintf(
			"ClusterRegistrationToken %s is for the import of another Cluster; register with a token of your own", c.Token.Name)}
	case !AllowsClientID(c.Token.Spec, c.Request.Spec.ClientID):
		return &Refusal{fleet.ReasonClientIDNotAllowed, fmt.Sprintf(
			"ClusterRegistrationToken %s is not for this clientID: see its spec.clientIDs and spec.clientIDPattern", c.Token.Name)}
	}
	return nil
}

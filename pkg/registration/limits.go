package registration

import (
	"fmt"
	"path"
	"slices"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// allowsClientID reports whether a token may register a clientID. An invalid pattern allows none.
func allowsClientID(token fleet.ClusterRegistrationTokenSpec, clientID string) bool {
	if len(token.ClientIDs) == 0 && token.ClientIDPattern == "" {
		return true
	}
	if slices.Contains(token.ClientIDs, clientID) {
		return true
	}
	matches, err := path.Match(token.ClientIDPattern, clientID)
	return err == nil && matches && token.ClientIDPattern != ""
}

// Expires returns the expiry time of a token, false if it never expires.
func Expires(token *fleet.ClusterRegistrationToken) (end time.Time, limited bool) {
	if token.Spec.TTL == nil || token.Spec.TTL.Duration <= 0 {
		return time.Time{}, false
	}
	return token.CreationTimestamp.Add(token.Spec.TTL.Duration), true
}

// Expired reports whether a token has expired. An expired token may still exist, for example because no hub runs to delete it.
func Expired(token *fleet.ClusterRegistrationToken, now time.Time) bool {
	end, limited := Expires(token)
	return limited && !now.Before(end)
}

// Usable reports whether agents may register with a token: it is not being deleted, has not expired, and its limits are known.
func Usable(token *fleet.ClusterRegistrationToken, now time.Time) bool {
	return token.DeletionTimestamp == nil && token.Undecodable == "" && !Expired(token, now)
}

// isOnlyFor reports whether a token allows this clientID and no other.
func isOnlyFor(token fleet.ClusterRegistrationTokenSpec, clientID string) bool {
	return token.ClientIDPattern == "" && slices.Equal(token.ClientIDs, []string{clientID})
}

// owningCluster returns the UID of the Cluster for whose import the hub created the token; "" for the token of a person.
func owningCluster(token *fleet.ClusterRegistrationToken) string {
	for _, owner := range token.OwnerReferences {
		if owner.Kind == "Cluster" {
			return string(owner.UID)
		}
	}
	return ""
}

// IsImportToken reports whether the hub created the token for the import of a Cluster.
func IsImportToken(token *fleet.ClusterRegistrationToken) bool { return owningCluster(token) != "" }

// notAllowed refuses a clientID that the token does not allow. An import token is stored on the member of its Cluster; if it is
// stolen there, it registers no other Cluster.
func (c Case) notAllowed() *Explanation {
	switch {
	case owningCluster(c.Token) != "" && !c.isImport():
		return &Explanation{fleet.ReasonClientIDNotAllowed, fmt.Sprintf(
			"ClusterRegistrationToken %s is for the import of another Cluster; register with a token of your own", c.Token.Name)}
	case !allowsClientID(c.Token.Spec, c.Request.Spec.ClientID):
		return &Explanation{fleet.ReasonClientIDNotAllowed, fmt.Sprintf(
			"ClusterRegistrationToken %s is not for this clientID: see its spec.clientIDs and spec.clientIDPattern", c.Token.Name)}
	}
	return nil
}

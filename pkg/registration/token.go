package registration

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Uses are the uses of a ClusterRegistrationToken, from its spec and status.
type Uses struct {
	Token   string   // name of the token
	UID     string   // of the token
	Limit   *int32   // nil for any number
	Count   int64    // uses so far
	Pending []string // UIDs of requests that Count includes, and whose own status may not record the use yet
}

// UsesOf reads the uses of a token.
func UsesOf(token *fleet.ClusterRegistrationToken) Uses {
	return Uses{
		Token: token.Name, UID: string(token.UID), Limit: token.Spec.UsageLimit,
		Count: token.Status.Uses, Pending: token.Status.PendingUses,
	}
}

// Use is a request to be counted.
type Use struct {
	UID     string    // of the request
	Name    string    // of the request
	Cluster string    // name of the Cluster it is for
	Created time.Time // of the request
}

// UseState is the result of State.
type UseState int

const (
	// UseCounted means that the request is counted.
	UseCounted UseState = iota
	// UseUncounted means that the request is not counted and the token has a use left.
	UseUncounted
	// UseRefused means that the request is not counted and the token has no use left.
	UseRefused
)

// State reports whether a request is counted as a use of the token. countedAs is the UID of the token for which the request's own
// status records a use.
func (u Uses) State(request, countedAs string) UseState {
	switch {
	case countedAs == u.UID, slices.Contains(u.Pending, request):
		return UseCounted
	case u.IsUsedUp():
		return UseRefused
	}
	return UseUncounted
}

// IsUsedUp reports whether the token has no use left.
func (u Uses) IsUsedUp() bool { return u.Limit != nil && u.Count >= int64(*u.Limit) }

// UsedUp returns the refusal of a request because the token has no use left.
func (u Uses) UsedUp() *Explanation {
	return &Explanation{fleet.ReasonTokenUsedUp, fmt.Sprintf(
		"ClusterRegistrationToken %s has been used %d times and spec.usageLimit is %d; raise it, or register with a new token",
		u.Token, u.Count, *u.Limit)}
}

// MaxPendingUses bounds Pending, and so the size of a token. Further requests wait until earlier ones have been granted.
const MaxPendingUses = 500

// Add counts requests, the oldest first. It returns the requests it counted, and those that wait for a place in Pending. Requests
// already counted, and requests for which no use is left, are in neither list.
func (u Uses) Add(asking []Use) (after Uses, added, waiting []Use) {
	asking = slices.Clone(asking)
	slices.SortFunc(asking, older)
	u.Pending = slices.Clone(u.Pending)
	for _, use := range asking {
		switch {
		case u.IsUsedUp(), slices.Contains(u.Pending, use.UID):
		case len(u.Pending) >= MaxPendingUses:
			waiting = append(waiting, use)
		default:
			u.Pending = append(u.Pending, use.UID)
			u.Count++
			added = append(added, use)
		}
	}
	return u, added, waiting
}

// older orders requests, so that every pass over the same requests admits the same ones.
func older(a, b Use) int {
	if c := a.Created.Compare(b.Created); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// Release removes from Pending the requests whose own status records the use, or that are gone.
func (u Uses) Release(isRecorded func(request string) bool) Uses {
	u.Pending = slices.DeleteFunc(slices.Clone(u.Pending), isRecorded)
	return u
}

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

// IsOnlyFor reports whether a token allows this clientID and no other.
func IsOnlyFor(token fleet.ClusterRegistrationTokenSpec, clientID string) bool {
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

// IsImportTokenOf reports whether the hub created the token for the import of this Cluster.
func IsImportTokenOf(token *fleet.ClusterRegistrationToken, cluster *fleet.Cluster) bool {
	return cluster.UID != "" && owningCluster(token) == string(cluster.UID) && token.Name == ImportTokenName(cluster.Name)
}

// IsImportToken reports whether the hub created the token for the import of a Cluster.
func IsImportToken(token *fleet.ClusterRegistrationToken) bool { return owningCluster(token) != "" }

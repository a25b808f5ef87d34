package registration

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Uses is what a ClusterRegistrationToken says about its uses.
type Uses struct {
	Token   string   // name of the token
	UID     string   // of the token
	Limit   *int32   // nil for any number
	Count   int64    // uses so far
	Pending []string // UIDs of requests that Count has, and whose own status need not say so yet
}

// UsesOf is what the token says.
func UsesOf(token *fleet.ClusterRegistrationToken) Uses {
	return Uses{
		Token: token.Name, UID: string(token.UID), Limit: token.Spec.UsageLimit,
		Count: token.Status.Uses, Pending: token.Status.PendingUses,
	}
}

// Use is a request that is to be counted.
type Use struct {
	UID     string    // of the request
	Name    string    // of the request
	Cluster string    // name of the Cluster it is for
	Created time.Time // of the request
}

// UseState says whether a request counts as a use of its token.
type UseState int

const (
	// UseCounted means that it does.
	UseCounted UseState = iota
	// UseUncounted means that it does not, and that there is room for it.
	UseUncounted
	// UseRefused means that it does not, and that the token has none left.
	UseRefused
)

// State judges one request. countedAs is what the request's own status says: the UID of the token it was counted for.
func (u Uses) State(request, countedAs string) UseState {
	switch {
	case countedAs == u.UID, slices.Contains(u.Pending, request):
		return UseCounted
	case u.usedUp():
		return UseRefused
	}
	return UseUncounted
}

func (u Uses) usedUp() bool { return u.Limit != nil && u.Count >= int64(*u.Limit) }

// UsedUp is the refusal of a request for which the token has no use left.
func (u Uses) UsedUp() *Refusal {
	return &Refusal{fleet.ReasonTokenUsedUp, fmt.Sprintf(
		"ClusterRegistrationToken %s has been used %d times and spec.usageLimit is %d; raise it, or register with a new token",
		u.Token, u.Count, *u.Limit)}
}

// MaxPendingUses bounds Pending, and so the size of a token. Requests beyond it wait until those before them have been
// granted.
const MaxPendingUses = 500

// Add counts requests, the oldest first, and returns those it counted and those for which there is no place in Pending just
// now. One that counts already, or for which no use is left, is neither.
func (u Uses) Add(asking []Use) (after Uses, added, waiting []Use) {
	asking = slices.Clone(asking)
	slices.SortFunc(asking, older)
	u.Pending = slices.Clone(u.Pending)
	for _, use := range asking {
		switch {
		case u.usedUp(), slices.Contains(u.Pending, use.UID):
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

// older puts the requests into one order, whoever asks: two looks at the same storm let the same ones in.
func older(a, b Use) int {
	if c := a.Created.Compare(b.Created); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// Settle drops the requests from Pending whose place there is not needed any more.
func (u Uses) Settle(settled func(request string) bool) Uses {
	u.Pending = slices.DeleteFunc(slices.Clone(u.Pending), settled)
	return u
}

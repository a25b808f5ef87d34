package registration

import (
	"cmp"
	"slices"
	"time"
)

const (
	// RefusedLifetime is how long a refused request stays, for somebody to look at or to approve. An agent that still wants
	// to register sends it again.
	RefusedLifetime = 24 * time.Hour
	// MostRefused is how many refused requests of one creator stay. Whoever has stolen a token can make as many as he likes.
	MostRefused = 500
)

// Refused is a request that was refused.
type Refused struct {
	Name    string
	Created time.Time
	// Decided says that a person has decided about it. That is not forgotten: the request would be asked about again.
	Decided bool
}

// Forgotten are those of one creator's refused requests that are deleted: the ones whose time is over, and the oldest where
// there are too many.
func Forgotten(refused []Refused, now time.Time) (names []string) {
	refused = slices.DeleteFunc(slices.Clone(refused), func(r Refused) bool { return r.Decided })
	slices.SortFunc(refused, func(a, b Refused) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(b.Name, a.Name))
	})
	for i, r := range refused {
		if i >= MostRefused || now.Sub(r.Created) >= RefusedLifetime {
			names = append(names, r.Name)
		}
	}
	return names
}

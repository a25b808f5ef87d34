package registration

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestMatchCluster(t *testing.T) {
	newName := ClusterName("id")
	for _, row := range []struct {
		name     string
		clientID string
		owners   []KnownCluster
		sameName *KnownCluster
		want     ClusterMatch
		says     string
	}{
		{name: "an unknown identity gets a new Cluster", clientID: "id", want: ClusterMatch{Create: newName}},
		{name: "a known one gets its Cluster", clientID: "id", owners: []KnownCluster{{Name: "mine", ClientID: "id"}}, want: ClusterMatch{Use: "mine"}},
		{
			name: "one that is being deleted does not count beside a living one", clientID: "id",
			owners: []KnownCluster{{Name: "old", ClientID: "id", Deleting: true}, {Name: "mine", ClientID: "id"}}, want: ClusterMatch{Use: "mine"},
		},
		{
			name: "one that is being deleted is waited for", clientID: "id", owners: []KnownCluster{{Name: "old", ClientID: "id", Deleting: true}},
			want: ClusterMatch{Wait: &Explanation{Reason: fleet.ReasonClusterDeleting}}, says: "Cluster old",
		},
		{
			name: "two Clusters of one identity are ambiguous", clientID: "id",
			owners: []KnownCluster{{Name: "b", ClientID: "id"}, {Name: "a", ClientID: "id"}},
			want:   ClusterMatch{Refuse: &Explanation{Reason: fleet.ReasonClientIDAmbiguous}}, says: "Clusters a, b all",
		},
		{
			name: "the new name is taken by another identity", clientID: "id", sameName: &KnownCluster{Name: newName, ClientID: "other"},
			want: ClusterMatch{Refuse: &Explanation{Reason: fleet.ReasonClusterNameTaken}}, says: newName,
		},
		{
			name: "a Cluster without identity is not taken over by its name", clientID: "id", sameName: &KnownCluster{Name: newName},
			want: ClusterMatch{Refuse: &Explanation{Reason: fleet.ReasonClusterNameTaken}}, says: newName,
		},
		{
			name: "the new name is about to be free", clientID: "id", sameName: &KnownCluster{Name: newName, ClientID: "other", Deleting: true},
			want: ClusterMatch{Wait: &Explanation{Reason: fleet.ReasonClusterDeleting}}, says: newName,
		},
		{
			name: "the Cluster came to be between the two look-ups", clientID: "id", sameName: &KnownCluster{Name: newName, ClientID: "id"},
			want: ClusterMatch{Use: newName},
		},
		{
			name: "no identity", clientID: "", owners: []KnownCluster{{Name: "any"}},
			want: ClusterMatch{Refuse: &Explanation{Reason: fleet.ReasonClientIDEmpty}}, says: "spec.clientID is empty",
		},
		{name: "only blanks are no identity", clientID: " \t\n ", want: ClusterMatch{Refuse: &Explanation{Reason: fleet.ReasonClientIDEmpty}}, says: "empty"},
		{
			name: "an identity of 10 kB", clientID: strings.Repeat("x", 10_000),
			want: ClusterMatch{Refuse: &Explanation{Reason: fleet.ReasonClientIDTooLong}}, says: "10000 bytes, at most 4096",
		},
		{
			name: "the longest identity", clientID: strings.Repeat("x", MaxClientIDLength),
			want: ClusterMatch{Create: ClusterName(strings.Repeat("x", 100))},
		},
		{name: "an identity in unicode", clientID: "クラスタ", want: ClusterMatch{Create: ClusterName("クラスタ")}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := MatchCluster(row.clientID, row.owners, row.sameName)
			for _, refusal := range []*Explanation{got.Wait, got.Refuse} {
				if refusal != nil {
					assert.Contains(t, refusal.Message, row.says)
					assert.NotContains(t, refusal.Message, "xxxxxxxxxx", "the identity is not repeated")
					refusal.Message = ""
				}
			}
			assert.Equal(t, row.want, got)
		})
	}
}

func TestMatchToken(t *testing.T) {
	one, two := KnownToken{Name: "one", ServiceAccount: "one-uid"}, KnownToken{Name: "two", ServiceAccount: "two-uid"}
	for _, row := range []struct {
		name               string
		claimed            string
		found, importToken *KnownToken
		all                []KnownToken
		want               *KnownToken
		reason, says       string
	}{
		{name: "the one it names", claimed: "one", found: &one, want: &one},
		{name: "the one it names wins over the import token", claimed: "one", found: &one, importToken: &two, want: &one},
		{
			name: "a name that leads nowhere is refused", claimed: "gone", all: []KnownToken{one},
			reason: fleet.ReasonTokenNotFound, says: "ClusterRegistrationToken gone",
		},
		{
			name: "even where there is an import token", claimed: "gone", importToken: &two,
			reason: fleet.ReasonTokenNotFound, says: "register with a new token",
		},
		{name: "an old agent of an imported Cluster", importToken: &two, all: []KnownToken{one, two}, want: &two},
		{name: "an old agent where there is one token", all: []KnownToken{one}, want: &one},
		{name: "an old agent where there are two", all: []KnownToken{one, two}, reason: fleet.ReasonTokenUnknown, says: "the namespace has 2"},
		{name: "an old agent where there is none", reason: fleet.ReasonTokenUnknown, says: "the namespace has 0"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, refusal := MatchToken(row.claimed, row.found, row.importToken, row.all)
			assert.Equal(t, row.want, got)
			if row.reason == "" {
				assert.Nil(t, refusal)
				return
			}
			require.NotNil(t, refusal)
			assert.Equal(t, row.reason, refusal.Reason)
			assert.Contains(t, refusal.Message, row.says)
		})
	}
}

func TestSuperseded(t *testing.T) {
	now := time.Unix(1000, 0)
	self := AgentRequest{Name: "self", ClientRandom: "r", Created: now}
	for _, row := range []struct {
		name  string
		other AgentRequest
		void  bool
	}{
		{"an older one", AgentRequest{Name: "a", ClientRandom: "x", Created: now.Add(-time.Second)}, true},
		{"an older granted one", AgentRequest{Name: "a", ClientRandom: "x", Created: now.Add(-time.Second), Granted: true}, true},
		{"a granted one of the same second", AgentRequest{Name: "a", ClientRandom: "x", Created: now, Granted: true}, true},
		{"another of the same second still has its turn", AgentRequest{Name: "a", ClientRandom: "x", Created: now}, false},
		{"a newer one stays", AgentRequest{Name: "a", ClientRandom: "x", Created: now.Add(time.Second)}, false},
		{"itself", AgentRequest{Name: "self", ClientRandom: "r", Created: now.Add(-time.Second), Granted: true}, false},
		{"one that shares the credential", AgentRequest{Name: "a", ClientRandom: "r", Created: now.Add(-time.Second), Granted: true}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			assert.Equal(t, row.void, slices.Contains(Superseded(self, []AgentRequest{row.other}), row.other.Name))
		})
	}
}

func TestNewerGranted(t *testing.T) {
	now := time.Unix(1000, 0)
	self := AgentRequest{Name: "self", ClientRandom: "r", Created: now}
	for _, row := range []struct {
		name  string
		other AgentRequest
		want  string
	}{
		{"a newer granted one", AgentRequest{Name: "a", ClientRandom: "x", Created: now.Add(time.Second), Granted: true}, "a"},
		{"a newer one that was not granted", AgentRequest{Name: "a", ClientRandom: "x", Created: now.Add(time.Second)}, ""},
		{"one of the same second", AgentRequest{Name: "a", ClientRandom: "x", Created: now, Granted: true}, ""},
		{"an older one", AgentRequest{Name: "a", ClientRandom: "x", Created: now.Add(-time.Second), Granted: true}, ""},
		{"one that shares the credential", AgentRequest{Name: "a", ClientRandom: "r", Created: now.Add(time.Second), Granted: true}, ""},
		{"one whose token is only assumed", AgentRequest{Name: "a", ClientRandom: "x", Created: now.Add(time.Second), Granted: true, AssumedToken: true}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			assert.Equal(t, row.want, NewerGranted(self, []AgentRequest{row.other}))
		})
	}
}

// TestSupersededLeavesOneRequest grants requests in any order, as a hub does after an outage. In the end one granted request must be left, created
// in the last second.
func TestSupersededLeavesOneRequest(t *testing.T) {
	for seed := range int64(500) {
		random := rand.New(rand.NewSource(seed))
		requests := map[string]AgentRequest{}
		last := time.Time{}
		for i := range 1 + random.Intn(6) {
			r := AgentRequest{Name: string('a' + rune(i)), ClientRandom: string('A' + rune(i)), Created: time.Unix(int64(random.Intn(4)), 0)}
			requests[r.Name] = r
			if r.Created.After(last) {
				last = r.Created
			}
		}
		granted := grantAll(random, requests)
		require.Len(t, granted, 1, "seed %d", seed)
		assert.Equal(t, last, granted[0].Created, "seed %d", seed)
	}
}

func grantAll(random *rand.Rand, requests map[string]AgentRequest) (granted []AgentRequest) {
	names := []string{}
	for n := range requests {
		names = append(names, n)
	}
	slices.Sort(names)
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, n := range names {
		self, exists := requests[n]
		others := values(requests)
		if !exists || NewerGranted(self, others) != "" {
			continue
		}
		self.Granted = true
		requests[n] = self
		for _, void := range Superseded(self, others) {
			delete(requests, void)
		}
	}
	for _, r := range requests {
		if r.Granted {
			granted = append(granted, r)
		}
	}
	return granted
}

func values(requests map[string]AgentRequest) (all []AgentRequest) {
	for _, r := range requests {
		all = append(all, r)
	}
	return all
}

func TestOldestUnused(t *testing.T) {
	at := func(n int) AgentRequest {
		return AgentRequest{Name: fmt.Sprintf("request-%02d", n), Created: time.Unix(int64(n/2), 0), Granted: true}
	}
	var unused []AgentRequest
	for n := range MostUnused {
		unused = append(unused, at(n+2))
	}
	assert.Empty(t, OldestUnused(unused))
	assert.Equal(t, []string{"request-01", "request-00"}, OldestUnused(append([]AgentRequest{at(0), at(1)}, unused...)), "two of the same second")
	assert.Empty(t, OldestUnused(nil))
}

func TestMatchCluster_veryManyClusters(t *testing.T) {
	var owners []KnownCluster
	for n := range 5000 {
		owners = append(owners, KnownCluster{Name: fmt.Sprintf("cluster-%05d", n), ClientID: "same"})
	}
	message := MatchCluster("same", owners, nil).Refuse.Message
	assert.Less(t, len(message), 300)
	assert.Equal(t, message, MatchCluster("same", owners[:4000], nil).Refuse.Message)
}

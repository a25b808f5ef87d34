package registration

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// knownCluster returns an existing Cluster.
func knownCluster(name, clientID string) *fleet.Cluster {
	return &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fleet.ClusterSpec{ClientID: clientID}}
}

// deletingCluster returns a Cluster that is being deleted.
func deletingCluster(name, clientID string) *fleet.Cluster {
	c := knownCluster(name, clientID)
	c.DeletionTimestamp = &metav1.Time{}
	return c
}

func TestMatchCluster(t *testing.T) {
	newName, mine := ClusterName("id"), knownCluster("mine", "id")
	justCreated := knownCluster(newName, "id")
	for _, row := range []struct {
		name     string
		clientID string
		owners   []*fleet.Cluster
		sameName *fleet.Cluster
		want     ClusterMatch
		says     string
	}{
		{name: "an unknown identity gets a new Cluster", clientID: "id", want: ClusterMatch{Create: newName}},
		{name: "a known one gets its Cluster", clientID: "id", owners: []*fleet.Cluster{mine}, want: ClusterMatch{Use: mine}},
		{
			name: "one that is being deleted does not count beside a living one", clientID: "id",
			owners: []*fleet.Cluster{deletingCluster("old", "id"), mine}, want: ClusterMatch{Use: mine},
		},
		{
			name: "one that is being deleted is waited for", clientID: "id", owners: []*fleet.Cluster{deletingCluster("old", "id")},
			want: ClusterMatch{Wait: &Explanation{Reason: fleet.ReasonClusterDeleting}}, says: "Cluster old",
		},
		{
			name: "two Clusters of one identity are ambiguous", clientID: "id",
			owners: []*fleet.Cluster{knownCluster("b", "id"), knownCluster("a", "id")},
			want:   ClusterMatch{Refuse: &Explanation{Reason: fleet.ReasonClientIDAmbiguous}}, says: "Clusters a, b all",
		},
		{
			name: "the new name is taken by another identity", clientID: "id", sameName: knownCluster(newName, "other"),
			want: ClusterMatch{Refuse: &Explanation{Reason: fleet.ReasonClusterNameTaken}}, says: newName,
		},
		{
			name: "a Cluster without identity is not taken over by its name", clientID: "id", sameName: knownCluster(newName, ""),
			want: ClusterMatch{Refuse: &Explanation{Reason: fleet.ReasonClusterNameTaken}}, says: newName,
		},
		{
			name: "the new name is about to be free", clientID: "id", sameName: deletingCluster(newName, "other"),
			want: ClusterMatch{Wait: &Explanation{Reason: fleet.ReasonClusterDeleting}}, says: newName,
		},
		{
			name: "the Cluster came to be between the two look-ups", clientID: "id", sameName: justCreated,
			want: ClusterMatch{Use: justCreated},
		},
		{
			name: "no identity", clientID: "", owners: []*fleet.Cluster{knownCluster("any", "")},
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

// requestAt returns a request that names its token.
func requestAt(name, clientRandom string, created time.Time, isGranted bool) *fleet.ClusterRegistration {
	return &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.NewTime(created), Labels: map[string]string{fleet.RegistrationTokenLabel: "token"},
		},
		Spec:   fleet.ClusterRegistrationSpec{ClientRandom: clientRandom},
		Status: fleet.ClusterRegistrationStatus{Granted: isGranted},
	}
}

// withoutToken removes the token of a request.
func withoutToken(r *fleet.ClusterRegistration) *fleet.ClusterRegistration {
	r.Labels = nil
	return r
}

// deleting marks a request as being deleted.
func deleting(r *fleet.ClusterRegistration) *fleet.ClusterRegistration {
	r.DeletionTimestamp = &metav1.Time{}
	return r
}

func namesOf(requests []*fleet.ClusterRegistration) (names []string) {
	for _, r := range requests {
		names = append(names, r.Name)
	}
	return names
}

func TestSuperseded(t *testing.T) {
	now := time.Unix(1000, 0)
	self := requestAt("self", "r", now, false)
	for _, row := range []struct {
		name  string
		other *fleet.ClusterRegistration
		void  bool
	}{
		{"an older one", requestAt("a", "x", now.Add(-time.Second), false), true},
		{"an older granted one", requestAt("a", "x", now.Add(-time.Second), true), true},
		{"a granted one of the same second", requestAt("a", "x", now, true), true},
		{"another of the same second still has its turn", requestAt("a", "x", now, false), false},
		{"a newer one stays", requestAt("a", "x", now.Add(time.Second), false), false},
		{"itself", requestAt("self", "r", now.Add(-time.Second), true), false},
		{"one that shares the credential", requestAt("a", "r", now.Add(-time.Second), true), false},
		{"one that is being deleted", deleting(requestAt("a", "x", now.Add(-time.Second), true)), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			assert.Equal(t, row.void, slices.Contains(Superseded(self, []*fleet.ClusterRegistration{row.other}), row.other))
		})
	}
}

func TestNewerGranted(t *testing.T) {
	now := time.Unix(1000, 0)
	self := requestAt("self", "r", now, false)
	for _, row := range []struct {
		name  string
		other *fleet.ClusterRegistration
		newer bool
	}{
		{"a newer granted one", requestAt("a", "x", now.Add(time.Second), true), true},
		{"a newer one that was not granted", requestAt("a", "x", now.Add(time.Second), false), false},
		{"one of the same second", requestAt("a", "x", now, true), false},
		{"an older one", requestAt("a", "x", now.Add(-time.Second), true), false},
		{"one that shares the credential", requestAt("a", "r", now.Add(time.Second), true), false},
		{"one whose token is only assumed", withoutToken(requestAt("a", "x", now.Add(time.Second), true)), false},
		{"one that is being deleted", deleting(requestAt("a", "x", now.Add(time.Second), true)), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			assert.Equal(t, row.newer, NewerGranted(self, []*fleet.ClusterRegistration{row.other}) == row.other)
		})
	}
}

// TestSupersededLeavesOneRequest grants requests in any order, as a hub does after an outage. In the end one granted request must be left, created
// in the last second.
func TestSupersededLeavesOneRequest(t *testing.T) {
	for seed := range int64(500) {
		random := rand.New(rand.NewSource(seed))
		requests := map[string]*fleet.ClusterRegistration{}
		last := time.Time{}
		for i := range 1 + random.Intn(6) {
			r := requestAt(string('a'+rune(i)), string('A'+rune(i)), time.Unix(int64(random.Intn(4)), 0), false)
			requests[r.Name] = r
			if r.CreationTimestamp.After(last) {
				last = r.CreationTimestamp.Time
			}
		}
		granted := grantAll(random, requests)
		require.Len(t, granted, 1, "seed %d", seed)
		assert.Equal(t, last, granted[0].CreationTimestamp.Time, "seed %d", seed)
	}
}

func grantAll(random *rand.Rand, requests map[string]*fleet.ClusterRegistration) (granted []*fleet.ClusterRegistration) {
	names := slices.Sorted(maps.Keys(requests))
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, n := range names {
		self, exists := requests[n]
		others := slices.Collect(maps.Values(requests))
		if !exists || NewerGranted(self, others) != nil {
			continue
		}
		self.Status.Granted = true
		for _, void := range Superseded(self, others) {
			delete(requests, void.Name)
		}
	}
	for _, r := range requests {
		if r.Status.Granted {
			granted = append(granted, r)
		}
	}
	return granted
}

func TestOldestUnused(t *testing.T) {
	at := func(n int) *fleet.ClusterRegistration {
		return requestAt(fmt.Sprintf("request-%02d", n), "", time.Unix(int64(n/2), 0), true)
	}
	var unused []*fleet.ClusterRegistration
	for n := range MostUnused {
		unused = append(unused, at(n+2))
	}
	assert.Empty(t, OldestUnused(unused))
	assert.Equal(t, []string{"request-01", "request-00"}, namesOf(OldestUnused(append([]*fleet.ClusterRegistration{at(0), at(1)}, unused...))), "two of the same second")
	assert.Empty(t, OldestUnused(nil))
}

func TestMatchCluster_veryManyClusters(t *testing.T) {
	var owners []*fleet.Cluster
	for n := range 5000 {
		owners = append(owners, knownCluster(fmt.Sprintf("cluster-%05d", n), "same"))
	}
	message := MatchCluster("same", owners, nil).Refuse.Message
	assert.Less(t, len(message), 300)
	assert.Equal(t, message, MatchCluster("same", owners[:4000], nil).Refuse.Message)
}

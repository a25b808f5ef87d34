package registration

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	wranglername "github.com/rancher/wrangler/v3/pkg/name"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/muster-fleet/muster/internal/fuzz"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// For any valid name of an object, the names that are derived from it are valid.
func FuzzObjectNames(f *testing.F) {
	f.Add("fleet-default", "cluster-1", "5a1f")
	f.Add("a", "0.b", "0")
	f.Add(strings.Repeat("n", 63), strings.Repeat("a.", 100)+"z", "e9c1d0f4-0000-4000-8000-000000000000")
	f.Fuzz(func(t *testing.T, namespace, name, uid string) {
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsDNS1123Label(uid)) > 0 {
			return
		}
		assert.Empty(t, validation.IsDNS1123Label(ClusterNamespace(namespace, name)))
		account := RequestServiceAccount(name, uid)
		for _, made := range []string{
			account, TokenServiceAccount(name, uid), TokenRoleName(account), TokenRoleBindingName(account), CredentialReaderName(account),
			ImportTokenName(name), AgentBundleName(name), wranglername.SafeConcatName(namespace, name),
		} {
			assert.LessOrEqual(t, len(made), 63)
			assert.Empty(t, validation.IsDNS1123Subdomain(made), made)
		}
		assert.Empty(t, validation.IsDNS1123Subdomain(ServiceAccountTokenSecret(account)))
		assert.Empty(t, validation.IsValidLabelValue(LabelValue(name)))
	})
}

// For any bytes that an agent sends as its identity, the derived names are valid.
func FuzzIdentityNames(f *testing.F) {
	f.Add("", "")
	f.Add("5a1f0c5e-7e0c-4b7a-9d3c-1d8f0e1f2a3b", "random")
	f.Add("../../etc", "\x00\xff")
	f.Add(strings.Repeat("é", 5000), "x")
	f.Fuzz(func(t *testing.T, clientID, clientRandom string) {
		assert.Regexp(t, `^[0-9a-f]{12}$`, KeyHash(clientID))
		assert.Regexp(t, `^c-[0-9a-f]{61}$`, AnswerSecretName(clientID, clientRandom))
		assert.Equal(t, "cluster-"+KeyHash(clientID), ClusterName(clientID))
		assert.True(t, strings.HasPrefix(OwnedSetID("set", clientID, clientRandom), "set-"))
	})
}

// identities fills values from few strings, so that many are equal.
func identities(seed []byte, into any) { fuzz.From(seed, "a", "b", "ab", "cluster-1").Fill(into) }

// filledCluster has the fields of a Cluster that MatchCluster reads.
type filledCluster struct {
	Name, ClientID string
	Deleting       bool
}

func (f filledCluster) cluster() *fleet.Cluster {
	if f.Deleting {
		return deletingCluster(f.Name, f.ClientID)
	}
	return knownCluster(f.Name, f.ClientID)
}

func FuzzMatchCluster(f *testing.F) {
	fuzz.AddSeeds(f)
	f.Fuzz(func(t *testing.T, seed []byte) {
		var in struct {
			ClientID string
			Owners   []filledCluster
			SameName *filledCluster
		}
		identities(seed, &in)
		var owners, living []*fleet.Cluster
		for _, o := range in.Owners {
			owners = append(owners, o.cluster())
		}
		var sameName *fleet.Cluster
		if in.SameName != nil {
			sameName = in.SameName.cluster()
		}
		match := MatchCluster(in.ClientID, owners, sameName)
		assertOneAnswer(t, match)
		assert.Equal(t, match.Refuse, MatchCluster(in.ClientID, fuzz.Shuffled(seed, owners), sameName).Refuse)
		assert.Same(t, match.Use, MatchCluster(in.ClientID, fuzz.Shuffled(seed, owners), sameName).Use)
		for _, o := range owners {
			if o.DeletionTimestamp == nil {
				living = append(living, o)
			}
		}
		if len(living) > 1 {
			assert.NotNil(t, match.Refuse, "the Cluster is ambiguous")
		} else if len(living) == 1 && match.Refuse == nil {
			assert.Same(t, living[0], match.Use)
		}
		if match.Create != "" {
			assert.Nil(t, in.SameName, "a Cluster that exists is not made")
			assert.Empty(t, in.Owners, "a second Cluster of one identity")
		}
		if strings.TrimSpace(in.ClientID) == "" {
			assert.NotNil(t, match.Refuse, "no identity is everybody's")
		}
	})
}

func assertOneAnswer(t *testing.T, m ClusterMatch) {
	t.Helper()
	answers := 0
	for _, given := range []bool{m.Use != nil, m.Create != "", m.Wait != nil, m.Refuse != nil} {
		if given {
			answers++
		}
	}
	assert.Equal(t, 1, answers)
	for _, r := range []*Explanation{m.Wait, m.Refuse} {
		if r != nil {
			assert.NotEmpty(t, r.Reason)
			assert.NotEmpty(t, r.Message)
		}
	}
}

func FuzzMatchToken(f *testing.F) {
	fuzz.AddSeeds(f)
	f.Fuzz(func(t *testing.T, seed []byte) {
		var in struct {
			Claimed            string
			Found, ImportToken *KnownToken
			Namespace          []KnownToken
		}
		identities(seed, &in)
		token, refusal := MatchToken(in.Claimed, in.Found, in.ImportToken, in.Namespace)
		require.NotEqual(t, token == nil, refusal == nil, "either a token or a refusal")
		other, _ := MatchToken(in.Claimed, in.Found, in.ImportToken, fuzz.Shuffled(seed, in.Namespace))
		assert.Equal(t, token, other, "whatever the order")
		if token == nil {
			return
		}
		known := slices.ContainsFunc(in.Namespace, func(t KnownToken) bool { return reflect.DeepEqual(t, *token) }) || in.Found == token || in.ImportToken == token
		assert.True(t, known, "a token nobody knows")
		if in.Claimed != "" {
			assert.Same(t, in.Found, token, "another token than the one it names")
		}
	})
}

// filledRequest has the fields of a request that Superseded and NewerGranted read.
type filledRequest struct {
	Name, ClientRandom         string
	Created                    time.Time
	Granted, Assumed, Deleting bool
}

func (f filledRequest) request() *fleet.ClusterRegistration {
	r := requestAt(f.Name, f.ClientRandom, f.Created, f.Granted)
	if f.Assumed {
		withoutToken(r)
	}
	if f.Deleting {
		deleting(r)
	}
	return r
}

func FuzzSuperseded(f *testing.F) {
	fuzz.AddSeeds(f)
	f.Fuzz(func(t *testing.T, seed []byte) {
		var filledSelf filledRequest
		var filledOthers []filledRequest
		filler := fuzz.From(seed, "a", "b", "ab")
		filler.Fill(&filledSelf)
		filler.Fill(&filledOthers)
		self := filledSelf.request()
		var others []*fleet.ClusterRegistration
		for _, f := range filledOthers {
			f.Name += "-" // objects have names
			others = append(others, f.request())
		}
		void := Superseded(self, others)
		assert.ElementsMatch(t, void, Superseded(self, fuzz.Shuffled(seed, others)), "whatever the order")
		var older []*fleet.ClusterRegistration
		for _, r := range others {
			same := r.Name == self.Name || r.Spec.ClientRandom == self.Spec.ClientRandom
			created, now := r.CreationTimestamp.Time, self.CreationTimestamp.Time
			if !same && r.DeletionTimestamp == nil && (created.Before(now) || r.Status.Granted && created.Equal(now)) {
				older = append(older, r)
			}
		}
		assert.ElementsMatch(t, older, void)
		assert.Equal(t, NewerGranted(self, others), NewerGranted(self, fuzz.Shuffled(seed, others)), "otherwise the message of a refusal changes in every pass")
	})
}

func FuzzValidLabels(f *testing.F) {
	f.Add("env", "prod", "fleet.cattle.io/cluster", "x", "management.cattle.io/cluster-name", "y")
	f.Add("", "", "a b", "c", "fleet.cattle.io/created-by-agent-pod", "pod")
	f.Add("objectset.rio.cattle.io/hash", "z", "Fleet.cattle.io/x", "", "k/é", "\x00")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2, k3, v3 string) {
		sent := map[string]string{k1: v1, k2: v2, k3: v3}
		before := maps.Clone(sent)
		accepted, dropped := ValidLabels(sent)
		assert.Equal(t, before, sent, "the request is in a cache")
		assert.True(t, slices.IsSorted(dropped))
		assert.Len(t, sent, len(accepted)+len(dropped))
		for key, value := range accepted {
			assert.Equal(t, value, sent[key])
			assert.NotContains(t, dropped, key)
			assert.Empty(t, validation.IsQualifiedName(key))
			assert.Empty(t, validation.IsValidLabelValue(value))
			ours := strings.HasPrefix(key, fleet.ReservedPrefix) || strings.HasPrefix(key, fleet.ReservedManagementPrefix)
			assert.True(t, !ours || key == fleet.CreatedByAgentPodLabel, key)
		}
		again, nothing := ValidLabels(accepted)
		assert.Equal(t, accepted, again)
		assert.Empty(t, nothing)
		assert.Equal(t, "c", NewClusterLabels("c", sent, false)[fleet.ClusterLabel], "an agent must not say which Cluster it is")
		assert.Len(t, NewClusterLabels("c", sent, true), 1)
	})
}

func FuzzEncodeValues(f *testing.F) {
	f.Add("fleet-default", "https://hub.example.com", "-----BEGIN CERTIFICATE-----\n", "eyJ.a.b", "import", "sys")
	f.Add("", "1", "null", "0x10", "yes", "~")
	f.Add("a: b", "- c", "{", "\"", "'", "#\n")
	f.Fuzz(func(t *testing.T, namespace, url, ca, token, name, system string) {
		for _, text := range []string{namespace, url, ca, token, name, system} {
			if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
				return // YAML cannot express such characters, and no value may contain them
			}
		}
		v := Values{
			Workspace: namespace, APIServerURL: url, APIServerCA: ca, Token: token, TokenName: name,
			SystemRegistrationNamespace: system, Internal: &ValuesInternal{SystemNamespace: system},
		}
		data, err := EncodeValues(v)
		require.NoError(t, err)
		back, err := DecodeValues(data)
		require.NoError(t, err)
		assert.Equal(t, v, back)
	})
}

func FuzzUsesAdd(f *testing.F) {
	fuzz.AddSeeds(f)
	f.Fuzz(func(t *testing.T, seed []byte) {
		var in struct {
			Uses   Uses
			Asking []Use
		}
		identities(seed, &in)
		in.Uses.Count = max(in.Uses.Count%8, 0)
		after, added, waiting := in.Uses.Add(in.Asking)
		assert.Equal(t, in.Uses.Count+int64(len(added)), after.Count)
		assert.Empty(t, waiting, "there is a place for so few")
		for _, use := range added {
			assert.NotContains(t, in.Uses.Pending, use.UID)
			assert.Equal(t, UseCounted, after.State(use.UID, ""))
		}
		if in.Uses.Limit != nil && in.Uses.Count <= int64(max(*in.Uses.Limit, 0)) {
			assert.LessOrEqual(t, after.Count, int64(max(*in.Uses.Limit, 0)))
		}
		other, _, _ := in.Uses.Add(fuzz.Shuffled(seed, in.Asking))
		assert.Equal(t, after, other)
	})
}

package registration

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/muster-fleet/muster/internal/fuzz"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Whatever an object of Kubernetes is called, the names made of it are names that Kubernetes accepts.
func FuzzNamesMadeOfNamesAreNames(f *testing.F) {
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
			account, TokenServiceAccount(name, uid), RoleName(account), RoleBindingName(account), CredentialReaderName(account),
			ContentBindingName(account), ImportTokenName(name), AgentBundleName(name), ServiceAccountTokenSecret(account),
		} {
			assert.Empty(t, validation.IsDNS1123Subdomain(made), made)
			assert.LessOrEqual(t, len(made), 69, "leaves room for what Kubernetes appends")
		}
		assert.Empty(t, validation.IsValidLabelValue(LabelValue(name)))
	})
}

// Whatever an agent sends as its identity, the names made of it are good ones, and the same each time.
func FuzzNamesMadeOfAnIdentityAreNames(f *testing.F) {
	f.Add("", "")
	f.Add("5a1f0c5e-7e0c-4b7a-9d3c-1d8f0e1f2a3b", "random")
	f.Add("../../etc", "\x00\xff")
	f.Add(strings.Repeat("é", 5000), "x")
	f.Fuzz(func(t *testing.T, clientID, clientRandom string) {
		assert.Regexp(t, `^[0-9a-f]{12}$`, KeyHash(clientID))
		assert.Regexp(t, `^c-[0-9a-f]{61}$`, CredentialSecretName(clientID, clientRandom))
		assert.Equal(t, "cluster-"+KeyHash(clientID), ClusterName(clientID))
		assert.True(t, strings.HasPrefix(OwnedSetID("set", clientID, clientRandom), "set-"))
	})
}

// identities are few, so that they meet.
func identities(seed []byte, into any) { fuzz.From(seed, "a", "b", "ab", "cluster-1").Fill(into) }

func FuzzAClusterIsFoundWhateverTheOrder(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed []byte) {
		var in struct {
			ClientID string
			Owners   []Known
			SameName *Known
		}
		identities(seed, &in)
		match := MatchCluster(in.ClientID, in.Owners, in.SameName)
		assertOneAnswer(t, match)
		assert.Equal(t, match.Refuse, MatchCluster(in.ClientID, fuzz.Shuffled(seed, in.Owners), in.SameName).Refuse)
		assert.Equal(t, match.Use, MatchCluster(in.ClientID, fuzz.Shuffled(seed, in.Owners), in.SameName).Use)
		if match.Create != "" {
			assert.Nil(t, in.SameName, "a Cluster that exists is not made")
			assert.Empty(t, in.Owners, "a second Cluster of one identity")
		}
		if strings.TrimSpace(in.ClientID) == "" {
			assert.NotNil(t, match.Refuse, "no identity is everybody's")
		}
	})
}

func assertOneAnswer(t *testing.T, m Match) {
	t.Helper()
	answers := 0
	for _, given := range []bool{m.Use != "", m.Create != "", m.Wait != nil, m.Refuse != nil} {
		if given {
			answers++
		}
	}
	// An owner without a name, which Kubernetes does not have, is used by that name.
	assert.LessOrEqual(t, answers, 1)
	for _, r := range []*Refusal{m.Wait, m.Refuse} {
		if r != nil {
			assert.NotEmpty(t, r.Reason)
			assert.NotEmpty(t, r.Message)
		}
	}
}

func FuzzATokenIsOneThatIsThere(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed []byte) {
		var in struct {
			Claimed            string
			Found, ImportToken *Token
			Namespace          []Token
		}
		identities(seed, &in)
		token, refusal := MatchToken(in.Claimed, in.Found, in.ImportToken, in.Namespace)
		require.NotEqual(t, token == nil, refusal == nil, "either a token or a refusal")
		other, _ := MatchToken(in.Claimed, in.Found, in.ImportToken, fuzz.Shuffled(seed, in.Namespace))
		assert.Equal(t, token, other, "whatever the order")
		if token == nil {
			return
		}
		known := slices.Contains(in.Namespace, *token) || in.Found == token || in.ImportToken == token
		assert.True(t, known, "a token nobody knows")
		if in.Claimed != "" {
			assert.Same(t, in.Found, token, "another token than the one it names")
		}
	})
}

func FuzzOfTwoRequestsAtMostOneIsSuperseded(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed []byte) {
		var self Rival
		var rivals []Rival
		filler := fuzz.From(seed, "a", "b", "ab")
		filler.Fill(&self)
		filler.Fill(&rivals)
		for i := range rivals {
			rivals[i].Name += "-" // objects have names
		}
		void := Superseded(self, rivals)
		assert.Equal(t, void, Superseded(self, fuzz.Shuffled(seed, rivals)), "whatever the order")
		assert.True(t, slices.IsSorted(void))
		assert.NotContains(t, void, self.Name)
		for _, r := range rivals {
			switch {
			case r.ClientRandom == self.ClientRandom:
			case r.Created.After(self.Created) && r.Name != self.Name:
				unambiguous := !slices.ContainsFunc(rivals, func(o Rival) bool { return o.Name == r.Name && o != r })
				assert.False(t, unambiguous && slices.Contains(void, r.Name), "a newer one is never void")
			}
		}
		assert.Equal(t, NewerGranted(self, rivals), NewerGranted(self, fuzz.Shuffled(seed, rivals)), "or the message of a refusal changes for ever")
	})
}

func FuzzLabelsAreTakenOverOrDropped(f *testing.F) {
	f.Add("env", "prod", "fleet.cattle.io/cluster", "x", "management.cattle.io/cluster-name", "y")
	f.Add("", "", "a b", "c", "fleet.cattle.io/created-by-agent-pod", "pod")
	f.Add("objectset.rio.cattle.io/hash", "z", "Fleet.cattle.io/x", "", "k/é", "\x00")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2, k3, v3 string) {
		sent := map[string]string{k1: v1, k2: v2, k3: v3}
		before := maps.Clone(sent)
		accepted, dropped := AcceptLabels(sent)
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
		again, nothing := AcceptLabels(accepted)
		assert.Equal(t, accepted, again)
		assert.Empty(t, nothing)
		assert.Equal(t, "c", NewClusterLabels("c", sent, false)[fleet.ClusterLabel], "an agent must not say which Cluster it is")
		assert.Len(t, NewClusterLabels("c", sent, true), 1)
	})
}

func FuzzValuesComeBackAsTheyWere(f *testing.F) {
	f.Add("fleet-default", "https://hub.example.com", "-----BEGIN CERTIFICATE-----\n", "eyJ.a.b", "import", "sys")
	f.Add("", "1", "null", "0x10", "yes", "~")
	f.Add("a: b", "- c", "{", "\"", "'", "#\n")
	f.Fuzz(func(t *testing.T, namespace, url, ca, token, name, system string) {
		for _, text := range []string{namespace, url, ca, token, name, system} {
			if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
				return // YAML cannot say it, and none of it may have such characters
			}
		}
		v := Values{
			ClusterNamespace: namespace, APIServerURL: url, APIServerCA: ca, Token: token, TokenName: name,
			SystemRegistrationNamespace: system, Internal: &ValuesInternal{SystemNamespace: system},
		}
		data, err := EncodeValues(v)
		require.NoError(t, err)
		back, err := DecodeValues(data)
		require.NoError(t, err)
		assert.Equal(t, v, back)
	})
}

func FuzzValuesThatAreNoneAreNotRepeated(f *testing.F) {
	f.Add([]byte("token: [secret"))
	f.Add([]byte("token: {a: secret-value}\n"))
	f.Add([]byte("\x00\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := DecodeValues(data); err != nil {
			assert.EqualError(t, err, "the values are not a YAML document")
		}
	})
}

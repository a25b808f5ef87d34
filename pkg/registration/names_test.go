package registration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Peers compute these names too: each vector is one that existing agents, charts or controllers rely on.
func TestNames(t *testing.T) {
	a64 := strings.Repeat("a", 64)
	for _, row := range []struct{ what, got, want string }{
		{"a cluster namespace", ClusterNamespace("fleet-local", "local"), "cluster-fleet-local-local-1a3d67d0a899"},
		{"one of a created Cluster", ClusterNamespace("fleet-local", "cluster-294db1acfa77"), "cluster-fleet-local-cluster-294db1acfa77-d9ccf852678f"},
		{"an answer Secret", AnswerSecretName("client", "random"), "c-8150d44f100d34d77e6d8589694d05645ec40ee2f47982eda19053e416662"},
		{"64 letters", LabelValue(a64), strings.Repeat("a", 57) + "-ffe05"},
		{"a dash where it is cut", LabelValue(strings.Repeat("a", 56) + "-aaaaaaa"), strings.Repeat("a", 56) + "-768c62"},
		{"63 letters stay", LabelValue(a64[:63]), a64[:63]},
		{"a created Cluster", ClusterName("client"), "cluster-" + KeyHash("client")},
		{"a token's ServiceAccount", TokenServiceAccount("token", "uid"), "token-uid"},
		{"its Role", TokenRoleName("token-uid"), "token-uid-role"},
		{"its RoleBinding", TokenRoleBindingName("token-uid"), "token-uid-to-role"},
		{"a request's ServiceAccount", RequestServiceAccount("request-abc", "uid"), "request-abc-uid"},
		{"the right to read a credential", CredentialReaderName("request-abc-uid"), "request-abc-uid-creds"},
		{"a token Secret", ServiceAccountTokenSecret(a64), a64 + "-token"},
		{"an import token", ImportTokenName("local"), "import-token-local"},
		{"an agent Bundle", AgentBundleName("local"), "fleet-agent-local"},
		{"the set of an agent", AgentBootstrapSetID(""), "fleet-agent-bootstrap"},
		{"the set of an agent elsewhere", AgentBootstrapSetID("elsewhere"), "fleet-agent-bootstrap-elsewhere"},
	} {
		assert.Equal(t, row.want, row.got, row.what)
	}
}

func TestKeyHashUsesTheFirstHundredBytes(t *testing.T) {
	base := strings.Repeat("x", 100)
	assert.Equal(t, KeyHash(base), KeyHash(base+"y"))
	assert.NotEqual(t, KeyHash(base[:99]), KeyHash(base))
	assert.Len(t, KeyHash(""), 12)
}

func TestSystemRegistrationNamespace(t *testing.T) {
	for system, want := range map[string]string{
		"a-system-b-system":    "a-clusters-system-b-clusters-system",
		"muster":               "muster-clusters-system",
		"system":               "system-clusters-system",
		DefaultSystemNamespace: "cattle-fleet-clusters-system",
		"fleet-system":         "fleet-clusters-system",
	} {
		assert.Equal(t, want, SystemRegistrationNamespace(system), system)
	}
}

func TestAnswerSecretNameIsAmbiguous(t *testing.T) {
	assert.Equal(t, AnswerSecretName("ab", "c"), AnswerSecretName("a", "bc"),
		"agents of Fleet compute it so; the hub compares the request that is named in the Secret before it writes it")
}

func TestOwnedSetIDIsUnambiguous(t *testing.T) {
	assert.NotEqual(t, OwnedSetID("set", "ca", "b"), OwnedSetID("set", "a", "bc"))
	assert.NotEqual(t, OwnedSetID("set", "a", "bc"), OwnedSetID("set", "ab", "c"))
}

func TestRequestName(t *testing.T) {
	name := RequestName("random")
	assert.Regexp(t, "^request-[a-z2-7]{16}$", name)
	for other, want := range map[string]bool{"random": false, "another": true} {
		assert.Equal(t, want, isDerivedFromOtherRandom(name, other), other)
	}
	for _, other := range []string{"request-x7k2p", "a-name-with-length-20", ""} {
		assert.False(t, isDerivedFromOtherRandom(other, "random"), other)
	}
}

package agent

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/pkg/registration"
)

func TestARequestSaysWhoAsksAndWithWhichToken(t *testing.T) {
	p := pending{name: "request-x", clientRandom: "random"}
	b := &bootstrap{clusterNamespace: "fleet-default", tokenName: "token"}
	request := newRequest(p, b, "client", map[string]string{"env": "prod"}, "pod-0")
	assert.Equal(t, "fleet-default", request.Namespace)
	assert.Equal(t, "request-x", request.Name)
	assert.Equal(t, "request-", request.GenerateName)
	assert.Equal(t, "client", request.Spec.ClientID)
	assert.Equal(t, "random", request.Spec.ClientRandom)
	assert.Equal(t, map[string]string{"env": "prod", "fleet.cattle.io/created-by-agent-pod": "pod-0"}, request.Spec.ClusterLabels)
	assert.Equal(t, map[string]string{"fleet.cattle.io/registration-token": "token"}, request.Labels)
	assert.Equal(t, map[string]string{"muster.fleet.cattle.io/credential-renewal": "true"}, request.Annotations)
}

func TestTheTokensNameFitsIntoALabel(t *testing.T) {
	long := strings.Repeat("a", 253)
	for name, row := range map[string]struct{ token, want string }{
		"none":                   {"", ""},
		"short":                  {"token", "token"},
		"as long as a name":      {long, registration.LabelValue(long)},
		"nothing a label can be": {"no/label", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := tokenLabel(row.token)["fleet.cattle.io/registration-token"]
			assert.Equal(t, row.want, got)
			assert.True(t, validLabelValue(got))
		})
	}
}

func TestAPodNameThatIsNoLabelIsLeftOut(t *testing.T) {
	for _, pod := range []string{"", "no label!", strings.Repeat("a", 64)} {
		assert.Empty(t, requestLabels(nil, pod))
	}
	configured := map[string]string{"a": "b"}
	requestLabels(configured, "pod")
	assert.Equal(t, map[string]string{"a": "b"}, configured, "the configuration was changed")
}

func TestANewRequestCannotBeGuessed(t *testing.T) {
	first, err := newPending("f")
	require.NoError(t, err)
	second, err := newPending("f")
	require.NoError(t, err)
	assert.NotEqual(t, first.name, second.name)
	assert.NotEqual(t, first.clientRandom, second.clientRandom)
	assert.Regexp(t, `^request-[a-z0-9]{10}$`, first.name)
	assert.Len(t, first.clientRandom, 54)
	assert.NotContains(t, first.clientRandom, strings.TrimPrefix(first.name, requestPrefix))

	read := parsePending(first.secret("ns"))
	assert.Equal(t, first, read)
	assert.True(t, read.belongsTo("f"))
	assert.False(t, read.belongsTo("g"))
	assert.False(t, pending{bootstrap: "f", name: "n"}.belongsTo("f"))
	assert.False(t, pending{bootstrap: "f", clientRandom: "r"}.belongsTo("f"))
}

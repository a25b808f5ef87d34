package config

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseClusternet(t *testing.T) {
	hub, warnings, err := ParseHub(`
clusternet:
  bootstrapTokens:
  - {id: abc123, namespace: clusters, token: edge}
  - {id: abc124, namespace: clusters, token: edge}
  - {id: zzzzzz, namespace: other, token: edge}
  reentryNamespaces: [clusters]
`)
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.Equal(t, []string{"system:bootstrap:abc123", "system:bootstrap:abc124"}, hub.Clusternet.UsersOf("clusters", "edge"))
	assert.Empty(t, hub.Clusternet.UsersOf("clusters", "tok"))
	use, found := hub.Clusternet.ForUser("system:bootstrap:zzzzzz")
	assert.Equal(t, BootstrapTokenUse{ID: "zzzzzz", Namespace: "other", Token: "edge"}, use)
	assert.True(t, found)
	for _, user := range []string{"", "zzzzzz", "system:bootstrap:", "system:bootstrap:abc12", "system:serviceaccount:clusters:edge"} {
		_, found := hub.Clusternet.ForUser(user)
		assert.False(t, found, user)
	}
	assert.Equal(t, []string{"clusters"}, hub.Clusternet.ReentryNamespaces)
}

func TestParseClusternetErrors(t *testing.T) {
	for document, want := range map[string]string{
		"[{id: abc123.0123456789abcdef, namespace: a, token: b}]":                        "clusternet.bootstrapTokens[0].id is not the first part of a bootstrap token",
		"[{namespace: a, token: b}]":                                                     "clusternet.bootstrapTokens[0].id is not",
		"[{id: ABCDEF, namespace: a, token: b}]":                                         "clusternet.bootstrapTokens[0].id is not",
		"[{id: abcdef, token: b}]":                                                       `clusternet.bootstrapTokens[0].namespace is ""`,
		"[{id: abcdef, namespace: a/b, token: b}]":                                       `clusternet.bootstrapTokens[0].namespace is "a/b"`,
		"[{id: abcdef, namespace: a}]":                                                   `clusternet.bootstrapTokens[0].token is ""`,
		"[{id: abcdef, namespace: a, token: b}, {id: abcdef, namespace: c, token: d}]":   `clusternet.bootstrapTokens[1].id is "abcdef", which an earlier entry has`,
		"[{id: abcdef, namespace: a, token: b}, {id: abcdeg, namespace: a, token: B_c}]": `clusternet.bootstrapTokens[1].token is "B_c"`,
	} {
		hub, _, err := ParseHub("clusternet: {bootstrapTokens: " + document + "}")
		require.ErrorContains(t, err, want, document)
		assert.NotContains(t, err.Error(), "0123456789abcdef", "a secret")
		assert.Equal(t, Hub{}, hub)
	}
}

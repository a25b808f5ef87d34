package release

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// renamed is the request under another name, to which the first release hands over.
func (m *member) renamed(files ...string) Request {
	r := m.request(files...)
	r.Name, r.HandOver = "renamed", []Found{{Namespace: m.namespace, Name: "app"}}
	return r
}

func TestARenamedReleaseTakesOverTheObjectsOfTheOldOne(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	for range 2 {
		m.deploy(m.renamed("a.yaml", configMap("a", "k", "two"), "b.yaml", configMap("b", "k", "two")))
	}
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", Options{}))
	assert.Equal(t, []string{"a", "b"}, m.configMaps())
	assert.Equal(t, "two", m.configMap("a").Data["k"])
}

func TestARenamedReleaseTakesNothingFromStrangers(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	stranger := m.request("b.yaml", configMap("b", "k", "theirs"))
	stranger.Name, stranger.Labels = "stranger", nil
	m.deploy(stranger)
	_, err := m.Deploy(t.Context(), m.renamed("a.yaml", configMap("a", "k", "two"), "b.yaml", configMap("b", "k", "two")))
	require.ErrorContains(t, err, "b exists and cannot be imported into the current release")
	assert.Equal(t, "one", m.configMap("a").Data["k"], "nothing was changed")
	assert.Equal(t, "theirs", m.configMap("b").Data["k"])
}

func TestAReleaseThatAStrangerHasUnderTheNewNameIsLeftAlone(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	stranger := m.request("b.yaml", configMap("b", "k", "theirs"))
	stranger.Name, stranger.Labels = "renamed", nil
	m.deploy(stranger)
	_, err := m.Deploy(t.Context(), m.renamed("a.yaml", configMap("a", "k", "two")))
	var conflict *ConflictError
	require.ErrorAs(t, err, &conflict)
	assert.Equal(t, []string{"a", "b"}, m.configMaps())
	assert.Equal(t, "one", m.configMap("a").Data["k"])
}

package release

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
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

func TestNothingThatWasTakenOverGoesWithAnInstallationThatFails(t *testing.T) {
	bad := "apiVersion: v1\nkind: Service\nmetadata:\n  name: z\nspec:\n  ports: [{port: 0}]\n"
	atomic := &fleet.HelmOptions{Atomic: true, TimeoutSeconds: 120}
	t.Run("from an older release", func(t *testing.T) {
		m := onMember(t)
		m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
		r := m.renamed("a.yaml", configMap("a", "k", "two"), "z.yaml", bad)
		r.Options.Helm = atomic
		for range 2 { // the second one upgrades what the first has left
			_, err := m.Deploy(t.Context(), r)
			require.Error(t, err)
			assert.Equal(t, []string{"a"}, m.configMaps())
		}
		good := m.renamed("a.yaml", configMap("a", "k", "three"))
		good.Options.Helm = atomic
		m.deploy(good)
		assert.Equal(t, "three", m.configMap("a").Data["k"])
	})
	t.Run("from anybody", func(t *testing.T) {
		m := onMember(t)
		_, err := m.core.CoreV1().ConfigMaps(m.namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		r := m.request("a.yaml", configMap("a", "k", "two"), "z.yaml", bad)
		r.Options.Helm = &fleet.HelmOptions{Atomic: true, TimeoutSeconds: 120, TakeOwnership: true}
		_, err = m.Deploy(t.Context(), r)
		require.Error(t, err)
		assert.Equal(t, []string{"a"}, m.configMaps())
	})
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

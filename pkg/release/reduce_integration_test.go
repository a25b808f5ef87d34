package release

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/transport"
)

// reducing returns the client of a hub for the member: with its limits of responses, and a history that is reduced.
func (m *member) reducing(config *rest.Config) *Client {
	m.t.Helper()
	limited := rest.CopyConfig(config)
	limited.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return transport.Limited{Next: next, Body: transport.ResponseLimits{Bytes: 4 << 20, Values: 100_000}, Watch: transport.ResponseLimits{Bytes: 128 << 10, Values: 5000}}
	})
	client, err := New(limited)
	require.NoError(m.t, err)
	client, err = client.LookUpKinds(m.t.Context())
	require.NoError(m.t, err)
	return client.withKey(m.key).LimitHistory(HistoryLimits{
		Reduces: true, Scanned: 160 << 20, ResponseLimits: transport.ResponseLimits{Bytes: 4 << 20, Values: 10_000}, Nodes: 20_000,
	})
}

// A release as large as an API server stores one, with ten revisions, each of which has objects, hooks and a chart that cannot be compressed much.
func TestUninstall_reduced(t *testing.T) {
	sample.Long(t)
	const objects, revisions, large = 60, 5, 560 << 10 // Helm keeps five
	for name, isSigned := range map[string]bool{"signed": true, "not signed": false} {
		t.Run(name, func(t *testing.T) {
			m, f := signing(t), foreign(t)
			random := make([]byte, large)
			for i := range random {
				random[i] = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ+/"[rand.N(64)]
			}
			var templates strings.Builder
			for i := range objects {
				templates.WriteString("---\n" + configMap(fmt.Sprint("a", i), "k", "'{{ .Release.Revision }} "+strings.Repeat("x", 2000)+"'"))
			}
			kept := strings.Replace(configMap("kept", "k", "v"), "name: kept", "name: kept\n  annotations: {helm.sh/resource-policy: keep}", 1)
			r := m.request("Chart.yaml", chartYAML, "templates/a.yaml", templates.String(), "templates/kept.yaml", kept,
				"templates/hook.yaml", hookIn(f.namespace, "pre-delete"), "files/large", string(random))
			for range revisions {
				r.Values = map[string]any{"force": fmt.Sprint(rand.Uint64())}
				m.deploy(r)
			}
			options := m.removal(m.namespace)
			secrets, err := m.core.CoreV1().Secrets(m.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "owner=helm"})
			require.NoError(t, err)
			size := 0
			for i := range secrets.Items {
				size += secrets.Items[i].Size()
				if !isSigned {
					secrets.Items[i].Annotations = nil
					_, err := m.core.CoreV1().Secrets(m.namespace).Update(t.Context(), &secrets.Items[i], metav1.UpdateOptions{})
					require.NoError(t, err)
				}
			}
			t.Logf("%d revisions of %d kB", len(secrets.Items), size>>10)
			require.Greater(t, size*4/3, 4<<20, "more than one response may have")

			hub := m.reducing(m.config)
			found, _, err := hub.ListAfter(t.Context(), owner.Selector(), Found{Namespace: m.namespace}, 1)
			require.NoError(t, err)
			require.Len(t, found, 1)
			assert.Equal(t, m.mine()[0].String(), found[0].String())
			require.NoError(t, hub.Uninstall(t.Context(), m.namespace, "app", options))
			assert.Equal(t, []string{"kept"}, m.configMaps())
			assert.Empty(t, m.mine())
			if isSigned {
				assert.Equal(t, []string{"hook", "theirs"}, f.configMaps())
			} else {
				assert.Equal(t, []string{"theirs"}, f.configMaps(), "no hooks")
			}
		})
	}
}

// A member may have any number of releases and revisions. They are listed in the order of their places, however the pages divide them.
func TestListAfter(t *testing.T) {
	m := onMember(t)
	of := Owner{Namespace: m.namespace, Workspace: "ws", ClusterName: "c"}
	var want []string
	for release := range 5 {
		name := string(rune('e' - release))
		for version := range 11 - release {
			secret := stored(t, secretName(name, version+1), "?", 1)
			secret.Labels = labels.Merge(of.LabelsFor(name, "one"), labels.Set{"owner": "helm", "name": name, "version": strconv.Itoa(version + 1), "other": "x"})
			m.store(secret)
		}
		want = append([]string{fmt.Sprintf("%s/%s:%d", m.namespace, name, 11-release)}, want...)
	}
	for _, limit := range []int{1, 2, 5, 100} {
		var all []string
		for last, hasMore := (Found{}), true; hasMore; {
			var found []Found
			var err error
			found, hasMore, err = m.ListAfter(t.Context(), of.Selector(), last, limit)
			require.NoError(t, err)
			assert.LessOrEqual(t, len(found), limit)
			for _, f := range found {
				all, last = append(all, f.String()), f
				assert.NotContains(t, f.Labels, "other")
			}
			assert.Equal(t, len(all) < len(want), hasMore)
			require.NotEmpty(t, found)
		}
		assert.Equal(t, want, all, "%d at a time", limit)
	}
}

// Users may store large annotations and copies. A hub reads no response of more than 4 MiB.
func TestReducing_largeObjects(t *testing.T) {
	sample.Long(t)
	m := onMember(t)
	of := Owner{Namespace: m.namespace, Workspace: "ws", ClusterName: "c"}
	large := strings.Repeat("x", 250<<10)
	for i := range 20 {
		secret := stored(t, fmt.Sprint("large-", i), "?", 1)
		secret.Labels, secret.Annotations = labels.Merge(of.Labels(), labels.Set{"owner": "helm"}), map[string]string{"a": large}
		m.store(secret)
		copied := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint("copy-", i), Labels: map[string]string{CopyLabel: "app"}, Annotations: map[string]string{copyAnnotation + "app": labelTrue, "a": large[:200<<10]},
		}}
		if i == 7 {
			copied.Annotations[copyAnnotation+"other"] = labelTrue
		}
		_, err := m.core.CoreV1().ConfigMaps(m.namespace).Create(t.Context(), copied, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	m.deploy(func() Request {
		r := m.request("a.yaml", configMap("a", "k", "one"))
		r.Labels = of.LabelsFor("app", "one")
		return r
	}())
	hub := m.reducing(m.config)
	found, hasMore, err := hub.ListAfter(t.Context(), of.Selector(), Found{Namespace: m.namespace, Name: ""}, 10)
	require.NoError(t, err)
	assert.False(t, hasMore)
	require.Len(t, found, 1)
	assert.Equal(t, "app", found[0].Name)

	require.NoError(t, hub.DeleteCopies(t.Context(), m.namespace, "app"))
	require.Equal(t, []string{"a", "copy-7"}, m.configMaps())
	kept := m.configMap("copy-7")
	assert.Equal(t, "other", kept.Labels[CopyLabel])
	assert.NotContains(t, kept.Annotations, copyAnnotation+"app")
	assert.Contains(t, kept.Annotations, copyAnnotation+"other")
}

// The removal by the hub ends in the middle: the release must not look as if it were deployed.
func TestUninstall_interruptedByHub(t *testing.T) {
	for name, isSigned := range map[string]bool{"signed": true, "not signed": false} {
		setUp := func(t *testing.T) (m *member, r Request, options UninstallOptions) {
			fails := true
			m = onMember(t, through(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
				if fails && r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/configmaps/a") {
					fails = false
					return nil, errCut
				}
				return next.RoundTrip(r)
			}))
			m.withHistoryKey()
			r = m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one"))
			m.deploy(r)
			options = m.removal(m.namespace)
			if !isSigned {
				secret, err := m.core.CoreV1().Secrets(m.namespace).Get(t.Context(), secretName("app", 1), metav1.GetOptions{})
				require.NoError(t, err)
				secret.Annotations = nil
				_, err = m.core.CoreV1().Secrets(m.namespace).Update(t.Context(), secret, metav1.UpdateOptions{})
				require.NoError(t, err)
			}
			require.ErrorIs(t, m.reducing(m.config).Uninstall(t.Context(), m.namespace, "app", options), errCut)
			require.Equal(t, []string{"a"}, m.configMaps())
			return m, r, options
		}
		t.Run(name+": the agent deploys again", func(t *testing.T) {
			m, r, _ := setUp(t)
			found := m.mine()
			require.Len(t, found, 1)
			assert.False(t, found[0].Deployed)
			secret, err := m.core.CoreV1().Secrets(m.namespace).Get(t.Context(), secretName("app", 1), metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, isSigned, hasSignature(m.key, secret))
			assert.NotContains(t, secret.Annotations, signatureOf("uninstalling"))
			if !isSigned {
				return // the agent refuses what others have stored
			}
			assert.Equal(t, 2, m.deploy(r).Version)
			assert.Equal(t, []string{"a", "b"}, m.configMaps())
			assert.True(t, m.mine()[0].Deployed)
		})
		t.Run(name+": the next removal keeps what a person has created since", func(t *testing.T) {
			m, _, options := setUp(t)
			_, err := m.core.CoreV1().ConfigMaps(m.namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{})
			require.NoError(t, err)
			require.NoError(t, m.reducing(m.config).Uninstall(t.Context(), m.namespace, "app", options))
			assert.Equal(t, []string{"b"}, m.configMaps())
			assert.Empty(t, m.revisions())
		})
	}
}

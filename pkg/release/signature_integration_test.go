package release

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	"helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// signing is onMember, with a client that signs what it stores.
func signing(t *testing.T, wrap ...func(*rest.Config)) *member {
	t.Helper()
	m := onMember(t, wrap...)
	m.withHistoryKey()
	return m
}

// withHistoryKey makes the client of a test sign what it stores, with a key in the test's namespace.
func (m *member) withHistoryKey() {
	m.t.Helper()
	client, err := m.EnsureHistoryKey(m.t.Context(), Owner{Namespace: m.namespace, Workspace: "fleet-default", ClusterName: "one"})
	require.NoError(m.t, err)
	require.NotNil(m.t, client.key)
	m.Client = client
}

// forge stores a release without the key, and changes its Secret: a user who may write Secrets in the namespace can write the same.
func (m *member) forge(change func(*corev1.Secret), files ...string) {
	m.t.Helper()
	elsewhere, err := New(m.config)
	require.NoError(m.t, err)
	forger := &member{Client: elsewhere, t: m.t, namespace: m.namespace, core: m.core}
	forger.deploy(forger.request(files...))
	m.changeHistory(change)
}

func TestUninstall_notSigned(t *testing.T) {
	for name, forge := range map[string]func(*corev1.Secret){
		"no signature":          func(*corev1.Secret) {},
		"an invented signature": func(s *corev1.Secret) { s.Annotations = map[string]string{signatureAnnotation: "00"} },
		"an invented label":     func(s *corev1.Secret) { s.Labels[signedLabel] = labelTrue },
		"a failed operation":    func(s *corev1.Secret) { s.Labels["status"] = "failed" },
	} {
		t.Run(name+": no hooks, and only objects with the label and annotations of the release", func(t *testing.T) {
			m, f := signing(t), foreign(t)
			m.forge(forge, "Chart.yaml", chartYAML, "templates/a.yaml", configMap("a", "k", "one"), "templates/hook.yaml", hookIn(f.namespace, "pre-delete,post-delete"))
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.removal(m.namespace)))
			assert.Equal(t, []string{"theirs"}, f.configMaps())
			assert.Empty(t, m.configMaps())
			assert.Empty(t, m.mine())
		})
	}
	t.Run("its copies, and not the namespace", func(t *testing.T) {
		m := signing(t)
		r := m.request("a.yaml", configMap("a", "k", "one"))
		r.Options.DeleteNamespace = true
		r.Copies, r.Labels[CopiesLabel] = []runtime.Object{&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "copy"}}}, "1"
		m.deploy(r)
		require.Equal(t, []string{"a", "copy"}, m.configMaps())
		options := m.removal(m.namespace)
		require.True(t, options.DeleteNamespace)
		m.changeHistory(func(s *corev1.Secret) { s.Annotations = nil })
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Empty(t, m.configMaps())
		namespace, err := m.core.CoreV1().Namespaces().Get(t.Context(), m.namespace, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Nil(t, namespace.DeletionTimestamp)
	})
	t.Run("an object that Helm keeps, and not the annotation in the manifest: it stays", func(t *testing.T) {
		m := signing(t)
		kept := strings.Replace(configMap("kept", "k", "v"), "name: kept", "name: kept\n  annotations: {helm.sh/resource-policy: keep}", 1)
		m.deploy(m.request("a.yaml", configMap("a", "k", "one"), "kept.yaml", kept))
		options := m.removal(m.namespace)
		m.rewrite(func(r *helm.Release) {
			r.Manifest = strings.ReplaceAll(r.Manifest, "helm.sh/resource-policy: keep", "x: none")
		})
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Equal(t, []string{"kept"}, m.configMaps())
		assert.Empty(t, m.mine())
	})
	t.Run("stored by the agent: with its hooks", func(t *testing.T) {
		m, f := signing(t), foreign(t)
		files := []string{"Chart.yaml", chartYAML, "templates/hook.yaml", hookIn(f.namespace, "pre-delete"), "templates/a.yaml"}
		for _, value := range []string{"one", "two"} {
			m.deploy(m.request(append(files, configMap("a", "k", value))...))
		}
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.removal(m.namespace)))
		assert.Equal(t, []string{"hook", "theirs"}, f.configMaps())
		assert.Empty(t, m.configMaps())
		assert.Empty(t, m.mine())
	})
	t.Run("another ServiceAccount than the one that deployed", func(t *testing.T) {
		m, f := onMember(t), foreign(t)
		m.tenant("fleet-default")
		m.withHistoryKey()
		m.deploy(m.request("Chart.yaml", chartYAML, "templates/a.yaml", configMap("a", "k", "one"), "templates/hook.yaml", hookIn(f.namespace, "pre-delete")))
		options := m.removal(m.namespace)
		options.ServiceAccount = "" // the label was removed while the agent looked
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Equal(t, []string{"theirs"}, f.configMaps())
		assert.Empty(t, m.configMaps())
	})
}

// A user who may write Secrets in the namespace of a release stores a revision of a BundleDeployment that does not exist. Its manifest names the
// objects of the release, with the label and annotations of these objects.
func TestUninstall_forgedOwner(t *testing.T) {
	scope := "blue"
	forge := func(m *member, bundleDeployment string) UninstallOptions {
		m.t.Helper()
		config, err := Configuration(m.config, m.namespace)
		require.NoError(m.t, err)
		found, err := config.Releases.Last("app")
		require.NoError(m.t, err)
		forged := found.(*helm.Release)
		forged.Version++
		forged.Labels = labels.Merge(forged.Labels, owner.LabelsFor(bundleDeployment, "one"))
		require.NoError(m.t, config.Releases.Create(forged))
		options := UninstallOptionsFrom(forged.Labels)
		options.Scope = &scope
		return options
	}
	deployed := func(t *testing.T, bundleDeployment string) *member {
		m := signing(t)
		r := m.request("a.yaml", configMap("a", "k", "one"))
		r.Scope, r.BundleDeployment, r.Labels = scope, bundleDeployment, owner.LabelsFor(bundleDeployment, "one")
		m.deploy(r)
		return m
	}
	drop := func(m *member) {
		require.NoError(m.t, m.core.CoreV1().Secrets(m.namespace).Delete(m.t.Context(), secretName("app", 1), metav1.DeleteOptions{}))
	}
	t.Run("over the revision of the owner: only the forged one is deleted", func(t *testing.T) {
		m := deployed(t, "app")
		options := forge(m, "other")
		require.ErrorIs(t, m.Uninstall(t.Context(), m.namespace, "app", options), errOtherOwner)
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Equal(t, []string{"a"}, m.configMaps())
		assert.Equal(t, 1, m.mine()[0].Version)
	})
	t.Run("over a revision of somebody without this key: only the forged one is deleted", func(t *testing.T) {
		m := signing(t)
		elsewhere, err := New(m.config)
		require.NoError(t, err)
		r := m.request("a.yaml", configMap("a", "k", "one"))
		r.Scope = scope
		_, err = elsewhere.Deploy(t.Context(), r)
		require.NoError(t, err)
		options := forge(m, "other")
		require.ErrorIs(t, m.Uninstall(t.Context(), m.namespace, "app", options), errOtherOwner)
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Equal(t, []string{"a"}, m.configMaps())
		require.Len(t, m.mine(), 1)
		assert.Equal(t, 1, m.mine()[0].Version)
	})
	t.Run("in place of the revision of the owner: the objects stay", func(t *testing.T) {
		m := deployed(t, "app")
		options := forge(m, "other")
		drop(m)
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Equal(t, []string{"a"}, m.configMaps())
		assert.Empty(t, m.mine())
	})
	for name, bundleDeployment := range map[string]string{"of the owner": "app", "of the owner, with a name that labels shorten": strings.Repeat("long-", 20)} {
		t.Run(name+": the objects are removed", func(t *testing.T) {
			m := deployed(t, bundleDeployment)
			options := forge(m, bundleDeployment)
			drop(m)
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
			assert.Empty(t, m.configMaps())
			assert.Empty(t, m.mine())
		})
	}
}

func TestUninstall_damaged(t *testing.T) {
	for name, text := range map[string]string{
		"a manifest that is not YAML": `{"name":"app","namespace":"NS","version":2,"info":{"status":"failed"},"manifest":"kind: ["}`,
		"an object without a name":    `{"name":"app","namespace":"NS","version":2,"info":{"status":"failed"},"manifest":"apiVersion: v1\nkind: ConfigMap\n"}`,
		"too large":                   strings.Repeat(" ", 2<<20),
		"too many nodes":              `{"name":"app","namespace":"NS","version":2,"info":{"status":"failed"},"manifest":"` + strings.ReplaceAll(configMap("b", "k", strings.Repeat("v,", 100)), "\n", `\n`) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			m := signing(t)
			m.Client = m.LimitHistory(HistoryLimits{ResponseLimits: transport.ResponseLimits{Bytes: 1 << 20}, Nodes: 50, TrustSigned: true})
			m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
			options := m.removal(m.namespace)
			forged := stored(t, secretName("app", 2), strings.Replace(text, "NS", m.namespace, 1), 1)
			forged.Labels = labels.Merge(owner.LabelsFor("app", "one"), labels.Set{"owner": "helm", "name": "app", "version": "2", "status": "failed"})
			m.store(forged)
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
			assert.Empty(t, m.mine())
			assert.Empty(t, m.configMaps(), "the signed revision is uninstalled")
		})
	}
	t.Run("the options of what cannot be decoded count for nothing", func(t *testing.T) {
		m := signing(t)
		m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
		forged := stored(t, secretName("app", 2), "?", 1)
		forged.Labels = labels.Merge(owner.LabelsFor("app", "one"), labels.Set{
			"owner": "helm", "name": "app", "version": "2", "status": "failed", deleteNamespaceLabel: labelTrue,
		})
		m.store(forged)
		mine := m.mine()
		require.Len(t, mine, 1)
		require.Equal(t, 2, mine[0].Version)
		options := mine[0].Options()
		require.True(t, options.DeleteNamespace)
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		namespace, err := m.core.CoreV1().Namespaces().Get(t.Context(), m.namespace, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Nil(t, namespace.DeletionTimestamp)
		assert.Empty(t, m.mine())
	})
	t.Run("a request fails: the revision stays", func(t *testing.T) {
		fails := false
		m := onMember(t, through(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
			if fails && strings.HasSuffix(r.URL.Path, "/configmaps/a") {
				return nil, errors.New("broken")
			}
			return next.RoundTrip(r)
		}))
		m.withHistoryKey()
		m.forge(func(*corev1.Secret) {}, "a.yaml", configMap("a", "k", "one"))
		options := m.removal(m.namespace)
		fails = true
		require.ErrorContains(t, m.Uninstall(t.Context(), m.namespace, "app", options), "broken")
		assert.Len(t, m.mine(), 1)
		fails = false
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Empty(t, m.configMaps())
	})
}

// A forged older release must not keep a failed deployment from being rolled back.
func TestDeploy_predecessorNotSigned(t *testing.T) {
	m := signing(t)
	r := m.request("a.yaml", configMap("a", "k", "one"))
	m.deploy(r)
	forged := stored(t, secretName("old", 1), `{"name":"old","version":1,"info":{"status":"failed"}}`, 1)
	forged.Labels = labels.Set{"owner": "helm", "name": "old", "version": "1", "status": "failed"}
	m.store(forged)
	r.Predecessors = []Found{{Namespace: m.namespace, Name: "old", Version: 1}, {Namespace: m.namespace, Name: "gone", Version: 1}}
	r.Options.Helm = &fleet.HelmOptions{Atomic: true}
	r.Resources = append(r.Resources, fleet.BundleResource{Name: "z.yaml", Content: invalidService})
	_, err := m.Deploy(t.Context(), r)
	require.ErrorContains(t, err, "spec.ports[0].port")
	assert.True(t, m.mine()[0].Deployed, "it is rolled back")
}

func TestDeploy_notSigned(t *testing.T) {
	for name, atomic := range map[string]bool{"": false, ", atomic": true} {
		t.Run("an upgrade removes only objects with the label and annotations of the release"+name, func(t *testing.T) {
			m, f := signing(t), foreign(t)
			theirs := strings.Replace(configMap("theirs", "k", "v"), "name: theirs", "name: theirs\n  namespace: "+f.namespace, 1)
			require.NoError(t, f.core.CoreV1().ConfigMaps(f.namespace).Delete(t.Context(), "theirs", metav1.DeleteOptions{}))
			m.forge(func(*corev1.Secret) {}, "a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one"), "c.yaml", theirs)
			require.NoError(t, f.core.CoreV1().ConfigMaps(f.namespace).Delete(t.Context(), "theirs", metav1.DeleteOptions{}))
			_, err := f.core.CoreV1().ConfigMaps(f.namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{})
			require.NoError(t, err)
			r := m.request("a.yaml", configMap("a", "k", "two"))
			r.Options.Helm = &fleet.HelmOptions{Atomic: atomic}
			m.deploy(r)
			assert.Equal(t, []string{"theirs"}, f.configMaps())
			assert.Equal(t, []string{"a"}, m.configMaps())
			revisions := m.mine()
			require.Len(t, revisions, 1)
			_, err = m.Correct(t.Context(), r)
			require.NoError(t, err, "the new revision is signed")
		})
	}
}

func TestCorrect_notSigned(t *testing.T) {
	m := signing(t)
	r := m.request("a.yaml", configMap("a", "k", "one"))
	m.deploy(r)
	for range 2 { // the second one starts from a revision that a correction stored
		_, err := m.Correct(t.Context(), r)
		require.NoError(t, err)
	}
	m.changeHistory(func(s *corev1.Secret) { s.Annotations = nil })
	_, err := m.Correct(t.Context(), r)
	require.ErrorIs(t, err, ErrNotSigned)
	_, err = m.Sweep(t.Context(), r)
	require.ErrorIs(t, err, ErrNotSigned)
	_, err = m.Get(t.Context(), m.mine()[0])
	require.ErrorIs(t, err, ErrNotSigned)
	m.deploy(r)
	_, err = m.Get(t.Context(), m.mine()[0])
	require.NoError(t, err)
	_, err = m.Correct(t.Context(), r)
	require.NoError(t, err)
}

// Helm reads a history several times in one action. Another user changes it after the first read, whose signatures are checked.
func TestSignature_historyChangesDuringAnAction(t *testing.T) {
	for name, act := range map[string]func(*member, Request) error{
		"a correction": func(m *member, r Request) error {
			_, err := m.Correct(m.t.Context(), r)
			return err
		},
		"an upgrade": func(m *member, r Request) error {
			r.Resources[0].Content = configMap("a", "k", "two")
			_, err := m.Deploy(m.t.Context(), r)
			return err
		},
		"an upgrade that is rolled back": func(m *member, r Request) error {
			r.Resources = append(r.Resources, fleet.BundleResource{Name: "z.yaml", Content: invalidService})
			r.Options.Helm = &fleet.HelmOptions{Atomic: true}
			_, err := m.Deploy(m.t.Context(), r)
			require.ErrorContains(m.t, err, "spec.ports[0].port")
			return nil
		},
		"an uninstallation": func(m *member, _ Request) error {
			return m.Uninstall(m.t.Context(), m.namespace, "app", m.removal(m.namespace))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := foreign(t)
			var change func()
			m := onMember(t, through(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
				response, err := next.RoundTrip(r)
				if now := change; now != nil && strings.Contains(r.URL.Query().Get("labelSelector"), "name=app") {
					change = nil
					now()
				}
				return response, err
			}))
			m.withHistoryKey()
			r := m.request("a.yaml", configMap("a", "k", "one"))
			m.deploy(r)
			theirs, err := f.core.CoreV1().ConfigMaps(f.namespace).Get(t.Context(), "theirs", metav1.GetOptions{})
			require.NoError(t, err)
			change = func() {
				m.rewrite(func(r *helm.Release) {
					r.Manifest += "---\n" + strings.Replace(configMap("theirs", "k", "forged"), "name: theirs", "name: theirs\n  namespace: "+f.namespace, 1)
					r.Hooks = append(r.Hooks, &helm.Hook{
						Name: "hook", Kind: "ConfigMap", Path: "hook.yaml", Manifest: hookIn(f.namespace, "pre-delete,pre-rollback"),
						Events: []helm.HookEvent{helm.HookPreDelete, helm.HookPreRollback},
					})
				})
			}
			require.NoError(t, act(m, r))
			require.Nil(t, change, "the history has changed")
			assert.Equal(t, []string{"theirs"}, f.configMaps(), "no object is deleted, and no hook runs")
			now, err := f.core.CoreV1().ConfigMaps(f.namespace).Get(t.Context(), "theirs", metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, theirs.Data, now.Data)
		})
	}
}

// A correction skips a failed revision that an earlier correction has kept, but not one that another user has stored: Helm's rollback deletes the
// objects of the last revision that the restored one does not have.
func TestCorrect_failedRevisionNotSigned(t *testing.T) {
	m, f := signing(t), foreign(t)
	r := m.request("a.yaml", configMap("a", "k", "one"))
	r.Recorded = m.deploy(r).String()
	manifest, err := json.Marshal(strings.Replace(configMap("theirs", "k", "v"), "name: theirs", "name: theirs\n  namespace: "+f.namespace, 1))
	require.NoError(t, err)
	forged := stored(t, secretName("app", 2), `{"name":"app","namespace":"`+m.namespace+`","version":2,"info":{"status":"failed"},"manifest":`+string(manifest)+`}`, 1)
	forged.Labels = labels.Set{"owner": "helm", "name": "app", "version": "2", "status": "failed"}
	m.store(forged)
	_, err = m.Correct(t.Context(), r)
	assert.Equal(t, []string{"theirs"}, f.configMaps())
	require.ErrorIs(t, err, ErrNotSigned)
	m.deploy(r)
	assert.Equal(t, []string{"theirs"}, f.configMaps())
	_, err = m.Correct(t.Context(), r)
	require.NoError(t, err)
}

// rewrite changes the last revision as a user can who may write Secrets in the namespace.
func (m *member) rewrite(change func(*helm.Release)) {
	m.t.Helper()
	config, err := Configuration(m.config, m.namespace)
	require.NoError(m.t, err)
	found, err := config.Releases.Last("app")
	require.NoError(m.t, err)
	change(found.(*helm.Release))
	require.NoError(m.t, config.Releases.Update(found))
}

// The last revision is what the agent would deploy: another agent has deployed it, or this agent has, for another Cluster.
func TestDeploy_sameRevision(t *testing.T) {
	sample.Long(t)
	hook := strings.Replace(configMap("hook", "k", "v"), "name: hook", "name: hook\n  annotations: {helm.sh/hook: \"pre-install,pre-upgrade,pre-rollback\"}", 1)
	before := owner.LabelsFor("app", "zero") // which Helm copies to the next revision
	setUp := func(t *testing.T) (*member, Request, func() []string) {
		m := signing(t)
		r := m.request("Chart.yaml", chartYAML, "templates/a.yaml", configMap("a", "k", "{{ .Values.text }}{{ .Release.IsUpgrade }}"), "templates/hook.yaml", hook)
		r.Values = map[string]any{"text": "one", "number": int64(1_000_000), "list": []any{map[string]any{"a": nil}}}
		return m, r, func() []string {
			a, hook := m.configMap("a"), m.configMap("hook")
			return []string{string(a.UID), a.ResourceVersion, string(hook.UID)}
		}
	}
	byAnother := func(m *member, r Request, deployments int) Request {
		m.t.Helper()
		other, err := New(m.config)
		require.NoError(m.t, err)
		r.Labels = before
		for i := range deployments {
			r.Values["text"] = fmt.Sprint("text ", i)
			made, err := other.Deploy(m.t.Context(), r)
			require.NoError(m.t, err)
			r.Recorded, r.Applied = made.String(), true
		}
		r.Labels = owner.LabelsFor("app", "one")
		return r
	}
	for _, deployments := range []int{1, 2} {
		t.Run(fmt.Sprintf("recorded as revision %d: it stays, and is signed", deployments), func(t *testing.T) {
			m, r, objects := setUp(t)
			r = byAnother(m, r, deployments)
			m.changeHistory(func(s *corev1.Secret) { s.Labels[deleteNamespaceLabel] = labelTrue })
			was := objects()
			made := m.deploy(r)
			assert.True(t, made.Unchanged)
			assert.Equal(t, r.Recorded, made.String())
			assert.Equal(t, was, objects(), "no object changes, and no hook runs")
			found := m.mine()[0]
			assert.Equal(t, r.Recorded, found.String())
			assert.Equal(t, DeploymentIDValue("one"), found.Labels[DeploymentIDLabel])
			assert.Equal(t, UninstallOptions{ServiceAccountNamespace: owner.Namespace, Agent: owner.Namespace, Deployment: "app"}, found.Options(), "no label of others stays")
			deployed, err := m.Get(t.Context(), found)
			require.NoError(t, err)
			assert.Len(t, deployed.Objects, 1)
			_, err = m.Correct(t.Context(), r)
			require.NoError(t, err)
			assert.NotEqual(t, was[2], objects()[2], "the correction rolls back to this revision and runs its hooks")
		})
	}
	for name, forge := range map[string]func(*member, *Request){
		"copies that the request does not have": func(m *member, _ *Request) {
			m.changeHistory(func(s *corev1.Secret) { s.Labels[CopiesLabel] = "1" })
		},
		"nothing is recorded":               func(_ *member, r *Request) { r.Recorded = "" },
		"an earlier revision is recorded":   func(m *member, r *Request) { r.Recorded = m.namespace + "/app:1" },
		"another deployment ID is recorded": func(_ *member, r *Request) { r.Applied = false },
		"a byte of the manifest": func(m *member, _ *Request) {
			m.rewrite(func(r *helm.Release) { r.Manifest = strings.Replace(r.Manifest, "text 1", "text 2", 1) })
		},
		"one more object": func(m *member, _ *Request) {
			m.rewrite(func(r *helm.Release) { r.Manifest += "---\n" + configMap("theirs", "k", "v") })
		},
		"no manifest": func(m *member, _ *Request) { m.rewrite(func(r *helm.Release) { r.Manifest = "" }) },
		"one more hook": func(m *member, _ *Request) {
			m.rewrite(func(r *helm.Release) { r.Hooks = append(r.Hooks, r.Hooks[0]) })
		},
		"a byte of a hook": func(m *member, _ *Request) {
			m.rewrite(func(r *helm.Release) { r.Hooks[0].Manifest = strings.Replace(r.Hooks[0].Manifest, "k: v", "k: w", 1) })
		},
		"another event of a hook": func(m *member, _ *Request) {
			m.rewrite(func(r *helm.Release) { r.Hooks[0].Events[0] = helm.HookPostRollback })
		},
		"other values": func(m *member, _ *Request) { m.rewrite(func(r *helm.Release) { r.Config["list"] = []any{} }) },
		"it failed":    func(m *member, _ *Request) { m.rewrite(func(r *helm.Release) { r.Info.Status = common.StatusFailed }) },
		"another ServiceAccount": func(m *member, _ *Request) {
			m.rewrite(func(r *helm.Release) { r.Chart.Metadata.Annotations[serviceAccountAnnotation] = "admin" })
		},
	} {
		t.Run(name+": it is deployed again", func(t *testing.T) {
			m, r, objects := setUp(t)
			r = byAnother(m, r, 2)
			forge(m, &r)
			was := objects()
			made := m.deploy(r)
			assert.Equal(t, 3, made.Version)
			assert.False(t, made.Unchanged)
			assert.NotEqual(t, was[2], objects()[2], "the hooks run")
		})
	}
	other := Owner{Namespace: owner.Namespace, Workspace: "fleet-default", ClusterName: "two"}
	t.Run("signed, of another Cluster: it stays", func(t *testing.T) {
		m, r, objects := setUp(t)
		r.Labels = other.LabelsFor("app", "one")
		m.deploy(r)
		was := objects()
		r.Labels = owner.LabelsFor("app", "one")
		made := m.deploy(r)
		assert.True(t, made.Unchanged)
		assert.Equal(t, was, objects())
		require.Len(t, m.mine(), 1)
		assert.Equal(t, objectManager, m.mine()[0].Labels[FieldManagerLabel])
		_, err := m.Get(t.Context(), m.mine()[0])
		require.NoError(t, err)
	})
	for name, change := range map[string]func(*member, *Request){
		"of another deployment ID": func(_ *member, r *Request) { r.Labels[DeploymentIDLabel] = DeploymentIDValue("two") },
		"with other copies":        func(_ *member, r *Request) { r.Labels[CopiesLabel] = "2" },
		"not signed":               func(m *member, _ *Request) { m.changeHistory(func(s *corev1.Secret) { s.Annotations = nil }) },
	} {
		t.Run("of another Cluster, "+name+": it is deployed again", func(t *testing.T) {
			m, r, _ := setUp(t)
			r.Labels = other.LabelsFor("app", "one")
			m.deploy(r)
			r.Labels = owner.LabelsFor("app", "one")
			change(m, &r)
			assert.Equal(t, 2, m.deploy(r).Version)
		})
	}
}

// changeHistory changes the Secrets of all revisions.
func (m *member) changeHistory(change func(*corev1.Secret)) {
	m.t.Helper()
	client := m.core.CoreV1().Secrets(m.namespace)
	list, err := client.List(m.t.Context(), metav1.ListOptions{LabelSelector: "owner=helm"})
	require.NoError(m.t, err)
	for i := range list.Items {
		change(&list.Items[i])
		_, err := client.Update(m.t.Context(), &list.Items[i], metav1.UpdateOptions{})
		require.NoError(m.t, err)
	}
}

func TestEnsureHistoryKey(t *testing.T) {
	m, f := onMember(t), foreign(t)
	agent := Owner{Namespace: m.namespace, Workspace: "fleet-default", ClusterName: "one"}
	r := m.request("Chart.yaml", chartYAML, "templates/a.yaml", configMap("a", "k", "one"), "templates/hook.yaml", hookIn(f.namespace, "pre-delete"))
	r.Labels = agent.LabelsFor("app", "one")
	m.deploy(r)
	m.withHistoryKey()
	first := m.key
	m.withHistoryKey()
	assert.Equal(t, first, m.key, "there is one key")
	found, err := m.List(t.Context(), agent.Selector())
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", found[0].Options()))
	assert.Equal(t, []string{"hook", "theirs"}, f.configMaps(), "what an earlier version of the agent has stored is signed")

	require.NoError(t, m.core.CoreV1().Secrets(m.namespace).Delete(t.Context(), registration.HistoryKeySecret, metav1.DeleteOptions{}))
	client, err := m.WithHistoryKey(t.Context(), m.namespace)
	require.NoError(t, err)
	assert.Same(t, m.Client, client)
}

// The agent moves to another namespace, and the hub changes the labels and signatures of its releases to those of the new namespace.
func TestMoveSignature(t *testing.T) {
	m, there := signing(t), onMember(t)
	there.withHistoryKey()
	r := m.request("a.yaml", configMap("a", "k", "one"))
	m.deploy(r)
	read := func(namespace, name string) *corev1.Secret {
		secret, err := m.core.CoreV1().Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		return secret
	}
	earlier, later := read(m.namespace, registration.HistoryKeySecret), read(there.namespace, registration.HistoryKeySecret)
	revision := read(m.namespace, secretName("app", 1))
	assert.Nil(t, MoveSignature(revision, &corev1.Secret{}, later))
	assert.Nil(t, MoveSignature(revision, earlier, &corev1.Secret{}))
	forged := revision.DeepCopy()
	forged.Labels[deleteNamespaceLabel] = labelTrue
	assert.Nil(t, MoveSignature(forged, earlier, later))

	moved := MoveSignature(revision, earlier, later)
	_, err := there.Get(t.Context(), m.mine()[0])
	require.ErrorIs(t, err, ErrNotSigned)
	m.changeHistory(func(s *corev1.Secret) { s.Annotations, s.Labels[AgentLabel] = moved, there.namespace })
	_, err = there.Get(t.Context(), Found{Namespace: m.namespace, Name: "app", Version: 1})
	require.NoError(t, err)
	m.changeHistory(func(s *corev1.Secret) { s.Labels[deleteNamespaceLabel] = labelTrue })
	_, err = there.Get(t.Context(), Found{Namespace: m.namespace, Name: "app", Version: 1})
	require.ErrorIs(t, err, ErrNotSigned)
}

// At its first start an agent signs the revisions that it finds, except those that exceed its limits: it parses signed revisions
// without the limit of nodes (TrustSigned).
func TestEnsureHistoryKey_large(t *testing.T) {
	m := onMember(t)
	m.Client = m.LimitHistory(HistoryLimits{Nodes: 100, TrustSigned: true})
	agent := Owner{Namespace: m.namespace, Workspace: "fleet-default", ClusterName: "one"}
	for name, manifest := range map[string]string{"small": "kind: X", "large": "kind: [" + strings.Repeat(",", 100) + "]"} {
		forged := stored(t, secretName(name, 1), `{"name":"`+name+`","namespace":"`+m.namespace+`","version":1,"info":{"status":"deployed"},"manifest":"`+manifest+`"}`, 1)
		forged.Labels = labels.Merge(agent.LabelsFor(name, "one"), labels.Set{"owner": "helm", "name": name, "version": "1", "status": "deployed"})
		m.store(forged)
	}
	m.withHistoryKey()
	for name, signed := range map[string]bool{"small": true, "large": false} {
		secret, err := m.core.CoreV1().Secrets(m.namespace).Get(t.Context(), secretName(name, 1), metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, signed, hasSignature(m.key, secret), name)
	}
}

// A user who may write Secrets in one namespace must not keep an agent from starting.
func TestEnsureHistoryKey_unreadable(t *testing.T) {
	for name, data := range map[string][]byte{
		"too large":   stored(t, "x", strings.Repeat(" ", 1<<20), 2).Data["release"],
		"not a chart": []byte("?"),
		"missing":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			m := onMember(t)
			m.store(&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: secretName("x", 1), Labels: map[string]string{"owner": "helm", "name": "x", "version": "1"}},
				Data:       map[string][]byte{"release": data},
			})
			m.Client = m.LimitHistory(HistoryLimits{ResponseLimits: transport.ResponseLimits{Bytes: 1 << 20}})
			m.withHistoryKey()
			deployment, agent, err := m.Annotated(t.Context(), Found{Namespace: m.namespace, Name: "x", Version: 1})
			require.NoError(t, err)
			assert.Empty(t, deployment+agent)
		})
	}
}

// A user stores small Secrets of releases that have to be removed, each of which takes much memory when it is decoded.
func TestHistoryTurns(t *testing.T) {
	large := `{"name":"app","namespace":"NS","version":2,"info":{"status":"failed"},"manifest":"` + strings.ReplaceAll(configMap("b", "k", strings.Repeat("x", 2000)), "\n", `\n`) + `"}`
	manyValues := `{"name":"app","namespace":"NS","version":2,"info":{"status":"failed"},"config":{"a":[` + strings.Repeat("[],", 200) + `[]]}}`
	for name, row := range map[string]struct {
		text    string
		signed  bool
		refused bool
	}{
		"small":               {`{"name":"app","namespace":"NS","version":2,"info":{"status":"failed"}}`, false, false},
		"large":               {large, false, true},
		"many values":         {manyValues, false, true},
		"large, not a chart":  {strings.Repeat("x", 2000), false, true},
		"large, signed":       {large, true, false},
		"many values, signed": {manyValues, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := signing(t)
			turns := semaphore.NewWeighted(1)
			m.Client = m.LimitHistory(HistoryLimits{
				ResponseLimits: transport.ResponseLimits{Bytes: 1 << 20, Values: 100_000}, Nodes: 10_000, TrustSigned: true,
				Small: transport.ResponseLimits{Bytes: 1500, Values: 150}, Turns: turns,
			})
			forged := stored(t, secretName("app", 2), strings.Replace(row.text, "NS", m.namespace, 1), 1)
			forged.Labels = labels.Merge(owner.LabelsFor("app", "one"), labels.Set{"owner": "helm", "name": "app", "version": "2", "status": "failed"})
			if row.signed {
				forged.Namespace = m.namespace
				forged.Annotations = map[string]string{signatureAnnotation: signature(m.key, m.namespace, forged)}
			}
			m.store(forged)
			require.True(t, turns.TryAcquire(1), "another action has a large history in memory")
			err := m.Uninstall(t.Context(), m.namespace, "app", m.removal(m.namespace))
			_, readErr := m.core.CoreV1().Secrets(m.namespace).Get(t.Context(), forged.Name, metav1.GetOptions{})
			if !row.refused {
				require.NoError(t, err)
				assert.Error(t, readErr)
				return
			}
			require.ErrorIs(t, err, ErrBusy)
			require.NoError(t, readErr, "nothing is removed yet")
			_, _, err = m.Annotated(t.Context(), Found{Namespace: m.namespace, Name: "app", Version: 2})
			require.ErrorIs(t, err, ErrBusy, "nor does a search for releases wait")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := m.Deploy(ctx, m.request("a.yaml", configMap("a", "k", "one")))
				done <- err
			}()
			require.Eventually(t, func() bool { return !turns.TryAcquire(0) }, time.Minute, 10*time.Millisecond, "other actions wait") // false while somebody waits
			cancel()
			require.ErrorIs(t, <-done, context.Canceled, "the wait ends with the action")

			turns.Release(1)
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.removal(m.namespace)))
			assert.Empty(t, m.mine())
			m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
			assert.True(t, turns.TryAcquire(1), "the turn ends with the action")
		})
	}
}

// storeRevision stores a revision of release app, as a user can who may write Secrets in the namespace.
func (m *member) storeRevision(version int, text string, more labels.Set) {
	m.t.Helper()
	forged := stored(m.t, secretName("app", version), text, 1)
	forged.Labels = labels.Merge(more, labels.Set{"owner": "helm", "name": "app", "version": strconv.Itoa(version), "status": "deployed"})
	m.store(forged)
}

// The last revision names another namespace, release or version than its Secret.
func TestDeploy_revisionOfAnotherPlace(t *testing.T) {
	chart := []string{"Chart.yaml", chartYAML, "templates/a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: '{{ .Release.Namespace }}'}\ndata: {k: '{{ .Values.text }}'}\n"}
	for name, more := range map[string]labels.Set{"no labels": nil, "the labels of the owner": owner.LabelsFor("app", "one")} {
		t.Run(name+", another namespace: the release stays where it is", func(t *testing.T) {
			m, f := signing(t), foreign(t)
			r := m.request(chart...)
			r.Recorded = m.deploy(r).String()
			m.storeRevision(2, `{"name":"app","namespace":"`+f.namespace+`","version":2,"info":{"status":"deployed"},"manifest":""}`, more)
			r.Values = map[string]any{"text": "two"}
			made := m.deploy(r)
			assert.Equal(t, 2, made.Version)
			assert.Equal(t, m.namespace, made.Namespace)
			assert.Equal(t, []string{"theirs"}, f.configMaps())
			assert.Equal(t, m.namespace, m.configMap("a").Annotations[NamespaceAnnotation])
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.removal(m.namespace)))
			assert.Empty(t, m.configMaps())
		})
	}
	t.Run("another release: its history stays as it is", func(t *testing.T) {
		m := signing(t)
		victim := m.request("b.yaml", configMap("b", "k", "v"))
		victim.Name, victim.BundleDeployment, victim.Labels = "victim", "victim", owner.LabelsFor("victim", "one")
		m.deploy(victim)
		read := func() *corev1.Secret {
			secret, err := m.core.CoreV1().Secrets(m.namespace).Get(t.Context(), secretName("victim", 1), metav1.GetOptions{})
			require.NoError(t, err)
			return secret
		}
		before := read()
		forged := `{"name":"victim","namespace":"` + m.namespace + `","version":1,"info":{"status":"pending-upgrade"}}`
		m.storeRevision(1, forged, owner.LabelsFor("app", "one"))
		m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
		assert.Equal(t, before, read())
		m.storeRevision(2, forged, owner.LabelsFor("app", "one"))
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{Agent: owner.Namespace, Deployment: "app"}))
		assert.Equal(t, before, read())
	})
}

// The labels of a Secret that cannot be decoded describe the last revision.
func TestDeploy_undecodedRevision(t *testing.T) {
	m := signing(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	for _, version := range []int{2, 2_000_000_000} {
		m.storeRevision(version, "?", owner.LabelsFor("app", "one"))
	}
	_, err := m.Get(t.Context(), m.mine()[0])
	require.ErrorIs(t, err, ErrNotSigned)
	made := m.deploy(m.request("a.yaml", configMap("a", "k", "two")))
	assert.Equal(t, 2, made.Version)
	assert.Len(t, made.Dropped, 2)
	require.Len(t, m.mine(), 1)
	assert.Equal(t, 2, m.mine()[0].Version)
	for name, version := range map[string]string{"x": "9", "sh.helm.release.v1.app.v09": "09"} {
		misnamed := stored(t, name, "?", 1)
		misnamed.Labels = labels.Merge(owner.LabelsFor("app", "one"), labels.Set{"owner": "helm", "name": "app", "version": version, "status": "deployed"})
		m.store(misnamed)
		assert.Equal(t, 2, m.mine()[0].Version, version)
	}
}

// A later revision, or what looks like one, must not decide what is removed: a signed revision of the owner exists.
func TestUninstall_forgedOptions(t *testing.T) {
	sample.Long(t)
	scope := "blue"
	empty := func(m *member) string {
		return `{"name":"app","namespace":"` + m.namespace + `","version":9,"info":{"status":"failed"}}`
	}
	for name, row := range map[string]struct {
		text   func(*member) string
		labels labels.Set
	}{
		"no labels":               {empty, nil},
		"keepResources":           {empty, labels.Merge(owner.LabelsFor("app", "one"), labels.Set{keepResourcesLabel: labelTrue})},
		"another owner":           {empty, owner.LabelsFor("other", "one")},
		"deleteNamespace":         {func(*member) string { return "?" }, labels.Merge(owner.LabelsFor("app", "one"), labels.Set{deleteNamespaceLabel: labelTrue})},
		"deleteNamespace, sound":  {empty, labels.Merge(owner.LabelsFor("app", "one"), labels.Set{deleteNamespaceLabel: labelTrue})},
		"another service account": {empty, labels.Merge(owner.LabelsFor("app", "one"), labels.Set{ServiceAccountLabel: "nobody"})},
	} {
		t.Run(name, func(t *testing.T) {
			m := signing(t)
			r := m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one"))
			r.Scope = scope
			m.deploy(r)
			m.storeRevision(9, row.text(m), row.labels)
			options := UninstallOptionsFrom(owner.LabelsFor("app", "one"))
			if row.labels[DeploymentLabel] == "app" {
				options = UninstallOptionsFrom(row.labels)
			}
			options.Scope = &scope
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
			assert.Empty(t, m.configMaps())
			for _, f := range m.mine() {
				assert.NotEqual(t, "app", f.Labels[DeploymentLabel])
			}
			namespace, err := m.core.CoreV1().Namespaces().Get(t.Context(), m.namespace, metav1.GetOptions{})
			require.NoError(t, err)
			assert.Nil(t, namespace.DeletionTimestamp)
		})
	}
	t.Run("the options of the caller count", func(t *testing.T) {
		m := signing(t)
		m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
		options := m.removal(m.namespace)
		options.Adjust = func(o UninstallOptions) UninstallOptions {
			o.KeepResources = true
			return o
		}
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Equal(t, []string{"a"}, m.configMaps())
		assert.Empty(t, m.mine())
	})
	t.Run("what a later revision has added is removed, and what another owner has adopted stays", func(t *testing.T) {
		m := signing(t)
		r := m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one"))
		r.Scope = scope
		m.deploy(r)
		other, err := New(m.config) // another agent, which signs nothing
		require.NoError(t, err)
		r = m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one"), "c.yaml", configMap("c", "k", "one"))
		r.Scope = scope
		_, err = other.Deploy(t.Context(), r)
		require.NoError(t, err)
		options := m.removal(m.namespace)
		options.Scope = &scope
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Empty(t, m.configMaps())

		m.deploy(r)
		r.BundleDeployment, r.Labels, r.Options.Helm = "theirs", owner.LabelsFor("theirs", "one"), &fleet.HelmOptions{TakeOwnership: true}
		_, err = other.Deploy(t.Context(), r)
		require.NoError(t, err)
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Equal(t, []string{"a", "b", "c"}, m.configMaps())
		require.Len(t, m.mine(), 1)
	})
	t.Run("what a later revision has dropped, and a person has created since, stays", func(t *testing.T) {
		fails := true // the first attempt, after Helm has stored that the release is being uninstalled
		m := onMember(t, through(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
			if fails && r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/configmaps/a") {
				fails = false
				return nil, errors.New("the connection was closed")
			}
			return next.RoundTrip(r)
		}))
		m.withHistoryKey()
		hook := `{apiVersion: v1, kind: ConfigMap, metadata: {name: hook, annotations: {helm.sh/hook: pre-delete,` +
			` helm.sh/hook-delete-policy: "before-hook-creation,hook-succeeded"}}}`
		files := []string{"a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one"), "hook.yaml", hook}
		r := m.request(files...)
		r.Scope = scope
		m.deploy(r)
		m.deploy(r)
		other, err := New(m.config) // another agent, which signs nothing: it rewrites the second revision, and adds a third one
		require.NoError(t, err)
		r.Resources = m.request(files[:2]...).Resources
		_, err = other.Deploy(t.Context(), r)
		require.NoError(t, err)
		require.Equal(t, []string{"a"}, m.configMaps())
		for _, name := range []string{"b", "hook"} { // the hook is of an earlier removal
			created := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
			_, err = m.core.CoreV1().ConfigMaps(m.namespace).Create(t.Context(), created, metav1.CreateOptions{})
			require.NoError(t, err)
		}
		options := m.removal(m.namespace)
		options.Scope = &scope
		require.Error(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		require.False(t, fails)
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Equal(t, []string{"b"}, m.configMaps())
		assert.Empty(t, m.revisions())
	})
}

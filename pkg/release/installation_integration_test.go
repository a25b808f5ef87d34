package release

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	helm "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// hooked returns the request of a chart with an object "a", and a hook "early" of an installation. A second hook of the event fails until makeHookWork.
func (m *member) hooked(event string) Request {
	early := strings.Replace(configMap("early", "k", "v"), "name: early", "name: early\n  annotations: {helm.sh/hook: pre-install, helm.sh/hook-weight: \"-1\"}", 1)
	return m.request("Chart.yaml", chartYAML, "templates/early.yaml", early, "templates/hook.yaml", hookIn("hooks-"+m.namespace, event),
		"templates/a.yaml", configMap("a", "k", `"install {{ .Release.IsInstall }}, upgrade {{ .Release.IsUpgrade }}"`))
}

func (m *member) makeHookWork() {
	m.t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "hooks-" + m.namespace}}
	_, err := m.core.CoreV1().Namespaces().Create(m.t.Context(), namespace, metav1.CreateOptions{})
	require.NoError(m.t, err)
}

// hasRunHook reports whether the hook that failed has been created.
func (m *member) hasRunHook() bool {
	m.t.Helper()
	list, err := m.core.CoreV1().ConfigMaps("hooks-"+m.namespace).List(m.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=hook"})
	require.NoError(m.t, err)
	return len(list.Items) > 0
}

// statuses returns the states of the revisions, oldest first.
func (m *member) statuses() (all []string) {
	m.t.Helper()
	found, err := m.allRevisions(m.t.Context(), labels.Everything())
	require.NoError(m.t, err)
	for _, f := range found {
		if f.Namespace == m.namespace {
			all = append(all, fmt.Sprintf("%d %s", f.Version, f.Labels[helmStatusLabel]))
		}
	}
	return all
}

func TestDeploy_failedInstallation(t *testing.T) {
	for _, event := range []string{"pre-install", "post-install"} {
		t.Run(event, func(t *testing.T) {
			m := signing(t)
			r := m.hooked(event)
			for range 2 { // the second attempt replaces the revision of the first one
				_, err := m.Deploy(t.Context(), r)
				require.ErrorContains(t, err, "failed "+event)
				assert.False(t, m.hasRunHook())
			}
			assert.Equal(t, []string{"2 failed"}, m.statuses())
			first := m.configMap("early").UID
			m.makeHookWork()
			d := m.deploy(r)
			assert.Equal(t, 3, d.Version)
			assert.Equal(t, []string{"2 failed", "3 deployed"}, m.statuses())
			assert.True(t, m.hasRunHook())
			assert.NotEqual(t, first, m.configMap("early").UID, "a hook is created again")
			assert.Equal(t, "install true, upgrade false", m.configMap("a").Data["k"])
			assert.Empty(t, d.Kept)

			ran := m.configMap("early").UID
			again := r
			again.Labels = Owner{Namespace: owner.Namespace, Workspace: owner.Workspace, ClusterName: "another"}.LabelsFor("app", "one")
			again.Labels[DeploymentIDLabel] = r.Labels[DeploymentIDLabel]
			assert.True(t, m.deploy(again).Unchanged, "it is rendered as an installation, although it is not the first revision")
			m.deploy(again)
			assert.Equal(t, "install false, upgrade true", m.configMap("a").Data["k"])
			assert.Equal(t, ran, m.configMap("early").UID, "no hook of an installation runs")
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.mine()[0].Options()))
			assert.Equal(t, []string{"early"}, m.configMaps())
			assert.Empty(t, m.statuses())
		})
	}
}

// The agent ends while it writes the objects of the first revision.
func TestDeploy_interruptedInstallation(t *testing.T) {
	m := onMember(t)
	m.makeHookWork()
	r := m.hooked("pre-install")
	var written []string
	for n := 1; ; n++ {
		written = nil
		_, err := onMember(t, cutAfter(n, &written)).Deploy(t.Context(), r)
		require.Error(t, err)
		if strings.HasSuffix(written[n-1], "/configmaps/a") {
			break
		}
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{}))
	}
	require.Equal(t, []string{"1 pending-install"}, m.statuses(), written)
	before := m.configMap("early").UID
	m.deploy(r)
	assert.Equal(t, []string{"1 failed", "2 deployed"}, m.statuses())
	assert.NotEqual(t, before, m.configMap("early").UID)
	assert.Equal(t, "install true, upgrade false", m.configMap("a").Data["k"])
}

// Helm does not report that it cannot store the state of an installation that has worked.
func TestDeploy_installationNotStored(t *testing.T) {
	refused := false
	m := signing(t, through(func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodPut && !refused {
			refused = true
			return nil, errCut
		}
		return next.RoundTrip(req)
	}))
	m.deploy(m.request("a.yaml", configMap("a", "k", "v")))
	assert.True(t, refused)
	assert.Equal(t, []string{"1 deployed"}, m.statuses())
}

// Objects of failed installations are taken over, or removed before the next installation waits for its objects.
func TestDeploy_failedInstallationObjects(t *testing.T) {
	m := signing(t)
	post := func(files ...string) Request {
		return m.request(append(files, "hook.yaml", hookIn("hooks-"+m.namespace, "post-install"))...)
	}
	_, err := m.Deploy(t.Context(), post("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one")))
	require.ErrorContains(t, err, "failed post-install")
	before := m.configMap("a").UID
	m.recreate("theirs")
	for _, files := range [][]string{{"a.yaml", configMap("a", "k", "two"), "theirs.yaml", configMap("theirs", "k", "two")}, {"c.yaml", configMap("c", "k", "two")}} {
		_, err = m.Deploy(t.Context(), post(append(files, "d.yaml", configMap("d", "k", "two"))...))
		require.ErrorContains(t, err, "failed post-install")
		assert.NotContains(t, m.configMaps(), "b")
	}
	assert.Equal(t, []string{"c", "d", "theirs"}, m.configMaps())
	assert.NotContains(t, m.configMap("theirs").Annotations, NameAnnotation, "it has no marks again")
	assert.Equal(t, []string{"1 failed", "2 failed", "3 failed"}, m.statuses())
	m.makeHookWork()
	d := m.deploy(post("a.yaml", configMap("a", "k", "three")))
	assert.Equal(t, 4, d.Version)
	assert.Equal(t, []string{"a", "theirs"}, m.configMaps())
	assert.NotEqual(t, before, m.configMap("a").UID)
}

func TestDeploy_failedInstallationLimits(t *testing.T) {
	m := onMember(t)
	for n := range 4 {
		r := m.hooked("post-install")
		r.Options.Helm = &fleet.HelmOptions{MaxHistory: 2}
		r.Resources = append(r.Resources, m.request("templates/b.yaml", configMap(fmt.Sprint("b", n), "k", "v")).Resources...)
		_, err := m.Deploy(t.Context(), r)
		require.ErrorContains(t, err, "failed post-install")
	}
	assert.Equal(t, []string{"3 failed", "4 failed"}, m.statuses())
}

// A chart that cannot be rendered stores no revision, and the last one stays as it is. It has the label that makes a removal delete the copies.
func TestDeploy_failedInstallationNotRendered(t *testing.T) {
	for _, atomic := range []bool{false, true} {
		t.Run(fmt.Sprint("atomic ", atomic), func(t *testing.T) {
			m := signing(t)
			r := m.hooked("pre-install")
			r.Labels[CopiesLabel] = "1"
			_, err := m.Deploy(t.Context(), r)
			require.ErrorContains(t, err, "failed pre-install")
			delete(r.Labels, CopiesLabel)
			bad := m.request("Chart.yaml", chartYAML, "templates/bad.yaml", `{{ fail "refused" }}`)
			bad.Options.Helm = &fleet.HelmOptions{Atomic: atomic, TimeoutSeconds: 60}
			_, err = m.Deploy(t.Context(), bad)
			require.ErrorContains(t, err, "refused")
			require.NotContains(t, err.Error(), "not found")
			require.Equal(t, []string{"1 failed"}, m.statuses())
			assert.Equal(t, "1", m.mine()[0].Labels[CopiesLabel])

			r.Options.Helm = bad.Options.Helm
			_, err = m.Deploy(t.Context(), r)
			require.ErrorContains(t, err, "failed pre-install")
			assert.Equal(t, []string{"2 failed"}, m.statuses(), "it is not undone: that would delete the whole history")
			m.makeHookWork()
			d := m.deploy(r)
			assert.Equal(t, "1", d.Labels[CopiesLabel])
			assert.Equal(t, "1", m.mine()[0].Labels[CopiesLabel])
			assert.NotContains(t, m.mine()[0].Labels, keepResourcesLabel)
		})
	}
}

// The first revision is one of another BundleDeployment, or of Fleet's own agent, and has failed.
func TestDeploy_failedInstallationOfAnother(t *testing.T) {
	m := signing(t)
	theirs := m.hooked("post-install")
	theirs.Labels, theirs.BundleDeployment = owner.LabelsFor("other", "one"), "other"
	theirs.Options.KeepResources = true
	_, err := m.Deploy(t.Context(), theirs)
	require.ErrorContains(t, err, "failed post-install")
	early := m.configMap("early").UID
	m.makeHookWork()
	r := m.hooked("post-install")
	_, err = m.Deploy(t.Context(), r)
	var conflict *ConflictError
	require.ErrorAs(t, err, &conflict)
	assert.Equal(t, []string{"1 failed"}, m.statuses())
	assert.Equal(t, early, m.configMap("early").UID, "no hook runs")

	r.Options.Helm = &fleet.HelmOptions{TakeOwnership: true}
	m.deploy(r)
	assert.True(t, m.hasRunHook())
	assert.Equal(t, "install true, upgrade false", m.configMap("a").Data["k"])
	mine := m.mine()
	require.Len(t, mine, 1)
	assert.Equal(t, "app", mine[0].Labels[DeploymentLabel])
	assert.False(t, mine[0].Options().KeepResources)
}

func TestDeploy_failedInstallationOfFleetsAgent(t *testing.T) {
	m := onMember(t)
	r := m.hooked("post-install")
	theirs := r
	theirs.Labels = nil
	theirs.Resources = append(theirs.Resources, m.request("templates/b.yaml", configMap("b", "k", "one")).Resources...)
	_, err := m.Deploy(t.Context(), theirs)
	require.ErrorContains(t, err, "failed post-install")
	m.rewrite(func(r *helm.Release) { delete(r.Chart.Metadata.Annotations, adoptedAnnotation) }) // Fleet's agent notes nothing
	m.unlabel("app")
	m.withHistoryKey()
	m.makeHookWork()
	d := m.deploy(r)
	assert.Equal(t, 2, d.Version)
	assert.True(t, m.hasRunHook())
	assert.Equal(t, "install true, upgrade false", m.configMap("a").Data["k"])
	assert.Equal(t, []string{"a", "b", "early"}, m.configMaps())
	assert.Equal(t, []string{"ConfigMap " + m.namespace + "/b, which existed, or may have existed, before a failed deployment"}, d.Kept)
}

package release

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestUninstall_twice(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	for range 2 {
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{}))
		assert.Empty(t, m.configMaps())
	}
	found, err := m.List(t.Context(), Owner{Namespace: "nobody"}.Selector())
	require.NoError(t, err)
	assert.Empty(t, found)
}

func TestUninstall_keepResources(t *testing.T) {
	m := onMember(t)
	r := m.request("a.yaml", configMap("a", "k", "one"))
	r.Options.KeepResources = true
	r.Copies, r.Labels[CopiesLabel] = []runtime.Object{&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "copy"}}}, "1"
	m.deploy(r)
	mine := m.mine()
	require.Len(t, mine, 1)
	assert.True(t, mine[0].Options().KeepResources && mine[0].Options().DeleteCopies)
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", mine[0].Options()))
	assert.Equal(t, []string{"a", "copy"}, m.configMaps(), "the objects may need the copies")
	assert.Empty(t, m.mine())

	m.deploy(r)
	r.Options.KeepResources = false
	m.deploy(r)
	assert.False(t, m.mine()[0].Options().KeepResources, "the label goes with the option")
}

// mine returns the releases of the agent in the namespace of the test.
func (m *member) mine() (found []Found) {
	m.t.Helper()
	all, err := m.List(m.t.Context(), owner.Selector())
	require.NoError(m.t, err)
	for _, f := range all {
		if f.Namespace == m.namespace {
			found = append(found, f)
		}
	}
	return found
}

func TestList(t *testing.T) {
	m := onMember(t)
	r := m.request("a.yaml", configMap("a", "k", "one"))
	m.deploy(r)
	r.Labels = owner.LabelsFor("app", "two")
	m.deploy(r)
	found := m.mine()
	require.Len(t, found, 1)
	assert.Equal(t, 2, found[0].Version)
	assert.True(t, found[0].Deployed)
	assert.Equal(t, DeploymentIDValue("two"), found[0].Labels[DeploymentIDLabel])
	kept, err := m.Get(t.Context(), found[0])
	require.NoError(t, err)
	require.Len(t, kept.Objects, 1)
	assert.Equal(t, "a", kept.Objects[0].Desired.GetName())
}

func TestUninstall_objectsOfAnotherRelease(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one")))
	other := m.request("a.yaml", configMap("a", "k", "two"))
	other.Name, other.Options.Helm = "other", &fleet.HelmOptions{TakeOwnership: true}
	m.deploy(other)
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{}))
	assert.Equal(t, []string{"a"}, m.configMaps())
}

// The last revision has failed, so the revision before is still deployed.
func TestUninstall_afterFailedUpgrades(t *testing.T) {
	for name, open := range map[string]func(m *member) *Client{
		"agent": func(m *member) *Client { return m.withKey(m.key) },
		"hub":   func(m *member) *Client { return m.reducing(m.config) },
	} {
		setUp := func(t *testing.T, change func(*Request)) *member {
			m := signing(t)
			deploy := func(files ...string) error {
				r := m.request(files...)
				change(&r)
				_, err := m.Deploy(t.Context(), r)
				return err
			}
			require.NoError(t, deploy("a.yaml", configMap("a", "k", "one"), "old.yaml", configMap("old", "k", "one")))
			require.NoError(t, deploy("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one"), "moved.yaml", configMap("moved", "k", "one")))
			_, err := m.core.CoreV1().ConfigMaps(m.namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{})
			require.NoError(t, err)
			require.Error(t, deploy("a.yaml", configMap("a", "k", "two"), "c.yaml", configMap("c", "k", "two"), "theirs.yaml", configMap("theirs", "k", "two"),
				"z.yaml", invalidService))
			require.Error(t, deploy("a.yaml", configMap("a", "k", "two"), "d.yaml", configMap("d", "k", "two"), "z.yaml", invalidService))
			taken := m.ofOther("moved.yaml", configMap("moved", "k", "two"))
			m.deploy(taken)
			require.Equal(t, []string{"a", "b", "c", "d", "moved", "theirs"}, m.configMaps())
			return m
		}
		uninstall := func(m *member, c *Client, change func(*UninstallOptions)) error {
			options := UninstallOptionsFrom(owner.LabelsFor("app", "one"))
			options.ServiceAccountNamespace = m.namespace
			change(&options)
			return c.Uninstall(m.t.Context(), m.namespace, "app", options)
		}
		t.Run(name+", all that its revisions have created since is deleted", func(t *testing.T) {
			m := setUp(t, func(*Request) {})
			var kept []string
			require.NoError(t, uninstall(m, open(m), func(o *UninstallOptions) { o.ReportKept = func(objects []string) { kept = append(kept, objects...) } }))
			assert.Equal(t, []string{"moved", "theirs"}, m.configMaps())
			assert.ElementsMatch(t, []string{
				"ConfigMap " + m.namespace + "/moved, which belongs to Helm release " + m.namespace + "/other",
				"ConfigMap " + m.namespace + "/theirs, which existed, or may have existed, before a failed deployment",
			}, kept)
			assert.Equal(t, []string{secretName("other", 1)}, m.revisions())
		})
		for _, inHook := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", an object that was adopted is in the last attempt, which failed in a hook: ", inHook), func(t *testing.T) {
				m := setUp(t, func(*Request) {})
				r := m.request("a.yaml", configMap("a", "k", "two"), "e.yaml", configMap("e", "k", "two"), "theirs.yaml", configMap("theirs", "k", "three"), "z.yaml", invalidService)
				if inHook {
					r.Resources = append(r.Resources, m.request("hook.yaml", hookIn("none-"+m.namespace, "pre-upgrade")).Resources...)
				}
				_, err := m.Deploy(t.Context(), r)
				require.Error(t, err)
				require.NoError(t, uninstall(m, open(m), func(*UninstallOptions) {}))
				assert.Equal(t, []string{"moved", "theirs"}, m.configMaps())
			})
		}
		t.Run(name+", keepResources", func(t *testing.T) {
			m := setUp(t, func(r *Request) { r.Options.KeepResources = true })
			require.NoError(t, uninstall(m, open(m), func(o *UninstallOptions) { o.KeepResources = true }))
			assert.Equal(t, []string{"a", "b", "c", "d", "moved", "theirs"}, m.configMaps())
		})
		t.Run(name+", the first attempt fails", func(t *testing.T) {
			m := setUp(t, func(*Request) {})
			_, err := m.core.CoreV1().ConfigMaps(m.namespace).Patch(t.Context(), "b", types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/x"]}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			fails := true
			config := rest.CopyConfig(m.config)
			through(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
				if fails && r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/configmaps/b") {
					return nil, errCut
				}
				return next.RoundTrip(r)
			})(config)
			careful := *m
			careful.Client, err = New(config)
			require.NoError(t, err)
			careful.Client = careful.withKey(m.key)
			require.ErrorIs(t, uninstall(m, open(&careful), func(*UninstallOptions) {}), errCut)
			assert.NotEmpty(t, m.revisions(), "the next attempt needs them")
			fails = false
			require.NoError(t, uninstall(m, open(&careful), func(*UninstallOptions) {}))
			assert.NotNil(t, m.configMap("b").DeletionTimestamp)
			assert.Equal(t, []string{secretName("other", 1)}, m.revisions())
		})
	}
	for _, inHook := range []bool{false, true} {
		t.Run(fmt.Sprint("the upgrade of a release of an agent that signs nothing, which failed in a hook: ", inHook), func(t *testing.T) {
			m := signing(t)
			another, err := New(m.config)
			require.NoError(t, err)
			theirs := m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one"))
			theirs.Labels = nil
			_, err = another.Deploy(t.Context(), theirs)
			require.NoError(t, err)
			ours := m.request("a.yaml", configMap("a", "k", "two"), "z.yaml", invalidService)
			if inHook {
				ours.Resources = append(ours.Resources, m.request("hook.yaml", hookIn("none-"+m.namespace, "pre-upgrade")).Resources...)
			}
			ours.Labels = Owner{Namespace: m.namespace, Workspace: "fleet-default", ClusterName: "one"}.LabelsFor("app", "one")
			_, err = m.Deploy(t.Context(), ours)
			require.Error(t, err)
			options := UninstallOptionsFrom(ours.Labels)
			options.Scope = ptr.To("")
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
			assert.Empty(t, m.configMaps())
		})
	}
	t.Run("an attempt that failed in a hook follows one that was interrupted", func(t *testing.T) {
		m := signing(t)
		files := []string{"a.yaml", configMap("a", "k", "one"), "z.yaml", invalidService}
		var written []string
		dying := onMember(t, cutAfter(2, &written)) // the revision, and "a"
		dying.Client = dying.withKey(m.key)
		_, err := dying.Deploy(t.Context(), m.request(files...))
		require.Error(t, err)
		require.Equal(t, []string{"a"}, m.configMaps(), written)
		_, err = m.Deploy(t.Context(), m.request(append(files, "hook.yaml", hookIn("none-"+m.namespace, "pre-install,pre-upgrade"))...))
		require.Error(t, err)
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptionsFrom(owner.LabelsFor("app", "one"))))
		assert.Empty(t, m.configMaps())
	})
	t.Run("an earlier owner", func(t *testing.T) {
		m := signing(t)
		m.deploy(m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one")))
		other := m.ofOther("a.yaml", configMap("a", "k", "two"), "z.yaml", invalidService)
		other.Name = "app"
		_, err := m.Deploy(t.Context(), other)
		require.Error(t, err)
		options := UninstallOptionsFrom(other.Labels)
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Equal(t, []string{"b"}, m.configMaps(), "only the other BundleDeployment has it")
	})
}

// A person has created an object of the release again.
func TestUninstall_objectsOfAPerson(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one")))
	m.recreate("b")
	var kept []string
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{ReportKept: func(objects []string) { kept = objects }}))
	assert.Equal(t, []string{"b"}, m.configMaps())
	assert.Equal(t, []string{"ConfigMap " + m.namespace + "/b, which belongs to no Helm release"}, kept)
}

func TestCompare(t *testing.T) {
	m := onMember(t)
	r := m.request("a.yaml", configMap("a", "k", "one"), "s.yaml",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: hunter2}\n", "d.yaml", agentDeployment(""))
	d := m.deploy(r)
	compare := func(i int, patches ...fleet.ComparePatch) Difference {
		t.Helper()
		found, err := m.Compare(t.Context(), d.Objects[i], nil, Tolerances{Patches: patches, Release: d.Objects})
		require.NoError(t, err)
		return found
	}
	for i := range d.Objects {
		assert.True(t, compare(i).None(), "%s: %+v", d.Objects[i].Desired.GetKind(), compare(i))
	}
	at := func(kind string) int {
		for i, o := range d.Objects {
			if o.Desired.GetKind() == kind {
				return i
			}
		}
		return -1
	}
	patch := func(data string) metav1.PatchOptions { return metav1.PatchOptions{FieldManager: data} }
	core := m.core.CoreV1()
	_, err := core.ConfigMaps(m.namespace).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"data":{"k":"x"}}`), patch("person"))
	require.NoError(t, err)
	_, err = core.Secrets(m.namespace).Patch(t.Context(), "s", types.MergePatchType, []byte(`{"data":{"password":"eA=="}}`), patch("person"))
	require.NoError(t, err)
	assert.JSONEq(t, `{"data":{"k":"one"}}`, compare(at("ConfigMap")).Patch)
	assert.NotContains(t, compare(at("Secret")).Patch, "aHVudGVy", "a Secret's values are in no status")
	assert.Contains(t, compare(at("Secret")).Patch, "password")

	assert.True(t, compare(at("ConfigMap"), fleet.ComparePatch{APIVersion: "v1", Kind: "ConfigMap", JSONPointers: []string{"/data/k"}}).None())
	tolerate := fleet.ComparePatch{APIVersion: "apps/v1", Kind: "Deployment", Name: "fleet-.*", Operations: []fleet.Operation{{Op: "ignore"}}}
	assert.False(t, compare(at("ConfigMap"), fleet.ComparePatch{Kind: "Secret", JSONPointers: []string{"/data/k"}}).None())

	require.NoError(t, m.core.AppsV1().Deployments(m.namespace).Delete(t.Context(), "fleet-agent", metav1.DeleteOptions{}))
	assert.Equal(t, Difference{Missing: true}, compare(at("Deployment")))
	assert.Equal(t, Difference{Tolerated: true}, compare(at("Deployment"), tolerate))
	corrected, err := m.Correct(t.Context(), r)
	require.NoError(t, err)
	assert.Equal(t, 2, corrected.Version)
	assert.Equal(t, d.Objects, corrected.Objects)
	assert.Subset(t, corrected.Labels, d.Labels)
	for i := range d.Objects {
		assert.True(t, compare(i).None())
	}
}

// A HorizontalPodAutoscaler of the release may change the replicas of a Deployment, within its bounds.
func TestCompare_autoscaled(t *testing.T) {
	for name, row := range map[string]struct {
		fields, beyond string // of the spec of the Deployment; beyond is the patch with 6 replicas
	}{
		"a release with replicas":    {"replicas: 2, ", `{"spec":{"replicas":2}}`},
		"a release without replicas": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := onMember(t)
			d := m.deploy(m.request("web.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n"+
				"spec: {"+row.fields+"selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}\n",
				"scaler.yaml", "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: web}\n"+
					"spec: {minReplicas: 1, maxReplicas: 5, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}\n"))
			at := slices.IndexFunc(d.Objects, func(o Object) bool { return o.Desired.GetKind() == "Deployment" })
			compare := func() string {
				t.Helper()
				found, err := m.Compare(t.Context(), d.Objects[at], nil, Tolerances{Release: d.Objects})
				require.NoError(t, err)
				return found.Patch
			}
			assert.Empty(t, compare())
			for replicas, want := range map[string]string{"4": "", "6": row.beyond} {
				_, err := m.core.AppsV1().Deployments(m.namespace).Patch(t.Context(), "web", types.MergePatchType,
					[]byte(`{"spec":{"replicas":`+replicas+`}}`), metav1.PatchOptions{FieldManager: "scaler"}, "scale")
				require.NoError(t, err)
				assert.Equal(t, want, compare(), "%s replicas", replicas)
			}
		})
	}
}

func TestCorrect_fails(t *testing.T) {
	m := signing(t)
	r := m.request("a.yaml", configMap("a", "k", "one"))
	m.deploy(r)
	careful := onMember(t, through(func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodPatch {
			return nil, errCut
		}
		return next.RoundTrip(req)
	}))
	careful.Client = careful.withKey(m.key)
	for range 2 {
		_, err := careful.Correct(t.Context(), r)
		require.ErrorIs(t, err, errCut)
		found := m.mine()
		require.Len(t, found, 1)
		assert.Equal(t, 1, found[0].Version, "the failed revision is gone")
		assert.True(t, found[0].Deployed)
	}
	r.Options.CorrectDrift = &fleet.CorrectDrift{Enabled: true, KeepFailHistory: true}
	for failures := range 3 {
		op, err := m.newAction(t.Context(), m.namespace, serviceAccount{})
		require.NoError(t, err)
		revisions, err := op.revisions("app")
		require.NoError(t, err)
		assert.Len(t, revisions, 1+failures, "the failed revisions are kept")
		found := m.mine()
		require.Len(t, found, 1)
		assert.Equal(t, 1, found[0].Version, "the release is what is deployed")
		assert.True(t, found[0].Deployed)
		_, err = careful.Correct(t.Context(), r)
		require.ErrorIs(t, err, errCut)
	}
	corrected, err := m.Correct(t.Context(), r)
	require.NoError(t, err)
	assert.Equal(t, 5, corrected.Version)
	_, err = careful.Correct(t.Context(), r)
	require.ErrorIs(t, err, errCut)
	assert.Equal(t, 7, m.deploy(r).Version)
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.mine()[0].Options()))
	assert.Empty(t, m.configMaps())
}

// The last revision is a failed correction that is kept. It has no labels, and the options of the removal are in those of the revision before.
func TestUninstall_failedCorrection(t *testing.T) {
	sample.Long(t)
	setUp := func(t *testing.T, files ...string) (*member, Request) {
		m := signing(t)
		r := m.request(files...)
		r.Labels = Owner{Namespace: m.namespace}.LabelsFor("app", "one") // as the annotations of the chart
		return m, r
	}
	failCorrection := func(m *member, r Request) UninstallOptions {
		m.t.Helper()
		careful := onMember(m.t, through(func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodPatch {
				return nil, errCut
			}
			return next.RoundTrip(req)
		}))
		r.Options.CorrectDrift = &fleet.CorrectDrift{Enabled: true, KeepFailHistory: true}
		_, err := careful.withKey(m.key).Correct(m.t.Context(), r)
		require.ErrorIs(m.t, err, errCut)
		op, err := m.newAction(m.t.Context(), m.namespace, serviceAccount{})
		require.NoError(m.t, err)
		revisions, err := op.revisions("app")
		require.NoError(m.t, err)
		require.Len(m.t, revisions, 2)
		require.True(m.t, m.isSigned(revisions[1]) && revisions[1].Labels[AgentLabel] == "")
		options := UninstallOptionsFrom(revisions[0].Labels)
		options.Scope = &r.Scope
		return options
	}
	t.Run("keepResources: the objects stay", func(t *testing.T) {
		m, r := setUp(t, "a.yaml", configMap("a", "k", "one"))
		r.Options.KeepResources = true
		m.deploy(r)
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", failCorrection(m, r)))
		assert.Equal(t, []string{"a"}, m.configMaps())
		assert.Empty(t, m.revisions())
	})
	for name, change := range map[string]func(*member){
		"the hooks have the rights of the ServiceAccount": func(*member) {},
		"the labelled revision cannot be decoded: no hooks": func(m *member) {
			secret, err := m.core.CoreV1().Secrets(m.namespace).Get(m.t.Context(), secretName("app", 1), metav1.GetOptions{})
			require.NoError(m.t, err)
			secret.Data["release"] = []byte("?")
			_, err = m.core.CoreV1().Secrets(m.namespace).Update(m.t.Context(), secret, metav1.UpdateOptions{})
			require.NoError(m.t, err)
		},
	} {
		for _, account := range []string{"fleet-default", ""} { // of the labels with which the release is found
			t.Run(name+", found with account '"+account+"'", func(t *testing.T) {
				f := foreign(t)
				m, r := setUp(t, "Chart.yaml", chartYAML, "templates/a.yaml", configMap("a", "k", "one"), "templates/hook.yaml", hookIn(f.namespace, "pre-delete"))
				m.tenant("fleet-default")
				m.deploy(r)
				options := failCorrection(m, r)
				options.ServiceAccount = account
				change(m)
				require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
				assert.Equal(t, []string{"theirs"}, f.configMaps())
				assert.Empty(t, m.configMaps())
				assert.NotContains(t, m.revisions(), secretName("app", 2))
			})
		}
	}
	t.Run("deleteNamespace, with hooks", func(t *testing.T) {
		f := foreign(t)
		m, r := setUp(t, "Chart.yaml", chartYAML, "templates/a.yaml", configMap("a", "k", "one"), "templates/hook.yaml", hookIn(f.namespace, "pre-delete"))
		r.Options.DeleteNamespace = true
		m.deploy(r)
		options := failCorrection(m, r)
		options.ServiceAccountNamespace = "default" // the namespace of the agent would stay
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Equal(t, []string{"hook", "theirs"}, f.configMaps())
		namespace, err := m.core.CoreV1().Namespaces().Get(t.Context(), m.namespace, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(t, err)
			assert.NotNil(t, namespace.DeletionTimestamp)
		}
	})
	t.Run("a signed revision without labels beside one of another owner: it is no proof of the owner", func(t *testing.T) {
		m, r := setUp(t, "a.yaml", configMap("a", "k", "one"))
		m.deploy(r)
		failCorrection(m, r)
		kept, err := m.core.CoreV1().Secrets(m.namespace).Get(t.Context(), secretName("app", 2), metav1.GetOptions{})
		require.NoError(t, err)
		kept.Labels[AgentLabel] = m.namespace // the signature does not cover it
		_, err = m.core.CoreV1().Secrets(m.namespace).Update(t.Context(), kept, metav1.UpdateOptions{})
		require.NoError(t, err)
		options := UninstallOptionsFrom(map[string]string{AgentLabel: m.namespace})
		require.ErrorIs(t, m.Uninstall(t.Context(), m.namespace, "app", options), errOtherOwner)
		assert.Equal(t, []string{"a"}, m.configMaps())
		assert.Equal(t, []string{secretName("app", 1)}, m.revisions())
	})
}

// revisions returns the names of the Secrets of all revisions in the namespace of the test.
func (m *member) revisions() (names []string) {
	m.t.Helper()
	list, err := m.core.CoreV1().Secrets(m.namespace).List(m.t.Context(), metav1.ListOptions{LabelSelector: helmOwnerLabel + "=helm"})
	require.NoError(m.t, err)
	for _, o := range list.Items {
		names = append(names, o.Name)
	}
	return names
}

// With force, a correction replaces an object that cannot be patched, and only such an object.
func TestCorrect_force(t *testing.T) {
	m := onMember(t)
	r := m.request("d.yaml", agentDeployment(""))
	m.deploy(r)
	deployments := m.core.AppsV1().Deployments(m.namespace)
	theirs, err := deployments.Get(t.Context(), "fleet-agent", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, deployments.Delete(t.Context(), theirs.Name, metav1.DeleteOptions{}))
	theirs.ResourceVersion, theirs.ManagedFields = "", nil
	theirs.Spec.Selector.MatchLabels, theirs.Spec.Template.Labels = map[string]string{"app": "b"}, map[string]string{"app": "b"}
	theirs, err = deployments.Create(t.Context(), theirs, metav1.CreateOptions{})
	require.NoError(t, err)

	r.Options.CorrectDrift = &fleet.CorrectDrift{Enabled: true}
	_, err = m.Correct(t.Context(), r)
	require.ErrorContains(t, err, "immutable")
	r.Options.CorrectDrift.Force = true
	_, err = m.Correct(t.Context(), r)
	require.NoError(t, err)
	corrected, err := deployments.Get(t.Context(), "fleet-agent", metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotEqual(t, theirs.UID, corrected.UID)
	assert.Equal(t, map[string]string{"app": "a"}, corrected.Spec.Selector.MatchLabels)
	_, err = m.Correct(t.Context(), r)
	require.NoError(t, err)
	again, err := deployments.Get(t.Context(), "fleet-agent", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, corrected.UID, again.UID)
}

func TestDeploy_force(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("d.yaml", agentDeployment("")))
	changed := agentDeployment("")
	r := m.request("d.yaml", `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"fleet-agent"},"spec":{"selector":{"matchLabels":{"app":"b"}},`+
		`"template":{"metadata":{"labels":{"app":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	_, err := m.Deploy(t.Context(), r)
	require.ErrorContains(t, err, "immutable")
	r.Options.Helm = &fleet.HelmOptions{Force: true}
	m.deploy(r)
	m.deploy(func() Request {
		back := m.request("d.yaml", changed)
		back.Options.Helm = &fleet.HelmOptions{Force: true}
		return back
	}())

	live := func() types.UID {
		object, err := m.core.AppsV1().Deployments(m.namespace).Get(t.Context(), "fleet-agent", metav1.GetOptions{})
		require.NoError(t, err)
		return object.UID
	}
	before := live()
	r = m.request("d.yaml", strings.Replace(changed, `"spec":{`, `"spec":{"replicas":-1,`, 1))
	r.Options.Helm = &fleet.HelmOptions{Force: true}
	_, err = m.Deploy(t.Context(), r)
	require.ErrorContains(t, err, "spec.replicas")
	assert.Equal(t, before, live(), "what could not be created again is not deleted")
}

// Objects that hold data, and objects that Helm would keep, are not replaced: the API server's refusal is the error.
func TestDeploy_forceKeepsData(t *testing.T) {
	const keep = `"annotations":{"helm.sh/resource-policy":"keep"},`
	claim := func(size string) string {
		return "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n" +
			"spec: {storageClassName: none, accessModes: [ReadWriteOnce], resources: {requests: {storage: " + size + "}}}\n"
	}
	set := func(service string) string {
		return "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: data}\nspec: {serviceName: " + service +
			", replicas: 0, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}\n"
	}
	deployment := func(annotations, label string) string {
		return `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{` + annotations + `"name":"data"},"spec":{"replicas":0,"selector":{"matchLabels":{"a":"` + label +
			`"}},"template":{"metadata":{"labels":{"a":"` + label + `"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`
	}
	claims, deployments := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), appsv1.SchemeGroupVersion.WithResource("deployments")
	for name, row := range map[string]struct {
		kind          schema.GroupVersionResource
		before, after string
		adopted       bool
		says          string
	}{
		"a PersistentVolumeClaim":                {claims, claim("1Gi"), claim("2Gi"), false, "immutable"},
		"a PersistentVolumeClaim of no release":  {claims, claim("1Gi"), claim("2Gi"), true, "immutable"},
		"a StatefulSet":                          {appsv1.SchemeGroupVersion.WithResource("statefulsets"), set("one"), set("two"), false, "Forbidden"},
		"a Deployment that Helm keeps":           {deployments, deployment(keep, "one"), deployment("", "two"), false, "immutable"},
		"a Deployment that Helm is to keep":      {deployments, deployment("", "one"), deployment(keep, "two"), false, "immutable"},
		"a Deployment of no release, to be kept": {deployments, deployment(keep, "one"), deployment("", "two"), true, "immutable"},
	} {
		t.Run(name, func(t *testing.T) {
			m := onMember(t)
			objects := m.dynamic.Resource(row.kind).Namespace(m.namespace)
			if row.adopted {
				o := &unstructured.Unstructured{}
				require.NoError(t, yaml.Unmarshal([]byte(row.before), &o.Object))
				_, err := objects.Create(t.Context(), o, metav1.CreateOptions{})
				require.NoError(t, err)
			} else {
				m.deploy(m.request("o.yaml", row.before))
			}
			before, err := objects.Get(t.Context(), "data", metav1.GetOptions{})
			require.NoError(t, err)
			r := m.request("o.yaml", row.after)
			r.Options.Helm = &fleet.HelmOptions{Force: true, TakeOwnership: true}
			_, err = m.Deploy(t.Context(), r)
			require.ErrorContains(t, err, row.says)
			after, err := objects.Get(t.Context(), "data", metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, before.GetUID(), after.GetUID())
			assert.Nil(t, after.GetDeletionTimestamp())
		})
	}
}

// A person has replaced an immutable ConfigMap of the release.
func TestCorrect_forceKeepsData(t *testing.T) {
	m := onMember(t)
	r := m.request("a.yaml", configMap("a", "k", "one")+"immutable: true\n")
	m.deploy(r)
	configMaps := m.core.CoreV1().ConfigMaps(m.namespace)
	theirs := m.configMap("a")
	require.NoError(t, configMaps.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	theirs.ResourceVersion, theirs.ManagedFields, theirs.Data = "", nil, map[string]string{"k": "theirs"}
	theirs, err := configMaps.Create(t.Context(), theirs, metav1.CreateOptions{})
	require.NoError(t, err)
	r.Options.CorrectDrift = &fleet.CorrectDrift{Enabled: true, Force: true}
	_, err = m.Correct(t.Context(), r)
	require.ErrorContains(t, err, "immutable")
	assert.Equal(t, theirs.UID, m.configMap("a").UID)
}

const thingKind = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.release.example.com}
spec:
  group: release.example.com
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}
  versions:
  - {name: v1, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}
  - {name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`

// deployThing deploys a kind as release "kind", and then the ConfigMap "a" and an object of that kind.
func (m *member) deployThing() {
	m.t.Helper()
	definition := m.request("crd.yaml", thingKind)
	definition.Name, definition.Options.DeleteCRDResources = "kind", true
	m.deploy(definition)
	r := m.request("a.yaml", configMap("a", "k", "one"), "t.yaml", thing)
	require.EventuallyWithT(m.t, func(c *assert.CollectT) {
		_, err := m.Deploy(m.t.Context(), r)
		assert.NoError(c, err)
	}, 2*time.Minute, 50*time.Millisecond)
}

const thing = "apiVersion: release.example.com/v1\nkind: Thing\nmetadata: {name: t}\n"

// deleteKind deletes the kind of deployThing, and returns a client that has not read the kinds before that.
func (m *member) deleteKind() *Client {
	m.t.Helper()
	require.NoError(m.t, m.Uninstall(m.t.Context(), m.namespace, "kind", UninstallOptions{DeleteCRDs: true}))
	m.awaitUnserved("v1")
	m.awaitUnserved("v2")
	fresh, err := New(m.config)
	require.NoError(m.t, err)
	return fresh
}

func (m *member) awaitUnserved(version string) {
	m.t.Helper()
	require.EventuallyWithT(m.t, func(c *assert.CollectT) {
		list, err := m.core.Discovery().ServerResourcesForGroupVersion("release.example.com/" + version)
		assert.True(c, apierrors.IsNotFound(err) || err == nil && !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Kind == "Thing" }))
	}, 2*time.Minute, 50*time.Millisecond)
}

func TestUninstall_unknownKind(t *testing.T) {
	m := onMember(t)
	m.deployThing()
	require.NoError(t, m.deleteKind().Uninstall(t.Context(), m.namespace, "app", UninstallOptions{}))
	assert.Empty(t, m.configMaps())
}

func TestDeploy_unknownKind(t *testing.T) {
	m := onMember(t)
	m.deployThing()
	fresh := m.deleteKind()
	for _, helmOptions := range []*fleet.HelmOptions{nil, {Atomic: true, TimeoutSeconds: 60}} {
		same := m.request("a.yaml", configMap("a", "k", "one"), "t.yaml", thing)
		same.Options.Helm = helmOptions
		_, err := fresh.Deploy(t.Context(), same)
		require.ErrorContains(t, err, "no matches for kind", "what is to be deployed has it too")
	}
	_, err := fresh.Deploy(t.Context(), m.request("b.yaml", configMap("b", "k", "two")))
	require.NoError(t, err)
	assert.Equal(t, []string{"b"}, m.configMaps())
}

func TestCorrect_unknownKind(t *testing.T) {
	m := onMember(t)
	m.deployThing()
	fresh := m.deleteKind()
	require.NoError(t, m.core.CoreV1().ConfigMaps(m.namespace).Delete(t.Context(), "a", metav1.DeleteOptions{}))
	for _, app := range m.mine() {
		read, err := fresh.Get(t.Context(), app)
		require.NoError(t, err)
		for _, object := range read.Objects {
			found, err := fresh.Compare(t.Context(), object, nil, Tolerances{})
			require.NoError(t, err)
			assert.True(t, found.Missing, object.Desired.GetName())
		}
	}
	d, err := fresh.Correct(t.Context(), m.request())
	require.NoError(t, err)
	assert.Len(t, d.Objects, 2)
	assert.Equal(t, []string{"a"}, m.configMaps())
}

// The cluster no longer serves the version of an object that a release has, but serves the object in another version.
func TestUninstall_unservedVersion(t *testing.T) {
	for name, row := range map[string]struct {
		client func(*member) (*Client, error)
		remove func(*member, *Client) error
	}{
		"removal":       {func(m *member) (*Client, error) { return New(m.config) }, (*member).uninstallApp},
		"by the hub":    {func(m *member) (*Client, error) { return m.LookUpKinds(m.t.Context()) }, (*member).uninstallApp},
		"known version": {func(m *member) (*Client, error) { return m.Client, nil }, (*member).uninstallApp},
		"correction, then removal": {func(m *member) (*Client, error) { return New(m.config) }, func(m *member, c *Client) error {
			d, err := c.Correct(m.t.Context(), m.request())
			if err != nil {
				return err
			}
			assert.Equal(m.t, "v2", d.Objects[len(d.Objects)-1].Resource.Version)
			return m.uninstallApp(c)
		}},
		"upgrade": {func(m *member) (*Client, error) { return New(m.config) }, func(m *member, c *Client) error {
			_, err := c.Deploy(m.t.Context(), m.request("b.yaml", configMap("b", "k", "two")))
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := onMember(t)
			m.deployThing()
			client, err := row.client(m)
			require.NoError(t, err)
			changed := m.request("crd.yaml", strings.Replace(thingKind, "{name: v1, served: true,", "{name: v1, served: false,", 1))
			changed.Name, changed.Options.DeleteCRDResources = "kind", true
			m.deploy(changed)
			m.awaitUnserved("v1")
			things := m.dynamic.Resource(schema.GroupVersionResource{Group: "release.example.com", Version: "v2", Resource: "things"}).Namespace(m.namespace)
			_, err = things.Get(t.Context(), "t", metav1.GetOptions{})
			require.NoError(t, err)
			if err := row.remove(m, client); err != nil {
				require.True(t, isTransient(err), "the next attempt: %v", err)
				require.NoError(t, row.remove(m, client))
			}
			_, err = things.Get(t.Context(), "t", metav1.GetOptions{})
			assert.True(t, apierrors.IsNotFound(err))
			m.deleteKind()
		})
	}
}

func (m *member) uninstallApp(c *Client) error {
	return c.Uninstall(m.t.Context(), m.namespace, "app", UninstallOptions{})
}

// The API server of an API group does not answer, as an aggregated one that is being restarted.
func TestUninstall_unavailableKind(t *testing.T) {
	const group = "/apis/release.example.com/"
	m := onMember(t)
	m.deployThing()
	isDown := true
	config := rest.CopyConfig(m.config)
	through(func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		if req.URL.Path == "/apis" {
			req = req.Clone(req.Context())
			req.Header.Set("Accept", "application/json") // without the kinds of all groups
		}
		if isDown && strings.HasPrefix(req.URL.Path, group) {
			return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: io.NopCloser(strings.NewReader("down")), Request: req}, nil
		}
		return next.RoundTrip(req)
	})(config)
	careful, err := New(config)
	require.NoError(t, err)
	objects := m.dynamic.Resource(schema.GroupVersionResource{Group: "release.example.com", Version: "v1", Resource: "things"}).Namespace(m.namespace)

	err = careful.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{})
	require.ErrorContains(t, err, "unable to handle the request")
	assert.True(t, isTransient(err))
	_, err = careful.Deploy(t.Context(), m.request("b.yaml", configMap("b", "k", "two")))
	require.Error(t, err)
	_, err = objects.Get(t.Context(), "t", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Len(t, m.mine(), 2, "the histories")

	isDown = false
	require.NoError(t, careful.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{}))
	_, err = objects.Get(t.Context(), "t", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err))
	m.deleteKind()
}

// Deleting a CustomResourceDefinition deletes all objects of its kind, whoever created them.
func TestUninstall_customResourceDefinitions(t *testing.T) {
	sample.Long(t)
	m := onMember(t)
	kind := strings.NewReplacer("things", "keeps", "thing", "keep", "Thing", "Keep").Replace(thingKind)
	const name = "keeps.release.example.com"
	exists := func() bool {
		found := m.definitions(name)
		return len(found) == 1 && found[0].GetDeletionTimestamp() == nil
	}
	chart := []string{
		"Chart.yaml", "apiVersion: v2\nname: app\nversion: 1.0.0\n", "values.yaml", "kind: CustomResourceDefinition\n",
		"templates/crd.yaml", strings.Replace(kind, "kind: CustomResourceDefinition", "kind: '{{ .Values.kind }}'", 1),
	}
	for title, files := range map[string][]string{"plain manifest": {"crd.yaml", kind}, "template": chart} {
		t.Run(title, func(t *testing.T) {
			m.deploy(m.request(append(slices.Clone(files), "a.yaml", configMap("a", "k", "one"))...))
			require.True(t, exists())
			m.deploy(m.request("a.yaml", configMap("a", "k", "two")))
			assert.True(t, exists(), "an upgrade without it keeps it")
			r := m.request(files...)
			r.Options.Helm = &fleet.HelmOptions{TakeOwnership: true}
			m.deploy(r)
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.mine()[0].Options()))
			assert.True(t, exists(), "so does a removal")
			r.Options.DeleteCRDResources = true
			m.deploy(r)
			m.awaitKind(schema.GroupVersionResource{Group: "release.example.com", Version: "v1", Resource: "keeps"})
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.mine()[0].Options()))
			assert.False(t, exists(), "unless the options ask for it")
			require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Empty(c, m.definitions(name)) }, 2*time.Minute, 50*time.Millisecond)
		})
	}
}

// Helm neither marks nor removes the objects in the folder crds, which several charts may bring.
func TestUninstall_crdsFolder(t *testing.T) {
	m := onMember(t)
	kind := strings.NewReplacer("things", "folders", "thing", "folder", "Thing", "Folder").Replace(thingKind)
	older, _, _ := strings.Cut(kind, "  - {name: v2")
	older = strings.Replace(older, "storage: false", "storage: true", 1)
	for i, content := range []string{kind, older} {
		name := []string{"app", "other"}[i]
		r := m.request("Chart.yaml", "apiVersion: v2\nname: app\nversion: 1.0.0\n", "crds/crd.yaml", content, "templates/a.yaml", configMap(name, "k", "one"))
		r.Name, r.Options.DeleteCRDResources = name, true
		m.deploy(r)
		found := m.definitions("folders.release.example.com")
		require.Len(t, found, 1)
		versions, _, err := unstructured.NestedSlice(found[0].Object, "spec", "versions")
		require.NoError(t, err)
		assert.Len(t, versions, 2, "the second chart does not change what the first one has created")
	}
	for _, name := range []string{"app", "other"} {
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, name, UninstallOptions{DeleteCRDs: true}))
		found := m.definitions("folders.release.example.com")
		require.Len(t, found, 1)
		assert.Nil(t, found[0].GetDeletionTimestamp())
	}
}

// awaitKind waits until the API server lists objects of a new kind. The API server deletes a kind only after it has listed its objects; if the
// first attempt fails, the next may come only after minutes.
func (m *member) awaitKind(kind schema.GroupVersionResource) {
	m.t.Helper()
	require.EventuallyWithT(m.t, func(c *assert.CollectT) {
		_, err := m.dynamic.Resource(kind).List(m.t.Context(), metav1.ListOptions{})
		assert.NoError(c, err)
	}, 2*time.Minute, 50*time.Millisecond)
}

func (m *member) definitions(name string) []unstructured.Unstructured {
	m.t.Helper()
	list, err := m.dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")).
		List(m.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(m.t, err)
	return list.Items
}

func TestUninstall_namespaceWithAnotherRelease(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	other := m.request("b.yaml", configMap("b", "k", "one"))
	other.Name, other.Labels = "other", map[string]string{"made": "by-a-person"}
	m.deploy(other)
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{DeleteNamespace: true}))
	assert.False(t, m.namespaceGoes())
	assert.Equal(t, []string{"b"}, m.configMaps())
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "other", UninstallOptions{DeleteNamespace: true}))
	assert.True(t, m.namespaceGoes(), "with the last one")
}

func TestUninstall_releaseOfAnotherOwner(t *testing.T) {
	for name, keep := range map[string]bool{"removed": false, "kept": true} {
		t.Run(name, func(t *testing.T) {
			m := onMember(t)
			m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
			before := m.mine()
			require.Len(t, before, 1)
			other := m.request("a.yaml", configMap("a", "k", "two"))
			other.Labels, other.Options.Helm = owner.LabelsFor("other", "one"), &fleet.HelmOptions{TakeOwnership: true}
			m.deploy(other)
			options := before[0].Options()
			options.DeleteNamespace, options.KeepResources = true, keep
			for range 2 {
				require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
			}
			assert.Equal(t, []string{"a"}, m.configMaps())
			op, err := m.newAction(t.Context(), m.namespace, serviceAccount{})
			require.NoError(t, err)
			left, err := op.revisions("app")
			require.NoError(t, err)
			require.Len(t, left, 1)
			assert.Equal(t, 2, left[0].Version)
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.mine()[0].Options()))
			assert.Empty(t, m.configMaps(), "its owner removes it")
		})
	}
}

func TestUninstall_serviceAccountWithoutRights(t *testing.T) {
	m := onMember(t)
	for _, account := range []string{"weak", "gone"} {
		if account == "weak" {
			_, err := m.core.CoreV1().ServiceAccounts(m.namespace).Create(t.Context(),
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
			require.NoError(t, err)
		}
		m.deploy(m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one")))
		_, err := m.Deploy(t.Context(), m.request("a.yaml", configMap("a", "k", "two"), "c.yaml", configMap("c", "k", "two"), "z.yaml", invalidService))
		require.Error(t, err)
		if account == "weak" {
			m.deploy(m.request("a.yaml", configMap("a", "k", "three")))
		}
		options := m.mine()[0].Options()
		options.ServiceAccount, options.ServiceAccountNamespace = account, m.namespace
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
		assert.Empty(t, m.configMaps(), account)
		assert.Empty(t, m.mine(), account)
	}
}

// The removal with the client's own identity reads the history again. Helm would take an error of that for a release that does not exist.
func TestUninstall_historyCannotBeRead(t *testing.T) {
	reads, failing := 0, 0
	m := onMember(t, through(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if strings.Contains(r.URL.Query().Get("labelSelector"), "name=app") {
			if reads++; reads == failing {
				return nil, errCut
			}
		}
		return next.RoundTrip(r)
	}))
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	options := m.mine()[0].Options()
	options.ServiceAccount, options.ServiceAccountNamespace = "gone", m.namespace
	for _, failing = range []int{1, 2} {
		reads = 0
		require.ErrorIs(t, m.Uninstall(t.Context(), m.namespace, "app", options), errCut)
		require.Len(t, m.mine(), 1)
	}
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
	assert.Empty(t, m.mine())
}

// Fleet's own agent labels no revision. Whichever agent deployed last, the release is removed.
func TestUninstall_revisionsOfSeveralAgents(t *testing.T) {
	for name, last := range map[string]func(*Request){
		"ours is the last":   func(*Request) {},
		"theirs is the last": func(r *Request) { r.Labels = nil },
	} {
		t.Run(name, func(t *testing.T) {
			m := onMember(t)
			for _, change := range []func(*Request){func(r *Request) { r.Labels = nil }, func(*Request) {}, last} {
				r := m.request("a.yaml", configMap("a", "k", "one"))
				change(&r)
				r.Recorded = m.namespace + "/app:1"
				if r.Labels == nil {
					r.Options.Helm = &fleet.HelmOptions{TakeOwnership: true} // their agent does not look at our labels
				}
				m.deploy(r)
			}
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.mine()[0].Options()))
			assert.Empty(t, m.configMaps())
			op, err := m.newAction(t.Context(), m.namespace, serviceAccount{})
			require.NoError(t, err)
			left, err := op.revisions("app")
			require.NoError(t, err)
			assert.Empty(t, left)
		})
	}
}

// The history is the only record of the copies and of the namespace, so it must stay until they are deleted.
func TestUninstall_historyIsLast(t *testing.T) {
	sample.Long(t)
	for name, open := range map[string]func(m *member) *Client{
		"agent": func(m *member) *Client { return m.withKey(m.key) },
		"hub":   func(m *member) *Client { return m.reducing(m.config) },
	} {
		for step, path := range map[string]string{"copies": "/configmaps/copy", "namespace": "", "history": "/secrets/" + secretName("app", 2)} {
			t.Run(name+", the step "+step+" fails", func(t *testing.T) {
				fails, hooks := false, 0
				var namespace string
				m := onMember(t, through(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
					if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/configmaps/hook") {
						hooks++
					}
					if fails && r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/namespaces/"+namespace+path) {
						return nil, errCut
					}
					return next.RoundTrip(r)
				}))
				m.withHistoryKey()
				namespace = m.namespace
				hook := strings.Replace(hookIn(m.namespace, "pre-delete"), "annotations: {", "annotations: {helm.sh/hook-delete-policy: hook-succeeded, ", 1)
				r := m.request("Chart.yaml", chartYAML, "templates/a.yaml", configMap("a", "k", "one"), "templates/hook.yaml", hook)
				r.Copies, r.Labels[CopiesLabel] = []runtime.Object{&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "copy"}}}, "1"
				r.Options.DeleteNamespace = true
				for range 2 {
					m.deploy(r)
				}
				options := m.removal("default")
				fails = true
				require.ErrorIs(t, open(m).Uninstall(t.Context(), m.namespace, "app", options), errCut)
				require.Contains(t, m.revisions(), secretName("app", 2))
				fails = false
				require.NoError(t, open(m).Uninstall(t.Context(), m.namespace, "app", options))
				assert.Equal(t, 1, hooks, "the hook is not run again")
				assert.Empty(t, m.configMaps())
				assert.Empty(t, m.revisions())
				assert.True(t, m.namespaceGoes())
			})
		}
		t.Run(name+", a post-delete hook fails: once", func(t *testing.T) {
			m := signing(t)
			r := m.request("Chart.yaml", chartYAML, "templates/a.yaml", configMap("a", "k", "one"), "templates/hook.yaml", hookIn("none-"+m.namespace, "post-delete"))
			r.Copies, r.Labels[CopiesLabel] = []runtime.Object{&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "copy"}}}, "1"
			m.deploy(r)
			require.ErrorContains(t, open(m).Uninstall(t.Context(), m.namespace, "app", m.removal(m.namespace)), "hook")
			assert.Empty(t, m.configMaps())
			assert.Empty(t, m.revisions())
		})
		t.Run(name+", a pre-delete hook fails: the release stays", func(t *testing.T) {
			m := signing(t)
			r := m.request("Chart.yaml", chartYAML, "templates/a.yaml", configMap("a", "k", "one"), "templates/hook.yaml", hookIn("none-"+m.namespace, "pre-delete"))
			r.Copies, r.Labels[CopiesLabel] = []runtime.Object{&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "copy"}}}, "1"
			m.deploy(r)
			for range 2 {
				require.ErrorContains(t, open(m).Uninstall(t.Context(), m.namespace, "app", m.removal(m.namespace)), "hook")
				assert.Equal(t, []string{"a", "copy"}, m.configMaps())
			}
		})
	}
}

// refusals are the answers of an API server whose policy refuses a request.
var refusals = []metav1.Status{
	apierrors.NewForbidden(schema.GroupResource{}, "", nil).ErrStatus,
	apierrors.NewBadRequest("refused").ErrStatus,
	apierrors.NewInvalid(schema.GroupKind{}, "", nil).ErrStatus,
}

// refuse answers a request with a refusal.
func refuse(r *http.Request, reason metav1.Status) (*http.Response, error) {
	body, err := json.Marshal(reason)
	return &http.Response{
		StatusCode: int(reason.Code), Header: http.Header{"Content-Type": {"application/json"}}, Request: r, Body: io.NopCloser(bytes.NewReader(body)),
	}, err
}

// A policy of the cluster refuses the deletion of the namespace, each time.
func TestUninstall_namespaceRefused(t *testing.T) {
	for _, reason := range refusals {
		t.Run(string(reason.Reason), func(t *testing.T) {
			var namespace string
			m := onMember(t, through(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/namespaces/"+namespace) {
					return refuse(r, reason)
				}
				return next.RoundTrip(r)
			}))
			namespace = m.namespace
			m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{DeleteNamespace: true}))
			assert.Empty(t, m.configMaps())
			assert.Empty(t, m.revisions())
			assert.False(t, m.namespaceGoes())
		})
	}
}

// A policy of the cluster refuses to change an object that a failed upgrade has adopted.
func TestUninstall_marksRefused(t *testing.T) {
	for _, reason := range refusals {
		for _, isUpgrade := range []bool{true, false} {
			t.Run(fmt.Sprint(reason.Reason, ", by an upgrade: ", isUpgrade), func(t *testing.T) {
				var refuses, hasRefused atomic.Bool
				m := signing(t, through(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
					if refuses.Load() && r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/configmaps/theirs") {
						hasRefused.Store(true)
						return refuse(r, reason)
					}
					return next.RoundTrip(r)
				}))
				m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
				m.recreate("theirs")
				_, err := m.Deploy(t.Context(), m.request("a.yaml", configMap("a", "k", "two"), "theirs.yaml", configMap("theirs", "k", "two"), "z.yaml", invalidService))
				require.ErrorContains(t, err, "spec.ports[0].port")
				refuses.Store(true)
				if isUpgrade {
					assert.Len(t, m.deploy(m.request("a.yaml", configMap("a", "k", "three"))).Kept, 1)
				}
				var kept []string
				options := UninstallOptionsFrom(owner.LabelsFor("app", "one"))
				options.ReportKept = func(objects []string) { kept = objects }
				require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", options))
				assert.True(t, hasRefused.Load())
				assert.Equal(t, []string{"theirs"}, m.configMaps())
				assert.Equal(t, []string{"ConfigMap " + m.namespace + "/theirs, which existed, or may have existed, before a failed deployment"}, kept)
				assert.Empty(t, m.revisions())
			})
		}
	}
}

// Two removals share a copy: the other one changes its owners after this one has read them.
func TestDeleteCopies_shared(t *testing.T) {
	var m *member
	isFirst := true
	m = onMember(t, through(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/configmaps/copy") && isFirst {
			isFirst = false
			assert.NoError(t, m.DeleteCopies(t.Context(), m.namespace, "other"))
		}
		return next.RoundTrip(r)
	}))
	_, err := m.core.CoreV1().ConfigMaps(m.namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "copy", Labels: map[string]string{CopyLabel: "app"}, Annotations: map[string]string{copyAnnotation + "app": labelTrue, copyAnnotation + "other": labelTrue},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, m.DeleteCopies(t.Context(), m.namespace, "app"))
	assert.False(t, isFirst)
	assert.Empty(t, m.configMaps())
}

// Two releases of a namespace are removed at the same time, and each finds the other one in the namespace.
func TestUninstall_namespaceOfTwo(t *testing.T) {
	var m *member
	isOther := true
	m = onMember(t, through(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if strings.Contains(r.URL.Query().Get("labelSelector"), "name!=app") && isOther {
			isOther = false
			assert.NoError(t, m.core.CoreV1().Secrets(m.namespace).Delete(t.Context(), secretName("other", 1), metav1.DeleteOptions{}))
		}
		return response, err
	}))
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	other := m.request("b.yaml", configMap("b", "k", "one"))
	other.Name = "other"
	m.deploy(other)
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{DeleteNamespace: true}))
	assert.False(t, isOther)
	assert.True(t, m.namespaceGoes())
}

// namespaceGoes reports whether the namespace of the test is deleted.
func (m *member) namespaceGoes() bool {
	m.t.Helper()
	found, err := m.core.CoreV1().Namespaces().Get(m.t.Context(), m.namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true
	}
	require.NoError(m.t, err)
	return found.DeletionTimestamp != nil
}

package release

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestDeploy_plainManifests(t *testing.T) {
	m := onMember(t)
	d := m.deploy(m.request("a.yaml", configMap("a", "text", `"{{ .Values.nothing }} {{ fail \"x\" }}"`)+"---\n# nothing here\n---\n",
		"b.json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}`, "README.md", "{{"))
	assert.Equal(t, `{{ .Values.nothing }} {{ fail "x" }}`, m.configMap("a").Data["text"])
	assert.Equal(t, []string{"a", "b"}, m.configMaps())
	assert.Equal(t, m.namespace+"/app:1", d.String())
	require.Len(t, d.Objects, 2)
	assert.Equal(t, "configmaps", d.Objects[0].Resource.Resource)
}

func TestDeploy_valuesOfAllSources(t *testing.T) {
	m := onMember(t)
	_, err := m.core.CoreV1().Secrets(m.namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Data: map[string][]byte{"values.yaml": []byte("secret: s")},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r := m.request("charts/app/Chart.yaml", "apiVersion: v2\nname: app\nversion: 1.2.3\n",
		"charts/app/values.yaml", "chart: c\nfile: no\n", "extra.yaml", "file: f\noption: no\n",
		"charts/app/templates/cm.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Name }}'}\n"+
			"data: {all: '{{ .Values.chart }}{{ .Values.file }}{{ .Values.option }}{{ .Values.secret }}{{ .Values.request }}'}\n")
	r.Options.Helm = &fleet.HelmOptions{
		Chart: "./charts/app", ValuesFiles: []string{"extra.yaml"}, Values: &fleet.GenericMap{Data: map[string]any{"option": "o"}},
		ValuesFrom: []fleet.ValuesFrom{{SecretKeyRef: &fleet.KeySelector{Name: "more"}}},
	}
	r.Values = map[string]any{"request": "r"}
	m.deploy(r)
	assert.Equal(t, "cfosr", m.configMap("app").Data["all"])
}

func TestDeploy_annotationsInTemplate(t *testing.T) {
	m := onMember(t)
	r := m.request("Chart.yaml", chartYAML+"annotations: {own: a, "+adoptedAnnotation+": none}\n",
		"templates/a.yaml", configMap("a", "k", `"{{ range $name, $_ := .Chart.Annotations }}{{ $name }} {{ end }}"`))
	for range 2 {
		m.deploy(r)
		assert.Equal(t, []string{agentAnnotation, bundleAnnotation, keepResourcesAnnotation, serviceAccountAnnotation, "own"}, strings.Fields(m.configMap("a").Data["k"]))
	}
}

func TestDeploy_upgrade(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one")))
	_, err := m.core.CoreV1().ConfigMaps(m.namespace).Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"data":{"theirs":"kept","k":"theirs"}}`), metav1.PatchOptions{FieldManager: "person"})
	require.NoError(t, err)
	d := m.deploy(m.request("a.yaml", configMap("a", "k", "two")))
	assert.Equal(t, []string{"a"}, m.configMaps())
	assert.Equal(t, map[string]string{"k": "two", "theirs": "kept"}, m.configMap("a").Data)
	assert.Equal(t, 2, d.Version)
}

// agentDeployment returns the Deployment of an agent, as an import and its Bundle apply it, with fewer environment variables.
func agentDeployment(env string) string {
	return `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"fleet-agent"},"spec":{"selector":{"matchLabels":{"app":"a"}},` +
		`"template":{"metadata":{"labels":{"app":"a"}},"spec":{"containers":[{"name":"c","image":"i","env":[` + env + `]}]}}}}`
}

// The API server sets parameters of rolling updates, which it refuses together with another strategy.
func TestDeploy_strategyWithoutRollingUpdates(t *testing.T) {
	const template = `,"selector":{"matchLabels":{"app":"a"}},"template":{"metadata":{"labels":{"app":"a"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`
	for name, row := range map[string]struct{ kind, field, strategy string }{
		"Deployment":  {"Deployment", "strategy", "Recreate"},
		"StatefulSet": {"StatefulSet", "updateStrategy", "OnDelete"},
	} {
		t.Run(name, func(t *testing.T) {
			m := onMember(t)
			resource := m.dynamic.Resource(appsv1.SchemeGroupVersion.WithResource(strings.ToLower(row.kind) + "s")).Namespace(m.namespace)
			read := func() *unstructured.Unstructured {
				live, err := resource.Get(t.Context(), "a", metav1.GetOptions{})
				require.NoError(t, err)
				return live
			}
			strategy := func() map[string]any {
				found, _, err := unstructured.NestedMap(read().Object, "spec", row.field)
				require.NoError(t, err)
				return found
			}
			object := func(strategy string) string {
				return `{"apiVersion":"apps/v1","kind":"` + row.kind + `","metadata":{"name":"a"},"spec":{` + strategy + template
			}
			rolling, other := object(`"revisionHistoryLimit":3`), object(`"`+row.field+`":{"type":"`+row.strategy+`"}`)
			m.deploy(m.request("a.json", rolling))
			require.Contains(t, strategy(), "rollingUpdate")

			d := m.deploy(m.request("a.json", other))
			assert.Equal(t, map[string]any{"type": row.strategy}, strategy())

			drift := []byte(`{"spec":{"` + row.field + `":{"type":"RollingUpdate"}}}`)
			_, err := resource.Patch(t.Context(), "a", types.MergePatchType, drift, metav1.PatchOptions{FieldManager: "person"})
			require.NoError(t, err)
			found, err := m.Compare(t.Context(), d.Objects[0], read(), Tolerances{})
			require.NoError(t, err)
			assert.Contains(t, found.Patch, row.strategy)
			m.deploy(m.request("a.json", other))
			assert.Equal(t, map[string]any{"type": row.strategy}, strategy())

			m.deploy(m.request("a.json", rolling))
			assert.Equal(t, "RollingUpdate", strategy()["type"])
		})
	}
}

func TestDeploy_takeOwnership(t *testing.T) {
	m := onMember(t)
	deployments := m.core.AppsV1().Deployments(m.namespace)
	_, err := deployments.Patch(t.Context(), "fleet-agent", types.ApplyPatchType,
		[]byte(agentDeployment(`{"name":"GENERATION","value":"key"},{"name":"OLD","value":"x"}`)),
		metav1.PatchOptions{FieldManager: registration.FieldManager, Force: ptr.To(true)})
	require.NoError(t, err)
	r := m.request("agent.yaml", agentDeployment(`{"name":"GENERATION","value":"managed/0"}`))
	_, err = m.Deploy(t.Context(), r)
	require.ErrorContains(t, err, "exists and cannot be imported into the current release")

	r.Options.Helm = &fleet.HelmOptions{TakeOwnership: true}
	m.deploy(r)
	read := func() *appsv1.Deployment {
		d, err := deployments.Get(t.Context(), "fleet-agent", metav1.GetOptions{})
		require.NoError(t, err)
		return d
	}
	assert.Equal(t, []corev1.EnvVar{{Name: "GENERATION", Value: "managed/0"}}, read().Spec.Template.Spec.Containers[0].Env)
	before := read().Generation
	m.deploy(r)
	assert.Equal(t, before, read().Generation, "deploying the same again starts no rollout")
}

// All objects are applied with server-side apply, with takeOwnership and force as well, which refuses a list with the same key twice.
func TestDeploy_sameKeyTwice(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("d.yaml", agentDeployment(`{"name":"A","value":"before"}`)))
	r := m.request("d.yaml", agentDeployment(`{"name":"A","value":"1"},{"name":"A","value":"2"}`))
	r.Options.Helm = &fleet.HelmOptions{TakeOwnership: true, Force: true}
	_, err := m.Deploy(t.Context(), r)
	require.ErrorContains(t, err, `duplicate entries for key [name="A"]`)
	live, err := m.core.AppsV1().Deployments(m.namespace).Get(t.Context(), "fleet-agent", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, []corev1.EnvVar{{Name: "A", Value: "before"}}, live.Spec.Template.Spec.Containers[0].Env)
}

func TestDeploy_releaseOfAnotherOwner(t *testing.T) {
	m := onMember(t)
	r := m.request("a.yaml", configMap("a", "k", "one"))
	m.deploy(r)
	r.Labels = owner.LabelsFor("other", "one")
	_, err := m.Deploy(t.Context(), r)
	var conflict *ConflictError
	require.ErrorAs(t, err, &conflict)
	assert.Contains(t, err.Error(), "belongs to BundleDeployment app")
}

func TestDeploy_existingObjects(t *testing.T) {
	for name, row := range map[string]struct {
		upgrade, atomic, ofRelease bool
		refused                    string
	}{
		"installation":                        {refused: "invalid ownership metadata"},
		"installation, another release":       {ofRelease: true, refused: "invalid ownership metadata"},
		"upgrade":                             {upgrade: true},
		"upgrade, another release":            {upgrade: true, ofRelease: true, refused: "it belongs to Helm release "},
		"upgrade that may be undone":          {upgrade: true, atomic: true, refused: "invalid ownership metadata"},
		"upgrade that may be undone, another": {upgrade: true, atomic: true, ofRelease: true, refused: "invalid ownership metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			m := onMember(t)
			if row.upgrade {
				m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
			}
			if row.ofRelease {
				stranger := m.request("b.yaml", configMap("b", "k", "theirs"))
				stranger.Name, stranger.Labels, stranger.BundleDeployment = "stranger", nil, ""
				m.deploy(stranger)
			} else {
				_, err := m.core.CoreV1().ConfigMaps(m.namespace).Create(t.Context(),
					&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Data: map[string]string{"k": "theirs"}}, metav1.CreateOptions{})
				require.NoError(t, err)
			}
			r := m.request("a.yaml", configMap("a", "k", "two"), "b.yaml", configMap("b", "k", "two"))
			r.Options.Helm = &fleet.HelmOptions{Atomic: row.atomic}
			_, err := m.Deploy(t.Context(), r)
			if row.refused == "" {
				require.NoError(t, err)
				assert.Equal(t, "two", m.configMap("b").Data["k"])
				return
			}
			require.ErrorContains(t, err, row.refused)
			assert.Equal(t, "theirs", m.configMap("b").Data["k"])
			r.Options.Helm = &fleet.HelmOptions{TakeOwnership: true}
			m.deploy(r)
			assert.Equal(t, "two", m.configMap("b").Data["k"])
		})
	}
}

// Fleet's own agents put no labels on the history of their releases, but annotations in their charts. The last deployment may have
// failed, which empties the record on the hub.
func TestDeploy_annotatedRelease(t *testing.T) {
	m := onMember(t)
	theirs := m.request("a.yaml", configMap("a", "k", "one"), "gone.yaml", configMap("gone", "k", "one"))
	theirs.Labels = nil
	m.deploy(theirs)
	theirs.Resources = append(theirs.Resources, fleet.BundleResource{Name: "z.yaml", Content: invalidService})
	_, err := m.Deploy(t.Context(), theirs)
	require.Error(t, err)
	ours := m.request("a.yaml", configMap("a", "k", "two"))
	assert.Equal(t, 3, m.deploy(ours).Version)
	assert.Equal(t, []string{"a"}, m.configMaps(), "an object that the Bundle no longer has is removed")
	assert.Len(t, m.mine(), 1)
}

func TestAdopt(t *testing.T) {
	m := onMember(t)
	deploy := func(id, value string, theirs bool) Deployed {
		r := m.request("a.yaml", configMap("a", "k", value))
		r.Labels = owner.LabelsFor("app", id)
		if theirs {
			r.Labels, r.Options.Helm = nil, &fleet.HelmOptions{TakeOwnership: true} // their agent does not read labels
			r.Options.KeepResources = true
		}
		return m.deploy(r)
	}
	adopt := func(bundleDeployment, id, recorded string) Found {
		t.Helper()
		r := m.request()
		r.BundleDeployment, r.Recorded, r.Labels = bundleDeployment, recorded, owner.LabelsFor(bundleDeployment, id)
		r.Options.DeleteNamespace, r.Options.KeepResources = true, true
		found, err := m.Adopt(t.Context(), r)
		require.NoError(t, err)
		return found
	}
	requireLabels := func(want Found, id string, keeps, deletesNamespace bool) {
		t.Helper()
		mine := m.mine()
		require.Len(t, mine, 1)
		assert.Equal(t, want.String(), mine[0].String())
		assert.Equal(t, want.Options(), mine[0].Options())
		assert.Equal(t, id, mine[0].Labels[DeploymentIDLabel])
		assert.Equal(t, []bool{keeps, deletesNamespace}, []bool{mine[0].Options().KeepResources, mine[0].Options().DeleteNamespace})
	}
	assert.Empty(t, adopt("app", "one", "").Name, "there is no release")
	first := deploy("one", "one", true)
	assert.Empty(t, adopt("other", "one", first.String()).Name, "it is annotated for another BundleDeployment")
	assert.Empty(t, m.mine())
	requireLabels(adopt("app", "one", ""), "", true, false)

	second := deploy("two", "two", false)
	assert.Empty(t, adopt("app", "zero", "").Name, "this agent deployed it")
	third := deploy("three", "three", true)
	assert.Equal(t, DeploymentIDValue("two"), m.mine()[0].Labels[DeploymentIDLabel], "Helm copies the labels")
	assert.Empty(t, adopt("app", "three", second.String()).Name, "the hub has no record of this revision")
	requireLabels(adopt("app", "three", third.String()), DeploymentIDValue("three"), true, true)
}

// unlabel removes the labels of this agent from the revisions of a release, as Fleet's own agent stores them without these labels.
func (m *member) unlabel(name string) {
	m.t.Helper()
	m.changeHistory(func(s *corev1.Secret) {
		if s.Labels["name"] == name {
			maps.DeleteFunc(s.Labels, func(key, _ string) bool { return strings.HasPrefix(key, labelPrefix) })
		}
	})
}

// Fields that a Bundle no longer has are removed, whichever agent has set them. Fields of other programs stay.
func TestDeploy_fieldsOfAnotherAgent(t *testing.T) {
	const removed = "{kind: ConfigMap, apiVersion: v1, metadata: {name: a}, data: {kept: one, removed: one}}"
	for name, row := range map[string]struct {
		earlier bool   // an earlier agent of this project applied with the field manager of the hub
		then    string // the field manager of the next write
	}{
		"Fleet's own agent":                        {false, "person"},
		"Fleet's own agent, which corrected drift": {false, objectManager},
		"an earlier agent of this project":         {true, "person"},
	} {
		t.Run(name, func(t *testing.T) {
			m := onMember(t)
			theirs := m.request("a.yaml", removed)
			theirs.IsAgent = row.earlier
			m.deploy(theirs)
			m.unlabel("app")
			patch := `{"data":{"theirs":"one"}}`
			if row.then == objectManager {
				patch = `{"data":{"kept":"two","removed":"two"}}`
			}
			_, err := m.core.CoreV1().ConfigMaps(m.namespace).Patch(t.Context(), "a", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: row.then})
			require.NoError(t, err)
			m.deploy(m.request("a.yaml", configMap("a", "kept", "three")))
			want := map[string]string{"kept": "three"}
			if row.then == "person" {
				want["theirs"] = "one"
			}
			assert.Equal(t, want, m.configMap("a").Data)
			before := m.configMap("a").ResourceVersion
			m.deploy(m.request("a.yaml", configMap("a", "kept", "three")))
			assert.Equal(t, before, m.configMap("a").ResourceVersion)
		})
	}
}

// Fleet's own agent applies on the client's side, and fails. Helm copies the labels of the revision before.
func TestDeploy_fieldsOfAFailedUpgradeOfAnotherAgent(t *testing.T) {
	m := signing(t)
	m.deploy(m.request("a.yaml", configMap("a", "kept", "one")))
	another, err := New(m.config)
	require.NoError(t, err)
	_, err = another.Deploy(t.Context(), m.request("a.yaml", configMap("a", "kept", "one"), "z.yaml", invalidService))
	require.Error(t, err)
	_, err = m.core.CoreV1().ConfigMaps(m.namespace).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"data":{"removed":"two"}}`),
		metav1.PatchOptions{FieldManager: objectManager})
	require.NoError(t, err)
	m.deploy(m.request("a.yaml", configMap("a", "kept", "three")))
	assert.Equal(t, map[string]string{"kept": "three"}, m.configMap("a").Data)
}

// Releases of other programs have neither labels nor annotations.
func TestDeploy_recordedRelease(t *testing.T) {
	m := onMember(t)
	theirs := m.request("a.yaml", configMap("a", "k", "one"), "gone.yaml", configMap("gone", "k", "one"))
	theirs.Labels, theirs.BundleDeployment = nil, ""
	record := m.deploy(theirs)
	ours := m.request("a.yaml", configMap("a", "k", "two"))
	_, err := m.Deploy(t.Context(), ours)
	var conflict *ConflictError
	require.ErrorAs(t, err, &conflict)
	assert.Empty(t, m.mine())

	ours.Recorded = record.String()
	assert.Equal(t, 2, m.deploy(ours).Version)
	assert.Equal(t, []string{"a"}, m.configMaps(), "an object that the Bundle no longer has is removed")
	assert.Len(t, m.mine(), 1, "it is known by its labels from now on")
}

// invalidService is a manifest that an API server refuses, because of its port.
const invalidService = "apiVersion: v1\nkind: Service\nmetadata:\n  name: z\nspec:\n  ports: [{port: 0}]\n"

var errCut = errors.New("cut off")

// cutAfter lets n writes through and then sends nothing more, as if the process had been killed.
func cutAfter(n int, written *[]string) func(*rest.Config) {
	var mu sync.Mutex
	return through(func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		mu.Lock()
		dead := len(*written) >= n
		if !dead && req.Method != http.MethodGet {
			*written = append(*written, req.Method+" "+req.URL.Path)
		}
		mu.Unlock()
		if dead {
			return nil, errCut
		}
		return next.RoundTrip(req)
	})
}

func TestDeploy_cutOffAtAnyWrite(t *testing.T) {
	sample.Long(t)
	m := onMember(t)
	for _, upgrade := range []bool{false, true} {
		for n := 0; ; n++ {
			r := m.request("a.yaml", configMap("a", "k", "two"), "c.yaml", configMap("c", "k", "two"))
			if upgrade {
				m.deploy(m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one")))
			}
			var written []string
			dying := onMember(t, cutAfter(n, &written))
			_, err := dying.Deploy(t.Context(), r)
			if err == nil {
				break
			}
			m.deploy(r)
			assert.Equal(t, []string{"a", "c"}, m.configMaps(), "cut off after %v", written)
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{}))
			assert.Empty(t, m.configMaps())
		}
	}
}

func TestDeploy_leftovers(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	_, err := m.Deploy(t.Context(), m.request("a.yaml", configMap("a", "k", "two"), "b.yaml", configMap("b", "k", "two"),
		"z.yaml", invalidService))
	require.ErrorContains(t, err, "spec.ports[0].port")
	assert.Contains(t, m.configMaps(), "b")
	m.deploy(m.request("a.yaml", configMap("a", "k", "three")))
	assert.Equal(t, []string{"a"}, m.configMaps())
}

// A person has created "b", which a failed upgrade adopts and the next version does not have.
func TestDeploy_leftoversOfAdoption(t *testing.T) {
	for name, first := range map[string]string{
		"upgrade": configMap("a", "k", "one"), "no revision has worked": invalidService, "installation with a definition that has marks": "",
	} {
		t.Run(name, func(t *testing.T) {
			m := onMember(t)
			r := m.request("a.yaml", configMap("a", "k", "two"), "b.yaml", configMap("b", "k", "two"), "c.yaml", configMap("c", "k", "two"), "z.yaml", invalidService)
			if first == "" {
				exported := strings.NewReplacer("things", "exports", "thing", "export", "Thing", "Export",
					"{name: things", "{annotations: {"+NameAnnotation+": app, "+NamespaceAnnotation+": "+m.namespace+"}, name: exports").Replace(thingKind)
				for i := range r.Resources {
					r.Resources[i].Name = "templates/" + r.Resources[i].Name
				}
				r.Resources = append(r.Resources, m.request("Chart.yaml", chartYAML, "crds/crd.yaml", exported).Resources...)
				r.Options.Helm = &fleet.HelmOptions{TakeOwnership: true}
			} else {
				_, err := m.Deploy(t.Context(), m.request("first.yaml", first))
				require.Equal(t, first == invalidService, err != nil, err)
			}
			m.recreate("b")
			_, err := m.Deploy(t.Context(), r)
			require.ErrorContains(t, err, "spec.ports[0].port")
			assert.Equal(t, "two", m.configMap("b").Data["k"])
			d := m.deploy(m.request("a.yaml", configMap("a", "k", "three")))
			assert.Equal(t, []string{"a", "b"}, m.configMaps())
			assert.Equal(t, []string{"ConfigMap " + m.namespace + "/b, which existed, or may have existed, before a failed deployment"}, d.Kept)
			assert.NotContains(t, m.configMap("b").Annotations, NameAnnotation)
		})
	}
}

// Failed attempts create "b" and change it; or a person replaces it between them; or the last attempt fails before it writes an object.
func TestDeploy_leftoversOfSeveralAttempts(t *testing.T) {
	for name, row := range map[string]struct {
		first    string
		replaced bool
		hooks    int // that fail
	}{
		"upgrade":                            {first: configMap("a", "k", "one")},
		"no revision has worked":             {first: invalidService},
		"upgrade, replaced meanwhile":        {first: configMap("a", "k", "one"), replaced: true},
		"replaced meanwhile":                 {first: invalidService, replaced: true},
		"upgrade, failing hooks":             {first: configMap("a", "k", "one"), hooks: defaultHistory},
		"no revision has worked, hook fails": {first: invalidService, hooks: defaultHistory},
	} {
		t.Run(name, func(t *testing.T) {
			m := onMember(t)
			_, err := m.Deploy(t.Context(), m.request("first.yaml", row.first))
			require.Equal(t, row.first == invalidService, err != nil, err)
			for _, value := range []string{"two", "three"} {
				if row.replaced && value == "three" {
					m.recreate("b")
				}
				_, err = m.Deploy(t.Context(), m.request("a.yaml", configMap("a", "k", value), "b.yaml", configMap("b", "k", value), "z.yaml", invalidService))
				require.Error(t, err)
				assert.Equal(t, value, m.configMap("b").Data["k"])
			}
			for i := range row.hooks {
				_, err = m.Deploy(t.Context(), m.request("Chart.yaml", chartYAML, "templates/hook.yaml", hookIn("none-"+m.namespace, "pre-install,pre-upgrade"),
					"templates/b.yaml", configMap("b", "k", fmt.Sprint("v", i))))
				require.ErrorContains(t, err, "hook.yaml failed")
			}
			d := m.deploy(m.request("a.yaml", configMap("a", "k", "four")))
			want := []string{"a"}
			if row.replaced {
				want = append(want, "b")
			}
			assert.Equal(t, want, m.configMaps())
			assert.Len(t, d.Kept, len(want)-1)
		})
	}
}

// The attempts that follow the one with "b" are as many as the history has revisions.
func TestDeploy_leftoversOfManyAttempts(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	_, err := m.Deploy(t.Context(), m.request("a.yaml", configMap("a", "k", "two"), "b.yaml", configMap("b", "k", "two"), "z.yaml", invalidService))
	require.Error(t, err)
	for i := range defaultHistory {
		_, err := m.Deploy(t.Context(), m.request("a.yaml", configMap("a", "k", fmt.Sprint("v", i)), "z.yaml", invalidService))
		require.Error(t, err)
	}
	m.deploy(m.request("a.yaml", configMap("a", "k", "three")))
	assert.Equal(t, []string{"a"}, m.configMaps())
}

// The objects of an earlier release of the name are not gone yet.
func TestDeploy_objectsBeingDeleted(t *testing.T) {
	m := onMember(t)
	a := configMap("a", "k", "one")
	m.deploy(m.request("a.yaml", a))
	finalize := func(patch string) {
		_, err := m.core.CoreV1().ConfigMaps(m.namespace).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":`+patch+`}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	finalize(`["example.com/test"]`)
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{}))
	for range 2 {
		_, err := m.Deploy(t.Context(), m.request("a.yaml", a))
		require.ErrorContains(t, err, "a: it is being deleted")
	}
	finalize("null")
	m.deploy(m.request("a.yaml", a))
	assert.Nil(t, m.configMap("a").DeletionTimestamp)
}

// The first attempt ends before it has stored which objects existed.
func TestDeploy_leftoversOfAnInterruption(t *testing.T) {
	m := onMember(t)
	r := m.request("b.yaml", configMap("b", "k", "one"), "z.yaml", invalidService)
	var written []string
	dying := onMember(t, cutAfter(2, &written)) // the revision, and "b"
	_, err := dying.Deploy(t.Context(), r)
	require.Error(t, err)
	require.Equal(t, []string{"b"}, m.configMaps(), written)
	_, err = m.Deploy(t.Context(), r)
	require.Error(t, err)
	d := m.deploy(m.request("a.yaml", configMap("a", "k", "two")))
	assert.Equal(t, []string{"a", "b"}, m.configMaps(), "a person may have created it")
	assert.Equal(t, []string{"ConfigMap " + m.namespace + "/b, which existed, or may have existed, before a failed deployment"}, d.Kept)
}

// An earlier release of the name has left "a".
func TestDeploy_undoneInstallationOverKeptResources(t *testing.T) {
	m := onMember(t)
	a := configMap("a", "k", "one")
	m.deploy(m.request("a.yaml", a))
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{KeepResources: true}))
	r := m.request("a.yaml", a, "b.yaml", configMap("b", "k", "one"), "z.yaml", invalidService)
	r.Options.Helm = &fleet.HelmOptions{Atomic: true, TimeoutSeconds: 60}
	before := m.configMap("a").UID
	early := m.request("Chart.yaml", chartYAML, "templates/a.yaml", a, "templates/hook.yaml", hookIn("none-"+m.namespace, "pre-install"))
	early.Options.Helm = r.Options.Helm
	for _, r := range []Request{r, early, r} {
		_, err := m.Deploy(t.Context(), r)
		require.ErrorContains(t, err, "has been uninstalled")
		assert.Equal(t, []string{"a"}, m.configMaps())
		assert.Equal(t, before, m.configMap("a").UID)
	}
}

// A failed attempt has an object of a kind that is deleted before the next one.
func TestDeploy_leftoversOfUnknownKind(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	definition := m.request("crd.yaml", thingKind)
	definition.Name, definition.Options.DeleteCRDResources = "kind", true
	m.deploy(definition)
	m.awaitKind(schema.GroupVersionResource{Group: "release.example.com", Version: "v1", Resource: "things"})
	_, err := m.Deploy(t.Context(), m.request("a.yaml", configMap("a", "k", "two"), "b.yaml", configMap("b", "k", "two"), "t.yaml", thing, "z.yaml", invalidService))
	require.ErrorContains(t, err, "spec.ports[0].port")
	_, err = m.deleteKind().Deploy(t.Context(), m.request("a.yaml", configMap("a", "k", "three")))
	require.NoError(t, err)
	assert.Equal(t, []string{"a"}, m.configMaps())
}

func TestSweep(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	_, err := m.Deploy(t.Context(), m.request("a.yaml", configMap("a", "k", "two"), "b.yaml", configMap("b", "k", "two"),
		"z.yaml", invalidService))
	require.Error(t, err)
	careful := onMember(t, through(func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodDelete && strings.HasSuffix(req.URL.Path, "/configmaps/b") {
			return nil, errCut
		}
		return next.RoundTrip(req)
	}))
	r := m.request("a.yaml", configMap("a", "k", "three"))
	_, err = careful.Deploy(t.Context(), r)
	var leftover *LeftoverError
	require.ErrorAs(t, err, &leftover)
	_, err = careful.Sweep(t.Context(), r)
	require.ErrorAs(t, err, &leftover, "still")
	assert.Equal(t, []string{"a", "b"}, m.configMaps())
	assert.Equal(t, "three", m.configMap("a").Data["k"])
	for range 2 {
		_, err = careful.Correct(t.Context(), r)
		require.NoError(t, err)
		_, err = careful.Sweep(t.Context(), r)
		require.ErrorAs(t, err, &leftover, "after a correction")
	}
	swept, err := m.Sweep(t.Context(), r)
	require.NoError(t, err)
	assert.Equal(t, 5, swept.Version, "nothing is deployed for it")
	assert.Equal(t, []string{"a"}, m.configMaps())
}

// Helm keeps an object with the annotation helm.sh/resource-policy: keep when a chart no longer has the object. A failed attempt in between contained
// the object too.
func TestSweep_keptObject(t *testing.T) {
	m := onMember(t)
	kept := strings.Replace(configMap("kept", "k", "v"), "name: kept", "name: kept\n  annotations: {helm.sh/resource-policy: keep}", 1)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one"), "kept.yaml", kept))
	_, err := m.Deploy(t.Context(), m.request("a.yaml", configMap("a", "k", "two"), "kept.yaml", kept, "b.yaml", configMap("b", "k", "two"),
		"z.yaml", invalidService))
	require.Error(t, err)
	assert.Equal(t, []string{"a", "b", "kept"}, m.configMaps())
	m.deploy(m.request("a.yaml", configMap("a", "k", "three")))
	assert.Equal(t, []string{"a", "kept"}, m.configMaps())
}

func TestSweep_noRelease(t *testing.T) {
	m := onMember(t)
	_, err := m.Sweep(t.Context(), m.request())
	require.ErrorContains(t, err, "is not deployed any more")
}

func TestDeploy_atomic(t *testing.T) {
	m := onMember(t)
	atomic := func(files ...string) Request {
		r := m.request(files...)
		r.Options.Helm = &fleet.HelmOptions{Atomic: true, TimeoutSeconds: 120}
		return r
	}
	_, err := m.Deploy(t.Context(), atomic("a.yaml", configMap("a", "k", "one"), "z.yaml", invalidService))
	require.Error(t, err)
	assert.Empty(t, m.configMaps(), "the first installation is removed")
	m.deploy(atomic("a.yaml", configMap("a", "k", "two")))
	_, err = m.Deploy(t.Context(), atomic("a.yaml", configMap("a", "k", "three"), "z.yaml", invalidService))
	require.ErrorContains(t, err, "rolled back")
	assert.Equal(t, "two", m.configMap("a").Data["k"])
}

func TestDeploy_badManifest(t *testing.T) {
	m := onMember(t)
	for name, row := range map[string]struct{ content, says string }{
		"an unknown kind":  {"apiVersion: nowhere/v1\nkind: Nothing\nmetadata: {name: x}", "no matches for kind \"Nothing\""},
		"no YAML":          {"a: b: c", "yaml"},
		"an unknown field": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndatum: {}", "datum"},
	} {
		t.Run(name, func(t *testing.T) {
			r := m.request("x.yaml", row.content)
			_, err := m.Deploy(t.Context(), r)
			require.Error(t, err)
			assert.Contains(t, Explain(err), row.says)
			_, again := m.Deploy(t.Context(), r)
			require.Error(t, again)
		})
	}
}

func TestDeploy_targetNamespace(t *testing.T) {
	m := onMember(t)
	r := m.request("a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\ndata: {k: '{{ x }}'}\n")
	r.Options.TargetNamespace = m.namespace
	m.deploy(r)
	assert.Equal(t, "{{ x }}", m.configMap("a").Data["k"])
	r.Resources = append(r.Resources, fleet.BundleResource{Name: "n.yaml", Content: "apiVersion: v1\nkind: Namespace\nmetadata: {name: some}\n"})
	_, err := m.Deploy(t.Context(), r)
	require.ErrorContains(t, err, "Namespace some is cluster-scoped")
}

func TestDeploy_contextEnds(t *testing.T) {
	m := onMember(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	r := m.request("pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n")
	r.Options.Helm = &fleet.HelmOptions{TimeoutSeconds: 600}
	go func() {
		_ = wait.PollUntilContextCancel(t.Context(), 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			_, err := m.core.CoreV1().Pods(m.namespace).Get(ctx, "p", metav1.GetOptions{})
			return err == nil, nil
		})
		cancel(errCut)
	}()
	_, err := m.Deploy(ctx, r)
	require.ErrorIs(t, err, errCut)
	r.Options.Helm = nil
	m.deploy(r)
}

// renamed returns the request under another name. The first release hands its objects over to that release.
func (m *member) renamed(files ...string) Request {
	r := m.request(files...)
	r.Name, r.Predecessors = "renamed", []Found{{Namespace: m.namespace, Name: "app"}}
	return r
}

func TestDeploy_renamedRelease(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	for range 2 {
		m.deploy(m.renamed("a.yaml", configMap("a", "k", "two"), "b.yaml", configMap("b", "k", "two")))
	}
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{}))
	assert.Equal(t, []string{"a", "b"}, m.configMaps())
	assert.Equal(t, "two", m.configMap("a").Data["k"])
}

// A failed attempt has "a" of the release that it replaces, and the next one does not.
func TestDeploy_renamedReleaseDropsObject(t *testing.T) {
	for _, takeOwnership := range []bool{false, true} {
		m := onMember(t)
		renamed := func(files ...string) Request {
			r := m.renamed(files...)
			r.Options.Helm = &fleet.HelmOptions{TakeOwnership: takeOwnership}
			return r
		}
		m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
		_, err := m.Deploy(t.Context(), renamed("a.yaml", configMap("a", "k", "two"), "z.yaml", invalidService))
		require.Error(t, err)
		m.deploy(renamed("b.yaml", configMap("b", "k", "two")))
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", UninstallOptions{}))
		assert.Equal(t, []string{"b"}, m.configMaps(), "takeOwnership: %v", takeOwnership)
	}
}

func TestDeploy_failedAdoption(t *testing.T) {
	atomic := &fleet.HelmOptions{Atomic: true, TimeoutSeconds: 120}
	t.Run("from an older release", func(t *testing.T) {
		m := onMember(t)
		m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
		r := m.renamed("a.yaml", configMap("a", "k", "two"), "z.yaml", invalidService)
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
		r := m.request("a.yaml", configMap("a", "k", "two"), "z.yaml", invalidService)
		r.Options.Helm = &fleet.HelmOptions{Atomic: true, TimeoutSeconds: 120, TakeOwnership: true}
		_, err = m.Deploy(t.Context(), r)
		require.Error(t, err)
		assert.Equal(t, []string{"a"}, m.configMaps())
	})
	t.Run("from anybody, by an upgrade", func(t *testing.T) {
		m := onMember(t)
		takes := func(files ...string) Request {
			r := m.request(files...)
			r.Options.Helm = &fleet.HelmOptions{Atomic: true, TimeoutSeconds: 120, TakeOwnership: true}
			return r
		}
		m.deploy(takes("a.yaml", configMap("a", "k", "one")))
		m.deploy(m.ofOther("b.yaml", configMap("b", "k", "one")))
		m.recreate("c")
		_, err := m.Deploy(t.Context(), takes("a.yaml", configMap("a", "k", "two"), "b.yaml", configMap("b", "k", "two"), "c.yaml", configMap("c", "k", "two"),
			"d.yaml", configMap("d", "k", "two"), "z.yaml", invalidService))
		require.ErrorContains(t, err, "rolled back")
		assert.Equal(t, []string{"a", "b", "c"}, m.configMaps(), "only the object that the upgrade created is gone")
		assert.Equal(t, "one", m.configMap("a").Data["k"])
		assert.NotContains(t, m.configMap("c").Annotations, NameAnnotation)
		again := m.ofOther("b.yaml", configMap("b", "k", "three"))
		again.Options.Helm = nil
		m.deploy(again)
		assert.Equal(t, "three", m.configMap("b").Data["k"], "it belongs to the other release again")
	})
	t.Run("by several upgrades", func(t *testing.T) {
		m := onMember(t)
		m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
		m.deploy(m.ofOther("b.yaml", configMap("b", "k", "one")))
		for _, value := range []string{"two", "three"} {
			r := m.request("a.yaml", configMap("a", "k", value), "b.yaml", configMap("b", "k", value), "z.yaml", invalidService)
			r.Options.Helm = &fleet.HelmOptions{TakeOwnership: true}
			_, err := m.Deploy(t.Context(), r)
			require.Error(t, err)
			assert.Equal(t, value, m.configMap("b").Data["k"])
		}
		m.deploy(m.request("a.yaml", configMap("a", "k", "four")))
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "other", UninstallOptions{}))
		assert.Equal(t, []string{"a"}, m.configMaps(), "it belongs to the other release again")
	})
	t.Run("by an upgrade before one that was rolled back", func(t *testing.T) {
		m := onMember(t)
		m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
		m.deploy(m.ofOther("b.yaml", configMap("b", "k", "one")))
		r := m.request("a.yaml", configMap("a", "k", "two"), "b.yaml", configMap("b", "k", "two"), "z.yaml", invalidService)
		r.Options.Helm = &fleet.HelmOptions{TakeOwnership: true}
		_, err := m.Deploy(t.Context(), r)
		require.Error(t, err)
		r = m.request("a.yaml", configMap("a", "k", "three"), "z.yaml", invalidService)
		r.Options.Helm = &fleet.HelmOptions{Atomic: true}
		_, err = m.Deploy(t.Context(), r)
		require.ErrorContains(t, err, "rolled back")
		m.deploy(m.request("a.yaml", configMap("a", "k", "four")))
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "other", UninstallOptions{}))
		assert.Equal(t, []string{"a"}, m.configMaps(), "it belongs to the other release again")
	})
}

// ofOther returns the request of another BundleDeployment, which may take over any object.
func (m *member) ofOther(files ...string) Request {
	r := m.request(files...)
	r.Name, r.BundleDeployment, r.Labels = "other", "other", owner.LabelsFor("other", "one")
	r.Options.Helm = &fleet.HelmOptions{TakeOwnership: true}
	return r
}

func TestDeploy_renamedReleaseObjectsOfOthers(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	stranger := m.request("b.yaml", configMap("b", "k", "theirs"))
	stranger.Name, stranger.Labels, stranger.BundleDeployment = "stranger", nil, ""
	m.deploy(stranger)
	_, err := m.Deploy(t.Context(), m.renamed("a.yaml", configMap("a", "k", "two"), "b.yaml", configMap("b", "k", "two")))
	require.ErrorContains(t, err, "b exists and cannot be imported into the current release")
	assert.Equal(t, "one", m.configMap("a").Data["k"], "nothing was changed")
	assert.Equal(t, "theirs", m.configMap("b").Data["k"])
}

func TestDeploy_renamedReleaseNameOfAnother(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	stranger := m.request("b.yaml", configMap("b", "k", "theirs"))
	stranger.Name, stranger.Labels, stranger.BundleDeployment = "renamed", nil, ""
	m.deploy(stranger)
	_, err := m.Deploy(t.Context(), m.renamed("a.yaml", configMap("a", "k", "two")))
	var conflict *ConflictError
	require.ErrorAs(t, err, &conflict)
	assert.Equal(t, []string{"a", "b"}, m.configMaps())
	assert.Equal(t, "one", m.configMap("a").Data["k"])
}

// An upgrade deletes only objects that belong to the release: another one has taken "a" over, and a person has created "b" again.
func TestDeploy_droppedObjects(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one"), "c.yaml", configMap("c", "k", "one"), "d.yaml", configMap("d", "k", "one")))
	other := m.request("a.yaml", configMap("a", "k", "two"))
	other.Name, other.BundleDeployment, other.Labels = "other", "other", owner.LabelsFor("other", "one")
	other.Options.Helm = &fleet.HelmOptions{TakeOwnership: true}
	m.deploy(other)
	m.recreate("b")
	d := m.deploy(m.request("d.yaml", configMap("d", "k", "two")))
	assert.Equal(t, []string{"a", "b", "d"}, m.configMaps())
	assert.Equal(t, "two", m.configMap("a").Data["k"])
	assert.Equal(t, []string{
		"ConfigMap " + m.namespace + "/a, which belongs to Helm release " + m.namespace + "/other",
		"ConfigMap " + m.namespace + "/b, which belongs to no Helm release",
	}, d.Kept)
}

// Another release has taken "a" and the Deployment over. An upgrade and a correction leave them as they are, until takeOwnership is set.
func TestDeploy_objectsOfAnotherRelease(t *testing.T) {
	for name, act := range map[string]func(*member, Request) (Deployed, error){
		"upgrade": func(m *member, r Request) (Deployed, error) { return m.Deploy(m.t.Context(), r) },
		"atomic upgrade": func(m *member, r Request) (Deployed, error) {
			r.Options.Helm.Atomic, r.Options.Helm.TimeoutSeconds = true, 120
			return m.Deploy(m.t.Context(), r)
		},
		"correction": func(m *member, r Request) (Deployed, error) { return m.Correct(m.t.Context(), r) },
	} {
		t.Run(name, func(t *testing.T) {
			m := onMember(t)
			zero := `"replicas":0,"selector"` // no Pods to wait for
			app := strings.Replace(agentDeployment(""), `"selector"`, zero, 1)
			r := m.request("a.yaml", configMap("a", "k", "ours"), "c.yaml", configMap("c", "k", "ours"), "d.yaml", app)
			r.Options.Helm = &fleet.HelmOptions{Force: true}
			m.deploy(r)
			other := m.ofOther("a.yaml", configMap("a", "k", "theirs"), "d.yaml", strings.ReplaceAll(app, `"app":"a"`, `"app":"b"`))
			other.Options.Helm.Force = true
			m.deploy(other)
			m.recreate("c")
			read := func() *appsv1.Deployment {
				d, err := m.core.AppsV1().Deployments(m.namespace).Get(t.Context(), "fleet-agent", metav1.GetOptions{})
				require.NoError(t, err)
				return d
			}
			before := read().UID
			d, err := act(m, r)
			require.NoError(t, err)
			assert.Equal(t, 2, d.Version)
			assert.Equal(t, "theirs", m.configMap("a").Data["k"])
			assert.Equal(t, "other", m.configMap("a").Annotations[NameAnnotation])
			assert.Equal(t, before, read().UID)
			assert.Equal(t, "ours", m.configMap("c").Data["k"], "a person has created it again")
			found, err := m.Compare(t.Context(), d.Objects[0], nil, Tolerances{})
			require.NoError(t, err)
			assert.Equal(t, Difference{Missing: true, Foreign: true, Adopted: true}, found)

			r.Options.Helm.TakeOwnership = true
			_, err = act(m, r)
			require.NoError(t, err)
			assert.Equal(t, "ours", m.configMap("a").Data["k"])
			assert.NotEqual(t, before, read().UID)
		})
	}
}

// recreate replaces a ConfigMap by one of a person.
func (m *member) recreate(name string) {
	m.t.Helper()
	configMaps := m.core.CoreV1().ConfigMaps(m.namespace)
	if err := configMaps.Delete(m.t.Context(), name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		require.NoError(m.t, err)
	}
	_, err := configMaps.Create(m.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(m.t, err)
}

// Another release takes an object over after this one has read it, in order to delete it: both Bundles change with one commit.
func TestDeploy_droppedObjectIsTakenMeanwhile(t *testing.T) {
	for name, act := range map[string]func(*member) error{
		"upgrade": func(m *member) error {
			_, err := m.Deploy(m.t.Context(), m.request("b.yaml", configMap("b", "k", "one")))
			return err
		},
		"removal": func(m *member) error {
			return m.Uninstall(m.t.Context(), m.namespace, "app", UninstallOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var take func()
			m := onMember(t, through(func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
				if now := take; now != nil && req.Method == http.MethodDelete && strings.HasSuffix(req.URL.Path, "/configmaps/a") {
					take = nil
					now()
				}
				return next.RoundTrip(req)
			}))
			m.deploy(m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one")))
			take = func() {
				_, err := m.core.CoreV1().ConfigMaps(m.namespace).Patch(context.Background(), "a", types.MergePatchType,
					[]byte(`{"metadata":{"annotations":{"`+NameAnnotation+`":"other"}}}`), metav1.PatchOptions{})
				assert.NoError(t, err)
			}
			require.NoError(t, act(m))
			require.Nil(t, take)
			assert.Contains(t, m.configMaps(), "a")
		})
	}
}

// The last revision is one that was replaced: somebody has deleted the Secrets of the later ones.
func TestDeploy_fromSuperseded(t *testing.T) {
	m := signing(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one")))
	m.deploy(m.request("b.yaml", configMap("b", "k", "two")))
	m.recreate("a")
	require.NoError(t, m.core.CoreV1().Secrets(m.namespace).Delete(t.Context(), secretName("app", 2), metav1.DeleteOptions{}))
	m.deploy(m.request("b.yaml", configMap("b", "k", "three")))
	assert.Equal(t, []string{"a", "b"}, m.configMaps())
}

// An installation that is undone deletes what it has created, and not what a person has created meanwhile.
func TestDeploy_undoneInstallation(t *testing.T) {
	var m *member
	m = onMember(t, through(func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/configmaps/b") {
			m.recreate("b")
			return nil, errCut
		}
		return next.RoundTrip(req)
	}))
	r := m.request("a.yaml", configMap("a", "k", "one"), "b.yaml", configMap("b", "k", "one"))
	r.Options.Helm = &fleet.HelmOptions{Atomic: true, TimeoutSeconds: 60}
	_, err := m.Deploy(t.Context(), r)
	require.ErrorIs(t, err, errCut)
	assert.NotContains(t, err.Error(), "uninstalling the release", "it does not wait for the deletion of what stays")
	assert.Equal(t, []string{"b"}, m.configMaps())
}

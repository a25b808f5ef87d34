package release

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"

	"github.com/muster-fleet/muster/internal/testenv/sample"
)

// Each row deploys the same files with and without an option of Helm.
func TestDeploy_helmOptions(t *testing.T) {
	sample.Long(t)
	const (
		chart = "apiVersion: v2\nname: app\nversion: 1.0.0\n"
		job   = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}\n"
	)
	for name, row := range map[string]struct {
		files                   []string
		without, with           fleet.HelmOptions
		failsWithout, failsWith string // the errors without and with the option; "" if it is deployed
	}{
		"skipSchemaValidation": {
			files:        []string{"Chart.yaml", chart, "values.schema.json", `{"required":["image"]}`, "templates/a.yaml", configMap("a", "k", "v")},
			with:         fleet.HelmOptions{SkipSchemaValidation: true},
			failsWithout: "missing property 'image'",
		},
		"skipSchemaValidation, and a schema in another file": {
			files:        []string{"Chart.yaml", chart, "values.schema.json", `{"$ref":"other.json"}`, "templates/a.yaml", configMap("a", "k", "v")},
			with:         fleet.HelmOptions{SkipSchemaValidation: true},
			failsWithout: "a schema must not refer to other files",
		},
		"disableDNS": {
			files: []string{
				"Chart.yaml", chart, "templates/a.yaml",
				configMap("a", "k", `v{{ if getHostByName "localhost" }}{{ fail "it has an address" }}{{ end }}`),
			},
			with:         fleet.HelmOptions{DisableDNS: true},
			failsWithout: "it has an address",
		},
		"waitForJobs": {
			files:     []string{"a.yaml", configMap("a", "k", "v"), "j.yaml", job},
			without:   fleet.HelmOptions{TimeoutSeconds: 2},
			with:      fleet.HelmOptions{TimeoutSeconds: 2, WaitForJobs: true},
			failsWith: "resource Job/",
		},
		"waitForJobs without timeoutSeconds": {
			files: []string{"a.yaml", configMap("a", "k", "v"), "j.yaml", job},
			with:  fleet.HelmOptions{WaitForJobs: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			deploy := func(options fleet.HelmOptions, says string) {
				m := onMember(t)
				r := m.request(row.files...)
				r.Options.Helm = &options
				_, err := m.Deploy(t.Context(), r)
				if says != "" {
					require.ErrorContains(t, err, says)
					return
				}
				require.NoError(t, err)
				assert.Contains(t, m.configMaps(), "a")
			}
			deploy(row.without, row.failsWithout)
			deploy(row.with, row.failsWith)
		})
	}
}

// The chart has no templates, and is for the version of Kubernetes that the cluster has.
func TestDeploy_kubeVersion(t *testing.T) {
	m := onMember(t)
	version, err := m.core.Discovery().ServerVersion()
	require.NoError(t, err)
	chart := "apiVersion: v2\nname: app\nversion: 1.0.0\nkubeVersion: '"
	m.deploy(m.request("Chart.yaml", chart+version.GitVersion+"'\n"))
	_, err = m.Deploy(t.Context(), m.request("Chart.yaml", chart+"1.999.0'\n"))
	assert.ErrorContains(t, err, "chart requires kubeVersion: 1.999.0")
}

// Helm runs the hooks of a release, which are no objects of it, wherever they come from.
func TestDeploy_hooks(t *testing.T) {
	hook := strings.Replace(configMap("hook", "k", "v"), "name: hook", "name: hook\n  annotations: {helm.sh/hook: pre-install}", 1)
	chart := []string{"Chart.yaml", "apiVersion: v2\nname: app\nversion: 1.0.0\n", "templates/hook.yaml", hook, "templates/a.yaml", configMap("a", "k", "one")}
	for name, row := range map[string]struct {
		files []string
		want  []string
	}{
		"a chart":                      {chart, []string{"a", "hook"}},
		"a chart, and a kustomization": {append(slices.Clone(chart), "kustomization.yaml", "namePrefix: x-\n"), []string{"x-a", "x-hook"}},
		"a plain manifest":             {[]string{"hook.yaml", hook, "a.yaml", configMap("a", "k", "one")}, []string{"a", "hook"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := onMember(t)
			d := m.deploy(m.request(row.files...))
			require.Len(t, d.Objects, 1)
			assert.Equal(t, row.want[0], d.Objects[0].Desired.GetName())
			assert.Equal(t, row.want, m.configMaps())
			require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.mine()[0].Options()))
			assert.Equal(t, row.want[1:], m.configMaps(), "Helm does not remove hooks")
		})
	}
}

func TestDeploy_hookWithTheNameOfAnotherObject(t *testing.T) {
	m := onMember(t)
	m.deploy(m.request("a.yaml", configMap("a", "k", "one")))
	hook := strings.Replace(configMap("a", "k", "two"), "name: a",
		"name: a\n  annotations: {helm.sh/hook: pre-install, helm.sh/hook-delete-policy: 'before-hook-creation,hook-succeeded'}", 1)
	r := m.request("hook.yaml", hook, "b.yaml", configMap("b", "k", "two"))
	r.Name = "other"
	_, err := m.Deploy(t.Context(), r)
	require.ErrorContains(t, err, "hook configmaps/a has the name of an object of Helm release "+m.namespace+"/app: rename the hook")
	live := m.configMap("a")
	assert.Equal(t, "one", live.Data["k"])
	assert.Equal(t, "app", live.Annotations[NameAnnotation])
}

// A disabled dependency need not be in the Bundle.
func TestDeploy_disabledDependency(t *testing.T) {
	m := onMember(t)
	r := m.request("Chart.yaml", "apiVersion: v2\nname: app\nversion: 1.0.0\ndependencies: [{name: redis, version: 1.0.0, condition: redis.enabled}]\n",
		"templates/a.yaml", configMap("a", "k", "one"))
	_, err := m.Deploy(t.Context(), r)
	require.ErrorContains(t, err, "missing in charts/ directory: redis")
	r.Values = map[string]any{"redis": map[string]any{"enabled": false}}
	m.deploy(r)
	assert.Equal(t, []string{"a"}, m.configMaps())
}

func TestDeploy_maxHistory(t *testing.T) {
	for limit, want := range map[int]int{2: 2, 0: defaultHistory} {
		m := onMember(t)
		for n := range defaultHistory + 2 {
			r := m.request("a.yaml", configMap("a", "k", fmt.Sprintf("%q", fmt.Sprint(n))))
			r.Options.Helm = &fleet.HelmOptions{MaxHistory: limit}
			r.Labels = owner.LabelsFor("app", fmt.Sprint(n))
			m.deploy(r)
		}
		list, err := m.core.CoreV1().Secrets(m.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "owner=helm,name=app"})
		require.NoError(t, err)
		assert.Len(t, list.Items, want)
	}
}

// A downloaded chart with values of all sources, whose output a kustomization changes, beside a chart of another target, with copies of
// which one has values.
func TestDeploy_kustomizationOverDownloadedChart(t *testing.T) {
	m := onMember(t)
	_, err := m.core.CoreV1().Secrets(m.namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "late"}, Data: map[string][]byte{"v": []byte("{both: secret, list: [1]}")},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	helm := fleet.HelmOptions{
		Repo: "https://charts.example.com", Chart: "app", Version: "1.0.0", ReleaseName: "own",
		ValuesFrom: []fleet.ValuesFrom{{ConfigMapKeyRef: &fleet.KeySelector{Name: "early", Namespace: "elsewhere"}, SecretKeyRef: &fleet.KeySelector{Name: "late", Key: "v"}}},
	}
	other := helm
	other.Version = "2.0.0"
	folder := FetchedFolder(helm) + "/app/"
	r := m.request(
		FetchedFolder(other)+"/app/Chart.yaml", "apiVersion: v2\nname: app\nversion: 2.0.0\n",
		folder+"Chart.yaml", "apiVersion: v2\nname: app\nversion: 1.0.0\n", folder+"values.yaml", "chart: c\n",
		folder+"templates/a.yaml", configMap("a", "k", `"{{ .Values.chart }} {{ .Values.both }} {{ .Values.only }} {{ .Values.bundle }} {{ .Values.list }}"`),
		"overlay/kustomization.yaml", "{namePrefix: x-, resources: [b.yaml], patches: [{path: p.yaml}]}", "overlay/b.yaml", configMap("b", "k", "v"),
		"overlay/p.yaml", configMap("a", "patched", `"yes"`),
	)
	r.Name = "own"
	r.Options.Helm, r.Options.Kustomize = &helm, &fleet.KustomizeOptions{Dir: "overlay"}
	r.Options.DownstreamResources = []fleet.DownstreamResource{{Kind: "CONFIGMAP", Name: "early"}}
	r.Copies = append(r.Copies, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "early"}, Data: map[string]string{"values.yaml": "{both: configMap, only: configMap, bundle: configMap, list: [1, 2]}"},
	})
	r.Values = map[string]any{"bundle": "bundle", "only": "bundle"}
	d := m.deploy(r)
	assert.Equal(t, map[string]string{"k": "c secret configMap configMap [1]", "patched": "yes"}, m.configMap("x-a").Data)
	assert.Equal(t, []string{"early", "x-a", "x-b"}, m.configMaps())
	assert.Equal(t, m.namespace+"/own:1", d.String())
}

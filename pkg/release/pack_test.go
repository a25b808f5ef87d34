package release

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func files(names ...string) (all []fleet.BundleResource) {
	for _, name := range names {
		content := "kind: X"
		if strings.HasSuffix(name, chartFile) {
			content = "apiVersion: v2\nname: app\nversion: 1.0.0\n"
		}
		all = append(all, fleet.BundleResource{Name: name, Content: content})
	}
	return all
}

func TestWhatIsAChartAndWhatIsNot(t *testing.T) {
	for name, row := range map[string]struct {
		files []string
		chart string
		want  string // the templates, or what is wrong
	}{
		"manifests":                      {[]string{"a.yaml", "b/c.yml", "d.json"}, "", "templates/m-a.yaml templates/b/m-c.yaml templates/m-d.yaml"},
		"what is no manifest":            {[]string{"a.yaml", "README.md", "LICENSE", "fleet.yaml", "overlays/x/a.yaml", "values.yaml"}, "", "templates/m-a.yaml"},
		"nothing":                        {nil, "", ""},
		"names that mean a lot":          {[]string{"_partial.yaml", "NOTES.yaml"}, "", "templates/m-_partial.yaml templates/m-NOTES.yaml"},
		"a chart":                        {[]string{"Chart.yaml", "templates/t.yaml"}, "", "templates/t.yaml"},
		"a chart in a folder":            {[]string{"x/Chart.yaml", "x/templates/t.yaml", "a.yaml"}, "x", "templates/t.yaml"},
		"a folder with a dot":            {[]string{"x/Chart.yaml", "x/templates/t.yaml"}, "./x/", "templates/t.yaml"},
		"a chart that was fetched":       {[]string{".chart/abc/Chart.yaml", ".chart/abc/templates/t.yaml"}, "https://x/y.tgz", "templates/t.yaml"},
		"a chart in a folder, not named": {[]string{"x/Chart.yaml"}, "", "templates/x/m-Chart.yaml"},
		"a chart that is not there":      {[]string{"a.yaml"}, "x", `helm.chart is "x", but the Bundle has no file x/Chart.yaml`},
		"a chart of a repository":        {[]string{"a.yaml"}, "oci://x/y", "helm.repo is not supported: put the chart's files into the Bundle"},
		"twice the same":                 {[]string{"a.yaml", "./a.yaml"}, "", "the Bundle has two resources named a.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Name: "app", Resources: files(row.files...)}
			r.Options.Helm = &fleet.HelmOptions{Chart: row.chart, ValuesFiles: []string{"./values.yaml"}}
			made, _, err := makeChart(r)
			if err != nil {
				assert.EqualError(t, err, row.want)
				return
			}
			var names []string
			for _, f := range made.Templates {
				names = append(names, f.Name)
			}
			assert.Equal(t, row.want, strings.Join(names, " "))
		})
	}
}

func TestWhatCannotBeDoneIsSaidByItsField(t *testing.T) {
	for field, o := range map[string]fleet.BundleDeploymentOptions{
		"kustomize":           {Kustomize: &fleet.KustomizeOptions{Dir: "x"}},
		"yaml.overlays":       {YAML: &fleet.YAMLOptions{Overlays: []string{"x"}}},
		"downstreamResources": {DownstreamResources: []fleet.DownstreamResource{{Kind: "Secret"}}},
		"helm.repo":           {Helm: &fleet.HelmOptions{Repo: "https://charts.example.com", Chart: "x"}},
	} {
		_, _, err := makeChart(Request{Name: "app", Options: o})
		var unsupported *UnsupportedError
		require.ErrorAs(t, err, &unsupported)
		assert.Equal(t, field, unsupported.Field)
	}
	_, _, err := makeChart(Request{Name: "app", Resources: files("kustomization.yaml")})
	assert.ErrorContains(t, err, "kustomization.yaml is not supported")
}

func TestAChartThatMissesADependencyIsRefused(t *testing.T) {
	_, _, err := makeChart(Request{Name: "app", Resources: []fleet.BundleResource{{
		Name: chartFile, Content: "apiVersion: v2\nname: app\nversion: 1.0.0\ndependencies: [{name: db, version: 1.0.0, repository: https://x}]\n",
	}}})
	assert.ErrorContains(t, err, "chart app is not complete")
}

func TestWhereAReleaseGoesAndWhatItIsCalled(t *testing.T) {
	long := strings.Repeat("a", 60)
	for name, row := range map[string]struct {
		bd        string
		options   fleet.BundleDeploymentOptions
		namespace string
		release   string
	}{
		"by default":        {"app", fleet.BundleDeploymentOptions{}, "default", "app"},
		"a namespace":       {"app", fleet.BundleDeploymentOptions{DefaultNamespace: "d"}, "d", "app"},
		"the one for all":   {"app", fleet.BundleDeploymentOptions{DefaultNamespace: "d", TargetNamespace: "t"}, "t", "app"},
		"a name":            {"app", fleet.BundleDeploymentOptions{Helm: &fleet.HelmOptions{ReleaseName: "r"}}, "default", "r"},
		"as long as can be": {long[:53], fleet.BundleDeploymentOptions{}, "default", long[:53]},
		"too long":          {long, fleet.BundleDeploymentOptions{}, "default", long[:44] + "-" + shorten(long)[45:]},
	} {
		t.Run(name, func(t *testing.T) {
			namespace, release := Place(row.bd, row.options)
			assert.Equal(t, row.namespace, namespace)
			assert.Equal(t, row.release, release)
			assert.LessOrEqual(t, len(release), nameMax)
		})
	}
	assert.NotEqual(t, shorten(long+"x"), shorten(long+"y"))
	assert.NotContains(t, shorten(strings.Repeat("a", 43)+"-."+long), "-.-", "no dash after a dot")
}

func TestTheSameCauseHasTheSameText(t *testing.T) {
	one := errors.New("read tcp 10.0.0.1:54321->10.0.0.2:443:\n\tconnection reset")
	two := errors.New("read tcp 10.0.0.1:11111->10.0.0.2:443: connection reset")
	assert.Equal(t, Explain(one), Explain(two))
	assert.LessOrEqual(t, len(Explain(errors.New(strings.Repeat("é", 4000)))), messageMax+len("…"))
}

func TestLabelsTellHowToRemoveARelease(t *testing.T) {
	labels := optionLabels(fleet.BundleDeploymentOptions{DeleteNamespace: true, ServiceAccount: "deployer"})
	assert.Equal(t, map[string]string{deleteNamespaceLabel: "true", ServiceAccountLabel: "deployer"}, withoutRemoved(labels))
	assert.Equal(t, Options{DeleteNamespace: true, ServiceAccount: "deployer"}, OptionsFrom(withoutRemoved(labels)))
	for _, value := range (Owner{Namespace: strings.Repeat("n", 63), ClusterNamespace: "w", ClusterName: strings.Repeat("c", 200)}).LabelsFor(strings.Repeat("b", 200), "id") {
		assert.LessOrEqual(t, len(value), 63)
	}
}

func TestTheNewestRevisionOfEachReleaseCounts(t *testing.T) {
	assert.Equal(t, []Found{{Namespace: "a", Name: "x", Version: 3}, {Namespace: "b", Name: "x", Version: 1}}, Newest([]Found{
		{Namespace: "a", Name: "x", Version: 1}, {Namespace: "b", Name: "x", Version: 1}, {Namespace: "a", Name: "x", Version: 3}, {Namespace: "a", Name: "x", Version: 2},
	}))
}

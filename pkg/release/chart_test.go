package release

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	helm "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"

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

func TestMakeChart(t *testing.T) {
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

func TestMakeChart_unsupported(t *testing.T) {
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

func TestMakeChart_missingDependency(t *testing.T) {
	_, _, err := makeChart(Request{Name: "app", Resources: []fleet.BundleResource{{
		Name: chartFile, Content: "apiVersion: v2\nname: app\nversion: 1.0.0\ndependencies: [{name: db, version: 1.0.0, repository: https://x}]\n",
	}}})
	assert.ErrorContains(t, err, "chart app is not complete")
}

func TestPlace(t *testing.T) {
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

func TestExplain_sameCause(t *testing.T) {
	one := errors.New("read tcp 10.0.0.1:54321->10.0.0.2:443:\n\tconnection reset")
	two := errors.New("read tcp 10.0.0.1:11111->10.0.0.2:443: connection reset")
	assert.Equal(t, Explain(one), Explain(two))
	assert.LessOrEqual(t, len(Explain(errors.New(strings.Repeat("é", 4000)))), messageMax+len("…"))
}

func TestOptionLabels(t *testing.T) {
	labels := optionLabels(fleet.BundleDeploymentOptions{DeleteNamespace: true, ServiceAccount: "deployer"})
	assert.Equal(t, map[string]string{deleteNamespaceLabel: "true", ServiceAccountLabel: "deployer"}, withoutRemoved(labels))
	assert.Equal(t, Options{DeleteNamespace: true, ServiceAccount: "deployer"}, OptionsFrom(withoutRemoved(labels)))
	for _, value := range (Owner{Namespace: strings.Repeat("n", 63), ClusterNamespace: "w", ClusterName: strings.Repeat("c", 200)}).LabelsFor(strings.Repeat("b", 200), "id") {
		assert.LessOrEqual(t, len(value), 63)
	}
}

func TestNewest(t *testing.T) {
	assert.Equal(t, []Found{{Namespace: "a", Name: "x", Version: 3}, {Namespace: "b", Name: "x", Version: 1}}, Newest([]Found{
		{Namespace: "a", Name: "x", Version: 1}, {Namespace: "b", Name: "x", Version: 1}, {Namespace: "a", Name: "x", Version: 3}, {Namespace: "a", Name: "x", Version: 2},
	}))
}

func TestValues_missing(t *testing.T) {
	there := metav1.ObjectMeta{Namespace: "default", Name: "there"}
	c := &Client{core: kubefake.NewClientset(
		&corev1.ConfigMap{ObjectMeta: there, Data: map[string]string{"bad": "]"}}, &corev1.Secret{ObjectMeta: there},
	)}
	for name, row := range map[string]struct {
		from    fleet.ValuesFrom
		says    string
		invalid bool
	}{
		"no ConfigMap":        {fleet.ValuesFrom{ConfigMapKeyRef: &fleet.KeySelector{Name: "gone"}}, "names ConfigMap default/gone, which does not exist", false},
		"no Secret":           {fleet.ValuesFrom{SecretKeyRef: &fleet.KeySelector{Name: "gone"}}, "names Secret default/gone, which does not exist", false},
		"no key, ConfigMap":   {fleet.ValuesFrom{ConfigMapKeyRef: &fleet.KeySelector{Name: "there"}}, "names key values.yaml of ConfigMap default/there", false},
		"no key, Secret":      {fleet.ValuesFrom{SecretKeyRef: &fleet.KeySelector{Name: "there", Key: "k"}}, "names key k of Secret default/there", false},
		"what holds no value": {fleet.ValuesFrom{ConfigMapKeyRef: &fleet.KeySelector{Name: "there", Key: "bad"}}, "contains no valid values", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Namespace: "default", Options: fleet.BundleDeploymentOptions{Helm: &fleet.HelmOptions{ValuesFrom: []fleet.ValuesFrom{row.from}}}}
			_, err := c.values(t.Context(), r)
			require.ErrorContains(t, err, row.says)
			var never *InvalidError
			assert.Equal(t, row.invalid, errors.As(err, &never), "what may come is tried again soon")
		})
	}
}

func TestExplain(t *testing.T) {
	const hidden = "expected string, got &value.valueUnstructured{Value:(hidden)}"
	for name, row := range map[string]struct{ text, want string }{
		"no value":            {"pods is forbidden", "pods is forbidden"},
		"a plain one":         {`.data: expected string, got &value.valueUnstructured{Value:12345}`, ".data: " + hidden},
		"a map":               {`.data: expected string, got &value.valueUnstructured{Value:map[string]interface {}{"a":"hunter2"}} in x`, ".data: " + hidden + " in x"},
		"braces in a string":  {`expected string, got &value.valueUnstructured{Value:"}hunter2{"}; more`, hidden + "; more"},
		"quotes in a string":  {`expected string, got &value.valueUnstructured{Value:"\"}hunter2\\"}; more`, hidden + "; more"},
		"two of them":         {`expected string, got &value.valueUnstructured{Value:1}, expected string, got &value.valueUnstructured{Value:"hunter2"}`, hidden + ", " + hidden},
		"one that never ends": {`expected string, got &value.valueUnstructured{Value:"hunter2`, hidden},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, row.want, Explain(errors.New(row.text))) })
	}
	long := Explain(errors.New("got valueUnstructured{Value:\"" + strings.Repeat("x", 2*messageMax) + "\"} for .data"))
	assert.Equal(t, "got valueUnstructured{Value:(hidden)} for .data", long, "hidden before it is cut")
}

func TestCheckOwner(t *testing.T) {
	unlabelled := &helm.Release{Namespace: "apps", Name: "shop", Version: 4}
	for _, row := range []struct {
		name     string
		existing *helm.Release
		recorded string
		refused  string
	}{
		{name: "there is none"},
		{name: "it bears our labels", existing: &helm.Release{Labels: owner.LabelsFor("app", "one")}},
		{name: "it bears another's labels", existing: &helm.Release{Labels: owner.LabelsFor("other", "one")}, refused: "belongs to BundleDeployment other"},
		{name: "another's labels count more than the record", existing: &helm.Release{Labels: owner.LabelsFor("other", "one"), Version: 4}, recorded: "apps/shop:4", refused: "belongs to BundleDeployment other"},
		{name: "it bears none, and the hub has none on record", existing: unlabelled, refused: "another owner"},
		{name: "the hub has it on record", existing: unlabelled, recorded: "apps/shop:4"},
		{name: "the hub has the revision before it on record", existing: unlabelled, recorded: "apps/shop:3"},
		{name: "the hub had a later one on record, which is gone", existing: unlabelled, recorded: "apps/shop:5", refused: "another owner"},
		{name: "the hub has another place on record", existing: unlabelled, recorded: "apps/other:4", refused: "another owner"},
		{name: "the hub has another namespace on record", existing: unlabelled, recorded: "shop/shop:4", refused: "another owner"},
		{name: "the record is no record", existing: unlabelled, recorded: "apps/shop", refused: "another owner"},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := checkOwner(Request{Namespace: "apps", Name: "shop", Labels: owner.LabelsFor("app", "one"), Recorded: row.recorded}, row.existing)
			if row.refused == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, row.refused)
		})
	}
	anybodys := Request{Options: fleet.BundleDeploymentOptions{Helm: &fleet.HelmOptions{TakeOwnership: true}}}
	assert.NoError(t, checkOwner(anybodys, unlabelled), "who takes ownership is not refused")
}

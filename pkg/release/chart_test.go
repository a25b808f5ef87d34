package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	helm "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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

func TestMakeSource(t *testing.T) {
	digest := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return ".chart/" + hex.EncodeToString(sum[:])
	}
	repo := fleet.HelmOptions{Chart: "app", Repo: "https://x", Version: "1.0.0"}
	first, second := digest("app:https://x:1.0.0"), digest("app:https://x:2.0.0")
	for name, row := range map[string]struct {
		files []string
		helm  fleet.HelmOptions
		want  string // templates and manifests
		says  string // the error
	}{
		"manifests":                      {[]string{"a.yaml", "b/c.yml", "d.json"}, fleet.HelmOptions{}, "a.yaml b/c.yml d.json", ""},
		"other files":                    {[]string{"a.yaml", "README.md", "LICENSE", "fleet.yaml", "fleet.yml", "overlays/x/a.yaml", "values.yaml"}, fleet.HelmOptions{}, "a.yaml", ""},
		"no files":                       {nil, fleet.HelmOptions{}, "", ""},
		"templates beside manifests":     {[]string{"a.yaml", "templates/t.yaml", "templates/NOTES.txt"}, fleet.HelmOptions{}, "templates/t.yaml a.yaml", ""},
		"a nested Bundle":                {[]string{"a.yaml", "sub/fleet.yaml", "sub/b.yaml", "sub/deep/c.yaml", "subway/d.yaml"}, fleet.HelmOptions{}, "a.yaml subway/d.yaml", ""},
		"a nested chart":                 {[]string{"a.yaml", "sub/Chart.yaml", "sub/templates/t.yaml"}, fleet.HelmOptions{}, "a.yaml", ""},
		"a chart":                        {[]string{"Chart.yaml", "templates/t.yaml"}, fleet.HelmOptions{}, "templates/t.yaml", ""},
		"a chart in a folder":            {[]string{"x/Chart.yaml", "x/templates/t.yaml", "xy/templates/u.yaml", "a.yaml"}, fleet.HelmOptions{Chart: "x"}, "templates/t.yaml", ""},
		"a folder with a dot":            {[]string{"x/Chart.yaml", "x/templates/t.yaml"}, fleet.HelmOptions{Chart: "./x/"}, "templates/t.yaml", ""},
		"a folder named by repo":         {[]string{"x/Chart.yaml", "x/templates/t.yaml"}, fleet.HelmOptions{Repo: "x"}, "templates/t.yaml", ""},
		"a downloaded chart":             {[]string{first + "/Chart.yaml", first + "/templates/t.yaml"}, repo, "templates/t.yaml", ""},
		"a downloaded archive":           {[]string{first + "/app/Chart.yaml", first + "/app/templates/t.yaml"}, repo, "templates/t.yaml", ""},
		"several downloaded charts":      {[]string{second + "/app/Chart.yaml", second + "/app/templates/u.yaml", first + "/app/Chart.yaml", first + "/app/templates/t.yaml"}, repo, "templates/t.yaml", ""},
		"a subchart in a downloaded one": {[]string{first + "/app/Chart.yaml", first + "/app/templates/t.yaml", first + "/app/charts/db/Chart.yaml"}, repo, "templates/t.yaml", ""},
		"another version":                {[]string{second + "/app/Chart.yaml"}, repo, "", "helm.repo is not supported: the Bundle has no chart in " + first},
		"a chart that is not there":      {[]string{"a.yaml"}, fleet.HelmOptions{Chart: "x"}, "", `helm.chart is "x", but the Bundle has no file x/Chart.yaml`},
		"an OCI chart":                   {[]string{"a.yaml"}, fleet.HelmOptions{Chart: "oci://x/y"}, "", "helm.repo is not supported"},
		"a name twice":                   {[]string{"a.yaml", "./a.yaml"}, fleet.HelmOptions{}, "", "the Bundle has two resources named a.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Name: "app", Resources: files(row.files...)}
			row.helm.ValuesFiles = []string{"./values.yaml"}
			r.Options.Helm = &row.helm
			made, err := makeSource(r)
			if row.says != "" {
				assert.ErrorContains(t, err, row.says)
				return
			}
			require.NoError(t, err)
			var names []string
			for _, f := range made.chart.Templates {
				names = append(names, f.Name)
			}
			for _, f := range made.manifests {
				names = append(names, f.Name)
			}
			assert.Equal(t, row.want, strings.Join(names, " "))
		})
	}
}

// A Bundle may have files that are no text.
func TestMakeSource_otherBytes(t *testing.T) {
	complete := func(manifest string) ([]*unstructured.Unstructured, error) {
		made, err := makeSource(Request{Name: "app", Resources: []fleet.BundleResource{{Name: "logo.png", Content: "\xff\xfe\x00"}, {Name: "a.yaml", Content: manifest}}})
		require.NoError(t, err)
		return made.complete(nil)
	}
	objects, err := complete("kind: A")
	require.NoError(t, err)
	assert.Len(t, objects, 1)
	_, err = complete("kind: \xff")
	var refused *InvalidError
	assert.ErrorAs(t, err, &refused)
}

func TestCheckDependencies(t *testing.T) {
	const missing = "chart app is not complete: found in Chart.yaml, but missing in charts/ directory: "
	for name, row := range map[string]struct{ dependencies, values, says string }{
		"always enabled":           {"[{name: db, version: 1.0.0}]", "", missing + "db"},
		"enabled by the chart":     {"[{name: db, version: 1.0.0, condition: use.db}]", "", missing + "db"},
		"disabled by a condition":  {"[{name: db, version: 1.0.0, condition: use.db}]", "use: {db: false}", ""},
		"disabled by a tag":        {"[{name: db, version: 1.0.0, tags: [extra]}]", "tags: {extra: false}", ""},
		"one is enabled":           {"[{name: db, version: 1.0.0, condition: use.db}, {name: web, version: 1.0.0, condition: use.web}]", "use: {db: false}", missing + "web"},
		"present, with an alias":   {"[{name: sub, alias: other, version: 1.0.0}]", "", ""},
		"an alias that is missing": {"[{name: sub, alias: other, version: 1.0.0}, {name: db, alias: first, version: 1.0.0}]", "", missing + "first"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Name: "app", Resources: []fleet.BundleResource{
				{Name: chartFile, Content: "apiVersion: v2\nname: app\nversion: 1.0.0\ndependencies: " + row.dependencies + "\n"},
				{Name: "values.yaml", Content: "use: {db: true, web: true}\n"},
				{Name: "charts/sub/Chart.yaml", Content: "apiVersion: v2\nname: sub\nversion: 1.0.0\n"},
			}}
			made, err := makeSource(r)
			require.NoError(t, err)
			values, err := parseValues([]byte(row.values), "values")
			require.NoError(t, err)
			err = made.checkDependencies(r, values)
			if row.says == "" {
				require.NoError(t, err)
				return
			}
			var refused *InvalidError
			require.ErrorAs(t, err, &refused)
			assert.ErrorContains(t, err, row.says)
		})
	}
}

// Helm would read the files and URLs that a schema refers to.
func TestCheckSchemas(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		_, _ = w.Write([]byte("{}"))
	}))
	t.Cleanup(server.Close)
	file := "file://" + path.Join(t.TempDir(), "schema.json")
	const local = `{"$schema": "http://json-schema.org/draft-07/schema#", "$defs": {"a": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "urn:b"}}}`
	for name, row := range map[string]struct {
		schema, ofSubchart, values string
		skip                       bool
		says                       string // "" if it is accepted
	}{
		"none":                               {"", "", "", false, ""},
		"its own definitions":                {local, local, "", false, ""},
		"a draft without a version":          {`{"$schema": "http://json-schema.org/schema#"}`, "", "", false, ""},
		"a URL":                              {`{"properties": {"a": {"$ref": "` + server.URL + `/a"}}}`, "", "", false, server.URL + "/a"},
		"a schema of schemas":                {`{"$schema": "` + server.URL + `/b"}`, "", "", false, server.URL + "/b"},
		"a file":                             {`{"$ref": "` + file + `"}`, "", "", false, file},
		"a file beside it":                   {`{"$ref": "other.json"}`, "", "", false, "file:///other.json"},
		"a URL, not validated":               {`{"$ref": "` + server.URL + `/a"}`, "", "", true, ""},
		"a URL in a subchart":                {"", `{"$ref": "` + server.URL + `/c"}`, "", false, "chart sub: failing loading"},
		"a URL in a subchart, switched off":  {"", `{"$ref": "` + server.URL + `/c"}`, "sub: {enabled: false}", false, ""},
		"a text that is no schema":           {`{"type": 1}`, "", "", false, "chart app: "},
		"a definition that it does not have": {`{"$ref": "#/$defs/none"}`, "", "", false, "chart app: "},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Name: "app", Resources: files("charts/sub/Chart.yaml")}
			r.Options.Helm = &fleet.HelmOptions{SkipSchemaValidation: row.skip}
			r.Resources[0].Content = "apiVersion: v2\nname: sub\nversion: 1.0.0\n"
			r.Resources = append(r.Resources, fleet.BundleResource{
				Name: "Chart.yaml", Content: "apiVersion: v2\nname: app\nversion: 1.0.0\ndependencies: [{name: sub, version: 1.0.0, condition: sub.enabled}]\n",
			})
			for name, schema := range map[string]string{"values.schema.json": row.schema, "charts/sub/values.schema.json": row.ofSubchart} {
				if schema != "" {
					r.Resources = append(r.Resources, fleet.BundleResource{Name: name, Content: schema})
				}
			}
			made, err := makeSource(r)
			require.NoError(t, err)
			values, err := parseValues([]byte(row.values), "values")
			require.NoError(t, err)
			err = made.checkSchemas(r, values)
			assert.Zero(t, requests.Load())
			if row.says == "" {
				require.NoError(t, err)
				return
			}
			var refused *UnsupportedError
			require.ErrorAs(t, err, &refused)
			assert.ErrorContains(t, err, row.says)
		})
	}
}

// A Bundle of a few kilobytes must not fill the memory of an agent when Helm unpacks the archives in its chart.
func TestMakeSource_dependencyArchives(t *testing.T) {
	packed := func(size int) string {
		var buffer bytes.Buffer
		zipped := gzip.NewWriter(&buffer)
		archived := tar.NewWriter(zipped)
		for name, text := range map[string]string{"sub/Chart.yaml": "apiVersion: v2\nname: sub\nversion: 1.0.0\n", "sub/zeros": string(make([]byte, size))} {
			require.NoError(t, archived.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))}))
			_, err := archived.Write([]byte(text))
			require.NoError(t, err)
		}
		require.NoError(t, errors.Join(archived.Close(), zipped.Close()))
		return buffer.String()
	}
	small, large := packed(1), packed(5<<20)
	for name, row := range map[string]struct {
		archive, folder string
		count           int
		says            string
	}{
		"small ones":      {small, "charts/sub%d.tgz", chartDependencies, ""},
		"many":            {small, "charts/sub%d.tgz", chartDependencies + 1, "the chart has more than 100 dependencies"},
		"large ones":      {large, "charts/sub%d.tgz", 14, "the unpacked chart with its dependencies is larger than 64 MiB"},
		"in a dependency": {large, "charts/a/charts/sub%d.tgz", 14, "the unpacked chart with its dependencies is larger than 64 MiB"},
		"other files":     {"?", "files/charts/sub%d.tgz", 2, ""},
		"no archives":     {"?", "charts/sub%d.tgz", 1, "not a chart archive"},
	} {
		t.Run(name, func(t *testing.T) {
			resources := files("app/Chart.yaml")
			if strings.Contains(row.folder, "/a/") {
				resources = append(resources, files("app/charts/a/Chart.yaml")...)
			}
			for i := range row.count {
				resources = append(resources, fleet.BundleResource{Name: "app/" + fmt.Sprintf(row.folder, i), Content: row.archive})
			}
			_, err := makeSource(Request{Resources: resources, Options: fleet.BundleDeploymentOptions{Helm: &fleet.HelmOptions{Chart: "app"}}})
			if row.says == "" {
				require.NoError(t, err)
				return
			}
			var refused *InvalidError
			require.ErrorAs(t, err, &refused)
			require.ErrorContains(t, err, row.says)
		})
	}
}

func TestComplete_documents(t *testing.T) {
	for name, row := range map[string]struct{ content, want string }{
		"several":          {"kind: A\n---\n# nothing\n---\nkind: B\n---\n", "A B"},
		"without a kind":   {"a: 1\n---\nkind: A\n", "A"},
		"a list":           {"kind: List\nitems: [{kind: A}, {kind: B}]\n", "A B"},
		"JSON":             {`{"kind":"A","text":"{{ .x }}"}`, "A"},
		"neither":          {"kind: A\n b: c\n", "a.yaml: yaml: line 2: mapping values are not allowed in this context"},
		"not an object":    {"[kind]", "a.yaml: json: cannot unmarshal array into Go value of type map[string]interface {}"},
		"of no known type": {"kind: [A]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := makeSource(Request{Name: "app", Resources: []fleet.BundleResource{{Name: "a.yaml", Content: row.content}}})
			require.NoError(t, err)
			objects, err := made.complete(nil)
			if err != nil {
				assert.EqualError(t, err, row.want)
				return
			}
			var kinds []string
			for _, o := range objects {
				kinds = append(kinds, o.GetKind())
			}
			assert.Equal(t, row.want, strings.Join(kinds, " "))
		})
	}
	made, err := makeSource(Request{Name: "app", Resources: files("Chart.yaml")})
	require.NoError(t, err)
	_, err = made.complete([]byte("a: 1"))
	assert.EqualError(t, err, "chart app renders a document without a kind")
	objects, err := made.complete([]byte("kind: A\nbig: 9007199254740993"))
	require.NoError(t, err)
	documents, err := encodeObjects(objects)
	require.NoError(t, err)
	assert.Equal(t, "---\nbig: 9007199254740993\nkind: A\n", documents.String(), "integers stay exact")
}

func TestOverlaid(t *testing.T) {
	for name, row := range map[string]struct {
		patch, want string
	}{
		"a strategic merge patch": {"spec: {containers: [{name: b, image: i}]}", `{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"image":"i","name":"b"},{"name":"a"}]}}`},
		"a JSON patch":            {"[{op: add, path: /x, value: 1}]", `{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"name":"a"}]},"x":1}`},
		"neither":                 {"[1", "yaml.overlays: applying overlays/dev/pod_patch.yaml to pod.yaml: yaml: line 1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Resources: []fleet.BundleResource{
				{Name: "pod.yaml", Content: "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a}]}"}, {Name: "overlays/dev/pod_patch.yaml", Content: row.patch},
			}}
			r.Options.YAML = &fleet.YAMLOptions{Overlays: []string{"dev"}}
			made, err := overlaid(r)
			if err != nil {
				assert.ErrorContains(t, err, row.want)
				return
			}
			assert.Equal(t, []fleet.BundleResource{{Name: "pod.yaml", Content: row.want}}, made)
		})
	}
	r := Request{Resources: files("overlays/dev/x_patch.yaml")}
	r.Options.YAML = &fleet.YAMLOptions{Overlays: []string{"dev"}}
	_, err := overlaid(r)
	assert.EqualError(t, err, "yaml.overlays: overlays/dev/x_patch.yaml changes x.yaml, which is not in the Bundle")
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
	assert.Equal(t, UninstallOptions{DeleteNamespace: true, ServiceAccount: "deployer"}, UninstallOptionsFrom(withoutRemoved(labels)))
	for _, value := range (Owner{Namespace: strings.Repeat("n", 63), Workspace: "w", ClusterName: strings.Repeat("c", 200)}).LabelsFor(strings.Repeat("b", 200), "id") {
		assert.LessOrEqual(t, len(value), 63)
	}
}

func TestNewest(t *testing.T) {
	assert.Equal(t, []Found{{Namespace: "a", Name: "x", Version: 3}, {Namespace: "b", Name: "x", Version: 1}}, Newest([]Found{
		{Namespace: "a", Name: "x", Version: 1}, {Namespace: "b", Name: "x", Version: 1}, {Namespace: "a", Name: "x", Version: 3}, {Namespace: "a", Name: "x", Version: 2},
	}))
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
	annotated := func(bundle, agent string) *helm.Release {
		return &helm.Release{Namespace: "apps", Name: "shop", Version: 4, Chart: &chart.Chart{Metadata: &chart.Metadata{
			Annotations: map[string]string{bundleAnnotation: bundle, agentAnnotation: agent},
		}}}
	}
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
		{name: "Fleet's own agent made it for the same", existing: annotated("app", "agents")},
		{name: "Fleet's own agent made it for another", existing: annotated("other", "agents"), refused: "another owner"},
		{name: "another agent made it", existing: annotated("app", "others"), refused: "another owner"},
		{name: "the record is no record", existing: unlabelled, recorded: "apps/shop", refused: "another owner"},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := checkReleaseOwner(Request{Namespace: "apps", Name: "shop", BundleDeployment: "app", ServiceAccountNamespace: "agents", Labels: owner.LabelsFor("app", "one"), Recorded: row.recorded}, row.existing, false)
			if row.refused == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, row.refused)
		})
	}
	anybodys := Request{}
	assert.NoError(t, checkReleaseOwner(anybodys, unlabelled, true), "who takes ownership is not refused")
}
